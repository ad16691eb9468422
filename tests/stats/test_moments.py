from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from app.stats import moments
from app.stats.moments import CONFIDENCE_BINS, Counts, Floats, SoftSums, Sums


@st.composite
def softmax(draw: st.DrawFn, most: int = 40) -> Floats:
    k = draw(st.integers(2, 6))
    n = draw(st.integers(1, most))
    weights = draw(arrays(np.float64, (n, k), elements=st.floats(0.01, 1.0)))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def soft(sums: Sums) -> SoftSums:
    assert sums.soft is not None
    return sums.soft


def of(rows: Floats) -> Sums:
    return moments.sums(rows.shape[1], moments.argmax(rows), rows)


def assert_same(one: Sums, other: Sums) -> None:
    """Counts to the last one, sums to the last bits."""
    np.testing.assert_array_equal(one.counts, other.counts)
    for name in ("cells", "codes", "code_counts"):
        np.testing.assert_array_equal(getattr(soft(one), name), getattr(soft(other), name))
    for name in ("prob", "outer", "score", "score_squared", "score_by_label"):
        np.testing.assert_allclose(
            getattr(soft(one), name), getattr(soft(other), name), rtol=1e-12, atol=1e-12
        )


@given(softmax())
def test_sums_do_not_depend_on_order_or_grouping(rows: Floats) -> None:
    order = np.random.default_rng(len(rows)).permutation(len(rows))
    cuts = sorted({0, len(rows) // 3, len(rows) // 2, len(rows)})
    parts = [of(rows[order[a:b]]) for a, b in pairwise(cuts) if b > a]

    assert_same(moments.total(parts), of(rows))
    assert_same(moments.total(parts[::-1]), of(rows))


@given(softmax())
def test_grouped_sums_are_the_sums_of_the_groups(rows: Floats) -> None:
    k = rows.shape[1]
    group: Counts = np.arange(len(rows)) % 3

    found = moments.sums_by_group(k, moments.argmax(rows), rows, group, 3)

    for number, sums in enumerate(found):
        assert_same(sums, of(rows[group == number]))


@given(softmax())
def test_relabelling_permutes_the_sums(rows: Floats) -> None:
    k = rows.shape[1]
    order = np.random.default_rng(k).permutation(k)
    distinct = rows[np.ptp(np.sort(rows, axis=1)[:, -2:], axis=1) > 1e-9]
    if not len(distinct):
        return

    plain, permuted = of(distinct), of(distinct[:, order])

    np.testing.assert_array_equal(permuted.counts, plain.counts[order])
    np.testing.assert_allclose(soft(permuted).prob, soft(plain).prob[order])
    np.testing.assert_array_equal(
        soft(permuted).cells.reshape(k, CONFIDENCE_BINS),
        soft(plain).cells.reshape(k, CONFIDENCE_BINS)[order],
    )
    np.testing.assert_allclose(
        moments.outer_matrix(k, soft(permuted).outer),
        moments.outer_matrix(k, soft(plain).outer)[np.ix_(order, order)],
    )


@given(st.lists(st.integers(0, 4), min_size=1, max_size=50))
def test_one_hot_rows_say_the_same_as_labels(labels: list[int]) -> None:
    predicted = np.array(labels)
    rows = np.eye(5)[predicted]

    hard, found = moments.sums(5, predicted), moments.sums(5, predicted, rows)

    np.testing.assert_array_equal(found.counts, hard.counts)
    np.testing.assert_array_equal(soft(found).prob, hard.counts)
    np.testing.assert_array_equal(
        moments.outer_matrix(5, soft(found).outer), np.diag(hard.counts.astype(float))
    )


def test_an_edge_belongs_to_the_bin_above_it() -> None:
    rows = np.array([[0.5, 0.5 - 1e-12, 1e-12], [0.9, 0.05, 0.05], [0.9 - 1e-9, 0.1, 1e-9]])

    found = soft(of(rows)).cells.reshape(3, CONFIDENCE_BINS)

    assert np.flatnonzero(found[0]).tolist() == [3, 6, 7]


def test_only_the_diagonal_is_kept_of_many_labels() -> None:
    rows = np.random.default_rng(1).dirichlet(np.ones(65), size=20)

    found = soft(of(rows))

    np.testing.assert_allclose(found.outer, (rows**2).sum(axis=0))
    assert len(found.outer) == moments.outer_size(65) == 65
    np.testing.assert_allclose(moments.outer_matrix(65, found.outer), np.diag(found.outer))


@pytest.mark.parametrize("k", [2, 64, 1000])
def test_a_code_tells_first_second_and_confidence(k: int) -> None:
    rows = np.full((1, k), 0.2 / max(k - 2, 1))
    rows[0, k - 1], rows[0, 0] = 0.6, 0.2
    if k == 2:
        rows = np.array([[0.4, 0.6]])

    first, second, confidence = moments.decode(k, moments.row_codes(rows))

    assert (first[0], second[0], confidence[0]) == (k - 1, 0, 1)


@pytest.mark.parametrize(
    "row",
    [[np.nan, 1.0], [np.inf, 0.0], [-np.inf, np.inf], [2.0, -1.0], [0.5, 0.4], [0.0, 0.0]],
)
def test_what_is_no_softmax_is_not_taken_for_one(row: list[float]) -> None:
    _, good = moments.normalised(np.array([row]))

    assert not good[0]


def test_nothing_adds_nothing() -> None:
    rows = np.array([[0.7, 0.3]])

    assert_same(moments.total([of(rows), moments.empty(2, soft=True)]), of(rows))
    assert moments.empty(2, soft=False).n == 0


def test_sums_with_and_without_rows_do_not_mix() -> None:
    with pytest.raises(ValueError, match="do not add up"):
        moments.total([of(np.array([[0.7, 0.3]])), Sums(np.array([1, 0]))])


def test_sums_without_codes_have_lost_nothing_else() -> None:
    sums = of(np.array([[0.7, 0.3], [0.4, 0.6], [0.9, 0.1]]))

    found = moments.without_codes(sums)

    assert soft(sums).coded
    assert not soft(found).coded
    assert (len(soft(found).codes), len(soft(found).code_counts)) == (0, 0)
    assert found.counts.tolist() == sums.counts.tolist()
    for name in ("prob", "outer", "cells", "score", "score_squared", "score_by_label"):
        assert np.array_equal(getattr(soft(found), name), getattr(soft(sums), name))


def test_hard_predictions_have_no_codes_to_lose() -> None:
    sums = Sums(np.array([3, 1]))

    assert moments.without_codes(sums) is sums


def test_a_sum_with_a_part_that_lost_its_codes_has_lost_them() -> None:
    rows = np.array([[0.7, 0.3], [0.4, 0.6], [0.9, 0.1]])
    old, new = moments.without_codes(of(rows[:1])), of(rows[1:])

    found = moments.total([new, old])

    assert not soft(found).coded
    # Codes of some of the rows would pass for those of all.
    assert len(soft(found).codes) == 0
    assert_same(found, moments.without_codes(of(rows)))


def test_no_rows_at_all_have_lost_no_codes() -> None:
    none = moments.empty(2, soft=True)
    rows = np.array([[0.7, 0.3], [0.4, 0.6]])

    assert soft(none).coded
    assert soft(moments.total([none, of(rows)])).coded
