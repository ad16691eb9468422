import numpy as np
import pytest

from app.stats import moments, reference
from tests.fashion import outputs


def test_a_sample_of_labels_is_its_confusion_matrix() -> None:
    predicted, actual = np.array([0, 1, 1, 2, 2, 2]), np.array([0, 0, 1, 2, 2, 1])

    found = reference.from_sample(3, predicted, actual)

    assert found.counts.tolist() == [[1, 0, 0], [1, 1, 0], [0, 1, 2]]
    assert found.support.tolist() == [2, 2, 2]
    assert found.predicted.tolist() == [1, 2, 3]
    np.testing.assert_allclose(found.joint(), found.conditional() * found.nu)


def test_a_sample_with_rows_holds_the_sums_of_each_true_label() -> None:
    sample = outputs("good", "validation")
    rows, actual = sample.rows[:500], sample.labels[:500]

    found = reference.from_sample(10, sample.predicted[:500], actual, rows)

    assert found.soft is not None
    for label in range(10):
        own = rows[actual == label]
        np.testing.assert_allclose(found.soft.prob[:, label], own.sum(axis=0))
        np.testing.assert_allclose(
            moments.outer_matrix(10, found.soft.outer[:, label]), own.T @ own, atol=1e-12
        )
        assert found.soft.code_counts[:, label].sum() == len(own)


def test_a_reference_of_labels_has_no_soft_moments() -> None:
    found = reference.from_confusion(np.array([[9, 1], [1, 9]]))

    with pytest.raises(ValueError, match="no soft moments"):
        found.joint(soft=True)
