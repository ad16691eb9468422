"""What correction is worth in accuracy, with and without a shift, and what a gate saves."""

from dataclasses import astuple

import numpy as np
import pytest

from app.stats.moments import Floats
from tests.calibration.gains import Gains
from tests.calibration.gains import gains as of_reference
from tests.fashion import LABELS, UNIFORM

pytestmark = pytest.mark.slow

SHIRTS = np.where(np.arange(LABELS) == 6, 0.5, 0.5 / 9)
A_LITTLE = np.where(np.arange(LABELS) == 6, 0.15, 0.85 / 9)
REFERENCES = 20
WINDOWS = 10


def gains(q: Floats, m: int = 200, n: int = 1000) -> Gains:
    rng = np.random.default_rng(6)
    each = [of_reference("good", q, n, m, rng, windows=WINDOWS) for _ in range(REFERENCES)]
    return Gains(*np.mean([astuple(one) for one in each], axis=0).tolist())


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
