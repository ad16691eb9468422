"""False alarms per model and month, through the real service with a simulated clock.

    python -m bench.false_alarms --months 200 --processes 2

Each model lives a month of panes of a minute in which nothing changes: its predictions are counted
by ingest, and the worker evaluates them, steps the detectors and the alarms and writes it all down,
a simulated day at a time. Beside it the rule that most monitors go by, on the same predictions: an
alarm when chi-square on the last hour has p < 0.05, once a minute, over when it has not.

With `--shift` a label grows from .10 to .20 after half a day, and the delay is measured instead.
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
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
from scipy.special import chdtrc

from app.domain.alarm import Alarm, AlarmKind
from app.stats.moments import Counts, Floats
from app.stats.reference import Reference
from app.storage import alarms, models, schema
from app.storage.db import Database
from app.storage.embedded import Embedded
from tests.calibration.streams import confusion, grown
from tests.evaluate.simulation import Life, life

DAY_PANES = 1440
MONTH_DAYS = 30
WINDOW_PANES = 60
CALIBRATION_PANES = 200
PER_PANE = 20
REFERENCE_SIZES = (1_000, 10_000)


@dataclass(frozen=True, slots=True)
class Month:
    """What one model's month brought: alarms of ours, and of the rule with a fixed p-value."""

    n: int
    alarms: int
    rule: int
    delay_panes: float | None = None


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


def quiet_month(own: Database, number: int) -> Month:
    rng = np.random.default_rng([20261118, number])
    joint = confusion()
    n = REFERENCE_SIZES[number % len(REFERENCE_SIZES)]
    reference = Reference(rng.multinomial(n, joint.ravel()).reshape(joint.shape))
    model = life(own, reference, f"quiet-{number}")
    days = []
    for _ in range(MONTH_DAYS):
        days.append(rng.multinomial(PER_PANE, joint.sum(axis=1), size=DAY_PANES))
        model.live(days[-1])
    found = raised(own, model)
    forget(own, model)
    return Month(n, len(found), rule(reference, np.concatenate(days)))


def shifted_day(own: Database, number: int) -> Month:
    """Half a day of quiet, then label after label in turn at .20 instead of .10."""
    rng = np.random.default_rng([7, number])
    joint = confusion()
    nu = joint.sum(axis=0)
    n = REFERENCE_SIZES[number % len(REFERENCE_SIZES)]
    reference = Reference(rng.multinomial(n, joint.ravel()).reshape(joint.shape))
    model = life(own, reference, f"shifted-{number}")
    model.live(rng.multinomial(PER_PANE, joint.sum(axis=1), size=DAY_PANES // 2))
    began = model.now
    mix = (joint / nu) @ grown(nu, number // 2 % len(nu), 0.1)
    while model.now < began + timedelta(hours=12) and not raised(own, model):
        model.live(rng.multinomial(PER_PANE, mix, size=1))
    found = raised(own, model)
    forget(own, model)
    fired = found[-1].fired_at if found else None
    delay = None if fired is None else (fired - began) / timedelta(minutes=1)
    return Month(n, len(found), 0, delay)


def raised(own: Database, model: Life) -> list[Alarm]:
    """Alarms that were told of, newest first; those about missing predictions aside."""
    with own.begin() as conn:
        found = [one.alarm for one in alarms.page(conn, model_name=model.name, limit=1000)]
    kinds = (AlarmKind.SHIFT, AlarmKind.ASSUMPTION)
    return [one for one in found if one.kind in kinds and one.fired_at is not None]


def forget(own: Database, model: Life) -> None:
    with own.begin() as conn:
        models.forget(conn, model.name)


def rule(reference: Reference, panes: Counts) -> int:
    """How often p falls below 0.05 in a month, looking once a minute from the first hour on."""
    sums = np.cumsum(np.vstack([np.zeros_like(panes[:1]), panes]), axis=0)
    window = (sums[WINDOW_PANES:] - sums[:-WINDOW_PANES]).astype(np.float64)
    low = chi_square(reference.predicted.astype(np.float64), window) < 0.05
    return int((low[1:] & ~low[:-1]).sum() + low[0])


def chi_square(r: Floats, c: Floats) -> Floats:
    n, m = r.sum(), c.sum(axis=1)
    gap = (r / n - c / m[:, None]) ** 2 / (r + c)
    return np.asarray(chdtrc(len(r) - 1, n * m * gap.sum(axis=1)))


def work(numbers: list[int], shift: bool, results: "multiprocessing.Queue[Month]") -> None:
    with database() as own:
        for number in numbers:
            results.put((shifted_day if shift else quiet_month)(own, number))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--months", type=int, default=200)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--shift", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("bench/results/false_alarms.json"))
    options = parser.parse_args()
    results: multiprocessing.Queue[Month] = multiprocessing.Queue()
    shares = [list(range(options.months))[i :: options.processes] for i in range(options.processes)]
    family = [
        multiprocessing.Process(target=work, args=[share, options.shift, results])
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
    (report_delays if options.shift else report)(months)


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
