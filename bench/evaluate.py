"""What an evaluation costs in the worker, and how many models one worker keeps current.

    python -m bench.evaluate                        everything below
    python -m bench.evaluate labels panes           some parts: how the cost grows with each
    python -m bench.evaluate --models 1000          a fleet with one pane a minute each, on one core

The parts are `labels`, `panes` in the window, `windows` of a model, `models` that are due together,
and `predictions` in a pane, whose number must not matter. Prints a table, writes
bench/results/evaluate.json. The clock is simulated; fsync is on.

The limits: one model with 10 labels, three windows and 1,440 panes of history in 25 ms, of which
8 ms statistics; 1,000 models in a minute of one core, database included; 1,000 labels in 2 s.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from app.domain import watch
from app.domain.window import Window, WindowKind
from app.evaluate import due
from app.evaluate.due import Worker
from app.stats import analysis, moments
from app.stats.moments import Sums
from app.stats.reference import Reference
from app.storage import detectors, models, schema
from app.storage.db import Database
from app.storage.embedded import Embedded
from bench.sequential import soft_reference
from tests.evaluate.simulation import Life, life

HOUR = timedelta(hours=1)
WINDOWS = (
    Window("1h", WindowKind.SLIDING, length=HOUR),
    Window("24h", WindowKind.SLIDING, length=24 * HOUR),
    Window("last-5000", WindowKind.LAST, count=5000),
)
ADAPTIVE = (*WINDOWS, Window("adaptive", WindowKind.ADAPTIVE))
POOL = 512


@dataclass(slots=True)
class Stopwatch:
    """Processor time spent in some functions."""

    seconds: float = 0.0

    def timing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **named: Any) -> Any:
            began = time.process_time()
            try:
                return call(*given, **named)
            finally:
                self.seconds += time.process_time() - began

        return timed


@contextmanager
def database() -> Iterator[Database]:
    with (
        tempfile.TemporaryDirectory(prefix=".bench-", dir=".") as home,
        Embedded(Path(home).resolve() / "data") as embedded,
    ):
        own = Database(embedded.start().url)
        schema.upgrade(own)
        yield own
        own.close()


def panes(k: int, per_pane: int, rng: np.random.Generator) -> list[Sums]:
    """Panes of softmax rows to draw from; large ones are small ones scaled up."""
    small = min(per_pane, 20)
    actual = rng.integers(0, k, POOL * small)
    logits = rng.normal(size=(len(actual), k))
    logits[np.arange(len(actual)), actual] += 2.0 + 0.5 * np.log(k)
    rows = np.exp(2.0 * logits)
    rows /= rows.sum(axis=1, keepdims=True)
    parts = (rows[i * small : (i + 1) * small] for i in range(POOL))
    return [scaled(moments.sums(k, moments.argmax(p), p), per_pane // small) for p in parts]


def scaled(sums: Sums, factor: int) -> Sums:
    return moments.total([sums] * factor) if factor > 1 else sums


@dataclass(frozen=True, slots=True)
class Case:
    """A model to be evaluated; `hours` of panes of a minute are there before."""

    part: str
    k: int = 10
    soft: bool = True
    hours: int = 24
    windows: tuple[Window, ...] = WINDOWS
    per_pane: int = 20
    models: int = 1


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians of one evaluation in milliseconds, and whether the detectors had called by then:
    after that an evaluation also looks at all panes since the onset."""

    wall: float
    processor: float
    statistics: float
    evaluations: int
    called: bool


def cases() -> list[Case]:
    kinds = (False, True)
    labels = [
        Case("labels", k, soft, hours=6) for k in (2, 10, 50, 100, 300, 1000) for soft in kinds
    ]
    panes = [
        Case("panes", soft=soft, hours=hours, windows=(sliding(hours),))
        for hours in (1, 24, 168)
        for soft in kinds
    ]
    windows = [
        Case("windows", soft=soft, windows=tuple(sliding(1 + i) for i in range(count)))
        for count in (1, 2, 5, 10)
        for soft in kinds
    ]
    windows += [Case("windows", windows=ADAPTIVE)]
    models = [Case("models", hours=1, windows=WINDOWS[:2], models=size) for size in (1, 10, 100)]
    predictions = [
        Case("predictions", soft=soft, per_pane=per_pane)
        for soft in kinds
        for per_pane in (20, 2_000, 200_000)
    ]
    return labels + panes + windows + models + predictions


def sliding(hours: int) -> Window:
    return Window(f"{hours}h", WindowKind.SLIDING, length=hours * HOUR)


