"""Maximum likelihood over calibrated rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.paper import likelihood, scaling
from tests import fashion

# p(output | label) of a black box with two outputs.
A = np.array([[0.9, 0.2], [0.1, 0.8]])


def test_two_labels_by_hand() -> None:
    # mu = (0.41, 0.59) solves 0.9 q + 0.2 (1 - q) = 0.41 at q = 0.3.
    assert likelihood.most_likely(A.repeat([41, 59], axis=0)) == pytest.approx([0.3, 0.7], abs=1e-4)


def test_outputs_that_no_mix_explains_give_a_corner() -> None:
    # Even label 0 alone gives output 0 only nine times in ten.
    assert likelihood.most_likely(A.repeat([95, 5], axis=0)) == pytest.approx([1.0, 0.0], abs=1e-4)


@given(st.integers(0, 2**32 - 1), st.integers(2, 12), st.integers(2, 60))
@settings(deadline=None, max_examples=60)
def test_no_other_mix_is_more_likely(seed: int, k: int, m: int) -> None:
    ratios = np.random.default_rng(seed).dirichlet(np.full(k, 0.3), size=m) + 1e-9

    q = likelihood.most_likely(ratios)

    gain = (1.0 / (ratios @ q)) @ ratios / m
    assert q.min() >= 0.0
    assert q.sum() == pytest.approx(1.0)
    # Twice LIKELIHOOD_GAP, for rounding.
    assert m * (gain.max() - 1.0) <= 2e-6


def test_the_mix_of_a_shifted_window_is_found() -> None:
    sample, traffic = fashion.outputs("good", "validation"), fashion.outputs("good", "test")
    q = fashion.tweaked(0, 0.5)
    window = fashion.draw(traffic, q, 4000, np.random.default_rng(7))
    fitted = scaling.fit(sample.rows, sample.labels)
    nu = np.bincount(sample.labels) / len(sample.labels)

    # Within a few standard errors, which are at most 0.01.
    assert likelihood.from_rows(fitted, nu, window.rows) == pytest.approx(q, abs=0.04)


def test_labels_that_the_reference_lacks_are_none_of_the_mix() -> None:
    rows = np.array([[0.7, 0.2, 0.1], [0.2, 0.7, 0.1]])

    found = likelihood.from_rows(scaling.as_they_are(3), np.array([0.5, 0.5, 0.0]), rows)

    assert found[2] == 0.0


def test_a_search_cut_short_still_ends_on_the_simplex(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likelihood, "MOST_STEPS", 1)

    assert likelihood.most_likely(A.repeat([95, 5], axis=0)).sum() == pytest.approx(1.0)
