"""The kernel test on softmax rows."""

import numpy as np
import pytest
from scipy import stats

from bench.paper import mmd


def test_the_tail_of_a_mixture_is_that_of_simulated_ones() -> None:
    weights = np.array([3.0, 1.0, 0.5, 0.1, 0.1])
    draws = np.random.default_rng(0).chisquare(1, size=(400_000, 5)) @ weights

    for level in (0.1, 0.05, 0.01):
        # Matching moments is approximate by itself: a tenth of the level.
        critical = float(np.quantile(draws, 1 - level))
        assert mmd.mixture_sf(critical, weights) == pytest.approx(level, rel=0.1)


def test_a_single_weight_is_a_chi_square() -> None:
    assert mmd.mixture_sf(7.0, np.array([2.0])) == pytest.approx(float(stats.chi2.sf(3.5, 1)))


def test_equal_weights_are_a_chi_square_with_as_many_degrees_of_freedom() -> None:
    assert mmd.mixture_sf(18.307, np.ones(10)) == pytest.approx(0.05, abs=1e-5)


def test_no_spread_at_all_leaves_no_doubt() -> None:
    assert mmd.mixture_sf(0.0, np.zeros(3)) == 1.0
    assert mmd.mixture_sf(0.1, np.zeros(3)) == 0.0


def test_a_changed_distribution_is_seen_and_an_empty_window_is_not() -> None:
    rng = np.random.default_rng(1)
    reference = mmd.embed(rng.dirichlet([4, 2, 1], size=1000), seed=3)
    other = reference.features.of(rng.dirichlet([1, 2, 4], size=200))

    assert mmd.mmd(reference, other.sum(axis=0), 200).p_value < 1e-6
    assert mmd.mmd(reference, np.zeros(mmd.FEATURES), 0).p_value == 1.0


def test_the_same_distribution_is_not_suspicious() -> None:
    rows = np.random.default_rng(1).dirichlet(np.ones(3), size=500)
    reference = mmd.embed(rows[:300], seed=7)

    found = mmd.mmd(reference, reference.features.of(rows[300:]).sum(axis=0), 200)

    assert 0.05 < found.p_value < 1.0


def test_features_are_frozen_by_their_seed() -> None:
    rows = np.random.default_rng(1).dirichlet([4, 2, 1], size=100)

    one, other = mmd.embed(rows, seed=3), mmd.embed(rows, seed=3)

    assert (one.features.omega == other.features.omega).all()
    assert one.mean.tolist() == other.mean.tolist()
