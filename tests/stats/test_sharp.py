"""The sharp estimate and its interval."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.stats import calibration, mlls, moments, sharp
from app.stats.mlls import CodeTable
from app.stats.moments import Counts, Floats, Sums
from app.stats.sharp import Estimate, Prepared
from tests import fashion

EACH = tuple((label,) for label in range(fashion.LABELS))


def table_of(counts: Counts) -> CodeTable:
    """One cell for each argmax label, and calibrated rows that say what was counted."""
    k = counts.shape[1]
    codes = np.arange(k) * k * moments.CODE_BINS + moments.CODE_BINS
    nothing_done = calibration.Calibration(1.0, np.zeros(k))
    cells = np.arange(k)
    return CodeTable(codes, cells, cells, counts, counts.astype(np.float64), nothing_done)


def window_of(counts: Counts) -> Sums:
    """Predictions with nothing but codes, for `table_of`."""
    k = len(counts)
    none = moments.empty(k, soft=True).soft
    assert none is not None
    codes = np.arange(k) * k * moments.CODE_BINS + moments.CODE_BINS
    soft = moments.SoftSums(
        none.prob, none.outer, none.cells, codes, counts, 0.0, 0.0, none.score_by_label
    )
    return Sums(counts, soft)


def estimate_of(prepared: Prepared, sums: Sums) -> Estimate:
    found = sharp.estimate(prepared, sums)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    sample = fashion.outputs("good", "validation")
    return sharp.prepare(mlls.code_table(sample.rows[:3000], sample.labels[:3000]), EACH)


@pytest.fixture(scope="module")
def window() -> Sums:
    traffic = fashion.outputs("good", "test")
    return moments.sums(10, traffic.predicted[:800], traffic.rows[:800])


def test_two_labels_by_hand() -> None:
    prepared = sharp.prepare(table_of(np.array([[900, 200], [100, 800]])), ((0,), (1,)))

    found = estimate_of(prepared, window_of(np.array([270, 730])))

    # As BBSE has it: q_0 = (0.27 - 0.2) / (0.9 - 0.2) = 0.1.
    assert np.allclose(prepared.A, [[0.9, 0.2], [0.1, 0.8]])
    assert found.raw == pytest.approx([0.1, 0.9])
    assert found.q == pytest.approx([0.1, 0.9], abs=1e-4)


def test_the_standard_error_of_two_labels_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharp, "STRAY", 0.0)
    prepared = sharp.prepare(table_of(np.array([[900, 200], [100, 800]])), ((0,), (1,)))

    found = estimate_of(prepared, window_of(np.array([270, 730])))

    # raw_0 = (mu_0 - 0.2) / 0.7 with variances 0.27 * 0.73 / 1000 of the window and
    # q_0^2 0.9 * 0.1 / 1000 + q_1^2 0.2 * 0.8 / 1000 of the reference. The error is taken one
    # pseudo-record from q, which changes q by 0.001.
    variance = (0.27 * 0.73 + 0.01 * 0.09 + 0.81 * 0.16) / 1000 / 0.49
    assert found.error == pytest.approx(np.full(2, variance**0.5), rel=0.005)


def test_with_a_perfect_and_endless_reference_it_is_wilsons_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sharp, "STRAY", 0.0)
    prepared = sharp.prepare(table_of(np.eye(3, dtype=np.int64) * 10**9), ((0,), (1,), (2,)))

    found = estimate_of(prepared, window_of(np.array([0, 30, 70])))

    z2, m = 1.959964**2, 100.0
    for share, lower, upper in zip(
        [0.0, 0.3, 0.7], found.intervals.lower, found.intervals.upper, strict=True
    ):
        centre = (share + z2 / (2 * m)) / (1 + z2 / m)
        half = np.sqrt(z2 * share * (1 - share) / m + z2**2 / (4 * m**2)) / (1 + z2 / m)
        assert (lower, upper) == pytest.approx((centre - half, centre + half), abs=1e-4)


def test_calibration_that_fits_is_worth_more_than_one_that_does_not() -> None:
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.ones(5), size=60)
    sampled = rng.multinomial(80, p)
    elsewhere = rng.dirichlet(np.ones(5), size=60)

    right = sharp.worth(sampled, 80.0 * p)
    wrong = sharp.worth(sampled, 80.0 * elsewhere)

    assert right > 200.0
    assert wrong < 5.0


def test_worth_is_at_least_one_record() -> None:
    # A cell that calibration gives wholly to the label it never has.
    assert sharp.worth(np.array([[50, 0], [0, 50]]), np.array([[0.0, 50.0], [50.0, 0.0]])) == 1.0


def test_inside_the_simplex_the_linear_estimate_is_the_likely_one(
    prepared: Prepared, window: Sums
) -> None:
    found = estimate_of(prepared, window)

    assert found.q.min() > 0.0
    # `raw` uses weights one pseudo-record from `q`.
    assert found.raw == pytest.approx(found.q, abs=0.1 * found.error.min())


def test_the_estimate_lies_in_its_interval_and_on_the_simplex(
    prepared: Prepared, window: Sums
) -> None:
    found = estimate_of(prepared, window)

    assert found.q.sum() == pytest.approx(1.0)
    assert (found.intervals.lower <= found.q).all()
    assert (found.intervals.upper >= found.q).all()
    assert not found.intervals.vacuous.any()


def test_several_intervals_at_once_or_correlated_records_make_them_wider(
    prepared: Prepared, window: Sums
) -> None:
    plain = estimate_of(prepared, window).intervals

    for other in (
        sharp.estimate(prepared, window, simultaneous=True),
        sharp.estimate(prepared, window, phi=2.0),
        sharp.estimate(prepared, window, level=0.99),
    ):
        assert other is not None
        assert (other.intervals.upper - other.intervals.lower > plain.upper - plain.lower).all()


def test_an_empty_window_has_no_estimate(prepared: Prepared) -> None:
    assert sharp.estimate(prepared, moments.empty(10, soft=True)) is None


def test_one_prediction_says_little(prepared: Prepared) -> None:
    row = fashion.outputs("good", "test").rows[:1]

    found = estimate_of(prepared, moments.sums(10, np.asarray(row.argmax(axis=1)), row))

    assert (found.intervals.upper > 0.5).any()
    assert np.isfinite(found.error).all()


@pytest.mark.parametrize("label", range(10))
def test_a_window_of_one_label_only(prepared: Prepared, label: int) -> None:
    traffic = fashion.draw(
        fashion.outputs("good", "test"), np.eye(10)[label], 300, np.random.default_rng(label)
    )

    found = estimate_of(prepared, moments.sums(10, traffic.predicted, traffic.rows))

    assert found.intervals.upper[label] > 0.99
    assert np.isfinite(found.raw).all()


def test_labels_that_look_alike_get_no_interval() -> None:
    counts = np.array([[80, 40, 40], [20, 60, 60], [0, 0, 0]])
    prepared = sharp.prepare(table_of(counts + 1), ((0,), (1,), (2,)))

    found = estimate_of(prepared, window_of(np.array([50, 50, 2])))

    assert found.intervals.vacuous[[1, 2]].all()
    assert found.intervals.lower[1] == 0.0
    assert found.intervals.upper[1] == 1.0


def test_merged_labels_are_estimated_together(window: Sums, prepared: Prepared) -> None:
    apart = estimate_of(prepared, window)
    columns = ((0, 6), *EACH[1:6], *EACH[7:])

    together = estimate_of(sharp.prepare(prepared.table, columns), window)

    assert together.q[0] == pytest.approx(apart.q[0] + apart.q[6], abs=0.02)
    assert together.error[0] < apart.error[6]


def test_a_label_left_out_of_all_columns_is_none_of_the_mix(
    prepared: Prepared, window: Sums
) -> None:
    found = estimate_of(sharp.prepare(prepared.table, EACH[:9]), window)

    assert len(found.q) == 9
    assert found.q.sum() == pytest.approx(1.0)


def test_the_order_of_labels_does_not_matter() -> None:
    sample, traffic = fashion.outputs("good", "validation"), fashion.outputs("good", "test")
    rows, actual, seen = sample.rows[:1500], sample.labels[:1500], traffic.rows[:500]
    order = np.random.default_rng(2).permutation(10)

    def estimate(rows: Floats, actual: Counts, seen: Floats) -> Estimate:
        sums = moments.sums(10, np.asarray(seen.argmax(axis=1)), seen)
        return estimate_of(sharp.prepare(mlls.code_table(rows, actual), EACH), sums)

    plain = estimate(rows, actual, seen)
    permuted = estimate(rows[:, order], np.argsort(order)[actual], seen[:, order])

    assert permuted.q == pytest.approx(plain.q[order], abs=3e-4)
    assert permuted.intervals.upper == pytest.approx(plain.intervals.upper[order], abs=3e-4)


@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
@settings(deadline=None, max_examples=60)
def test_any_counts_give_finite_numbers(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 6, size=(k, k)) * rng.integers(0, 2, size=(k, k)) + np.eye(
        k, dtype=np.int64
    )
    prepared = sharp.prepare(table_of(counts), tuple((label,) for label in range(k)))
    window = rng.multinomial(rng.integers(1, 10**6), rng.dirichlet(np.full(k, 0.2)))

    found = estimate_of(prepared, window_of(window.astype(np.int64)))

    for numbers in (found.q, found.raw, found.error, found.intervals.lower, found.intervals.upper):
        assert np.isfinite(numbers).all()
    assert (found.intervals.lower <= found.intervals.upper).all()


def test_a_thousand_labels() -> None:
    k = 1000
    rng = np.random.default_rng(3)
    counts = rng.poisson(0.005, size=(k, k)) + 20 * np.eye(k, dtype=np.int64)
    prepared = sharp.prepare(table_of(counts), tuple((label,) for label in range(k)))

    found = estimate_of(prepared, window_of(rng.multinomial(20_000, np.full(k, 1.0 / k))))

    assert found.q.sum() == pytest.approx(1.0)
    assert found.q == pytest.approx(np.full(k, 0.001), abs=0.002)
