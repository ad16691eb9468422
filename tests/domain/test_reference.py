"""What is decided about a reference, from its numbers alone."""

import numpy as np
import pytest

from app.domain.reference import diagnosed, unfit
from app.stats.reference import from_confusion
from tests.factories import CONFUSION, NOW

CASES = [
    (CONFUSION, None),
    ([[90, 5, 5], [5, 50, 50], [5, 45, 45]], None),
    ([[100, 100, 100], [0, 0, 0], [0, 0, 0]], "do not tell the labels apart"),
    ([[50, 0, 0], [10, 4, 0], [0, 0, 4]], "1 of its labels has 5 records or more"),
    ([[1, 0, 0], [0, 0, 0], [0, 0, 0]], "0 of its labels has 5 records or more"),
]


@pytest.mark.parametrize(("confusion", "reason"), CASES)
def test_only_what_nothing_can_be_estimated_from_is_unfit(
    confusion: list[list[int]], reason: str | None
) -> None:
    found = unfit(diagnosed("v1", from_confusion(np.array(confusion)), NOW).summary)

    if reason is None:
        assert found is None
    else:
        assert found is not None
        assert found.startswith("nothing can be estimated from reference 'v1': ")
        assert reason in found
