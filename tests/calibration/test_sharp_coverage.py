"""Coverage of the sharp estimate's interval on real outputs."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import pytest

from app.stats import mlls, moments, sharp
from app.stats.moments import Floats, SoftSums, Sums
from tests import fashion

EACH = tuple((label,) for label in range(fashion.LABELS))
UNIFORM = np.full(fashion.LABELS, 1.0 / fashion.LABELS)


def codes_only(rows: Floats) -> Sums:
    """A window with nothing but its codes, which is all that the sharp estimate reads."""
    none = moments.empty(fashion.LABELS, soft=True).soft
    assert none is not None
    codes, counts = np.unique(moments.row_codes(rows), return_counts=True)
    soft = SoftSums(none.prob, none.outer, none.cells, codes, counts, 0.0, 0.0, none.score_by_label)
    return Sums(np.bincount(rows.argmax(axis=1), minlength=fashion.LABELS), soft)


@dataclass(frozen=True, slots=True)
class Coverage:
    """How often the truth was in the interval, over all labels; and if only windows had noise."""

    full: float
    window_only: float
    width: float


def coverage(
    classifier: fashion.Classifier, n: int, ms: tuple[int, ...], references: int, seed: int
) -> dict[tuple[str, int], Coverage]:
    """References and windows drawn from the same pool, which thereby is the population."""
    rng = np.random.default_rng(seed)
    pool = fashion.outputs(classifier, "all")
    hits: dict[tuple[str, int], list[tuple[float, float, float]]] = defaultdict(list)
    for _ in range(references):
        on = sharp.prepare(mlls.code_table(*_drawn(pool, n, rng)), EACH)
        certain = sharp.Prepared(on.table, on.columns, on.A, on.n_j * 1e9, on.mix, on.worth)
        for kind in fashion.SHIFTS:
            for m in ms:
                q = fashion.shifted(kind, rng)
                sums = codes_only(fashion.draw(pool, q, m, rng).rows)
                covered, width = _covered(on, sums, q)
                hits[kind, m].append((covered, _covered(certain, sums, q)[0], width))
    return {at: Coverage(*np.mean(of, axis=0).tolist()) for at, of in hits.items()}


def _drawn(
    pool: fashion.Outputs, n: int, rng: np.random.Generator
) -> tuple[Floats, moments.Counts]:
    sample = fashion.draw(pool, UNIFORM, n, rng)
    return sample.rows, sample.labels


def _covered(on: sharp.Prepared, sums: Sums, q: Floats) -> tuple[float, float]:
    found = sharp.estimate(on, sums)
    assert found is not None
    lower, upper = found.intervals.lower, found.intervals.upper
    return float(np.mean((lower <= q) & (q <= upper))), float(np.mean(upper - lower))


# 200 references give ten intervals each for every shift and m; those of one window hang together,
# so the standard error of a mean coverage is about sqrt(.05 * .95 / 200 / 5) = .007.
NOISE = 2 * 0.007


@pytest.mark.slow
@pytest.mark.parametrize("classifier", ["good", "weak"])
def test_intervals_cover_with_a_reference_of_ten_thousand(classifier: fashion.Classifier) -> None:
    found = coverage(classifier, 10_000, (200, 500, 2000, 8000), references=200, seed=103)

    for at, of in found.items():
        assert 0.93 - NOISE <= of.full <= 0.98 + NOISE, at
    assert 0.94 <= np.mean([of.full for of in found.values()]) <= 0.96


@pytest.mark.slow
def test_intervals_cover_with_a_small_reference() -> None:
    found = coverage("weak", 1000, (200, 1000, 10_000), references=200, seed=104)

    for at, of in found.items():
        assert 0.93 - NOISE <= of.full <= 0.98 + NOISE, at
    # Control: the same intervals without the reference's noise, m ten times n.
    forgetful = np.mean([of.window_only for (_, m), of in found.items() if m == 10_000])
    assert forgetful < 0.85


@pytest.mark.slow
def test_with_a_small_reference_and_a_good_classifier_intervals_are_on_the_wide_side() -> None:
    found = coverage("good", 1000, (200, 1000, 10_000), references=200, seed=105)

    for (kind, m), of in found.items():
        # Calibration is right here and takes away noise that the interval keeps counting.
        most = 1.0 if kind in ("tweak .9", "dirichlet .1") and m > 200 else 0.98 + NOISE
        assert 0.93 - NOISE <= of.full <= most, (kind, m)
