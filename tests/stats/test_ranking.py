"""The first two labels of softmax rows: both ways against sorting, with ties."""

from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from app.stats import ranking
from app.stats.moments import Floats
from app.stats.ranking import Ranks, by_column, by_row, ranks

# Few values, so that most rows have ties somewhere.
entries = st.sampled_from([0.0, 0.125, 0.25, 0.25 + 2**-54, 0.5, 1.0])
some_rows = st.tuples(st.integers(0, 40), st.integers(2, 6)).flatmap(
    lambda shape: arrays.arrays(np.float64, shape, elements=entries)
)


def by_sorting(rows: Floats) -> Ranks:
    """In the order of what they hold; of equals, in the order of their positions."""
    order = [sorted(range(len(row)), key=lambda place: (-row[place], place)) for row in rows]
    first, second = np.array([places[:2] for places in order], dtype=np.int64).reshape(-1, 2).T
    return Ranks(first, second, rows[np.arange(len(rows)), first])


def assert_equal(one: Ranks, other: Ranks) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


@given(some_rows)
@pytest.mark.parametrize("way", [by_column, by_row])
@pytest.mark.parametrize("order", ["C", "F"])
def test_both_ways_rank_as_sorting_does(
    way: Callable[[Floats], Ranks], order: Literal["C", "F"], rows: Floats
) -> None:
    assert_equal(way(np.array(rows, order=order)), by_sorting(rows))


@pytest.mark.parametrize("k", [2, 39, 40, 41, 255, 256, 300])
def test_any_number_of_labels_is_ranked(k: int) -> None:
    rows = np.random.default_rng([7, k]).dirichlet(np.ones(k), 50).round(3)
    # The last labels are the ones that a number which is too small would miss.
    rows[:10, -1], rows[:10, -2] = 1.0, 0.9

    found = ranks(rows)

    assert_equal(found, by_sorting(rows))
    assert found.first[:10].tolist() == [k - 1] * 10
    assert found.second[:10].tolist() == [k - 2] * 10


def test_more_rows_than_a_block_holds_are_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "BLOCK_CELLS", 50)
    rows = np.random.default_rng(8).dirichlet(np.ones(4), 101)

    assert_equal(by_row(rows), by_sorting(rows))


@pytest.mark.parametrize("k", [3, 50])
def test_a_row_that_is_not_one_has_some_label_and_spoils_no_other(k: int) -> None:
    rows = np.random.default_rng([9, k]).dirichlet(np.ones(k), 3)
    expected = by_sorting(rows[[0, 2]])
    rows[1, 1] = np.nan

    found = ranks(rows)

    assert_equal(found.of(np.array([0, 2])), expected)
    assert 0 <= found.first[1] < k
    assert 0 <= found.second[1] < k
