"""Predictions put into cells: by code where there are softmax rows, else by label."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.stats import cells, moments
from app.stats.cells import CellTable
from app.stats.moments import Floats, Sums
from tests import fashion

ALL = np.arange(fashion.LABELS)


def window_of(rows: Floats) -> Sums:
    return moments.sums(rows.shape[1], moments.argmax(rows), rows)


def cell_of(table: CellTable, rows: Floats) -> list[int]:
    """The cell of each row, by way of a window of its own; -1 if it has none."""
    found = [cells.in_window(table, window_of(row[None])).counts for row in rows]
    return [int(counts.argmax()) if counts.any() else -1 for counts in found]


@pytest.fixture(scope="module")
def table() -> CellTable:
    sample = fashion.outputs("good", "validation")
    return cells.of_rows(sample.rows[:3000], sample.labels[:3000], ALL)


# Of argmax 0 there are a frequent code, one with just enough records, and two rare ones (runner-up
# and confidence differ); of argmax 1 there is a single one.
FREQUENT, ENOUGH, RARE, RARER, OTHER = (
    [0.9, 0.08, 0.02],
    [0.6, 0.3, 0.1],
    [0.45, 0.3, 0.25],
    [0.6, 0.1, 0.3],
    [0.1, 0.8, 0.1],
)
SMALL = np.repeat([FREQUENT, ENOUGH, RARE, RARER, OTHER], [10, 5, 4, 3, 8], axis=0)
SMALL_LABELS = np.repeat([0, 1, 0, 1], [12, 7, 3, 8])
SMALL_PRESENT = np.arange(2)


def small() -> CellTable:
    return cells.of_rows(SMALL, SMALL_LABELS, SMALL_PRESENT)


def test_frequent_codes_have_cells_and_rare_ones_of_an_argmax_share_one() -> None:
    first, enough, rare, rarer, other = cell_of(small(), SMALL[[0, 10, 15, 19, 22]])

    assert rare == rarer
    assert len({first, enough, rare, other}) == 4


def test_a_cell_counts_its_records_by_true_label() -> None:
    found = small()

    # Label 0 has the first 12 records and three more, of the rarest code.
    chosen = cell_of(found, SMALL[[0, 10, 15, 22]])
    assert found.counts[chosen].tolist() == [[10, 0], [2, 3], [3, 4], [0, 8]]
    assert found.first[chosen].tolist() == [0, 0, 0, 1]


def test_where_the_pool_of_an_argmax_is_rare_its_smallest_code_joins() -> None:
    kept = np.r_[0:18]  # three rare records: fewer than a cell needs
    found = cells.of_rows(SMALL[kept], SMALL_LABELS[kept], SMALL_PRESENT)

    first, enough, rare = cell_of(found, SMALL[[0, 10, 15]])

    assert enough == rare != first
    assert found.counts[rare].sum() == 8


def test_of_equally_small_codes_all_join() -> None:
    # Which of the two came first would depend on the order of labels.
    rows = np.repeat([FREQUENT, ENOUGH, RARER, RARE], [10, 6, 6, 2], axis=0)
    found = cells.of_rows(rows, np.repeat([0, 1], 12), SMALL_PRESENT)

    first, enough, rarer, rare = cell_of(found, rows[[0, 10, 16, 22]])

    assert enough == rarer == rare != first


def test_every_cell_holds_enough_records_of_one_argmax(table: CellTable) -> None:
    sizes = table.counts.sum(axis=1)

    assert sizes.min() >= cells.CELL_RECORDS
    assert sizes.sum() == 3000
    assert (table.rest >= 0).all()
    assert table.codes is not None
    assert table.cell is not None
    argmaxes = moments.decode(fashion.LABELS, table.codes)[0]
    assert (table.first[table.cell] == argmaxes).all()


def test_calibrated_rows_of_a_cell_add_up_to_its_records(table: CellTable) -> None:
    assert table.believed is not None
    assert table.believed.sum(axis=1) == pytest.approx(table.counts.sum(axis=1))
    assert table.believed.min() > 0.0


def test_a_window_lands_in_cells_whole(table: CellTable) -> None:
    found = cells.in_window(table, window_of(fashion.outputs("good", "test").rows))

    assert found.counts.sum() == 20_000
    assert found.dropped == 0.0


def test_the_references_own_records_are_counted_as_it_counts_them(table: CellTable) -> None:
    rows = fashion.outputs("good", "validation").rows[:3000]

    found = cells.in_window(table, window_of(rows))

    assert found.counts.tolist() == table.counts.sum(axis=1).tolist()


def test_panes_may_be_added_before_or_after(table: CellTable) -> None:
    rows = fashion.outputs("good", "test").rows
    panes = [window_of(part) for part in np.split(rows[:900], [10, 300])]

    together = cells.in_window(table, moments.total(panes)).counts

    apart = np.sum([cells.in_window(table, pane).counts for pane in panes], axis=0)
    assert together.tolist() == apart.tolist()


def test_an_unseen_code_joins_the_rare_codes_of_its_argmax() -> None:
    new = np.array([[0.4, 0.25, 0.35]])
    found = small()

    assert cell_of(found, new) == [found.rest[0]] == cell_of(found, SMALL[[15]])


def test_an_argmax_that_the_reference_never_saw_is_dropped_and_its_share_is_told() -> None:
    new = np.array([[0.1, 0.2, 0.7], FREQUENT, FREQUENT, FREQUENT])

    found = cells.in_window(small(), window_of(new))

    assert found.dropped == 0.25
    assert found.counts.sum() == 3.0


def test_records_of_labels_with_too_few_are_left_out() -> None:
    rows = np.vstack([SMALL, [[0.05, 0.05, 0.9]] * 4])
    actual = np.concatenate([SMALL_LABELS, [2] * 4])

    found = cells.of_rows(rows, actual, SMALL_PRESENT)

    # Their argmax has no other records, so it has no cell.
    assert found.counts.tolist() == small().counts.tolist()
    assert found.rest.tolist() == [0, 1, -1]


def test_rows_in_single_precision_give_the_same_table() -> None:
    sample = fashion.outputs("weak", "validation")
    rows = sample.rows[:1000].astype(np.float32)

    single = cells.of_rows(rows, sample.labels[:1000], ALL)
    double = cells.of_rows(rows.astype(np.float64), sample.labels[:1000], ALL)

    assert single.counts.tolist() == double.counts.tolist()
    assert single.believed == pytest.approx(double.believed, abs=1e-9)


def test_rows_are_read_in_blocks_as_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = small()
    monkeypatch.setattr(cells, "BLOCK_NUMBERS", 21)  # seven rows of three

    in_blocks = small()

    assert in_blocks.counts.tolist() == whole.counts.tolist()
    assert in_blocks.believed == pytest.approx(whole.believed, abs=1e-12)


def test_cells_grow_until_there_are_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    rows = rng.dirichlet(np.full(4, 0.5), size=3000)
    actual = moments.argmax(rows)
    free = cells.of_rows(rows, actual, np.arange(4))
    monkeypatch.setattr(cells, "MOST_CELLS", 12)

    bound = cells.of_rows(rows, actual, np.arange(4))

    # As many as allowed, and one for the rest of each argmax.
    assert len(free.first) > 12 + 4 >= len(bound.first)
    assert bound.counts.sum(axis=0).tolist() == free.counts.sum(axis=0).tolist()
    # The largest codes are the ones that keep a cell.
    assert bound.counts.sum(axis=1)[bound.rest.max() + 1 :].min() > free.counts.sum(axis=1).min()


def test_two_cells_a_label_are_always_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "MOST_CELLS", 1)

    # Three codes are frequent, and twice three labels are more than that.
    assert len(small().first) == 4


@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
@settings(deadline=None, max_examples=10)
def test_the_order_of_labels_does_not_matter(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    actual = np.concatenate([np.arange(k).repeat(10), rng.integers(k, size=60)])
    rows = rng.dirichlet(np.full(k, 0.4), size=len(actual)) + 0.5 * np.eye(k)[actual]
    rows /= rows.sum(axis=1, keepdims=True)
    order = rng.permutation(k)

    one = cells.of_rows(rows, actual, np.arange(k))
    other = cells.of_rows(rows[:, order], np.argsort(order)[actual], np.arange(k))

    # The same records are together, and their labels are counted alike.
    here, there = cell_of(one, rows), cell_of(other, rows[:, order])
    pairs = dict(zip(here, there, strict=True))
    assert set(zip(here, there, strict=True)) == set(pairs.items())
    assert len(set(pairs.values())) == len(pairs) == len(one.first) == len(other.first)
    for cell, counterpart in pairs.items():
        assert other.counts[counterpart].tolist() == one.counts[cell][order].tolist()


def test_hard_predictions_have_a_cell_for_each_label_that_is_ever_predicted() -> None:
    # Label 1 is never predicted; label 3 is, but only for records of label 2, which are too few.
    counts = np.array([[30, 9, 1, 0], [0, 0, 0, 0], [5, 20, 0, 8], [0, 0, 2, 0]])

    found = cells.of_confusion(counts, np.array([0, 1, 3]))

    assert not found.soft
    assert found.first.tolist() == [0, 2]
    assert found.rest.tolist() == [0, -1, 1, -1]
    assert found.counts.tolist() == [[30, 9, 0], [5, 20, 8]]


def test_hard_predictions_are_counted_by_label() -> None:
    table = cells.of_confusion(np.array([[30, 9, 1], [0, 0, 0], [5, 20, 8]]), np.arange(3))

    found = cells.in_window(table, Sums(np.array([6, 5, 9])))

    assert found.counts.tolist() == [6.0, 9.0]
    assert found.dropped == 0.25


def test_softmax_rows_are_counted_by_label_where_the_reference_has_only_labels() -> None:
    table = cells.of_confusion(np.array([[30, 9, 1], [3, 30, 2], [5, 20, 8]]), np.arange(3))

    assert cells.in_window(table, window_of(SMALL)).counts.tolist() == [22.0, 8.0, 0.0]


def test_an_empty_window_has_no_counts() -> None:
    table = cells.of_confusion(np.array([[9, 1], [2, 8]]), np.arange(2))

    found = cells.in_window(table, moments.empty(2, soft=False))

    assert (found.counts.tolist(), found.dropped) == ([0.0, 0.0], 0.0)


@pytest.mark.parametrize("coded", [True, False])
def test_a_window_without_codes_is_refused_by_cells_of_codes(coded: bool) -> None:
    with_rows = moments.without_codes(window_of(SMALL))
    window = with_rows if coded else Sums(with_rows.counts)

    with pytest.raises(ValueError, match="without codes"):
        cells.in_window(small(), window)


def test_the_memory_of_a_table_is_that_of_its_arrays() -> None:
    table = small()

    # Two labels, four cells, five codes, eight bytes a number; calibration is not counted.
    assert table.nbytes == 8 * (2 * 4 + 2 * 4 + 5 + 5)


TWO_CELLS = np.array([0, 1])


def test_calibrated_sums_are_right_as_often_as_was_counted_but_for_chance() -> None:
    believed = np.array([[400.0, 100.0], [100.0, 400.0]])
    counts = np.array([[350, 150], [150, 350]])

    found = cells.as_often_right(believed, counts, TWO_CELLS, TWO_CELLS)

    # 800 are expected with a variance of 160, and 700 were seen: 160 / 100 of the gap is chance.
    assert found.trace() == pytest.approx(700.0 + 1.6)
    assert found.sum(axis=1) == pytest.approx(believed.sum(axis=1))


def test_calibrated_sums_stay_where_chance_explains_the_gap() -> None:
    believed = np.array([[400.0, 100.0], [100.0, 400.0]])
    counts = np.array([[394, 106], [106, 394]])  # 12 fewer, with a standard deviation of 12.6

    found = cells.as_often_right(believed, counts, TWO_CELLS, TWO_CELLS)

    assert found.tolist() == believed.tolist()


@pytest.mark.parametrize("right", [0, 40])
def test_calibrated_sums_stay_where_no_or_all_predictions_were_right(right: int) -> None:
    rows = np.repeat([[0.7, 0.2, 0.1], [0.2, 0.7, 0.1]], 20, axis=0)
    labels = np.where(np.arange(40) < right, rows.argmax(axis=1), 1 - rows.argmax(axis=1))

    found = cells.of_rows(rows, labels, np.arange(2))

    assert found.believed is not None
    assert np.isfinite(found.believed).all()
    assert found.believed.sum(axis=1) == pytest.approx(found.counts.sum(axis=1))
