"""A transposed confusion matrix is suspected, and one that is not transposed is not."""

import numpy as np
import pytest

from app.stats.moments import Counts, Floats
from app.stats.orientation import Mixes, transposed_suspected

SEED = 20261118
# It says "fraud" too often: 5 % of the predictions, of which 1 % is.
A = np.array([[0.96, 0.1, 0.1], [0.03, 0.85, 0.1], [0.01, 0.05, 0.8]])
P = np.array([0.97, 0.01, 0.02])


def sample(
    n: int, p: Floats = P, conditional: Floats = A, rng: np.random.Generator | None = None
) -> Counts:
    """A confusion matrix of `n` records: as expected, or drawn."""
    joint = conditional * p
    if rng is None:
        return np.asarray(np.rint(n * joint), dtype=np.int64)
    return np.asarray(rng.multinomial(n, joint.ravel()).reshape(joint.shape))


def mixes(confusion: Counts) -> Mixes:
    return Mixes(confusion.sum(axis=1), confusion.sum(axis=0))


BEFORE = mixes(sample(10_000))


def test_a_matrix_that_was_transposed_is_suspected() -> None:
    assert transposed_suspected(sample(5000).T, [BEFORE])
    assert not transposed_suspected(sample(5000), [BEFORE])


@pytest.mark.parametrize("p", [(0.96, 0.015, 0.025), (0.975, 0.01, 0.015), (0.97, 0.005, 0.025)])
def test_it_is_also_suspected_when_labels_have_moved_a_little(p: tuple[float, ...]) -> None:
    assert transposed_suspected(sample(5000, np.array(p)).T, [BEFORE])
    assert not transposed_suspected(sample(5000, np.array(p)), [BEFORE])


def test_without_an_earlier_sample_nothing_is_suspected() -> None:
    transposed = sample(5000).T
    traffic = Mixes(sample(100_000).sum(axis=1))

    assert not transposed_suspected(transposed, [])
    assert not transposed_suspected(transposed, [], traffic)


@pytest.mark.parametrize("n", [10, 30, 100])
def test_small_samples_say_nothing(n: int) -> None:
    assert not transposed_suspected(sample(n).T, [BEFORE])
    assert not transposed_suspected(sample(5000).T, [mixes(sample(n))])


def test_a_symmetric_matrix_has_no_wrong_way_round() -> None:
    rng = np.random.default_rng(SEED)
    half = rng.integers(0, 5000, (4, 4))
    symmetric = half + half.T
    known = [mixes(rng.integers(1, 5000, (4, 4))) for _ in range(50)]

    assert not any(transposed_suspected(symmetric, [one]) for one in known)


def test_equal_margins_have_no_wrong_way_round() -> None:
    # Not symmetric, but as many are predicted of each label as there are.
    circular = np.array([[900, 100, 0], [0, 900, 100], [100, 0, 900]])

    assert not transposed_suspected(circular, [BEFORE])
    assert not transposed_suspected(circular.T, [BEFORE])
    assert not transposed_suspected(sample(5000).T, [mixes(circular)])


def test_a_balanced_sample_after_a_natural_one_is_not_suspected() -> None:
    even = sample(9000, np.full(3, 1 / 3))

    assert not transposed_suspected(even, [BEFORE])
    assert not transposed_suspected(sample(9000), [mixes(even)])


def test_a_better_classifier_on_the_same_records_is_not_suspected() -> None:
    # It errs the other way: fewer frauds are predicted than there are.
    other = np.array([[0.999, 0.5, 0.3], [0.0005, 0.5, 0.0], [0.0005, 0.0, 0.7]])

    assert not transposed_suspected(sample(10_000, conditional=other), [BEFORE])


def test_one_earlier_sample_that_fits_as_it_is_settles_it() -> None:
    transposed = sample(5000).T

    assert not transposed_suspected(transposed, [BEFORE, mixes(transposed)])


def test_predictions_of_late_may_speak_against_it() -> None:
    """The earlier sample was the one that stood the wrong way round."""
    right = sample(5000)
    earlier = [mixes(sample(10_000).T)]

    assert transposed_suspected(right, earlier)
    assert not transposed_suspected(right, earlier, Mixes(sample(100_000).sum(axis=1)))


def test_predictions_that_fit_neither_way_change_nothing() -> None:
    shifted = Mixes(np.array([60_000, 30_000, 10_000]))

    assert transposed_suspected(sample(5000).T, [BEFORE], shifted)


def classifier(k: int, rng: np.random.Generator) -> Floats:
    """A random one, with recalls from .55 on and some labels that draw more errors than others."""
    recall = rng.uniform(0.55, 0.99, k)
    errors = rng.dirichlet(np.full(k, 0.3), k).T + 1e-9
    np.fill_diagonal(errors, 0.0)
    found = errors / errors.sum(axis=0) * (1 - recall)
    np.fill_diagonal(found, recall)
    return np.asarray(found)


@pytest.mark.parametrize("k", [2, 3, 10, 100])
@pytest.mark.parametrize("n", [50, 500, 5000, 200_000])
@pytest.mark.parametrize("concentration", [20.0, 1000.0, None])
def test_random_samples_are_not_suspected_whatever_moves(
    k: int, n: int, concentration: float | None
) -> None:
    rng = np.random.default_rng([SEED, k, n, int(concentration or 0)])
    suspected = 0
    for _ in range(100):
        conditional, p = classifier(k, rng), rng.dirichlet(np.ones(k))
        moved = p if concentration is None else rng.dirichlet(p * concentration + 0.01)
        before = mixes(sample(int(rng.choice([200, 5000, 100_000])), p, conditional, rng))
        suspected += transposed_suspected(sample(n, moved, conditional, rng), [before])

    assert suspected == 0


@pytest.mark.parametrize(("k", "least"), [(2, 60), (3, 70), (10, 90), (100, 95)])
def test_of_random_samples_that_were_transposed_most_are_suspected(k: int, least: int) -> None:
    rng = np.random.default_rng([SEED, k])
    suspected = 0
    for _ in range(100):
        conditional, p = classifier(k, rng), rng.dirichlet(np.ones(k))
        before = mixes(sample(50_000, p, conditional, rng))
        suspected += transposed_suspected(sample(20_000, p, conditional, rng).T, [before])

    assert suspected >= least
