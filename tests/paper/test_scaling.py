"""Bias-corrected temperature scaling."""

import numpy as np
import pytest

from app.stats.moments import Counts, Floats
from bench.paper import scaling
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

    fitted = scaling.fit(distorted, actual)

    # log p = (z - b) / 2, so scale 1/2 and bias -b/2; standard errors are near 0.01.
    assert fitted.scale == pytest.approx(0.5, abs=0.04)
    assert fitted.bias - fitted.bias.mean() == pytest.approx([-0.25, 0.0, 0.25], abs=0.06)


def test_calibrated_probabilities_of_a_label_add_up_to_its_records() -> None:
    sample = fashion.outputs("weak", "validation")

    rows = scaling.scaled(scaling.fit(sample.rows, sample.labels), sample.rows)

    # Exact but for the pull of PRIOR_RECORDS, which is one record per unit of bias.
    assert rows.sum(axis=0) == pytest.approx(np.bincount(sample.labels), abs=3.0)
    assert rows.sum(axis=1) == pytest.approx(np.ones(len(rows)))


@pytest.mark.parametrize("classifier", ["good", "weak"])
def test_labels_not_used_for_fitting_become_more_likely(classifier: fashion.Classifier) -> None:
    fitted_on = fashion.outputs(classifier, "validation")
    other = fashion.outputs(classifier, "test")

    fitted = scaling.fit(fitted_on.rows[:2000], fitted_on.labels[:2000])

    after = surprise(scaling.scaled(fitted, other.rows), other.labels)
    assert after < surprise(other.rows, other.labels)


def test_a_label_without_records_gets_probability_zero() -> None:
    rows = softmax(np.random.default_rng(2).normal(size=(200, 3)))

    fitted = scaling.fit(rows, np.arange(200) % 2)

    assert fitted.bias[2] == -np.inf
    assert not scaling.scaled(fitted, rows)[:, 2].any()


def test_a_classifier_without_mistakes_stays_finite() -> None:
    rows = np.eye(4)[np.arange(40) % 4]

    fitted = scaling.fit(rows, np.arange(40) % 4)

    assert np.isfinite(fitted.scale)
    assert scaling.scaled(fitted, rows) == pytest.approx(rows, abs=1e-6)


def test_rows_may_be_left_as_they_are() -> None:
    rows = softmax(np.random.default_rng(3).normal(size=(20, 5)))

    assert scaling.scaled(scaling.as_they_are(5), rows) == pytest.approx(rows)
