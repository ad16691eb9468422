"""Tests of one window: agreement with SciPy, and a p-value whatever the counts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from app.stats import bbsd
from app.stats.moments import Counts

counts = st.integers(2, 30).flatmap(
    lambda k: st.tuples(
        *[arrays(np.int64, k, elements=st.integers(0, 200) | st.just(0) | st.just(10**9))] * 2
    )
)


def test_a_table_worked_by_hand() -> None:
    # Pooled shares .4 and .6; expected 40, 60, 20, 30; X2 = 100/40 + 100/60 + 100/20 + 100/30.
    found = bbsd.chi_square(np.array([50, 50]), np.array([10, 40]))

    assert found.statistic == pytest.approx(12.5)
    assert found.df == 1
    assert found.p_value == pytest.approx(stats.chi2.sf(12.5, 1))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.integers(2, 40))
def test_it_agrees_with_scipys_contingency_table(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    reference, window = rng.integers(40, 200, size=k), rng.integers(20, 100, size=k)

    found = bbsd.chi_square(reference, window)
    expected = stats.chi2_contingency(np.stack([reference, window]), correction=False)

    assert found.method == "asymptotic"
    assert found.statistic == pytest.approx(expected.statistic)
    assert found.df == expected.dof
    assert found.p_value == pytest.approx(expected.pvalue, abs=1e-12)


@settings(deadline=None, max_examples=150)
@given(counts, st.sampled_from([None, 7]), st.sampled_from([1.0, 2.5]))
def test_there_is_always_a_p_value(
    samples: tuple[Counts, Counts], seed: int | None, phi: float
) -> None:
    for found in (
        bbsd.chi_square(*samples, seed=seed, phi=phi),
        bbsd.ks_labels(*samples),
    ):
        assert 0.0 <= found.p_value <= 1.0
        assert np.isfinite(found.statistic)


@pytest.mark.parametrize("k", [2, 10, 1000])
@pytest.mark.parametrize("seed", [None, 1])
def test_degenerate_windows_have_p_values_too(k: int, seed: int | None) -> None:
    reference = np.arange(k) * 3
    one = np.eye(k, dtype=np.int64)[k - 1]

    for window in (np.zeros(k, dtype=np.int64), one, 500 * one, np.ones(k, dtype=np.int64)):
        assert 0.0 <= bbsd.chi_square(reference, window, seed=seed).p_value <= 1.0
    assert bbsd.chi_square(np.zeros(k, dtype=np.int64), one, seed=seed).p_value == 1.0


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.sampled_from([None, 3]))
def test_the_order_of_labels_does_not_matter(seed: int, resampling: int | None) -> None:
    rng = np.random.default_rng(seed)
    reference, window = rng.integers(0, 30, size=8), rng.integers(0, 6, size=8)
    order = rng.permutation(8)

    one = bbsd.chi_square(reference, window, seed=resampling)
    other = bbsd.chi_square(reference[order], window[order], seed=resampling)

    assert other.p_value == pytest.approx(one.p_value, abs=1e-12)


def test_rare_labels_are_resampled_with_a_seed_and_matched_without() -> None:
    reference, window = np.array([500, 480, 12, 8]), np.array([20, 15, 3, 2])

    exact = bbsd.chi_square(reference, window, seed=1)
    matched = bbsd.chi_square(reference, window)

    assert (exact.method, matched.method) == ("monte_carlo", "moments")
    assert matched.p_value == pytest.approx(exact.p_value, abs=0.03)


def test_the_moments_of_a_sparse_table_are_those_of_all_its_permutations() -> None:
    # Three labels with totals 2, 1 and 1, a window of two: six equally likely windows.
    tables = [np.bincount(pair, minlength=3) for pair in ([0, 0], [1, 2], *[[0, 1], [0, 2]] * 2)]
    both = np.array([2, 1, 1])
    statistics = np.array([bbsd.chi_square(both - c, c).statistic for c in tables])

    matched = bbsd.chi_square(both - tables[0], tables[0])

    # E = N (rows - 1) / (N - 1) = 8/3; the p-value of a gamma law with that mean and variance.
    assert statistics.mean() == pytest.approx(8 / 3)
    shape = statistics.mean() ** 2 / statistics.var()
    expected = stats.gamma.sf(statistics[0], shape, scale=statistics.mean() / shape)
    assert matched.p_value == pytest.approx(expected)


def test_tables_too_small_to_vary_say_nothing() -> None:
    pair = np.array([1, 0]), np.array([0, 1])
    # One of four single records is the window's; every such table has the same statistic.
    constant = np.array([0, 1, 1, 1]), np.array([1, 0, 0, 0])

    assert bbsd.chi_square(*pair).method == "none"
    assert bbsd.chi_square(*constant).p_value == 1.0


def test_nothing_is_pooled_where_nothing_is_rare() -> None:
    samples = np.array([50, 60]), np.array([70, 40])

    assert bbsd.pooled_chi_square(*samples).statistic == bbsd.chi_square(*samples).statistic


def test_pooling_makes_one_row_of_rare_labels() -> None:
    reference, window = np.array([500, 480, 12, 8]), np.array([20, 15, 3, 2])

    pooled = bbsd.pooled_chi_square(reference, window)

    # 12 + 8 and 3 + 2 are expected less than 5 times together, so the next rarest joins them.
    by_hand = bbsd.chi_square(np.array([500, 500]), np.array([20, 20]))
    assert pooled.statistic == pytest.approx(by_hand.statistic)
    assert bbsd.pooled_chi_square(np.full(300, 2), np.ones(300, dtype=np.int64)).method == "none"
    assert (
        bbsd.pooled_chi_square(np.zeros(3, dtype=np.int64), np.ones(3, dtype=np.int64)).p_value == 1
    )


def test_the_resampled_p_value_is_repeatable_and_near_the_exact_one() -> None:
    reference, window = np.array([18, 2]), np.array([3, 4])

    first = bbsd.chi_square(reference, window, seed=11)

    assert first == bbsd.chi_square(reference, window, seed=11)
    # All tables with these margins at least as extreme by X2; here Fisher's order is the same.
    exact = stats.fisher_exact(np.array([[18, 2], [3, 4]])).pvalue
    # Three standard errors of 1999 draws at p = .03.
    assert first.p_value == pytest.approx(exact, abs=3 * np.sqrt(0.03 / 2000))


def test_many_labels_are_resampled_less_often() -> None:
    reference, window = np.full(200, 20), 5 * (np.arange(200) < 20)

    found = bbsd.chi_square(reference, window, seed=1)

    assert found.method == "monte_carlo"
    assert found.p_value == 1 / (bbsd.RESAMPLED_NUMBERS // 200 + 1) < 0.01


def test_very_many_labels_are_not_resampled_but_still_tested() -> None:
    reference, window = np.full(300, 2), 5 * (np.arange(300) < 30)

    found = bbsd.chi_square(reference, window, seed=1)

    assert found.method == "moments"
    assert found.p_value < 1e-6


def test_overdispersion_divides_the_windows_weight() -> None:
    reference, window = np.array([5000, 5000]), np.array([400, 600])

    halved = bbsd.chi_square(reference, window, phi=2.0)

    assert halved.statistic == pytest.approx(
        bbsd.chi_square(reference, window // 2).statistic, rel=1e-12
    )


@pytest.mark.parametrize("seed", range(5))
def test_ks_on_labels_agrees_with_scipy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    reference, window = (
        rng.multinomial(800, np.full(6, 1 / 6)),
        rng.multinomial(300, np.full(6, 1 / 6)),
    )

    found = bbsd.ks_labels(reference, window)
    expected = stats.ks_2samp(
        np.arange(6).repeat(reference), np.arange(6).repeat(window), method="asymp"
    )

    assert found.statistic == pytest.approx(expected.statistic)
    assert found.p_value == pytest.approx(expected.pvalue, abs=0.01)


def test_histograms_of_scores_add_up_and_hold_the_extremes() -> None:
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [0.3, 0.7]])

    whole = bbsd.logit_histograms(rows)

    assert (whole == bbsd.logit_histograms(rows[:1]) + bbsd.logit_histograms(rows[1:])).all()
    assert whole[0, -1] == whole[0, 0] == 1


def test_ks_on_scores_finds_the_label_that_moved_and_is_never_bolder_than_on_raw_scores() -> None:
    rng = np.random.default_rng(4)
    reference, window = rng.dirichlet([2, 2, 2], size=800), rng.dirichlet([2, 2, 2], size=500)
    window[:, 0] = window[:, 0] ** 2
    window /= window.sum(axis=1, keepdims=True)

    found = bbsd.ks_scores(bbsd.logit_histograms(reference), bbsd.logit_histograms(window))

    raw = [stats.ks_2samp(reference[:, j], window[:, j]).statistic for j in range(3)]
    assert (found.statistics <= np.array(raw) + 1e-12).all()
    assert found.holm.argmin() == 0
    assert found.holm[0] < 1e-6


def test_ks_on_scores_of_nothing_says_nothing() -> None:
    empty = np.zeros((3, bbsd.LOGIT_BINS), dtype=np.int64)

    assert bbsd.ks_scores(empty, empty).holm.tolist() == [1.0, 1.0, 1.0]


@settings(max_examples=50)
@given(arrays(np.float64, st.integers(1, 12), elements=st.floats(0.0, 1.0)))
def test_holm_is_between_the_p_values_and_bonferroni(p_values: np.ndarray) -> None:
    adjusted = bbsd.holm(p_values)

    assert (adjusted >= p_values).all()
    assert (adjusted <= np.minimum(p_values * len(p_values), 1.0) + 1e-12).all()
