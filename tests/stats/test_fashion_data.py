"""The stored classifier outputs are what `tests/data/README.md` says they are."""

import numpy as np
import pytest

from tests import fashion


@pytest.mark.parametrize(
    ("classifier", "part", "accuracy", "confidence"),
    [
        ("good", "validation", 0.86130, 0.86902),
        ("good", "test", 0.85620, 0.86732),
        ("weak", "validation", 0.59775, 0.49472),
        ("weak", "test", 0.59435, 0.49338),
    ],
)
def test_accuracy_and_confidence_survive_quantisation(
    classifier: fashion.Classifier, part: fashion.Part, accuracy: float, confidence: float
) -> None:
    outputs = fashion.outputs(classifier, part)

    assert outputs.rows.shape == (20_000, 10)
    assert np.allclose(outputs.rows.sum(axis=1), 1.0, rtol=0, atol=1e-12)
    assert np.mean(outputs.predicted == outputs.labels) == pytest.approx(accuracy, abs=5e-6)
    assert outputs.rows.max(axis=1).mean() == pytest.approx(confidence, abs=1e-5)
