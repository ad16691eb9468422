"""Run the experiments, write their numbers and figures, and print what to remember.

    python -m bench.paper                     all of them
    python -m bench.paper --only power        one of them, or several
    python -m bench.paper --quick --out DIR   a smaller version, as in the tests
    python -m bench.paper --draw              figures and headlines anew from the numbers there are

Numbers go to `numbers/` and figures to `figures/`, beside this file unless told otherwise.
"""

import argparse
import multiprocessing
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from bench.paper import runner
from bench.paper.runner import EXPERIMENTS

HOME = Path(__file__).parent


def main() -> None:
    options = arguments()
    began = time.monotonic()
    chosen = [EXPERIMENTS[name] for name in options.only or EXPERIMENTS]
    if not options.draw:
        # Started afresh: a process that is copied with its threads may hang.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(options.processes, context) as pool:
            for one in chosen:
                runner.measure(one, pool, options.out, quick=options.quick)
    there = [one for one in chosen if runner.numbers(one, options.out).exists()]
    for one in there:
        runner.show(one, options.out)
    if not options.quick:
        print(runner.headlines(there, options.out))
    print(f"{time.monotonic() - began:.0f} s, {processor_seconds():.0f} s of processor time")


def processor_seconds() -> float:
    """What all processes have used together: unlike the clock, it does not count other work."""
    each = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in each)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.paper",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=EXPERIMENTS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HOME)
    options = parser.parse_args()
    if options.quick and options.out == HOME:
        parser.error("--quick needs --out, lest it overwrite the numbers that docs/paper.md shows")
    return options


if __name__ == "__main__":
    main()