def reference_of(case: Case, rng: np.random.Generator) -> Reference:
    # As many records as a team would label: for a thousand labels that is twenty of each.
    found = soft_reference(case.k, min(200, 20_000 // case.k), rng)
    return found if case.soft else Reference(found.counts)


def pool_of(case: Case, rng: np.random.Generator) -> list[Sums]:
    found = panes(case.k, case.per_pane, rng)
    return found if case.soft else [Sums(one.counts) for one in found]


def measure(own: Database, case: Case) -> Cost:
    rng = np.random.default_rng(1)
    name = f"bench-{case.part}"
    model = life(own, reference_of(case, rng), name, windows=case.windows)
    pool = pool_of(case, rng)
    for _ in range(case.hours):
        advance(model, [pool[i] for i in rng.integers(0, POOL, 60)])
    taken: list[tuple[float, float, float]] = []
    end = time.perf_counter() + MOST_SECONDS
    while len(taken) < LEAST_EVALUATIONS or (
        len(taken) < MOST_EVALUATIONS and time.perf_counter() < end
    ):
        start = model.now
        model.now += model.pane
        model.count([(start, pool[rng.integers(0, POOL)])])
        taken.append(timed(lambda: model.worker.evaluate_next(model.now)))
    with own.begin() as conn:
        watched = detectors.find(conn, model.model.id, model.version)
        models.forget(conn, name)
    wall, processor, statistics = (1e3 * np.median(taken, axis=0)).tolist()
    called = watched is not None and watched.shifted is not None
    return Cost(wall, processor, statistics, len(taken), called)


def timed(call: Callable[[], object]) -> tuple[float, float, float]:
    """Seconds of wall, processor and statistics."""
    before = WATCH.seconds
    began, began_cpu = time.perf_counter(), time.process_time()
    call()
    wall, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    return wall, cpu, WATCH.seconds - before


def advance(model: Life, some: list[Sums]) -> None:
    start = model.now
    model.now += len(some) * model.pane
    model.count((start + i * model.pane, sums) for i, sums in enumerate(some))
    model.evaluate()


def fleet(own: Database, size: int, minutes: int) -> Iterator[tuple[int, float, float, float]]:
    """Every model gets a pane of 20 softmax rows each minute; how long until all are current?

    The number of evaluations and the seconds that they took, for each minute.
    """
    rng = np.random.default_rng(1)
    reference = soft_reference(10, 200, rng)
    pool = panes(10, 20, rng)
    worker = Worker(own, "http://localhost")
    lives = []
    for number in tqdm(range(size), desc="setting up", leave=False, file=sys.stderr):
        one = life(own, reference, f"model-{number}", windows=WINDOWS[:2])
        one.worker = worker
        lives.append(one)
        start = one.now
        one.now += 60 * one.pane
        one.count((start + i * one.pane, pool[rng.integers(0, POOL)]) for i in range(60))
    lives[0].evaluate()
    for _ in range(minutes):
        for one in lives:
            start = one.now
            one.now += one.pane
            one.count([(start, pool[rng.integers(0, POOL)])])
        evaluations = 0

        def catch_up() -> None:
            nonlocal evaluations
            # What came in, then the second look that each model gets a second later.
            for moment in (lives[0].now, lives[0].now + timedelta(seconds=2)):
                while worker.evaluate_next(moment):
                    evaluations += 1

        taken = timed(catch_up)
        yield evaluations, *taken
    with own.begin() as conn:
        for one in lives:
            models.forget(conn, one.name)


def measure_fleet(own: Database, case: Case) -> Cost:
    """Of one evaluation, when as many models are due together."""
    *_, (evaluations, *taken) = fleet(own, case.models, FLEET_MINUTES)
    wall, processor, statistics = (1e3 * one / evaluations for one in taken)
    return Cost(wall, processor, statistics, evaluations, called=False)


def print_fleet(own: Database, size: int, minutes: int) -> None:
    print("minute   evaluations   seconds (wall)   of a minute")
    for minute, (evaluations, took, _, _) in enumerate(fleet(own, size, minutes)):
        print(f"{minute:6d} {evaluations:13d} {took:16.1f} {took / 60:12.0%}", flush=True)


WATCH = Stopwatch()
LEAST_EVALUATIONS, MOST_EVALUATIONS = 8, 40
MOST_SECONDS = 6.0
FLEET_MINUTES = 3
HEADER = (
    f"{'part':12} {'k':>5} {'kind':>4} {'history':>8} {'windows':>7} {'per pane':>8} {'models':>6} "
    f"{'wall':>8} {'processor':>9} {'statistics':>10}"
)


def row(case: Case, cost: Cost) -> str:
    return (
        f"{case.part:12} {case.k:5d} {'soft' if case.soft else 'hard':>4} {60 * case.hours:8d} "
        f"{len(case.windows):7d} {case.per_pane:8d} {case.models:6d} "
        f"{cost.wall:8.1f} {cost.processor:9.1f} {cost.statistics:10.1f}"
        + ("  (called)" if cost.called else "")
    )


def measured(own: Database, parts: list[str]) -> list[tuple[Case, Cost]]:
    found = []
    print("median milliseconds of one evaluation")
    print(HEADER)
    wanted = [case for case in cases() if case.part in parts]
    with tqdm(wanted, file=sys.stderr) as bar:
        for case in bar:
            bar.set_description(f"{case.part} k={case.k}")
            cost = (measure_fleet if case.part == "models" else measure)(own, case)
            found.append((case, cost))
            bar.write(row(case, cost), file=sys.stdout)
    return found


def main() -> None:
    parts = list(dict.fromkeys(case.part for case in cases()))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(parts))
    parser.add_argument("--models", type=int, help="a fleet of this size instead")
    parser.add_argument("--minutes", type=int, default=3)
    options = parser.parse_args()
    unknown = set(options.parts).difference(parts)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    if options.models:
        # The worker and its database on one core: PostgreSQL inherits it.
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        with database() as own:
            print_fleet(own, options.models, options.minutes)
        return
    analysis.analyse = WATCH.timing(analysis.analyse)
    due.advance = WATCH.timing(watch.advance)  # type: ignore[attr-defined]
    with database() as own:
        found = measured(own, options.parts or parts)
    place = Path("bench/results/evaluate.json")
    place.parent.mkdir(exist_ok=True)
    place.write_text(
        json.dumps([asdict(case) | asdict(cost) for case, cost in found], default=str, indent=1)
    )


if __name__ == "__main__":
    main()
