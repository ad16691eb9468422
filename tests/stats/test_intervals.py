"""Intervals for shares: known cases, cases worked by hand, and what must hold for every window."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from app.stats import estimator, intervals
from app.stats.estimator import Estimate, Operator
from app.stats.intervals import Intervals, Linear
from app.stats.moments import Counts, Floats
from tests.stats import golden
from tests.stats.golden import CASES, NEAR, Case, hard

Z = 1.959963984540054
seeds = st.integers(0, 2**32 - 1)


def confusion(rng: np.random.Generator, k: int) -> Counts:
    """Of a classifier that is mostly right."""
    wrong = rng.multinomial(60, rng.dirichlet(np.ones(k)), size=k).T
    return np.asarray(wrong + np.diag(rng.integers(60, 200, size=k)))


def found_of(on: Operator, counts: Floats, phi: float = 1.0) -> tuple[Estimate, Intervals]:
    found = estimator.estimate(on, counts, phi)
    return found, intervals.shares(intervals.design(on, found), found)


def without_strays(on: Operator) -> Operator:
    return replace(on, stray=np.zeros(on.size))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_known_windows_have_the_known_intervals(case: Case) -> None:
    _, found = found_of(case.on, case.counts)

    assert found.lower == pytest.approx(case.lower, abs=NEAR)
    assert found.upper == pytest.approx(case.upper, abs=NEAR)
    assert tuple(found.vacuous.tolist()) == case.vacuous


def test_the_variance_of_two_labels_worked_by_hand() -> None:
    on = without_strays(hard(np.array([[900, 200], [100, 800]])))
    at = intervals.planned(on, np.array([0.1, 0.9]), 1000.0)

    found = intervals.label_terms(at, at.unbiased)

    # The first row of A^-1 is (8, -2) / 7, so a prediction's worth moves by 10/7 between cells; its
    # mean square is (64, 4) / 49 in the two cells. At t = .1 cells have shares (.27, .73).
    window = (64 / 49 * 0.27 + 4 / 49 * 0.73 - 0.1**2) / 1000
    of_0, of_1 = (10 / 7) ** 2 * 0.09 / 1000, (10 / 7) ** 2 * 0.16 / 1000
    assert found.sd[0] ** 2 == pytest.approx(window + 0.01 * of_0 + 0.81 * of_1)
    # At t = 0 and t = 1 the label is absent or alone.
    at_0 = (64 / 49 * 0.2 + 4 / 49 * 0.8) / 1000 + of_1
    at_1 = (64 / 49 * 0.9 + 4 / 49 * 0.1 - 1.0) / 1000 + of_0
    assert found.c0[0] == pytest.approx(at_0)
    assert found.c0[0] + found.c1[0] + found.c2[0] == pytest.approx(at_1)
    assert found.bias.tolist() == [0.0, 0.0]


def test_the_part_that_the_reference_has_in_the_noise_worked_by_hand() -> None:
    on = without_strays(hard(np.array([[900, 200], [100, 800]])))

    found = intervals.reference_share(intervals.planned(on, np.array([0.1, 0.9]), 1000.0))

    window = 64 / 49 * 0.27 + 4 / 49 * 0.73 - 0.1**2
    reference = (10 / 7) ** 2 * (0.01 * 0.09 + 0.81 * 0.16)
    assert found == pytest.approx(reference / (reference + window))


def test_the_reference_has_the_larger_part_the_longer_the_window() -> None:
    on = hard(golden.THREE)
    parts = [
        intervals.reference_share(intervals.planned(on, on.nu, m)) for m in (10.0, 1e3, 1e5, 1e9)
    ]

    assert parts == sorted(parts)
    assert parts[0] < 0.05
    assert parts[-1] > 0.999


def test_records_that_stray_add_the_noise_of_cells_at_random() -> None:
    plain = without_strays(hard(np.diag([100, 300])))
    straying = replace(plain, stray=np.array([0.01, 0.01]))
    at = intervals.planned(straying, np.array([0.2, 0.8]), 1e9)

    found = intervals.label_terms(at, at.unbiased)

    # K is the identity, cells have shares (.25, .75) of the reference: a record of label 0 that
    # strays into cell 1 (.75 of those that do) misses its mean of 1, one of label 1 in cell 0 (.25)
    # its mean of 0.
    expected = 0.04 * 0.01 * 0.75 / 100 + 0.64 * 0.01 * 0.25 / 300
    assert found.sd[0] ** 2 == pytest.approx(expected, rel=1e-4)


def ridden() -> tuple[Operator, Linear]:
    """Label 2 is predicted like either of the others; K takes shares of predictions for shares."""
    on = without_strays(hard(np.array([[10**9, 0, 10**9], [0, 10**9, 10**9], [0, 0, 0]])))
    K = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    return on, Linear(K, K @ on.A)


def test_an_interval_with_bias_worked_by_hand() -> None:
    on, of = ridden()
    at = intervals.planned(on, np.array([0.4, 0.4, 0.2]), 400.0)

    described = intervals.label_terms(at, of)
    found = intervals._inverted(described, np.array([0.55, 0.45, 0.0]), 0.95)

    # Predictions of 0 come from label 0 always, from label 1 never and from label 2 half the time.
    assert (described.out_low[0], described.out_high[0]) == (0.0, 0.5)
    assert described.bias[0] == pytest.approx(0.5 * 0.6 / 2)
    # If label 0 had the share t, labels 1 and 2 would share the rest as 2 : 1: predictions of 0 are
    # t + (1 - t) / 6 of 400. The reference is endless.
    sd = {t: np.sqrt((p := t + (1 - t) / 6) * (1 - p) / 400) for t in (0.4, *found_ends(found))}
    assert described.sd[0] == pytest.approx(sd[0.4])
    # With a bias of six standard deviations the one-sided quantile is all there is to add: from
    # below if all others were label 2, from above if they were label 1.
    lower, upper = found_ends(found)
    z = norm.ppf(0.95)
    assert 0.55 - lower - (1 - lower) / 2 == pytest.approx(z * sd[lower], rel=1e-4)
    assert upper - 0.55 == pytest.approx(z * sd[upper], rel=1e-4)
    assert 0.0 < lower < 0.1
    assert 0.55 < upper < 0.65


def found_ends(found: Intervals) -> tuple[float, float]:
    return float(found.lower[0]), float(found.upper[0])


def test_the_expected_half_length_with_bias_worked_by_hand() -> None:
    on, of = ridden()
    at = intervals.planned(on, np.array([0.4, 0.4, 0.2]), 400.0)

    half = intervals.label_terms(at, of).half_length(0.95)

    # Bias .15, a standard deviation of a half at 400, and an estimate that moves by 3/4 of t: from
    # 1 in label 0 to .25 in the middle of the others.
    assert half[0] == pytest.approx((0.15 + norm.ppf(0.95) * 0.5 / 20) / 0.75, rel=1e-4)


def test_an_estimate_that_does_not_move_with_its_share_says_nothing() -> None:
    on, of = ridden()
    at = intervals.planned(on, np.array([0.4, 0.4, 0.2]), 400.0)

    found = intervals._inverted(intervals.label_terms(at, of), np.array([0.5, 0.5, 0.0]), 0.95)

    # K has nothing to say of label 2.
    assert found.vacuous.tolist() == [False, False, True]
    assert (found.lower[2], found.upper[2]) == (0.0, 1.0)


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95, 0.99, 0.999])
def test_the_reach_is_the_quantile_of_a_folded_normal(level: float) -> None:
    x = np.array([0.0, 0.01, 0.1, 0.3, 0.6, 1.0, 1.5, 3.0, 8.0])

    found = intervals.arm(2.0 * x, np.full(len(x), 2.0), level)

    # P(|Z + x| <= x + z) = level.
    for bias, reach in zip(x, found, strict=True):

        def missed(z: float, bias: float = bias) -> float:
            return float(norm.cdf(z) - norm.cdf(-2.0 * bias - z)) - level

        assert reach == pytest.approx(brentq(missed, 0.0, 10.0, xtol=1e-12), abs=1e-6)


def test_without_bias_the_reach_is_the_two_sided_quantile() -> None:
    assert intervals.arm(np.zeros(2), np.ones(2), 0.95).tolist() == [pytest.approx(Z)] * 2


@pytest.mark.parametrize("n", [16, 89, 181, 188, 217, 10**15])
def test_rounding_does_not_lead_wilsons_interval_out_of_shares(n: int) -> None:
    lower, upper = intervals.wilson(np.array([0.0, 1.0]), n, 1.959963984540054)

    assert lower[0] == 0.0
    assert upper[1] == 1.0


def test_a_perfect_classifier_with_an_endless_reference_gives_wilsons_interval() -> None:
    on = hard(np.eye(3, dtype=np.int64) * 10**9)

    _, found = found_of(on, np.array([0.0, 30.0, 70.0]))

    # K is the identity, so a share's variance is t (1 - t) / m, whose inverted test is Wilson's.
    # All that is left of the reference are strays, .003 of a variance of 1e-9: 3e-12 beside
    # t (1 - t) / m, which is 4e-4 at the least at the ends of intervals, or parts in 1e8.
    z2, m = Z**2, 100.0
    p = np.array([0.0, 0.3, 0.7])
    centre = (p + z2 / (2 * m)) / (1 + z2 / m)
    half = np.sqrt(z2 * p * (1 - p) / m + z2**2 / (4 * m**2)) / (1 + z2 / m)
    assert found.lower == pytest.approx(centre - half, abs=1e-7)
    assert found.upper == pytest.approx(centre + half, abs=1e-7)


def test_the_expected_half_length_of_a_perfect_classifier_is_that_of_a_proportion() -> None:
    on = hard(np.eye(2, dtype=np.int64) * 10**9)

    found = intervals.expected_half_lengths(intervals.planned(on, np.array([0.3, 0.7]), 10_000.0))

    assert found == pytest.approx(Z * np.sqrt(0.21 / 10_000), rel=1e-4)


def test_a_share_of_which_nothing_is_known_is_expected_to_be_half_of_everything_away() -> None:
    at = intervals.endless(hard(golden.TWINS))

    found = intervals.expected_half_lengths(at)

    assert found[0] < 0.05
    assert found[1:].tolist() == [0.5, 0.5]


def test_simultaneous_intervals_are_those_of_a_higher_level() -> None:
    case = CASES["three labels"]
    found = estimator.estimate(case.on, case.counts)
    at = intervals.design(case.on, found)

    together = intervals.shares(at, found, simultaneous=True)
    single = intervals.shares(at, found)
    higher = intervals.shares(at, found, level=1.0 - 0.05 / 3)

    assert (together.upper - together.lower > single.upper - single.lower).all()
    assert together.lower == pytest.approx(higher.lower)
    assert together.upper == pytest.approx(higher.upper)


def test_a_higher_level_has_a_wider_interval_also_with_bias() -> None:
    for case in (CASES["six cells"], CASES["a label never predicted"]):
        found = estimator.estimate(case.on, case.counts)
        at = intervals.design(case.on, found)

        by_level = [intervals.shares(at, found, level=level) for level in (0.5, 0.9, 0.95, 0.999)]

        for narrow, wide in pairwise(by_level):
            assert (wide.lower <= narrow.lower).all()
            assert (wide.upper >= narrow.upper).all()
        assert by_level[0].lower[0] > by_level[-1].lower[0]


def test_overdispersion_widens_like_fewer_predictions() -> None:
    case = CASES["three labels"]

    found, widened = found_of(case.on, case.counts * 4.0, phi=4.0)
    _, plain = found_of(case.on, case.counts)

    assert found.m == 500.0
    assert widened.lower == pytest.approx(plain.lower, abs=1e-6)
    assert widened.upper == pytest.approx(plain.upper, abs=1e-6)


def test_the_sum_of_labels_alike_is_known_though_they_are_not() -> None:
    case = CASES["two labels alike"]
    found, alone = found_of(case.on, case.counts)
    at = intervals.design(case.on, found)

    of_pair = intervals.shares(at, found, intervals.memberships(3, [(1, 2)]))

    assert alone.vacuous.tolist() == [False, True, True]
    assert not of_pair.vacuous.any()
    # All that is not label 0.
    assert of_pair.lower[0] == pytest.approx(1.0 - alone.upper[0])
    assert of_pair.upper[0] == pytest.approx(1.0 - alone.lower[0])


@given(seeds, st.integers(3, 7), st.booleans())
@settings(deadline=None, max_examples=40)
def test_a_group_is_everything_but_the_rest(seed: int, k: int, silent: bool) -> None:
    rng = np.random.default_rng(seed)
    counts = confusion(rng, k)
    if silent:
        counts[0] += counts[-1]
        counts[-1] = 0
    on = hard(counts)
    window = rng.multinomial(400, rng.dirichlet(np.ones(len(on.A)))).astype(np.float64)
    found = estimator.estimate(on, window)
    at = intervals.design(on, found)
    inside = rng.permutation(k)[: rng.integers(1, k)]
    outside = np.setdiff1d(np.arange(k), inside)

    both = intervals.shares(at, found, intervals.memberships(k, [inside, outside]))

    assert both.lower[0] == pytest.approx(1.0 - both.upper[1], abs=1e-6)
    assert both.upper[0] == pytest.approx(1.0 - both.lower[1], abs=1e-6)


@given(seeds, st.integers(3, 7), st.booleans())
@settings(deadline=None, max_examples=40)
def test_groups_of_one_label_have_the_labels_intervals(seed: int, k: int, silent: bool) -> None:
    rng = np.random.default_rng(seed)
    counts = confusion(rng, k)
    if silent:
        counts[0] += counts[-1]
        counts[-1] = 0
    on = hard(counts)
    window = rng.multinomial(400, rng.dirichlet(np.ones(len(on.A)))).astype(np.float64)
    found, alone = found_of(on, window)

    of_groups = intervals.shares(intervals.design(on, found), found, np.eye(k))

    assert of_groups.lower == pytest.approx(alone.lower, abs=1e-6)
    assert of_groups.upper == pytest.approx(alone.upper, abs=1e-6)
    assert of_groups.vacuous.tolist() == alone.vacuous.tolist()


@given(seeds, st.integers(2, 8), st.integers(1, 5000), st.booleans(), st.booleans())
@settings(deadline=None, max_examples=80)
def test_intervals_hold_the_estimate_and_stay_in_the_unit_interval(
    seed: int, k: int, m: int, silent: bool, simultaneous: bool
) -> None:
    rng = np.random.default_rng(seed)
    counts = confusion(rng, k)
    if silent:
        counts[0] += counts[-1]
        counts[-1] = 0
    on = hard(counts)
    window = rng.multinomial(m, rng.dirichlet(np.full(len(on.A), 0.3))).astype(np.float64)
    found = estimator.estimate(on, window)

    of = intervals.shares(intervals.design(on, found), found, simultaneous=simultaneous)

    assert ((of.lower >= 0.0) & (of.upper <= 1.0)).all()
    assert ((of.lower <= found.q) & (found.q <= of.upper)).all()
    assert (of.lower[of.vacuous] == 0.0).all()
    assert (of.upper[of.vacuous] == 1.0).all()


@given(seeds, st.integers(3, 6))
@settings(deadline=None, max_examples=30)
def test_the_order_of_labels_does_not_matter(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    counts = confusion(rng, k)
    window = rng.multinomial(200, rng.dirichlet(np.ones(k))).astype(np.float64)
    order = rng.permutation(k)

    _, plain = found_of(hard(counts), window)
    _, permuted = found_of(hard(counts[np.ix_(order, order)]), window[order])

    assert permuted.lower == pytest.approx(plain.lower[order], abs=1e-5)
    assert permuted.upper == pytest.approx(plain.upper[order], abs=1e-5)


@pytest.mark.parametrize("kappa", [1.0, 10.0, 100.0])
def test_estimates_with_a_ridge_sum_to_one_as_well(kappa: float) -> None:
    for counts in (golden.THREE, golden.TWINS, golden.SILENT):
        on = hard(counts)

        of = intervals.planned(on, on.even, 500.0).ridge(kappa)

        assert of.K.sum(axis=0) == pytest.approx(np.ones(len(on.A)))
        assert of.means(3).sum(axis=0) == pytest.approx(np.ones(3))


def test_a_ridge_trades_noise_for_bias() -> None:
    on = hard(golden.THREE)
    at = intervals.planned(on, on.even, 50.0)
    plain = intervals.label_terms(at, at.unbiased)
    ridged = [intervals.label_terms(at, at.ridge(kappa)) for kappa in intervals.RIDGES]

    for less, more in pairwise([plain, *ridged]):
        assert (more.sd < less.sd).all()
        assert (more.bias > less.bias).all()


def test_a_ridge_narrows_the_intervals_of_labels_hardly_told_apart() -> None:
    counts = np.array([[180, 20, 20], [10, 100, 80], [10, 80, 100]])
    on = hard(counts)
    found = estimator.estimate(on, counts.sum(axis=1) * 1.0)
    at = intervals.design(on, found)

    chosen = intervals.expected_half_lengths(at)

    plain = intervals.label_terms(at, at.unbiased).half_length(0.95)
    assert (chosen <= np.minimum(plain, 0.5) + 1e-12).all()
    assert chosen[1] < plain[1]


def test_no_ridge_is_tried_where_all_is_known_well_enough() -> None:
    good = intervals.planned(hard(golden.THREE * 100), np.full(3, 1 / 3), 1e5)
    poor = intervals.planned(hard(golden.THREE), np.full(3, 1 / 3), 50.0)

    assert len(good.of_labels) == 1
    assert len(poor.of_labels) == 1 + len(intervals.RIDGES)


def test_labels_that_are_not_identified_have_no_unbiased_estimate() -> None:
    case = CASES["two labels alike"]
    found = estimator.estimate(case.on, case.counts)

    raw, sd = intervals.unbiased_estimates(intervals.design(case.on, found), found)

    # (500 / 5 - .1 500) / .8 500 = .125 for label 0 alone.
    assert raw == pytest.approx([0.125])
    assert sd.shape == (1,)


def test_one_prediction_says_next_to_nothing_even_of_a_perfect_classifier() -> None:
    _, found = found_of(hard(np.diag([1000, 1000, 1000])), np.array([1.0, 0.0, 0.0]))

    # Wilson's interval for one of one starts at 1 / (1 + z^2).
    assert found.lower[0] == pytest.approx(1 / (1 + Z**2), abs=0.001)
    assert found.upper[0] == 1.0


def test_few_records_are_as_good_as_none() -> None:
    _, found = found_of(hard(np.array([[4, 2], [2, 4]])), np.array([300.0, 700.0]))

    assert found.vacuous.all()


def test_the_mix_of_intervals_is_a_record_away_from_the_boundary() -> None:
    case = CASES["one label only"]
    found = estimator.estimate(case.on, case.counts)

    at = intervals.design(case.on, found)

    assert at.q == pytest.approx((400 * found.q + 1) / 403)
    assert at.m == 400.0
