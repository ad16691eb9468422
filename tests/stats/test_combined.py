"""The combined window test and its parts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from app.stats import bbsd, combined, moments, reference
from app.stats.moments import Floats, Sums
from tests import fashion


def sums_of(rows: Floats) -> Sums:
    return moments.sums(rows.shape[1], np.asarray(rows.argmax(axis=1)), rows)


@pytest.fixture(scope="module")
def two() -> tuple[Floats, Floats]:
    rng = np.random.default_rng(1)
    return rng.dirichlet([2.0, 1.0, 0.5], size=60), rng.dirichlet([1.0, 1.0, 0.5], size=40)


def test_the_largest_t_is_scipys_with_bonferroni(two: tuple[Floats, Floats]) -> None:
    r, w = two

    found = combined.largest_t(sums_of(r), sums_of(w))

    expected = stats.ttest_ind(r, w)
    assert found.statistic == pytest.approx(np.abs(expected.statistic).max())
    assert found.p_value == pytest.approx(3.0 * expected.pvalue.min())


def test_with_two_labels_hotelling_is_the_t_test(two: tuple[Floats, Floats]) -> None:
    r, w = [row / row.sum(axis=1, keepdims=True) for row in (s[:, :2] for s in two)]

    found = combined.hotelling(sums_of(r), sums_of(w))

    expected = stats.ttest_ind(r[:, 0], w[:, 0])
    assert found.df == 1
    assert found.statistic == pytest.approx(expected.statistic**2)
    assert found.p_value == pytest.approx(expected.pvalue)


def test_hotelling_by_its_definition(two: tuple[Floats, Floats]) -> None:
    r, w = two
    d = (r.mean(axis=0) - w.mean(axis=0))[:2]
    pooled = (59 * np.cov(r[:, :2].T) + 39 * np.cov(w[:, :2].T)) / 98

    found = combined.hotelling(sums_of(r), sums_of(w))

    T2 = 60 * 40 / 100 * d @ np.linalg.solve(pooled, d)
    assert found.df == 2
    assert found.statistic == pytest.approx(T2)
    assert found.p_value == pytest.approx(stats.f.sf(T2 * 97 / (98 * 2), 2, 97))


def test_the_combination_is_cauchys(two: tuple[Floats, Floats]) -> None:
    r, w = (sums_of(sample) for sample in two)
    parts = [
        bbsd.chi_square(r.counts, w.counts).p_value,
        combined.hotelling(r, w).p_value,
        combined.largest_t(r, w).p_value,
    ]

    found = combined.combined(r, w)

    statistic = np.mean(np.tan((0.5 - np.array(parts)) * np.pi))
    assert found.p_value == pytest.approx(stats.cauchy.sf(statistic))


@pytest.mark.parametrize("p", [1e-300, 1e-30, 1e-10, 1e-8, 0.01, 0.5, 0.9])
def test_a_single_p_value_is_its_own_combination(p: float) -> None:
    alone = combined.cauchy_tail(combined.cauchy_statistic(np.array([p])))

    assert alone == pytest.approx(p, rel=1e-6)


def test_a_p_value_of_one_does_not_silence_the_others() -> None:
    statistic = combined.cauchy_statistic(np.array([1e-6, 1.0]))

    assert combined.cauchy_tail(statistic) == pytest.approx(2e-6, rel=0.01)


def test_a_p_value_of_zero_stays_a_number() -> None:
    assert combined.cauchy_tail(combined.cauchy_statistic(np.zeros(3))) >= 0.0


def test_hard_predictions_leave_chi_square_alone() -> None:
    r, w = Sums(np.array([50, 50])), Sums(np.array([30, 70]))

    assert combined.combined(r, w).p_value == pytest.approx(
        bbsd.chi_square(r.counts, w.counts).p_value
    )


def test_without_predictions_there_is_no_evidence() -> None:
    r = sums_of(fashion.outputs("good", "test").rows[:100])

    found = combined.combined(r, moments.empty(10, soft=True))

    assert (found.p_value, found.method) == (1.0, "none")


def test_one_prediction_can_be_tested() -> None:
    rows = fashion.outputs("good", "test").rows

    found = combined.combined(sums_of(rows[:500]), sums_of(rows[500:501]))

    assert 0.0 <= found.p_value <= 1.0


def test_two_predictions_in_all_cannot() -> None:
    rows = fashion.outputs("good", "test").rows

    assert combined.hotelling(sums_of(rows[:1]), sums_of(rows[1:2])).method == "none"
    assert combined.largest_t(sums_of(rows[:1]), sums_of(rows[1:2])).method == "none"


def test_scores_that_never_vary_say_nothing() -> None:
    same = sums_of(np.repeat([[0.75, 0.25]], 50, axis=0))

    assert combined.hotelling(same, same).method == "none"
    assert combined.largest_t(same, same).method == "none"
    assert combined.combined(same, same).p_value == 1.0


def test_a_score_that_hardly_varies_does_not_have_less_than_no_variance() -> None:
    moving = np.random.default_rng(3).uniform(0.3, 0.6, 200)
    rows = np.stack([moving, 0.999 - moving, np.full(200, 0.001)], axis=1)
    r, w = sums_of(rows[:150]), sums_of(rows[150:])

    found = combined.hotelling(r, w)

    assert 0.0 < found.p_value < 1.0


def test_many_labels_have_no_covariances_but_are_still_tested() -> None:
    rng = np.random.default_rng(2)
    r, w = rng.dirichlet(np.full(1000, 0.1), 300), rng.dirichlet(np.full(1000, 0.1), 200)

    assert combined.hotelling(sums_of(r), sums_of(w)).method == "none"
    assert 0.0 <= combined.combined(sums_of(r), sums_of(w)).p_value <= 1.0


def test_a_reference_over_all_labels_is_a_window() -> None:
    sample = fashion.outputs("good", "test")
    rows, actual = sample.rows[:300], sample.labels[:300]
    predicted = np.asarray(rows.argmax(axis=1))

    found = combined.overall(reference.from_sample(10, predicted, actual, rows))

    expected = moments.sums(10, predicted, rows)
    assert found.counts.tolist() == expected.counts.tolist()
    assert found.soft is not None
    assert expected.soft is not None
    assert found.soft.prob == pytest.approx(expected.soft.prob)
    assert found.soft.outer == pytest.approx(expected.soft.outer)
    assert found.soft.cells.tolist() == expected.soft.cells.tolist()
    assert found.soft.score == pytest.approx(expected.soft.score)
    assert found.soft.score_squared == pytest.approx(expected.soft.score_squared)
    assert found.soft.score_by_label == pytest.approx(expected.soft.score_by_label)
    # A reference keeps its codes by label, as a table of cells, and the tests need none.
    assert not found.soft.coded


def test_a_reference_of_hard_predictions_is_one_too() -> None:
    counts = np.array([[9, 1], [2, 8]])

    assert combined.overall(reference.from_confusion(counts)).counts.tolist() == [10, 10]


def test_correlated_records_weaken_the_evidence(two: tuple[Floats, Floats]) -> None:
    r, w = (sums_of(sample) for sample in two)

    assert combined.combined(r, w, phi=4.0).p_value > combined.combined(r, w).p_value


@given(
    st.integers(0, 2**32 - 1),
    st.integers(2, 12),
    st.integers(1, 60),
    st.integers(0, 60),
    st.booleans(),
)
@settings(deadline=None, max_examples=80)
def test_p_values_are_probabilities_in_any_order_of_labels(
    seed: int, k: int, n: int, m: int, one_hot: bool
) -> None:
    rng = np.random.default_rng(seed)
    r, w = (rng.dirichlet(np.full(k, 0.2), size) for size in (n, m))
    if one_hot:
        r, w = np.eye(k)[r.argmax(axis=1)], np.eye(k)[w.argmax(axis=1)]
    order = rng.permutation(k)

    plain = combined.combined(sums_of(r), sums_of(w))
    permuted = combined.combined(sums_of(r[:, order]), sums_of(w[:, order]))

    assert 0.0 <= plain.p_value <= 1.0
    assert permuted.p_value == pytest.approx(plain.p_value, abs=1e-6)
