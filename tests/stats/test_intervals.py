"""Intervals for the label mix: one case worked by hand, and what must hold for every window."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.stats import bbse, intervals, moments
from app.stats import reference as references
from app.stats.bbse import Prepared
from app.stats.diagnosis import diagnose
from app.stats.moments import Counts, Sums

# A = [[.9, .2], [.1, .8]] from 1000 records of each label: A^-1 = [[8, -2], [-1, 9]] / 7.
TWO = np.array([[900, 200], [100, 800]])
WINDOW = Sums(np.array([270, 730]))  # raw = q = (.1, .9)
Z = 1.959963984540054


def prepared(counts: Counts) -> Prepared:
    reference = references.from_confusion(counts)
    return bbse.prepare(reference, diagnose(reference))


def smoothed(variance: float) -> float:
    """A binomial variance of TWO as `a Cov_j a'`, `|a|^2 = 68/49`, smoothed for d = 2."""
    own = (10 / 7) ** 2 * variance
    return own + 68 / 49 * 0.3 * (2 * variance / 2 + 1 / 1000)


def test_variances_of_two_labels_worked_by_hand() -> None:
    on = prepared(TWO)
    found = bbse.estimate(on, WINDOW)

    noise = intervals.noise(on, found, WINDOW)

    window = (64 / 49 * 0.27 + 4 / 49 * 0.73 - 0.1**2) / 1000 + 68 / 49 / 1000**2
    reference = 0.1**2 * smoothed(0.09) / 1000 + 0.9**2 * smoothed(0.16) / 1000
    assert noise.window[0] == pytest.approx(window)
    assert noise.reference[0] == pytest.approx(reference)
    assert noise.reference_share == pytest.approx(
        noise.reference.sum() / (noise.reference + noise.window).sum()
    )


def test_the_covariance_has_these_variances_and_no_variance_of_the_sum_but_smoothing() -> None:
    on = prepared(TWO * 100)
    found = bbse.estimate(on, WINDOW)

    covariance = intervals.covariance(on, found, WINDOW)

    assert np.diag(covariance) == pytest.approx(intervals.noise(on, found, WINDOW).total)
    assert covariance[0, 1] == pytest.approx(-covariance[0, 0], rel=0.05)


def test_the_ends_of_an_interval_worked_by_hand_solve_the_score_equation() -> None:
    on = prepared(TWO)

    found = intervals.score(on, bbse.estimate(on, WINDOW), WINDOW)

    s0 = 64 / 49 * 0.27 + 4 / 49 * 0.73 + 68 / 49 / 1000
    s1 = ((64 * 0.9 + 4 * 0.1) / 49 - s0) / 0.9
    r_own, r_oth = smoothed(0.09) / 1000, smoothed(0.16) / 1000
    for t in (found.lower[0], found.upper[0]):
        variance = (s0 + s1 * (t - 0.1) - t**2) / 1000 + r_own * t**2 + r_oth * (1 - t) ** 2
        assert (t - 0.1) ** 2 == pytest.approx(Z**2 * variance)
    assert found.upper[1] == pytest.approx(1.0 - found.lower[0], abs=0.005)


def test_a_perfect_classifier_and_reference_give_wilsons_interval() -> None:
    on = prepared(np.diag([10**9, 10**9]))
    window = Sums(np.array([3_000, 7_000]))

    found = intervals.score(on, bbse.estimate(on, window), window)

    m, p, z2 = 10_000, 0.3, Z**2
    centre = (p + z2 / (2 * m)) / (1 + z2 / m)
    half = np.sqrt(z2 * (p * (1 - p) + z2 / (4 * m)) / m) / (1 + z2 / m)
    # The window's smoothing, one part in m, is all that is added.
    assert found.lower[0] == pytest.approx(centre - half, abs=1e-5)
    assert found.upper[0] == pytest.approx(centre + half, abs=1e-5)


def test_a_hopeless_reference_gives_vacuous_intervals_not_nonsense() -> None:
    on = prepared(TWO)
    starved = replace(on, given=replace(on.given, n_j=np.array([1, 1])))
    window = Sums(np.array([40, 60]))

    found = intervals.score(starved, bbse.estimate(on, window), window)

    assert found.vacuous.all()
    assert (found.lower.tolist(), found.upper.tolist()) == ([0.0, 0.0], [1.0, 1.0])


def test_simultaneous_intervals_are_wider() -> None:
    on = prepared(np.array([[80, 10, 10], [10, 70, 10], [10, 20, 80]]))
    window = Sums(np.array([30, 50, 20]))
    found = bbse.estimate(on, window)

    single = intervals.score(on, found, window)
    together = intervals.score(on, found, window, simultaneous=True)

    assert (together.upper - together.lower > single.upper - single.lower).all()


def test_overdispersion_widens_like_fewer_predictions() -> None:
    on = prepared(TWO * 10**6)
    few, many = Sums(np.array([270, 730])), Sums(np.array([1080, 2920]))

    widened = intervals.score(on, bbse.estimate(on, many), many, phi=4.0)
    plain = intervals.score(on, bbse.estimate(on, few), few)

    assert widened.lower == pytest.approx(plain.lower)
    assert widened.upper == pytest.approx(plain.upper)


def test_wald_is_close_to_score_in_large_samples() -> None:
    on = prepared(TWO * 100)
    window = Sums(np.array([27_000, 73_000]))
    found = bbse.estimate(on, window)

    wald, score = intervals.wald(on, found, window), intervals.score(on, found, window)

    assert wald.lower == pytest.approx(score.lower, abs=2e-4)
    assert wald.upper == pytest.approx(score.upper, abs=2e-4)


def test_weights_for_the_population_are_less_certain_than_for_the_sample() -> None:
    on = prepared(TWO)
    found = bbse.estimate(on, WINDOW)
    of_q = intervals.score(on, found, WINDOW)

    sample = intervals.weights(on, found, of_q)
    population = intervals.weights(on, found, of_q, population=True)

    assert sample.lower == pytest.approx(of_q.lower / 0.5)
    assert (population.upper - population.lower > sample.upper - sample.lower).all()
    # w = (.2, 1.8): Var(w) gains (w^2 / nu - w^2) / n = .04 / 2000 for the first label.
    cov = intervals.covariance(on, found, WINDOW)
    gained = intervals.weight_covariance(on, found, cov, population=True) - (
        intervals.weight_covariance(on, found, cov)
    )
    assert gained[0] == pytest.approx([0.04 / 2000, -0.36 / 2000])


def test_merge_bias_is_half_the_distance_of_the_merged_columns() -> None:
    on = prepared(np.array([[90, 10, 14], [5, 46, 43], [5, 44, 43]]))
    window = Sums(np.array([40, 30, 30]))
    found = bbse.estimate(on, window)

    bias = intervals.merge_bias(on, found)

    apart = np.abs(on.reference.conditional()[:, 1] - on.reference.conditional()[:, 2]).sum()
    assert on.columns == ((0,), (1, 2))
    assert bias == pytest.approx([0.0, found.q[1] * apart / 2])


def test_bounds_of_the_paper_and_of_its_proof() -> None:
    w = np.ones(10)

    printed = intervals.theorem_1(0.08, w, 10_000, 10_000)
    proved = intervals.theorem_1(0.08, w, 10_000, 10_000, intervals.PROVED)

    # sqrt(80 (|w|^2 log n / n + k log m / m)) / sigma, both terms being .00921.
    assert printed == pytest.approx(np.sqrt(80 * 2 * 10 * np.log(10_000) / 10_000) / 0.08)
    assert proved / printed == pytest.approx(np.sqrt(200 / 160))
    assert intervals.guaranteed_error(0.08, w, 10_000, 10_000) < printed
    assert intervals.guaranteed_error(0.01, w, 10_000, 10_000) == np.inf


@settings(deadline=None, max_examples=80)
@given(st.integers(2, 8), st.integers(0, 10_000), st.integers(1, 5000), st.booleans())
def test_intervals_hold_the_estimate_and_stay_in_the_unit_interval(
    k: int, seed: int, m: int, soft: bool
) -> None:
    rng = np.random.default_rng(seed)
    actual = np.concatenate([np.arange(k).repeat(30), rng.integers(k, size=100)])
    rows = rng.dirichlet(np.full(k, 0.3), size=len(actual)) + 0.8 * np.eye(k)[actual]
    rows /= rows.sum(axis=1, keepdims=True)
    reference = references.from_sample(k, moments.argmax(rows), actual, rows if soft else None)
    on = bbse.prepare(reference, diagnose(reference))
    chosen = rng.choice(len(rows), size=m)
    window = moments.sums(k, moments.argmax(rows[chosen]), rows[chosen] if soft else None)
    found = bbse.estimate(on, window)

    of_q = intervals.score(on, found, window)
    of_w = intervals.weights(on, found, of_q, population=True)

    assert ((of_q.lower >= 0.0) & (of_q.upper <= 1.0)).all()
    assert ((of_q.lower <= found.q) & (found.q <= of_q.upper)).all()
    assert ((of_w.lower >= 0.0) & (of_w.lower <= found.w) & (found.w <= of_w.upper)).all()
