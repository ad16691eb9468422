"""What a reference is said to support, on matrices small enough to check by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from app.stats import diagnosis, identification, moments
from app.stats import reference as references
from app.stats.diagnosis import Diagnosis, diagnose
from app.stats.moments import Counts, Floats
from app.stats.reference import Reference

HEALTHY = np.array([[900, 50, 50], [60, 800, 100], [40, 150, 850]])


def diagnosed(counts: Counts) -> Diagnosis:
    return diagnose(references.from_confusion(counts))


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


def sure_of(actual: Counts, k: int) -> Reference:
    """All predictions are label 0, but the rest of each row tells the true label."""
    rows = np.full((len(actual), k), 0.1)
    rows[np.arange(len(actual)), actual] += 0.2
    rows[:, 0] += np.where(actual == 0, 0.6, 0.4)
    rows /= rows.sum(axis=1, keepdims=True)
    return references.from_sample(k, moments.argmax(rows), actual, rows)


def test_a_two_by_two_matrix_has_the_singular_values_worked_out_by_hand() -> None:
    found = diagnosed(np.array([[45, 10], [5, 40]])).hard

    # C'C = [[.205, .065], [.065, .17]]: trace .375, determinant .030625.
    root = np.sqrt(0.375**2 - 4 * 0.030625)
    assert found.sigma_min == pytest.approx(np.sqrt((0.375 - root) / 2), abs=1e-12)
    assert found.condition_number == pytest.approx(np.sqrt((0.375 + root) / (0.375 - root)))


def test_a_perfect_classifier_has_the_rarest_label_share_as_sigma_min() -> None:
    found = diagnosed(np.diag([70, 25, 5]))

    assert found.hard.sigma_min == pytest.approx(0.05)
    # The mean of 100 indicators of probability .05.
    assert found.hard.sigma_min_error == pytest.approx(np.sqrt(0.05 * 0.95 / 100))
    assert found.hard.conditional_sigma_min == pytest.approx(1.0)
    assert found.hard.conditional_condition_number == pytest.approx(1.0)


def test_the_error_of_sigma_min_is_what_it_scatters() -> None:
    joint = HEALTHY / HEALTHY.sum()
    found = diagnosed(HEALTHY).hard

    again = [diagnosed(drawn(joint, 3000, seed)).hard.sigma_min for seed in range(200)]

    # A standard deviation of 200 is known to a part in twenty; three of those.
    assert np.std(again) == pytest.approx(found.sigma_min_error, rel=0.15)


def test_recall_precision_accuracy_and_support_are_those_of_the_counts() -> None:
    found = diagnosed(HEALTHY)

    assert found.recall.tolist() == [0.9, 0.8, 0.85]
    assert found.precision == pytest.approx([0.9, 80 / 96, 85 / 104])
    assert found.accuracy == 0.85
    assert found.support.tolist() == [1000, 1000, 1000]
    assert found.status == ("ok",)
    assert found.estimable
    assert found.moments == "hard"
    assert found.spectrum is found.hard


def test_a_rare_label_that_is_never_confused_is_known() -> None:
    found = diagnosed(np.diag([5000, 5000, 12]))

    assert found.low_support == (2,)
    assert found.identified.not_identified == ()
    assert "low_support" in found.status


def test_support_is_low_from_five_to_twenty_nine_records() -> None:
    found = diagnosed(np.diag([4, 5, 29, 30, 500]))

    assert (found.absent, found.low_support) == ((0,), (1, 2))


def test_labels_with_equal_columns_are_named_and_their_sum_is_known() -> None:
    found = diagnosed(np.array([[900, 50, 50], [50, 500, 500], [50, 450, 450]]))

    assert found.status == ("not_identified",)
    assert found.identified.not_identified == (1, 2)
    assert found.identified.groups == ((1, 2),)
    assert found.hard.sigma_min == pytest.approx(0.0, abs=1e-12)
    assert found.hard.condition_number > 1e12
    assert found.estimable


def test_labels_that_differ_a_little_are_weakly_identified() -> None:
    found = diagnosed(np.array([[450, 50, 50], [25, 270, 180], [25, 180, 270]]))

    assert found.status == ("weakly_identified",)


def test_a_classifier_that_guesses_supports_nothing() -> None:
    found = diagnosed(np.array([[50, 50], [50, 50]]))

    assert found.status == ("not_identified",)
    assert not found.estimable


def test_a_label_never_predicted_is_not_identified_by_hard_predictions() -> None:
    found = diagnosed(np.array([[1800, 200, 100], [200, 1800, 1900], [0, 0, 0]]))

    assert found.status == ("not_identified",)
    assert found.identified.not_identified == (1, 2)
    assert np.isnan(found.precision[2])


def test_labels_with_fewer_than_five_records_are_left_out_and_none_at_all_is_told_apart() -> None:
    found = diagnosed(np.array([[900, 10, 0, 1], [10, 900, 0, 0], [0, 0, 0, 0], [0, 0, 0, 3]]))

    assert (found.absent, found.missing) == ((2, 3), (2,))
    assert found.status == ("A2_class_absent",)
    assert np.isnan(found.identified.floor).tolist() == [False, False, True, True]
    assert np.isnan(found.recall[2])
    # Over the labels that are present only.
    assert found.hard.sigma_min > 0.4


def test_softmax_rows_tell_apart_what_argmaxes_do_not() -> None:
    reference = sure_of(np.random.default_rng(3).integers(3, size=3000), 3)

    found = diagnose(reference)

    assert found.moments == "soft"
    assert found.status == ("ok",)
    assert found.hard.sigma_min == 0.0
    assert found.soft is not None
    assert found.soft.sigma_min > 0.0
    assert found.spectrum is found.soft


def test_operators_are_of_labels_and_of_codes() -> None:
    reference = sure_of(np.arange(3).repeat([100, 90, 80]), 3)

    hard, soft = diagnosis.operators(reference)

    assert hard is not None
    assert soft is not None
    assert (len(hard.A), len(soft.A)) == (1, 3)
    assert diagnosis.operators(references.from_confusion(HEALTHY))[1] is None


def test_there_is_no_operator_of_fewer_than_two_labels() -> None:
    assert diagnosis.operators(references.from_confusion(np.diag([90, 4]))) == (None, None)


@pytest.mark.parametrize(("t", "least", "most"), [(1.0, 25, 30), (0.5, 0, 1), (0.0, 0, 0)])
def test_labels_pulled_together_are_flagged_and_healthy_ones_are_not(
    t: float, least: int, most: int
) -> None:
    joint = pulled_together(t)

    found = [diagnosed(drawn(joint, 5000, seed)).identified for seed in range(30)]

    open_ = [{*each.not_identified, *each.weakly_identified} for each in found]
    assert least <= sum(labels >= {3, 4} for labels in open_) <= most
    assert all(labels <= {3, 4} for labels in open_)


def test_an_empty_reference_is_diagnosed_too() -> None:
    found = diagnosed(np.zeros((3, 3), dtype=np.int64))

    assert found.status == ("A2_class_absent", "not_identified")
    assert found.absent == found.missing == (0, 1, 2)
    assert found.hard.sigma_min == 0.0
    assert not found.estimable


def test_a_single_label_is_trivial() -> None:
    found = diagnosed(np.array([[10]]))

    assert found.status == ("trivial",)
    assert found.identified.not_identified == ()
    assert not found.estimable


def test_one_present_label_of_several_is_all_that_there_is() -> None:
    found = diagnosed(np.array([[90, 3], [5, 1]]))

    assert found.status == ("A2_class_absent", "not_identified")
    assert found.absent == (1,)
    assert found.identified.not_identified == identification.nothing(2).not_identified == (0, 1)
    assert not found.estimable


@settings(deadline=None, max_examples=40)
@given(
    arrays(np.int64, (4, 4), elements=st.integers(0, 60)),
    st.permutations(range(4)),
)
def test_the_order_of_labels_does_not_matter(counts: Counts, order: list[int]) -> None:
    counts = counts + np.diag([40, 30, 20, 10])
    one = diagnosed(counts)
    other = diagnosed(counts[np.ix_(order, order)])

    assert other.hard.sigma_min == pytest.approx(one.hard.sigma_min, abs=1e-12)
    assert other.identified.floor == pytest.approx(one.identified.floor[order], abs=1e-5)
    assert other.accuracy == pytest.approx(one.accuracy)
    assert other.status == one.status


def test_the_error_of_sigma_min_of_softmax_rows_is_that_of_a_mean() -> None:
    rng = np.random.default_rng(1)
    actual = rng.integers(3, size=600)
    rows = rng.dirichlet(np.ones(3), size=600) + 0.5 * np.eye(3)[actual]
    rows /= rows.sum(axis=1, keepdims=True)
    reference = references.from_sample(3, moments.argmax(rows), actual, rows)

    found = diagnose(reference).soft

    # u' C v is the mean over records of v_y u.p.
    U, _, Vt = np.linalg.svd(reference.joint(soft=True))
    values = (rows @ U[:, -1]) * Vt[-1][actual]
    assert found is not None
    assert found.sigma_min == pytest.approx(abs(values.mean()))
    assert found.sigma_min_error == pytest.approx(values.std() / np.sqrt(600))


def test_of_many_labels_the_error_of_sigma_min_is_a_bound() -> None:
    k = moments.FULL_OUTER_LABELS + 1
    rng = np.random.default_rng(2)
    actual = np.arange(k).repeat(20)
    rows = rng.dirichlet(np.full(k, 0.2), size=len(actual)) + np.eye(k)[actual]
    rows /= rows.sum(axis=1, keepdims=True)
    reference = references.from_sample(k, moments.argmax(rows), actual, rows)

    found = diagnose(reference).soft

    U, _, Vt = np.linalg.svd(reference.joint(soft=True))
    values = (rows @ U[:, -1]) * Vt[-1][actual]
    assert found is not None
    assert found.sigma_min_error >= values.std() / np.sqrt(len(actual))
