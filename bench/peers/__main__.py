"""Compare Shiftwatch's default estimate with other tools' on the same draws.

    make peers                                      all of it, after setting up QuaPy
    python -m bench.peers                           the same, once that is done
    python -m bench.peers --quick --out DIR         two references of each kind
    python -m bench.peers --alone --out DIR         without QuaPy
    python -m bench.peers --data DIR --out DIR      other copies of the classifiers' outputs

Prints tables and writes the numbers behind them to `numbers/`, beside this file unless told
otherwise. One pool gets twice as many references: its intervals are judged, which takes more.
"""

import argparse
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from tqdm import tqdm

from bench.paper.experiment import write
from bench.peers import asking, tables
from bench.peers.asking import Quapy
from bench.peers.measuring import Measured, measure
from bench.peers.settings import Setting, settings

HOME = Path(__file__).parent / "numbers"
ENVIRONMENT = Path(".venv-peers/bin/python")


def main() -> None:
    options = arguments()
    began = time.monotonic()
    with quapy(options) as other:
        measured = measured_all(list(settings(options.data)), options.references, other)
    print(tables.told(measured))
    write(options.out / "errors.csv", tables.error_rows(measured))
    write(options.out / "coverage.csv", tables.coverage_rows(measured))
    write(options.out / "labels.csv", tables.label_rows(measured))
    print(f"\n{time.monotonic() - began:.0f} s; numbers are in {options.out}")


def measured_all(chosen: Sequence[Setting], references: int, other: Quapy | None) -> list[Measured]:
    repeats = [references * (2 if setting.one_pool else 1) for setting in chosen]
    with tqdm(total=sum(repeats), unit="reference") as progress:
        return [
            measure(setting, repeat, other, progress.update)
            for setting, repeat in zip(chosen, repeats, strict=True)
        ]


def quapy(options: argparse.Namespace) -> AbstractContextManager[Quapy | None]:
    return nullcontext() if options.alone else asking.quapy(options.quapy)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--references", type=int, default=10, help="at least two (default: 10)")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--data", type=Path, help="a directory with fashion_mlp_{good,weak}.npz")
    parser.add_argument("--quapy", type=Path, default=ENVIRONMENT, help="the Python that has it")
    parser.add_argument("--out", type=Path, default=HOME)
    options = parser.parse_args()
    if options.quick:
        options.references = 2
    if options.references < 2:
        parser.error("--references must be at least 2, as errors are told from their differences")
    if options.out == HOME and (options.quick or options.alone or options.data):
        parser.error("name --out, lest this overwrite the numbers that docs/peers.md shows")
    if not options.alone and not options.quapy.exists():
        parser.error(f"no QuaPy at {options.quapy}: `make peers` sets it up, --alone does without")
    return options


if __name__ == "__main__":
    main()
