"""Maximum likelihood from counts of codes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.stats import calibration, mlls, moments
from app.stats.mlls import CodeTable
from app.stats.moments import Floats, Sums
from tests import fashion

EACH = tuple((label,) for label in range(fashion.LABELS))

seeds = st.integers(0, 2**32 - 1)


def window(outputs: fashion.Outputs) -> Sums:
    return moments.sums(outputs.rows.shape[1], outputs.predicted, outputs.rows)


@pytest.fixture(scope="module")
def table() -> CodeTable:
    sample = fashion.outputs("good", "validation")
    return mlls.code_table(sample.rows[:3000], sample.labels[:3000])


def test_two_labels_by_hand() -> None:
    A = np.array([[0.9, 0.2], [0.1, 0.8]])

    # mu = (0.41, 0.59) solves 0.9 q + 0.2 (1 - q) = 0.41 at q = 0.3.
    assert mlls.estimate(A, np.array([41.0, 59.0])) == pytest.approx([0.3, 0.7], abs=1e-4)


def test_counts_outside_the_confusion_matrix_give_a_corner() -> None:
    A = np.array([[0.9, 0.2], [0.1, 0.8]])

    # Even label 0 alone predicts row 0 only nine times in ten.
    assert mlls.estimate(A, np.array([95.0, 5.0])) == pytest.approx([1.0, 0.0], abs=1e-4)


@given(seeds, st.integers(2, 8))
@settings(deadline=None, max_examples=60)
def test_in_the_interior_it_is_the_inverse_of_the_confusion_matrix(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    A = 0.6 * np.eye(k) + 0.4 * rng.dirichlet(np.ones(k), size=k).T
    q = 0.5 / k + 0.5 * rng.dirichlet(np.ones(k))

    found = mlls.estimate(A, 1000.0 * A @ q)

    # The log-likelihood is within 1e-6 of its maximum and its curvature in q is at least 1000
    # times the squared smallest singular value of A, which is above 0.2: sqrt(2e-6 / 40) = 2e-4.
    assert found == pytest.approx(np.linalg.solve(A, A @ q), abs=2.5e-4)


@given(seeds, st.integers(2, 12), st.integers(2, 40))
@settings(deadline=None, max_examples=60)
def test_no_other_mix_is_more_likely(seed: int, k: int, cells: int) -> None:
    rng = np.random.default_rng(seed)
    A = rng.dirichlet(np.full(cells, 0.3), size=k).T + 1e-9
    A /= A.sum(axis=0)
    counts = rng.multinomial(50, np.full(cells, 1.0 / cells)).astype(np.float64)

    q = mlls.estimate(A, counts)

    gain = (counts / 50.0 / (A @ q)) @ A
    assert q.min() >= 0.0
    assert q.sum() == pytest.approx(1.0)
    # Twice LIKELIHOOD_GAP, for rounding.
    assert 50.0 * (gain.max() - 1.0) <= 2e-6


def test_codes_are_the_ones_that_panes_count() -> None:
    outputs = fashion.outputs("weak", "test")

    codes, counts = np.unique(moments.row_codes(outputs.rows), return_counts=True)

    soft = window(outputs).soft
    assert soft is not None
    assert codes.tolist() == soft.codes.tolist()
    assert counts.tolist() == soft.code_counts.tolist()


def test_every_cell_holds_enough_records_unless_its_argmax_has_none(table: CodeTable) -> None:
    sizes = table.counts.sum(axis=1)

    assert sizes.min() >= mlls.CELL_RECORDS
    assert sizes.sum() == 3000
    assert (table.rest >= 0).all()
    assert table.calibrated.sum(axis=1) == pytest.approx(sizes)


def test_each_label_spreads_over_all_cells(table: CodeTable) -> None:
    A = mlls.likelihood(table, EACH)

    assert A.sum(axis=0) == pytest.approx(np.ones(10))


def test_labels_merged_into_one_column_are_mixed_as_in_the_reference(table: CodeTable) -> None:
    alone = mlls.likelihood(table, EACH)
    nu = table.calibrated.sum(axis=0)

    merged = mlls.likelihood(table, ((0, 6), *EACH[1:6], *EACH[7:]))

    expected = (nu[0] * alone[:, 0] + nu[6] * alone[:, 6]) / (nu[0] + nu[6])
    assert merged[:, 0] == pytest.approx(expected)


def test_a_window_lands_in_cells_whole(table: CodeTable) -> None:
    found = mlls.cell_counts(table, window(fashion.outputs("good", "test")))

    assert found.counts.sum() == 20_000
    assert found.dropped == 0.0
    assert 0.0 < found.unseen < 0.02


def test_panes_may_be_added_before_or_after(table: CodeTable) -> None:
    outputs = fashion.outputs("good", "test")
    panes = [
        window(fashion.Outputs(outputs.rows[part], outputs.labels[part]))
        for part in np.split(np.arange(900), [10, 300])
    ]

    together = mlls.cell_counts(table, moments.total(panes)).counts

    apart = sum(mlls.cell_counts(table, pane).counts for pane in panes)
    assert together.tolist() == np.asarray(apart).tolist()


def test_an_argmax_that_the_reference_never_saw_is_dropped_and_said_so() -> None:
    rows = np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1]])
    table = mlls.code_table(rows.repeat(20, axis=0), np.arange(2).repeat(20))
    new = np.array([[0.1, 0.2, 0.7], [0.8, 0.15, 0.05]])

    found = mlls.cell_counts(table, moments.sums(3, np.array([2, 0]), new))

    assert found.dropped == 0.5
    assert found.counts.sum() == 1.0


def test_an_unseen_code_joins_the_rare_codes_of_its_argmax() -> None:
    rows = np.array([[0.8, 0.15, 0.05], [0.1, 0.8, 0.1]])
    table = mlls.code_table(rows.repeat(20, axis=0), np.arange(2).repeat(20))
    new = np.array([[0.4, 0.25, 0.35]])

    found = mlls.cell_counts(table, moments.sums(3, np.array([0]), new))

    assert found.unseen == 1.0
    assert found.counts[table.rest[0]] == 1.0


def test_an_empty_window_has_no_counts(table: CodeTable) -> None:
    found = mlls.cell_counts(table, moments.empty(10, soft=True))

    assert not found.counts.any()
    assert (found.dropped, found.unseen) == (0.0, 0.0)


def test_hard_predictions_have_no_codes(table: CodeTable) -> None:
    with pytest.raises(ValueError, match="no codes"):
        mlls.cell_counts(table, moments.empty(10, soft=False))


def test_the_order_of_labels_does_not_matter() -> None:
    sample = fashion.outputs("good", "validation")
    rows, actual = sample.rows[:1500], sample.labels[:1500]
    traffic = fashion.outputs("good", "test").rows[:400]
    order = np.random.default_rng(5).permutation(10)

    def estimate(rows: Floats, actual: moments.Counts, traffic: Floats) -> Floats:
        table = mlls.code_table(rows, actual)
        sums = moments.sums(10, np.asarray(traffic.argmax(axis=1)), traffic)
        return mlls.estimate(mlls.likelihood(table, EACH), mlls.cell_counts(table, sums).counts)

    plain = estimate(rows, actual, traffic)
    permuted = estimate(rows[:, order], np.argsort(order)[actual], traffic[:, order])

    assert permuted == pytest.approx(plain[order], abs=3e-4)


def test_one_prediction_has_an_estimate(table: CodeTable) -> None:
    one = fashion.Outputs(fashion.outputs("good", "test").rows[:1], np.zeros(1, dtype=np.int64))

    q = mlls.estimate(mlls.likelihood(table, EACH), mlls.cell_counts(table, window(one)).counts)

    assert q.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("k", [2, 1000])
def test_few_and_many_labels(k: int) -> None:
    rng = np.random.default_rng(6)
    actual = np.arange(4000) % k
    logits = rng.normal(size=(4000, k))
    logits[np.arange(4000), actual] += 5.0
    rows = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    table = mlls.code_table(rows, actual)
    sums = moments.sums(k, np.asarray(rows.argmax(axis=1)), rows)
    present = tuple((label,) for label in range(k))

    q = mlls.estimate(mlls.likelihood(table, present), mlls.cell_counts(table, sums).counts)

    assert q.sum() == pytest.approx(1.0)
    # The sample's own mix is uniform; multinomial noise of 4000 records is what may be left.
    assert np.abs(q - 1.0 / k).max() < 0.01


def test_rows_and_codes_agree_about_a_shift() -> None:
    sample, traffic = fashion.outputs("good", "validation"), fashion.outputs("good", "test")
    q = np.array([0.5, *np.full(9, 0.5 / 9)])
    shifted = fashion.draw(traffic, q, 4000, np.random.default_rng(7))
    table = mlls.code_table(sample.rows, sample.labels)
    nu = np.bincount(sample.labels) / len(sample.labels)

    of_rows = mlls.from_rows(table.calibration, nu, shifted.rows)
    counts = mlls.cell_counts(table, window(shifted)).counts
    of_codes = mlls.estimate(mlls.likelihood(table, EACH), counts)

    # Both are within a few standard errors (at most 0.01) of the truth.
    assert of_rows == pytest.approx(q, abs=0.04)
    assert of_codes == pytest.approx(of_rows, abs=0.03)


def test_labels_that_the_reference_lacks_are_none_of_the_mix() -> None:
    rows = np.array([[0.7, 0.2, 0.1], [0.2, 0.7, 0.1]])
    nothing_done = calibration.Calibration(1.0, np.zeros(3))

    assert mlls.from_rows(nothing_done, np.array([0.5, 0.5, 0.0]), rows)[2] == 0.0


def test_calibration_is_suspect_beyond_four_standard_errors() -> None:
    error = np.array([0.01, 0.02])

    near = mlls.compare(np.array([0.53, 0.47]), np.array([0.5, 0.5]), error)
    far = mlls.compare(np.array([0.55, 0.45]), np.array([0.5, 0.5]), error)

    assert (near.calibration_suspect, far.calibration_suspect) == (False, True)
    assert far.largest_gap == pytest.approx(5.0)


def test_labels_without_an_estimate_are_not_compared() -> None:
    unknown = np.array([0.5, np.nan])

    assert mlls.compare(unknown, unknown, unknown).largest_gap == 0.0
    assert not mlls.compare(np.array([np.nan]), np.array([np.nan]), np.ones(1)).calibration_suspect


def test_a_search_cut_short_still_ends_on_the_simplex(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlls, "MOST_STEPS", 1)
    A = np.array([[0.9, 0.2], [0.1, 0.8]])

    q = mlls.estimate(A, np.array([95.0, 5.0]))

    assert q.sum() == pytest.approx(1.0)
