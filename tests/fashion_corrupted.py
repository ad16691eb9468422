"""Outputs of the good Fashion-MNIST classifier on corrupted pictures (`data/README-corrupted.md`).

The labels are those of the clean test part, so whatever differs here is not label shift.
"""

from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from tests import fashion
from tests.fashion import Outputs

DATA = Path(__file__).parent / "data" / "fashion_corrupted.npz"

Corruption = Literal["moved", "dimmed", "noisy"]
CORRUPTIONS: tuple[Corruption, ...] = ("moved", "dimmed", "noisy")


@cache
def corrupted(corruption: Corruption) -> Outputs:
    """The 20,000 test outputs after one corruption of the pictures, row by row beside the clean.

    >>> corrupted("dimmed").rows.shape
    (20000, 10)
    """
    with np.load(DATA) as data:
        high = data[f"{corruption}_high"].astype(np.float64)
        low = data[f"{corruption}_low"].astype(np.float64)
    rows = np.exp(-(256.0 * high + low).T / fashion.STEPS)
    rows /= rows.sum(axis=1, keepdims=True)
    rows.flags.writeable = False  # the cache hands the same array to every test
    return Outputs(rows, fashion.outputs("good", "test").labels)
