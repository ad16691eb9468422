"""What an evaluation costs in the worker, and how many models one worker keeps current.

    python -m bench.evaluate                 one model: labels, predictions per pane, window kinds
    python -m bench.evaluate --models 1000   a fleet with one pane a minute each, on one core

The limits: one model with 10 labels, three windows and 1,440 panes of history in 25 ms, of which
8 ms statistics; 1,000 models in a minute of one core, database included. How many predictions a
pane holds must not matter. The clock is simulated; fsync is on.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from app.domain import watch
from app.domain.window import Window, WindowKind
from app.evaluate import due
from app.evaluate.due import Worker
from app.stats import analysis, moments
from app.stats.moments import Sums
from app.storage import models, schema
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


def measure(own: Database, k: int, per_pane: int, windows: tuple[Window, ...]) -> None:
    rng = np.random.default_rng(1)
    name = f"bench-{k}-{per_pane}-{len(windows)}"
    model = life(own, soft_reference(k, 200, rng), name, windows=windows)
    pool = panes(k, per_pane, rng)
    for _ in range(24):
        advance(model, [pool[i] for i in rng.integers(0, POOL, 60)])
    wall, cpu, statistics = [], [], []
    for _ in range(40):
        start = model.now
        model.now += model.pane
        model.count([(start, pool[rng.integers(0, POOL)])])
        statistics_before = WATCH.seconds
        began, began_cpu = time.perf_counter(), time.process_time()
        model.worker.evaluate_next(model.now)
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - began_cpu)
        statistics.append(WATCH.seconds - statistics_before)
    medians = [1e3 * float(np.median(some)) for some in (wall, cpu, statistics)]
    print(f"{k:6d} {per_pane:9d} {len(windows):8d} " + " ".join(f"{one:10.1f}" for one in medians))
    with own.begin() as conn:
        models.forget(conn, name)


def advance(model: Life, some: list[Sums]) -> None:
    start = model.now
    model.now += len(some) * model.pane
    model.count((start + i * model.pane, sums) for i, sums in enumerate(some))
    model.evaluate()


def fleet(own: Database, size: int, minutes: int) -> None:
    """Every model gets a pane of 20 softmax rows each minute; how long until all are current?"""
    rng = np.random.default_rng(1)
    reference = soft_reference(10, 200, rng)
    pool = panes(10, 20, rng)
    worker = Worker(own, "http://localhost")
    lives = []
    for number in range(size):
        one = life(own, reference, f"model-{number}", windows=WINDOWS[:2])
        one.worker = worker
        lives.append(one)
        start = one.now
        one.now += 60 * one.pane
        one.count((start + i * one.pane, pool[rng.integers(0, POOL)]) for i in range(60))
        if number % 100 == 99:
            print(f"set up {number + 1} of {size}", flush=True)
    lives[0].evaluate()
    print("minute   evaluations   seconds (wall)   of a minute")
    for minute in range(minutes):
        for one in lives:
            start = one.now
            one.now += one.pane
            one.count([(start, pool[rng.integers(0, POOL)])])
        began, evaluations = time.perf_counter(), 0
        # What came in, then the second look that each model gets a second later.
        for moment in (lives[0].now, lives[0].now + timedelta(seconds=2)):
            while worker.evaluate_next(moment):
                evaluations += 1
        took = time.perf_counter() - began
        print(f"{minute:6d} {evaluations:13d} {took:16.1f} {took / 60:12.0%}")


WATCH = Stopwatch()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int)
    parser.add_argument("--minutes", type=int, default=3)
    options = parser.parse_args()
    if options.models:
        # The worker and its database on one core: PostgreSQL inherits it.
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    else:
        analysis.analyse = WATCH.timing(analysis.analyse)
        due.advance = WATCH.timing(watch.advance)  # type: ignore[attr-defined]
    with database() as own:
        if options.models:
            fleet(own, options.models, options.minutes)
            return
        print("median milliseconds of one evaluation, 1,440 panes of history")
        print("     k  per pane  windows       wall  processor statistics")
        for per_pane in (20, 2_000, 200_000):
            measure(own, 10, per_pane, WINDOWS)
        measure(own, 10, 20, ADAPTIVE)
        for k in (2, 100):
            measure(own, k, 20, WINDOWS)


if __name__ == "__main__":
    main()
