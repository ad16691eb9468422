"""False alarms per model and month, through the real service with a simulated clock.

    python -m bench.false_alarms --months 200 --processes 2

Each model lives a month of panes of a minute in which nothing changes: its predictions are counted
by ingest, and the worker evaluates them, steps the detectors and the alarms and writes it all down,
a simulated day at a time. Beside it the rule that most monitors go by, on the same predictions: an
alarm when chi-square on the last hour has p < 0.05, once a minute, over when it has not.

With `--soft` the predictions come with softmax rows, which have a second detector watch them. With
`--shift` a label grows from .10 to .20 after half a day, and the delay is measured instead.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np

from app.storage import schema
from app.storage.db import Database
from app.storage.embedded import Embedded
from tests.calibration.months import (
    REFERENCE_SIZES,
    Month,
    quiet_month,
    quiet_soft_month,
    shifted_day,
)

KINDS = {"hard": quiet_month, "soft": quiet_soft_month, "shift": shifted_day}


@contextmanager
def database() -> Iterator[Database]:
    # Nothing here needs to outlive a crash; what is measured is not how fast a disk is.
    with (
        tempfile.TemporaryDirectory(prefix=".bench-", dir=".") as home,
        Embedded(Path(home).resolve() / "data") as embedded,
    ):
        own = Database(embedded.start().url)
        schema.upgrade(own)
        with own.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            conn.exec_driver_sql("ALTER SYSTEM SET fsync = off")
            conn.exec_driver_sql("ALTER SYSTEM SET synchronous_commit = off")
            conn.exec_driver_sql("SELECT pg_reload_conf()")
        yield own
        own.close()


def work(numbers: list[int], kind: str, results: "multiprocessing.Queue[Month]") -> None:
    with database() as own:
        for number in numbers:
            results.put(KINDS[kind](own, number))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--months", type=int, default=200)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--shift", dest="kind", action="store_const", const="shift")
    parser.add_argument("--soft", dest="kind", action="store_const", const="soft", default="hard")
    parser.add_argument("--out", type=Path, default=Path("bench/results/false_alarms.json"))
    options = parser.parse_args()
    results: multiprocessing.Queue[Month] = multiprocessing.Queue()
    shares = [list(range(options.months))[i :: options.processes] for i in range(options.processes)]
    family = [
        multiprocessing.Process(target=work, args=[share, options.kind, results])
        for share in shares
    ]
    for process in family:
        process.start()
    began = time.monotonic()
    months: list[Month] = []
    while len(months) < options.months:
        months.append(results.get())
        left = (time.monotonic() - began) / len(months) * (options.months - len(months))
        print(
            f"\r{len(months)} of {options.months}, {left / 60:.0f} min left ",
            end="",
            file=sys.stderr,
        )
    print(file=sys.stderr)
    for process in family:
        process.join()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps([asdict(month) for month in months]))
    (report_delays if options.kind == "shift" else report)(months)


def report(months: list[Month]) -> None:
    print("reference   months   false alarms per month: ours   p < 0.05 rule   budget")
    for n in (*REFERENCE_SIZES, None):
        some = [one for one in months if n in (None, one.n)]
        ours, other = (
            float(np.mean([getattr(one, name) for one in some])) for name in ("alarms", "rule")
        )
        print(f"{n or 'all':>9} {len(some):8d} {ours:29.3f} {other:15.1f} {1.0:8.1f}")


def report_delays(months: list[Month]) -> None:
    print("reference   streams   found   median delay in panes")
    for n in REFERENCE_SIZES:
        delays = [one.delay_panes for one in months if one.n == n]
        found = [delay for delay in delays if delay is not None]
        print(f"{n:9d} {len(delays):9d} {len(found):7d} {np.median(found):23.1f}")


if __name__ == "__main__":
    main()
