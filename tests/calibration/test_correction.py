"""What correction is worth in accuracy, with and without a shift, and what a gate saves."""

from dataclasses import dataclass

import numpy as np
import pytest

from app.stats import bbsd, bbse, calibration, correction, diagnosis, moments
from app.stats import reference as references
from app.stats.moments import Floats
from tests import fashion

pytestmark = pytest.mark.slow

K = 10
UNIFORM = np.full(K, 0.1)
SHIRTS = np.where(np.arange(K) == 6, 0.5, 0.5 / 9)
A_LITTLE = np.where(np.arange(K) == 6, 0.15, 0.85 / 9)
REFERENCES = 20
WINDOWS = 10


@dataclass(frozen=True)
class Gains:
    """Mean accuracy in per cent: as is, calibrated, corrected in three ways, and by the truth."""

    plain: float
    calibrated: float
    always: float
    gated: float
    shrunken: float
    oracle: float


def gains(q: Floats, m: int = 200, n: int = 1000) -> Gains:
    """Weights from windows of m; their effect on all test outputs, each label weighed by `q`."""
    rng = np.random.default_rng(6)
    each = [of_reference(q, m, n, rng) for _ in range(REFERENCES)]
    return Gains(*(100.0 * np.mean(each, axis=0)).tolist())


def of_reference(q: Floats, m: int, n: int, rng: np.random.Generator) -> list[float]:
    stream = fashion.outputs("good", "test")
    sample = fashion.draw(fashion.outputs("good", "validation"), UNIFORM, n, rng)
    reference = references.from_sample(K, sample.predicted, sample.labels, sample.rows)
    on = bbse.prepare(reference, diagnosis.diagnose(reference))
    rows = calibration.calibrated(calibration.fit(sample.rows, sample.labels), stream.rows)
    weights = (q / np.bincount(stream.labels))[stream.labels]

    def accuracy(w: Floats) -> float:
        return float(weights @ (correction.corrected(rows, w).argmax(axis=1) == stream.labels))

    found = np.zeros(3)
    for _ in range(WINDOWS):
        seen = fashion.draw(stream, q, m, rng)
        window = moments.sums(K, seen.predicted, seen.rows)
        w = bbse.estimate(on, window).w
        test = bbsd.chi_square(reference.predicted, window.counts)
        gated = w if correction.called_for(test.p_value, consistent=True) else np.ones(K)
        shrunken = correction.shrunken(w, correction.shrinkage(test.statistic, K))
        found += [accuracy(w), accuracy(gated), accuracy(shrunken)]
    plain = float(weights @ (stream.predicted == stream.labels))
    return [plain, accuracy(np.ones(K)), *(found / WINDOWS).tolist(), accuracy(q / on.nu)]


# Standard errors: accuracies are exact given the weights; over 200 windows a mean difference has
# about .05 points, and over 20 references about .1.


def test_without_a_shift_the_gate_saves_what_correction_would_cost() -> None:
    found = gains(UNIFORM)

    # The design study: 87.32 calibrated, 86.75 always, 87.32 gated, 87.22 shrunken.
    assert found.always < found.calibrated
    assert found.gated - found.calibrated == pytest.approx(0.0, abs=0.15)
    assert found.shrunken - found.calibrated == pytest.approx(-0.1, abs=0.3)


def test_under_a_large_shift_correction_pays() -> None:
    found = gains(SHIRTS)

    # The design study: 77.16 calibrated, 85.25 always and gated, 85.43 shrunken, 86.32 the oracle.
    assert found.gated - found.calibrated == pytest.approx(8.09, abs=1.0)
    assert found.shrunken - found.calibrated == pytest.approx(8.27, abs=1.0)
    assert found.oracle - found.gated == pytest.approx(1.07, abs=1.0)


def test_under_a_small_shift_it_does_no_harm() -> None:
    found = gains(A_LITTLE)

    # The design study: 87.42 calibrated, 86.78 always, 87.30 gated, 87.26 shrunken.
    assert found.gated - found.calibrated == pytest.approx(-0.12, abs=1.0)
    assert found.gated > found.always
    assert found.shrunken > found.always
