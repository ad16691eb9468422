"""The bound that errors are compared with."""

import numpy as np
import pytest

from bench.paper import quality


def test_the_worst_direction_worked_by_hand() -> None:
    # sqrt(1 / 400 + (.36 + 1.96) / 928) / .1: both parts are .0025.
    found = quality.worst_direction_error(0.1, 0.36 + 1.96, 928, 400)

    assert found == pytest.approx(np.sqrt(0.005) / 0.1)
