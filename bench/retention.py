"""How large the tables are after months, when what is too old is forgotten.

    python -m bench.retention --days 120     prints a table every ten days, writes
                                             bench/results/retention.json

Every pane is counted, evaluated and told of by the code of the service, and every day ends with
pruning, with the default periods; only the clock is simulated. Sizes are in kB with indexes. A
table has levelled off when its column stops growing; blocks (`rollup`) are kept for 400 days.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

from app.config import Settings
from bench.evaluate import database
from tests.retention import Fleet

EVERY_DAYS = 10
SHOWN = ("batch", "prediction", "pane", "rollup", "evaluation", "delivery", "alarm", "late")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=120)
    parser.add_argument("--models", type=int, default=2)
    parser.add_argument("--pane-minutes", type=int, default=30)
    parser.add_argument("--together", type=int, default=1, help="panes evaluated together")
    parser.add_argument("--out", type=Path, default=Path("bench/results/retention.json"))
    options = parser.parse_args()
    pane = timedelta(minutes=options.pane_minutes)
    with database() as own:
        fleet = Fleet(own, Settings(), pane, options.models, options.together)
        print("    day    total " + " ".join(f"{table:>10}" for table in SHOWN) + "   seconds")
        found = [measured(fleet, day) for day in range(0, options.days, EVERY_DAYS)]
        gone = Counter(one.partition for one in fleet.purged if one.partition)
    print(f"{sum(gone.values())} partitions were dropped")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1))
    print(f"wrote {options.out}")


def measured(fleet: Fleet, day: int) -> dict[str, object]:
    """Ten more days, and how large the tables are after them."""
    began = time.perf_counter()
    fleet.live(EVERY_DAYS)
    sizes = fleet.sizes()
    total = sum(nbytes for _, nbytes in sizes.values())
    kilobytes = " ".join(f"{sizes[table][1] // 1024:>10}" for table in SHOWN)
    seconds = time.perf_counter() - began
    print(f"{day + EVERY_DAYS:7d} {total // 1024:8d} {kilobytes} {seconds:9.0f}", flush=True)
    return {
        "day": day + EVERY_DAYS,
        "bytes": total,
        "tables": {table: {"rows": rows, "bytes": n} for table, (rows, n) in sizes.items()},
    }


if __name__ == "__main__":
    main()
