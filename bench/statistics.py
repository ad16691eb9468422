"""Time of one full window analysis: estimate, intervals, tests, assumption and accuracy.

    python -m bench.statistics

The limits are 2 ms for 10 labels, 20 ms for 100 and 400 ms for 1,000, on one core. Measured is
processor time, the least of 50 runs, so that other work on the machine counts little. The work that
depends on the reference only, from its rows on, is shown apart: it may take a second for 100 labels
and 20,000 rows, and its diagnosis alone 50 ms, or 3 s for 1,000 labels. The window's size must not
matter: everything works on sums.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from app.stats import analysis, diagnosis, moments, reference
from app.stats.moments import Floats, Sums

LIMITS = {10: 2.0, 100: 20.0, 1000: 400.0}
SETTINGS = [(10, 10_000), (100, 20_000), (1000, 20_000)]
# With a hundred labels the p-value of the smallest is resampled.
WINDOWS = [400, 1000, 20_000]
REPEATS = 50


def softmax_rows(k: int, labels: moments.Counts, rng: np.random.Generator) -> Floats:
    """Scores of a made-up classifier that is right about nine times in ten."""
    logits = rng.normal(size=(len(labels), k))
    logits[np.arange(len(labels)), labels] += 4.0 + 0.5 * np.log(k / 10.0)
    rows: Floats = np.exp(logits)
    rows /= rows.sum(axis=1, keepdims=True)
    return rows


def sample(k: int, n: int, rng: np.random.Generator) -> tuple[moments.Counts, Floats]:
    labels = rng.integers(k, size=n)
    return labels, softmax_rows(k, labels, rng)


def shifted(k: int, m: int, rng: np.random.Generator) -> Sums:
    q = rng.dirichlet(np.ones(k))
    rows = softmax_rows(k, rng.choice(k, size=m, p=q), rng)
    return moments.sums(k, moments.argmax(rows), rows)


def milliseconds(work: Callable[[], object], repeats: int = REPEATS) -> float:
    times = []
    for _ in range(repeats):
        start = time.process_time_ns()
        work()
        times.append((time.process_time_ns() - start) / 1e6)
    return min(times)


def main() -> None:
    rng = np.random.default_rng(0)
    windows(rng)
    diagnoses(rng)


def diagnoses(rng: np.random.Generator) -> None:
    print(f"\n{'k':>5} {'n':>8} {'diagnosis':>10} {'limit':>9}")
    for k, n, limit in ((100, 20_000, 50), (1000, 200_000, 3000), (1000, 10_000, 3000)):
        joint = np.eye(k) * 0.7 + 0.3 * rng.dirichlet(np.full(k, 0.1), size=k).T
        counts = rng.multinomial(n, (joint / k).ravel()).reshape(k, k)
        took = milliseconds(partial(diagnosis.diagnose, reference.Reference(counts)), repeats=3)
        print(f"{k:>5} {n:>8,} {took:>7.1f} ms {limit:>6,} ms")


def basis(k: int, labels: moments.Counts, rows: Floats, *, soft: bool) -> analysis.Basis:
    made = reference.from_sample(k, moments.argmax(rows), labels, rows if soft else None)
    return analysis.basis(made)


def windows(rng: np.random.Generator) -> None:
    print(f"{'k':>5} {'moments':>8} {'reference':>10} {'window':>8} {'analysis':>9} {'limit':>7}")
    for k, n in SETTINGS:
        labels, rows = sample(k, n, rng)
        for soft in (False, True):
            prepared = partial(basis, k, labels, rows, soft=soft)
            on, once = prepared(), milliseconds(prepared, repeats=1)
            for m in WINDOWS:
                window = shifted(k, m, rng)
                sums = window if soft else Sums(window.counts)
                analyse = partial(analysis.analyse, on, sums, seed=1)
                took = milliseconds(analyse, max(5, REPEATS * 10 // k))
                print(
                    f"{k:>5} {'soft' if soft else 'hard':>8} {once:>7,.0f} ms {m:>8,}"
                    f" {took:>6.2f} ms {LIMITS[k]:>4.0f} ms"
                )


if __name__ == "__main__":
    main()
