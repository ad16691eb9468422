"""References: what is counted and summed, label by label."""

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
    assert found.joint() == pytest.approx(found.conditional() * found.nu)
    assert (found.soft, found.table) == (None, None)


def test_labels_with_five_records_are_present() -> None:
    found = reference.from_confusion(np.array([[9, 2, 1, 0], [1, 3, 1, 0], [0] * 4, [0, 0, 2, 0]]))

    assert found.present.tolist() == [0, 1]
    assert found.support.tolist() == [10, 5, 4, 0]
    assert np.isnan(found.conditional()[:, 3]).all()


def test_a_sample_with_rows_holds_the_sums_of_each_true_label() -> None:
    sample = outputs("good", "validation")
    rows, actual = sample.rows[:500], sample.labels[:500]

    found = reference.from_sample(10, sample.predicted[:500], actual, rows)

    assert found.soft is not None
    for label in range(10):
        own = rows[actual == label]
        expected = moments.sums(10, moments.argmax(own), own).soft
        assert expected is not None
        assert found.soft.prob[:, label] == pytest.approx(own.sum(axis=0))
        outer = moments.outer_matrix(10, found.soft.outer[:, label])
        assert np.abs(outer - own.T @ own).max() < 1e-12
        assert found.soft.cells[:, label].tolist() == expected.cells.tolist()
        assert found.soft.score[label] == pytest.approx(own.max(axis=1).sum())
        assert found.soft.score_squared[label] == pytest.approx((own.max(axis=1) ** 2).sum())
        assert found.soft.score_by_label[:, label] == pytest.approx(expected.score_by_label)


def test_a_sample_with_rows_has_a_table_of_cells() -> None:
    sample = outputs("good", "validation")

    found = reference.from_sample(
        10, sample.predicted[:500], sample.labels[:500], sample.rows[:500]
    )

    assert found.table is not None
    assert found.table.present.tolist() == list(range(10))
    assert found.table.counts.sum() == 500
    assert found.joint(soft=True).sum() == pytest.approx(1.0)


def test_rows_in_single_precision_make_the_same_reference() -> None:
    sample = outputs("weak", "validation")
    rows = sample.rows[:300].astype(np.float32)
    predicted, actual = np.asarray(rows.argmax(axis=1)), sample.labels[:300]

    single = reference.from_sample(10, predicted, actual, rows)
    double = reference.from_sample(10, predicted, actual, rows.astype(np.float64))

    assert single.soft is not None
    assert double.soft is not None
    assert single.soft.prob.tolist() == double.soft.prob.tolist()
    assert single.soft.cells.tolist() == double.soft.cells.tolist()


def test_labels_without_records_have_sums_of_nothing() -> None:
    rows = np.repeat([[0.7, 0.2, 0.1], [0.2, 0.7, 0.1]], 10, axis=0)

    found = reference.from_sample(3, moments.argmax(rows), np.arange(2).repeat(10), rows)

    assert found.soft is not None
    assert found.soft.prob[:, 2].tolist() == [0.0, 0.0, 0.0]
    assert found.table is not None
    assert found.table.present.tolist() == [0, 1]


def test_a_sample_in_which_no_label_has_enough_records_has_no_table() -> None:
    rows = np.array([[0.7, 0.3], [0.2, 0.8]])

    found = reference.from_sample(2, np.array([0, 1]), np.array([0, 1]), rows)

    assert found.table is None
    assert found.soft is not None


def test_a_reference_of_labels_has_no_soft_moments() -> None:
    found = reference.from_confusion(np.array([[9, 1], [1, 9]]))

    with pytest.raises(ValueError, match="no soft moments"):
        found.joint(soft=True)
