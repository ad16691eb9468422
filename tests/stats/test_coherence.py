from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.stats import moments
from app.stats.coherence import incoherence
from app.stats.moments import CONFIDENCE_BINS, Floats, SoftSums, Sums

SEED = 20261118


def rows_of(k: int, n: int, concentration: float) -> Floats:
    """Softmax rows, with a certain one and a tie among them."""
    rows = np.random.default_rng([SEED, k, n]).dirichlet(np.full(k, concentration), n)
    rows[0] = np.eye(k)[k - 1]
    rows[-1] = 1 / k
    return rows


def of(k: int, n: int, concentration: float = 0.5) -> Sums:
    """The sums of rows, of which every third was predicted to be another label than its argmax."""
    rows = rows_of(k, n, concentration)
    predicted = np.where(np.arange(n) % 3, moments.argmax(rows), 0)
    return moments.sums(k, predicted, rows)


@pytest.mark.parametrize("concentration", [0.01, 0.5, 5.0])
@pytest.mark.parametrize("n", [1, 2, 500])
@pytest.mark.parametrize("k", [2, 3, 64, 65, 200])
def test_the_sums_of_softmax_rows_are_coherent(k: int, n: int, concentration: float) -> None:
    assert incoherence(of(k, n, concentration)) is None


def test_sums_of_many_sums_are_coherent() -> None:
    assert incoherence(moments.total([of(5, n) for n in range(1, 200)])) is None


def test_the_sums_of_nothing_and_of_labels_alone_are_coherent() -> None:
    assert incoherence(moments.empty(3, soft=True)) is None
    assert incoherence(Sums(np.array([1, 2, 3]))) is None


GOOD = of(3, 60)
assert GOOD.soft is not None
SOFT: SoftSums = GOOD.soft
CELLS = SOFT.cells.reshape(3, CONFIDENCE_BINS)


def moved(amount: float, *to: int) -> Any:
    """As much more of the first as there is less of the last."""
    change = np.zeros(len(SOFT.outer))
    change[list(to)] = amount
    return change


def swapped_bins() -> Any:
    """Rows below one half counted as rows above it."""
    cells = CELLS.copy()
    cells[0] = cells[0][::-1]
    return cells.ravel()


@pytest.mark.parametrize(
    ("field", "word", "changes"),
    [
        ("labels", "cells", {"cells": SOFT.cells + 1}),
        ("codes", "by their largest", {"cells": np.roll(CELLS, 1, axis=0).ravel()}),
        ("codes", "below", {"cells": swapped_bins()}),
        ("labels", "negative", {"prob": SOFT.prob - [SOFT.prob[0] + 1, -SOFT.prob[0] - 1, 0]}),
        ("labels", "add up", {"prob": SOFT.prob * 1.00001}),
        ("labels", "add up", {"prob": SOFT.prob * np.nan}),
        ("outer", "negative", {"outer": -SOFT.outer}),
        ("outer", "squares", {"outer": SOFT.outer + moved(60.0, 0)}),
        ("outer", "squares", {"outer": SOFT.outer * 0}),
        ("outer", "squares", {"outer": SOFT.outer * np.nan}),
        ("outer", "rows", {"outer": SOFT.outer + moved(0.1, 1)}),
        ("labels", "`score`", {"score_by_label": np.roll(GOOD.counts, 1).astype(float)}),
        ("score", "labels", {"score": SOFT.score + 0.1}),
        (
            "score",
            "cells",
            {"score": float(GOOD.n), "score_by_label": GOOD.counts.astype(float)},
        ),
        ("score_squared", "score", {"score_squared": SOFT.score + 0.1}),
        ("score_squared", "score", {"score_squared": SOFT.score**2 / GOOD.n - 0.1}),
        ("score_squared", "score", {"score_squared": float("nan")}),
    ],
)
def test_what_no_rows_can_have_as_sums_is_found(
    field: str, word: str, changes: dict[str, Any]
) -> None:
    found = incoherence(Sums(GOOD.counts, replace(SOFT, **changes)))

    assert found is not None
    assert found.field == field
    assert word in found.detail


def test_rows_above_the_highest_common_edge_are_compared() -> None:
    cells = CELLS.copy()
    # From the bin of 0.9 to 0.95 into the next.
    label = int(np.argmax(cells[:, 7]))
    cells[label, 7] -= 1
    cells[label, 8] += 1

    found = incoherence(Sums(GOOD.counts, replace(SOFT, cells=cells.ravel())))

    assert cells.min() >= 0
    assert found is not None
    assert (found.field, "from 0.95" in found.detail) == ("codes", True)


def test_squares_of_no_rows_at_all_are_found_though_their_rows_add_up() -> None:
    # Two labels that are never sure, with products as if they were sure and never together with
    # the third, which is left with more than it can have.
    prob = np.array([1.0, 1.0, 1.0])
    matrix = np.array([[0.34, 0.66, 0.0], [0.66, 0.34, 0.0], [0.0, 0.0, 1.0]])
    rows = np.full((3, 3), 1 / 3)
    plain = moments.sums(3, np.arange(3), rows)
    assert plain.soft is not None
    assert prob.tolist() == pytest.approx(plain.soft.prob.tolist())

    found = incoherence(Sums(plain.counts, replace(plain.soft, outer=matrix[np.triu_indices(3)])))

    assert found is not None
    assert (found.field, "no sum of products" in found.detail) == ("outer", True)
