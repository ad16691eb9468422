"""The paper's estimator, as printed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.stats import bbse, moments
from app.stats import reference as references
from app.stats.bbse import Paper, Singular
from app.stats.moments import Counts, Floats, Sums
from tests import fashion

THREE = np.array([[80, 10, 10], [10, 70, 10], [10, 20, 80]])


def paper(counts: Counts) -> Paper:
    return bbse.prepare(references.from_confusion(counts), soft=False)


def softmax(rng: np.random.Generator, actual: Counts, k: int) -> Floats:
    rows = rng.dirichlet(np.full(k, 0.3), size=len(actual)) + 0.8 * np.eye(k)[actual]
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))


def test_two_labels_worked_by_hand() -> None:
    # A = [[.9, .2], [.1, .8]], determinant .7: q_0 = (.8 * .55 - .2 * .45) / .7 = .5.
    found = bbse.estimate(paper(np.array([[90, 40], [10, 160]])), Sums(np.array([55, 45])))

    assert found.q == pytest.approx([0.5, 0.5])
    assert found.w == pytest.approx([1.5, 0.75])  # nu = (1/3, 2/3)
    assert found.moments == "hard"
    assert (found.singular, found.minimum_norm) == (None, None)


def test_three_labels_worked_by_hand() -> None:
    # mu = A (.5, .3, .2) for the conditional matrix of THREE.
    found = bbse.estimate(paper(THREE), Sums(np.array([450, 280, 270])))

    assert found.q == pytest.approx([0.5, 0.3, 0.2])
    assert found.w == pytest.approx([1.5, 0.9, 0.6])


def test_the_smallest_singular_value_is_that_of_the_joint_matrix() -> None:
    found = paper(np.array([[45, 10], [5, 40]]))

    # C'C = [[.205, .065], [.065, .17]]: trace .375, determinant .030625.
    assert found.sigma_min**2 == pytest.approx((0.375 - np.sqrt(0.375**2 - 4 * 0.030625)) / 2)


def test_shares_may_be_negative_and_are_left_so() -> None:
    found = bbse.estimate(paper(np.array([[90, 20], [10, 80]])), Sums(np.array([95, 5])))

    # (.95 - .2) / .7 of label 0.
    assert found.q == pytest.approx([75 / 70, -5 / 70])


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 10), st.integers(0, 10_000), st.booleans())
def test_a_window_of_the_references_own_predictions_has_its_mix(
    k: int, seed: int, soft: bool
) -> None:
    rng = np.random.default_rng(seed)
    actual = np.concatenate([np.arange(k).repeat(30), rng.integers(k, size=100)])
    rows = softmax(rng, actual, k)
    predicted = moments.argmax(rows)
    reference = references.from_sample(k, predicted, actual, rows)

    found = bbse.estimate(bbse.prepare(reference, soft=soft), moments.sums(k, predicted, rows))

    assert found.moments == ("soft" if soft else "hard")
    assert found.q == pytest.approx(reference.nu, abs=1e-9)
    assert found.w == pytest.approx(np.ones(k), abs=1e-8)


@settings(deadline=None, max_examples=20)
@given(st.integers(2, 6), st.integers(0, 10_000))
def test_one_hot_softmax_gives_what_hard_predictions_give(k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    actual = np.concatenate([np.arange(k).repeat(60), rng.integers(k, size=200)])
    guess = np.where(rng.random(len(actual)) < 0.8, actual, rng.integers(k, size=len(actual)))
    reference = references.from_sample(k, guess, actual, np.eye(k)[guess])
    window = rng.choice(k, size=150, p=rng.dirichlet(np.ones(k)))
    sums = moments.sums(k, window, np.eye(k)[window])

    softly = bbse.estimate(bbse.prepare(reference, soft=True), sums)
    hardly = bbse.estimate(bbse.prepare(reference, soft=False), sums)

    assert softly.q == pytest.approx(hardly.q, abs=1e-10)
    assert softly.sigma_min == pytest.approx(hardly.sigma_min)


@settings(deadline=None, max_examples=30)
@given(st.permutations(range(4)), st.integers(0, 10_000))
def test_the_order_of_labels_does_not_matter(order: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 12, size=(4, 4)) + np.diag(rng.integers(40, 80, size=4))
    window = rng.multinomial(300, rng.dirichlet(np.ones(4)))

    one = bbse.estimate(paper(counts), Sums(window))
    other = bbse.estimate(paper(counts[np.ix_(order, order)]), Sums(window[order]))

    assert one.q is not None
    assert other.q == pytest.approx(one.q[order])
    assert other.sigma_min == pytest.approx(one.sigma_min)


def test_soft_moments_of_real_rows_recover_a_shift() -> None:
    pool, stream = fashion.outputs("good", "validation"), fashion.outputs("good", "test")
    reference = references.from_sample(10, pool.predicted, pool.labels, pool.rows)
    q = fashion.tweaked(3, 0.4)
    window = fashion.draw(stream, q, 5000, np.random.default_rng(1))

    found = bbse.estimate(
        bbse.prepare(reference, soft=True), moments.sums(10, window.predicted, window.rows)
    )

    # Standard errors of 5000 predictions are near .01.
    assert found.q == pytest.approx(q, abs=0.04)


def test_a_label_without_records_leaves_no_inverse() -> None:
    found = paper(np.array([[90, 10, 0], [10, 90, 0], [0, 0, 0]]))

    assert found.inverse is None
    assert found.sigma_min == 0.0
    assert found.singular == Singular("missing", (2,))


def test_a_label_never_predicted_leaves_none_either() -> None:
    found = paper(np.array([[90, 10, 5], [10, 90, 95], [0, 0, 0]]))

    assert found.singular == Singular("never_predicted", (2,))


def test_labels_predicted_alike_are_told_by_no_name() -> None:
    # Label 2 is half label 0 and half label 1; whose fault that is cannot be said.
    found = paper(np.array([[80, 20, 50], [20, 80, 50], [0, 0, 0]]) + 1)
    alike = paper(np.array([[60, 20, 40], [20, 60, 40], [20, 20, 20]]))

    assert found.singular == Singular("alike")
    assert alike.singular == Singular("alike")


def test_a_window_without_an_inverse_has_the_flattest_mix_that_explains_it() -> None:
    on = paper(np.array([[100, 0, 0], [0, 50, 50], [0, 50, 50]]))

    found = bbse.estimate(on, Sums(np.array([40, 30, 30])))

    assert (found.q, found.w) == (None, None)
    assert found.singular == Singular("alike")
    assert found.minimum_norm == pytest.approx([0.4, 0.3, 0.3])
    # What labels without records look like is not known, so they are none of it.
    missing = bbse.estimate(
        paper(np.array([[90, 20, 0], [10, 80, 0], [0, 0, 0]])), Sums(np.array([27, 73, 0]))
    )
    assert missing.minimum_norm == pytest.approx([0.1, 0.9, 0.0])


def test_the_flattest_mix_is_the_pseudo_inverse() -> None:
    A = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])

    assert bbse.minimum_norm(A, np.array([0.4, 0.6])) == pytest.approx([0.4, 0.3, 0.3])


def test_weights_of_the_algorithm_are_the_estimates_without_what_is_negative() -> None:
    on = references.from_confusion(np.array([[90, 20], [10, 80]]))
    found = bbse.estimate(bbse.prepare(on, soft=False), Sums(np.array([95, 5])))

    w = bbse.algorithm_1(on.joint(), np.array([0.95, 0.05]), delta=0.01)

    assert found.w is not None
    assert found.w[1] < 0.0
    assert w == pytest.approx(np.maximum(found.w, 0.0))


def test_the_algorithm_has_ones_up_to_its_delta() -> None:
    on = references.from_confusion(THREE)
    mu = np.array([0.45, 0.28, 0.27])
    sigma = paper(THREE).sigma_min

    assert bbse.algorithm_1(on.joint(), mu, sigma * 1.001).tolist() == [1.0, 1.0, 1.0]
    assert bbse.algorithm_1(on.joint(), mu, sigma * 0.999) == pytest.approx([1.5, 0.9, 0.6])


def test_clipped_shares_sum_to_one_even_if_none_is_positive() -> None:
    assert bbse.clipped(np.array([-0.25, 0.5, 0.75])).tolist() == [0.0, 0.4, 0.6]
    assert bbse.clipped(np.array([-0.5, 0.0])).tolist() == [0.5, 0.5]


def test_soft_moments_need_soft_windows_and_references() -> None:
    rng = np.random.default_rng(1)
    actual = np.arange(2).repeat(100)
    rows = softmax(rng, actual, 2)
    soft = references.from_sample(2, moments.argmax(rows), actual, rows)

    with pytest.raises(ValueError, match="no mean softmax"):
        bbse.estimate(bbse.prepare(soft, soft=True), Sums(np.array([1, 1])))
    with pytest.raises(ValueError, match="no soft moments"):
        bbse.prepare(references.from_confusion(THREE), soft=True)
