"""Estimates of the label mix: worked by hand, recovered exactly, and never outside the simplex."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from app.stats import bbse, moments
from app.stats import reference as references
from app.stats.bbse import Prepared
from app.stats.diagnosis import diagnose
from app.stats.moments import Counts, Floats, Sums
from app.stats.reference import Reference

THREE = np.array([[80, 10, 10], [10, 70, 10], [10, 20, 80]])


def prepared(counts: Counts) -> Prepared:
    reference = references.from_confusion(counts)
    return bbse.prepare(reference, diagnose(reference))


def classifier(k: int, seed: int) -> Prepared:
    """A classifier that is mostly right, its reference drawn from a random confusion matrix."""
    rng = np.random.default_rng(seed)
    joint = np.diag(rng.dirichlet(np.full(k, 5.0))) * 0.8 + 0.2 * rng.dirichlet(
        np.ones(k * k)
    ).reshape(k, k)
    return prepared(
        rng.multinomial(400 * k, joint.ravel()).reshape(k, k) + 3 * np.eye(k, dtype=int)
    )


def maximum_likelihood(A: Floats, counts: Counts) -> Floats:
    q = np.full(A.shape[1], 1.0 / A.shape[1])
    for _ in range(20_000):
        q = q * (A.T @ (counts / (A @ q))) / counts.sum()
    return q


def test_two_labels_worked_by_hand() -> None:
    # A = [[.9, .2], [.1, .8]], determinant .7: q_0 = (.8 * .55 - .2 * .45) / .7 = .5.
    found = bbse.estimate(prepared(np.array([[90, 40], [10, 160]])), Sums(np.array([55, 45])))

    assert found.q == pytest.approx([0.5, 0.5])
    assert found.w == pytest.approx([1.5, 0.75])  # nu = (1/3, 2/3)


def test_three_labels_worked_by_hand() -> None:
    # mu = A (.5, .3, .2) for the conditional matrix of THREE.
    found = bbse.estimate(prepared(THREE), Sums(np.array([450, 280, 270])))

    assert found.q == pytest.approx([0.5, 0.3, 0.2])
    assert found.w == pytest.approx([1.5, 0.9, 0.6])
    assert found.negative == 0.0


def test_weights_are_those_of_the_papers_formula() -> None:
    reference = references.from_confusion(THREE)
    mu = np.array([0.45, 0.28, 0.27])

    w = bbse.algorithm_1(reference.joint(), mu, delta=0.01)

    assert w == pytest.approx(bbse.estimate(prepared(THREE), Sums(np.array([450, 280, 270]))).w)


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 12), st.integers(0, 10_000))
def test_a_mix_is_recovered_exactly_from_its_own_mean(k: int, seed: int) -> None:
    on = classifier(k, seed)
    q = np.random.default_rng(seed).dirichlet(np.ones(len(on.nu)))

    raw = on.inverse @ (on.given.A @ q)

    assert raw == pytest.approx(q, abs=1e-9)


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 12), st.integers(0, 10_000), st.integers(1, 3000))
def test_raw_estimates_sum_to_one_and_estimates_are_on_the_simplex(
    k: int, seed: int, m: int
) -> None:
    on = classifier(k, seed)
    rng = np.random.default_rng(seed)
    window = Sums(rng.multinomial(m, rng.dirichlet(np.full(k, 0.2))))

    found = bbse.estimate(on, window)

    # Square and tall alike: the reference predicts every label here.
    assert found.raw.sum() == pytest.approx(1.0, abs=1e-8)
    assert found.q.sum() == pytest.approx(1.0, abs=1e-9)
    assert (found.q >= 0.0).all()


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 9), st.integers(0, 10_000))
def test_the_order_of_labels_does_not_matter(k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 12, size=(k, k)) + np.diag(rng.integers(30, 80, size=k))
    window = rng.multinomial(300, rng.dirichlet(np.full(k, 0.3)))
    order = rng.permutation(k)

    one = prepared(counts)
    other = prepared(counts[np.ix_(order, order)])
    q = one.spread(bbse.estimate(one, Sums(window)).q)
    permuted = other.spread(bbse.estimate(other, Sums(window[order])).q)

    assert permuted == pytest.approx(q[order], abs=1e-7, nan_ok=True)


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 6), st.integers(0, 10_000))
def test_one_hot_softmax_gives_what_hard_predictions_give(k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    actual = np.concatenate([np.arange(k).repeat(60), rng.integers(k, size=200)])
    guess = np.where(rng.random(len(actual)) < 0.8, actual, rng.integers(k, size=len(actual)))
    hard = references.from_sample(k, guess, actual)
    soft = references.from_sample(k, guess, actual, np.eye(k)[guess])
    window = rng.choice(k, size=150, p=rng.dirichlet(np.ones(k)))

    on_soft = bbse.prepare(soft, diagnose(soft))
    on_hard = bbse.prepare(hard, diagnose(hard))
    softly = bbse.estimate(on_soft, moments.sums(k, window, np.eye(k)[window]))
    hardly = bbse.estimate(on_hard, moments.sums(k, window))

    assert on_soft.soft
    assert softly.raw == pytest.approx(hardly.raw, abs=1e-10)
    assert on_soft.variance == pytest.approx(on_hard.variance, abs=1e-10)


def test_panes_may_come_in_any_order_and_grouping() -> None:
    rng = np.random.default_rng(5)
    rows = rng.dirichlet(np.full(3, 0.4), size=90)
    actual = moments.argmax(rows)
    reference = references.from_sample(3, actual, actual, rows)
    on = bbse.prepare(reference, diagnose(reference))
    panes = [moments.sums(3, moments.argmax(part), part) for part in np.split(rows, 9)]

    whole = bbse.estimate(on, moments.total(panes))
    grouped = bbse.estimate(
        on, moments.total([moments.total(panes[6:]), moments.total(panes[2:6][::-1]), *panes[:2]])
    )

    assert grouped.q == pytest.approx(whole.q, abs=1e-12)


def test_inside_the_simplex_the_estimate_is_the_maximum_likelihood_one() -> None:
    on = prepared(THREE)
    counts = np.array([412, 305, 283])

    assert bbse.estimate(on, Sums(counts)).q == pytest.approx(
        maximum_likelihood(on.given.A, counts), abs=1e-8
    )


def test_on_the_boundary_it_is_close_to_maximum_likelihood() -> None:
    # The reference is large, so that likelihood and least squares weigh the same evidence.
    on = prepared(THREE * 1000)
    counts = np.array([130, 50, 820])

    found = bbse.estimate(on, Sums(counts))

    assert found.negative > 0.01
    assert found.q == pytest.approx(maximum_likelihood(on.given.A, counts), abs=0.02)


def test_merged_labels_share_their_groups_estimate_as_in_the_reference() -> None:
    on = prepared(np.array([[90, 10, 20], [5, 45, 90], [5, 45, 90]]))

    q = bbse.estimate(on, Sums(np.array([180, 210, 210]))).q

    assert on.columns == ((0,), (1, 2))
    assert on.spread(q)[2] / on.spread(q)[1] == pytest.approx(2.0)
    assert on.spread(q).sum() == pytest.approx(1.0)
    assert on.repeat(q)[1] == on.repeat(q)[2] == q[1]


def test_absent_labels_are_unknown_not_zero() -> None:
    on = prepared(np.array([[90, 10, 0], [10, 90, 0], [0, 0, 0]]))

    q = on.spread(bbse.estimate(on, Sums(np.array([50, 50, 0]))).q)

    assert q[:2] == pytest.approx([0.5, 0.5])
    assert np.isnan(q[2])


def test_nothing_estimable_falls_back_on_the_references_mix() -> None:
    on = prepared(np.array([[50, 25], [50, 25]]))

    found = bbse.estimate(on, Sums(np.array([90, 10])))

    assert found.fallback
    assert on.spread(found.q) == pytest.approx([2 / 3, 1 / 3])
    assert found.w.tolist() == [1.0]


def test_only_predictions_new_to_the_reference_fall_back_too() -> None:
    on = prepared(np.array([[90, 10, 0], [10, 90, 0], [0, 0, 0]]))

    found = bbse.estimate(on, Sums(np.array([0, 0, 40])))

    assert found.fallback
    assert found.w.tolist() == [1.0, 1.0]


def test_a_window_without_predictions_has_no_estimate() -> None:
    with pytest.raises(ValueError, match="without predictions"):
        bbse.estimate(prepared(THREE), Sums(np.zeros(3, dtype=np.int64)))


def test_soft_moments_need_soft_windows() -> None:
    rows = np.random.default_rng(1).dirichlet(np.full(2, 0.3), size=400)
    reference = references.from_sample(2, moments.argmax(rows), moments.argmax(rows), rows)
    on = bbse.prepare(reference, diagnose(reference))

    with pytest.raises(ValueError, match="hard predictions"):
        bbse.estimate(on, Sums(np.array([1, 1])))


def test_noise_is_smoothed_but_means_are_not() -> None:
    on = prepared(np.diag([50, 50]))

    assert on.given.A.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert (np.diag(on.reference_noise(np.array([0.5, 0.5]))) > 0.0).all()
    assert (np.diag(on.window_noise(Sums(np.array([10, 0])))) > 0.0).all()


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_whatever_the_guess_shares_are_those_of_nnls(k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    M, y = rng.normal(size=(k + 1, k)), rng.normal(size=k + 1)

    found = bbse._non_negative(M, y, rng.random(k) < 0.5)

    assert found == pytest.approx(nnls(M, y)[0], abs=1e-9)


def test_columns_that_depend_on_each_other_are_left_to_nnls() -> None:
    rng = np.random.default_rng(7)
    own = rng.random((7, 3))
    M, y = np.hstack([own, own]), rng.random(7)

    found = bbse._non_negative(M, y, np.ones(6, dtype=np.bool_))

    assert found.min() >= 0.0
    assert np.linalg.norm(M @ found - y) == pytest.approx(nnls(own, y)[1])


def test_guesses_that_lead_nowhere_end_with_nnls(monkeypatch: pytest.MonkeyPatch) -> None:
    one, window = classifier(8, seed=5), Sums(np.array([30, 0, 0, 5, 0, 0, 0, 1]))
    guessed = bbse.estimate(one, window)
    monkeypatch.setattr(bbse, "MOST_GUESSES", 0)

    walked = bbse.estimate(one, window)

    assert guessed.raw.min() < 0.0
    assert guessed.q == pytest.approx(walked.q, abs=1e-12)


def test_a_thousand_labels_are_estimated_in_time() -> None:
    k = 1000
    rng = np.random.default_rng(0)
    counts = np.diag(np.full(k, 40)) + rng.poisson(0.01, size=(k, k))
    reference = Reference(counts)
    on = bbse.prepare(reference, diagnose(reference))

    found = bbse.estimate(on, Sums(rng.multinomial(5000, rng.dirichlet(np.ones(k)))))

    assert found.q.sum() == pytest.approx(1.0)
    assert (found.q >= 0.0).all()
