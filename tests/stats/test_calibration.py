"""Bias-corrected temperature scaling."""

import numpy as np
import pytest

from app.stats import calibration
from app.stats.moments import Counts, Floats
from tests import fashion


def softmax(z: Floats) -> Floats:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def surprise(rows: Floats, actual: Counts) -> float:
    """Mean negative log-likelihood of the true labels."""
    return float(-np.log(rows[np.arange(len(rows)), actual]).mean())


def test_a_known_distortion_is_undone() -> None:
    rng = np.random.default_rng(1)
    honest = softmax(rng.normal(size=(20_000, 3)))
    actual = (rng.random((20_000, 1)) > honest.cumsum(axis=1)).sum(axis=1)
    distorted = softmax(2.0 * np.log(honest) + np.array([0.5, 0.0, -0.5]))

    fitted = calibration.fit(distorted, actual)

    # log p = (z - b) / 2, so scale 1/2 and bias -b/2; standard errors are near 0.01.
    assert fitted.scale == pytest.approx(0.5, abs=0.04)
    assert fitted.bias - fitted.bias.mean() == pytest.approx([-0.25, 0.0, 0.25], abs=0.06)


def test_calibrated_probabilities_of_a_label_add_up_to_its_records() -> None:
    sample = fashion.outputs("weak", "validation")

    rows = calibration.calibrated(calibration.fit(sample.rows, sample.labels), sample.rows)

    # Exact but for the pull of PRIOR_RECORDS, which is one record per unit of bias.
    assert rows.sum(axis=0) == pytest.approx(np.bincount(sample.labels), abs=3.0)
    assert rows.sum(axis=1) == pytest.approx(np.ones(len(rows)))


@pytest.mark.parametrize("classifier", ["good", "weak"])
def test_labels_not_used_for_fitting_become_more_likely(classifier: fashion.Classifier) -> None:
    fitted_on = fashion.outputs(classifier, "validation")
    other = fashion.outputs(classifier, "test")

    fitted = calibration.fit(fitted_on.rows[:2000], fitted_on.labels[:2000])

    after = surprise(calibration.calibrated(fitted, other.rows), other.labels)
    assert after < surprise(other.rows, other.labels)


def test_a_label_without_records_gets_probability_zero() -> None:
    rows = softmax(np.random.default_rng(2).normal(size=(200, 3)))

    fitted = calibration.fit(rows, np.arange(200) % 2)

    calibrated = calibration.calibrated(fitted, rows)
    assert fitted.bias[2] == -np.inf
    assert not calibrated[:, 2].any()
    assert np.isfinite(calibrated).all()


def test_a_classifier_without_mistakes_stays_finite() -> None:
    rows = np.eye(4)[np.arange(40) % 4]

    fitted = calibration.fit(rows, np.arange(40) % 4)

    assert np.isfinite(fitted.scale)
    assert calibration.calibrated(fitted, rows) == pytest.approx(rows, abs=1e-6)


def test_one_record_is_enough_to_fit() -> None:
    fitted = calibration.fit(np.array([[0.3, 0.7]]), np.array([1]))

    assert calibration.calibrated(fitted, np.array([[0.5, 0.5]])).tolist() == [[0.0, 1.0]]


def test_the_order_of_labels_does_not_matter() -> None:
    sample = fashion.outputs("good", "validation")
    rows, actual = sample.rows[:1000], sample.labels[:1000]
    order = np.random.default_rng(3).permutation(10)

    fitted = calibration.fit(rows, actual)
    permuted = calibration.fit(rows[:, order], np.argsort(order)[actual])

    assert permuted.scale == pytest.approx(fitted.scale, abs=1e-5)
    assert permuted.bias == pytest.approx(fitted.bias[order], abs=1e-4)


def test_a_thousand_labels_can_be_calibrated() -> None:
    rng = np.random.default_rng(4)
    rows = softmax(3.0 * rng.normal(size=(1000, 1000)))

    fitted = calibration.fit(rows, rows.argmax(axis=1))

    assert np.isfinite(calibration.calibrated(fitted, rows)).all()
