"""What a reference is said to support, on matrices small enough to check by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from app.stats import moments
from app.stats import reference as references
from app.stats.diagnosis import Diagnosis, diagnose
from app.stats.moments import Counts, Floats
from app.stats.reference import Reference

HEALTHY = np.array([[90, 5, 5], [6, 80, 10], [4, 15, 85]])


def diagnosed(counts: Counts, delta: float = 0.0) -> Diagnosis:
    return diagnose(references.from_confusion(counts), delta)


def pulled_together(t: float, k: int = 10) -> Floats:
    """A joint matrix in which labels 3 and 4 differ less the closer t is to one."""
    A = np.eye(k) * 0.87 + 0.13 / k
    A[:, 3], A[:, 4] = (
        (1 - t / 2) * A[:, 3] + t / 2 * A[:, 4],
        (1 - t / 2) * A[:, 4] + t / 2 * A[:, 3],
    )
    return np.asarray(A / A.sum())


def drawn(joint: Floats, n: int, seed: int) -> Counts:
    k = len(joint)
    return np.random.default_rng(seed).multinomial(n, joint.ravel()).reshape(k, k)


def test_a_two_by_two_matrix_has_the_singular_values_worked_out_by_hand() -> None:
    found = diagnosed(np.array([[45, 10], [5, 40]])).hard

    # C'C = [[.205, .065], [.065, .17]]: trace .375, determinant .030625.
    root = np.sqrt(0.375**2 - 4 * 0.030625)
    assert found.sigma_min == pytest.approx(np.sqrt((0.375 - root) / 2), abs=1e-12)
    assert found.condition_number == pytest.approx(np.sqrt((0.375 + root) / (0.375 - root)))
    assert not found.degenerate


def test_a_perfect_classifier_has_the_rarest_label_share_as_sigma_min() -> None:
    found = diagnosed(np.diag([70, 25, 5]))

    assert found.hard.sigma_min == pytest.approx(0.05)
    # The mean of 100 indicators of probability .05.
    assert found.hard.sigma_min_error == pytest.approx(np.sqrt(0.05 * 0.95 / 100))
    assert found.hard.conditional_sigma_min == pytest.approx(1.0)


def test_recall_precision_accuracy_and_support_are_those_of_the_counts() -> None:
    found = diagnosed(HEALTHY)

    assert found.recall.tolist() == [0.9, 0.8, 0.85]
    assert found.precision == pytest.approx([0.9, 80 / 96, 85 / 104])
    assert found.accuracy == 0.85
    assert found.support.tolist() == [100, 100, 100]
    assert (found.status, found.columns) == (("ok",), ((0,), (1,), (2,)))


def test_a_rare_label_that_is_never_confused_is_not_merged() -> None:
    found = diagnosed(np.diag([5000, 5000, 12]))

    assert found.status == ("ok", "low_support")
    assert found.low_support == (2,)


def test_labels_with_equal_columns_are_merged() -> None:
    found = diagnosed(np.array([[90, 5, 5], [5, 50, 50], [5, 45, 45]]))

    assert found.hard.degenerate
    assert (found.status, found.groups) == (("merged",), ((1, 2),))
    assert found.columns == ((0,), (1, 2))


def test_two_pairs_and_a_trio_are_told_apart() -> None:
    counts = np.zeros((7, 7), dtype=np.int64)
    counts[:2, :2], counts[2:4, 2:4], counts[4:, 4:] = 100, 80, 60

    assert diagnosed(counts).groups == ((0, 1), (2, 3), (4, 5, 6))


def test_a_classifier_that_guesses_supports_nothing() -> None:
    for k in (2, 10, 60):
        found = diagnosed(drawn(np.full((k, k), k**-2.0), 60 * k, seed=k))

        assert found.status[0] == "degenerate_w1"
        assert not found.estimable


def test_a_label_never_predicted_is_not_estimable_from_hard_predictions() -> None:
    found = diagnosed(np.array([[90, 10, 5], [10, 90, 95], [0, 0, 0]]))

    assert found.status == ("merged",)
    assert found.groups == ((1, 2),)
    assert np.isnan(found.precision[2])


def test_labels_with_fewer_than_five_records_are_left_out_and_none_at_all_is_told_apart() -> None:
    found = diagnosed(np.array([[90, 10, 0, 1], [10, 90, 0, 0], [0, 0, 0, 0], [0, 0, 0, 3]]))

    assert (found.absent, found.missing) == ((2, 3), (2,))
    assert found.columns == ((0,), (1,))
    assert found.status == ("ok", "A2_class_absent")
    assert np.isnan(found.recall[2])


def test_soft_moments_take_over_where_hard_ones_are_degenerate() -> None:
    rng = np.random.default_rng(3)
    actual = rng.integers(3, size=3000)
    rows = np.full((3000, 3), 0.1)
    rows[np.arange(3000), actual] += 0.1
    rows[:, 0] += np.where(actual == 0, 0.6, 0.4)  # always the argmax
    rows /= rows.sum(axis=1, keepdims=True)
    reference = references.from_sample(3, moments.argmax(rows), actual, rows)

    found = diagnose(reference)

    assert found.hard.degenerate
    assert found.soft is not None
    assert not found.soft.degenerate
    assert (found.status, found.moments, found.groups) == (("ok_soft_fallback",), "soft", ())


def test_delta_overrides_the_rule() -> None:
    found = diagnosed(np.diag([50, 50, 20]), delta=0.5)

    assert found.hard.degenerate
    assert not diagnosed(np.diag([50, 50, 20])).hard.degenerate


@pytest.mark.parametrize(
    ("t", "least", "most"), [(1.0, 1, 1), (0.9, 0.95, 1), (0.5, 0, 0.02), (0, 0, 0)]
)
def test_confusable_labels_are_flagged_in_time_and_healthy_ones_are_not(
    t: float, least: float, most: float
) -> None:
    joint = pulled_together(t)

    found = [diagnosed(drawn(joint, 2000, seed)) for seed in range(60)]

    flagged = [each for each in found if each.hard.degenerate]
    assert least <= len(flagged) / len(found) <= most
    assert all(each.groups == ((3, 4),) for each in flagged)


def test_an_empty_reference_is_diagnosed_too() -> None:
    found = diagnosed(np.zeros((3, 3), dtype=np.int64))

    assert found.status[0] == "degenerate_w1"
    assert (found.columns, found.absent) == ((), (0, 1, 2))


def test_a_single_label_is_trivial() -> None:
    assert diagnosed(np.array([[10]])).status[0] == "trivial"


@settings(deadline=None, max_examples=60)
@given(
    arrays(np.int64, (4, 4), elements=st.integers(0, 60)),
    st.permutations(range(4)),
)
def test_the_order_of_labels_does_not_matter(counts: Counts, order: list[int]) -> None:
    counts = counts + np.diag([40, 30, 20, 10])
    one = diagnosed(counts)
    other = diagnosed(counts[np.ix_(order, order)])

    assert other.hard.sigma_min == pytest.approx(one.hard.sigma_min, abs=1e-12)
    assert other.hard.degenerate == one.hard.degenerate
    renamed = sorted(tuple(sorted(order[label] for label in column)) for column in other.columns)
    assert renamed == sorted(one.columns)


def test_conditionals_of_a_group_are_those_of_its_labels_together() -> None:
    rng = np.random.default_rng(1)
    actual = rng.integers(4, size=500)
    rows = rng.dirichlet(np.ones(4), size=500)
    reference = references.from_sample(4, moments.argmax(rows), actual, rows)
    together = np.isin(actual, (1, 3))
    a = rng.normal(size=(2, 4))

    given_columns = references.conditionals(reference, ((0,), (1, 3)), soft=True)

    assert given_columns.n_j.tolist() == [(actual == 0).sum(), together.sum()]
    projected = rows[together] @ a.T
    assert given_columns.A[:, 1] == pytest.approx(rows[together].mean(axis=0))
    assert given_columns.variance(a)[:, 1] == pytest.approx(projected.var(axis=0))
    expected = np.cov(rows[together], rowvar=False, bias=True)
    assert given_columns.covariance(np.array([0.0, 1.0])) == pytest.approx(expected)
    assert given_columns.entry_variance()[:, 1] == pytest.approx(np.diag(expected))


def test_the_bound_on_soft_covariances_of_many_labels_is_one() -> None:
    k = moments.FULL_OUTER_LABELS + 1
    rng = np.random.default_rng(2)
    rows = rng.dirichlet(np.full(k, 0.2), size=600)
    reference = references.from_sample(k, moments.argmax(rows), np.zeros(600, dtype=np.int64), rows)
    a = rng.normal(size=(5, k))

    bound = references.conditionals(reference, ((0,),), soft=True).variance(a)[:, 0]

    assert (bound >= (rows @ a.T).var(axis=0)).all()


def test_hard_references_have_no_soft_moments() -> None:
    with pytest.raises(ValueError, match="no soft moments"):
        references.conditionals(Reference(HEALTHY), ((0,),), soft=True)
