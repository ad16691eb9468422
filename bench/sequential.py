"""What one step of each detector costs.

    python -m bench.sequential

The limit is 0.3 ms for a step of the shift detector with 10 labels, on one core. Processor time is
measured, so that other work on the machine does not count. How many predictions a pane holds must
not matter, only the number of labels.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import json
import time
from collections.abc import Callable

import numpy as np

from app.stats import (
    adaptive,
    assumption_monitor,
    sequential,
    shift_detector,
    worst_case,
)
from app.stats import reference as references
from app.stats.moments import Sums
from app.stats.reference import Reference
from tests.calibration import answers

ARL = 43_200.0


def soft_reference(k: int, per_label: int, rng: np.random.Generator) -> Reference:
    """A reference of a classifier that is right about four times in five."""
    actual = np.repeat(np.arange(k), per_label)
    logits = rng.normal(size=(len(actual), k))
    logits[np.arange(len(actual)), actual] += 2.0 + 0.5 * np.log(k)
    rows = np.exp(2.0 * logits)
    rows /= rows.sum(axis=1, keepdims=True)
    return references.from_sample(k, rows.argmax(axis=1), actual, rows)


def milliseconds(call: Callable[[], object], repeat: int) -> float:
    """The median time of one call."""
    call()
    taken = []
    for _ in range(repeat):
        began = time.process_time()
        call()
        taken.append(time.process_time() - began)
    return float(1e3 * np.median(taken))


def measure(k: int, per_pane: int, rng: np.random.Generator) -> None:
    reference = soft_reference(k, 100, rng)
    counts = rng.multinomial(per_pane, reference.predicted / reference.n)
    shift = shift_detector.prepare(reference, ARL)
    worst = worst_case.prepare(reference, ARL)
    monitor = assumption_monitor.prepare(reference, ARL)
    assert monitor is not None
    state, calm = shift_detector.start(shift), worst_case.start(worst)
    quiet = assumption_monitor.start(monitor)
    repeat = 400 if k <= 10 else 40
    times = [
        milliseconds(lambda: shift_detector.step(shift, state, counts), repeat),
        milliseconds(lambda: worst_case.step(worst, calm, counts), repeat),
        milliseconds(
            lambda: assumption_monitor.step(monitor, quiet, counts, 0.8 * per_pane), repeat
        ),
        milliseconds(lambda: json.dumps(sequential.to_json(state)), repeat),
        milliseconds(lambda: shift_detector.prepare(reference, ARL), 5),
        milliseconds(lambda: worst_case.prepare(reference, ARL), 5),
        milliseconds(lambda: assumption_monitor.prepare(reference, ARL), 5),
    ]
    print(f"{k:5d} {per_pane:9d} " + " ".join(f"{value:9.3f}" for value in times))


def measure_adaptive(k: int, panes: int, rng: np.random.Generator) -> None:
    made = Reference(soft_reference(k, 100_000 // k, rng).counts)
    prepared = answers.hard(made)
    history = [Sums(c) for c in rng.multinomial(20, made.predicted / made.n, size=panes)]
    taken = milliseconds(lambda: adaptive.choose(prepared, history), 20)
    print(f"{k:5d} {panes:9d} {taken:9.3f}")


def main() -> None:
    rng = np.random.default_rng(1)
    print("milliseconds: one step of each detector, a state as JSON, and preparation (once)")
    print(" k    per pane     shift     worst   monitor      json   prepare:F1   F2        F3")
    for k in (2, 10, 100):
        for per_pane in (20, 2_000, 2_000_000):
            measure(k, per_pane, rng)
    print("milliseconds: the adaptive window over a history of panes")
    print(" k       panes    choose")
    for k in (10, 100):
        measure_adaptive(k, 1_024, rng)


if __name__ == "__main__":
    main()
