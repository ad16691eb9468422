"""The labels that a softmax row ranks highest: its argmax, its runner-up, and how sure it is."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
# Those of a large reference are in single precision.
Rows = NDArray[np.float32] | NDArray[np.float64]

# Up to so many labels it is quicker to go by column, where each step is one comparison of many rows
# at once; beyond, by row, where NumPy looks through a row in a few steps (measured: equal at 40).
BY_COLUMN_LABELS = 40
# As many numbers as fit into the cache of a processor, 80 kB.
BLOCK_CELLS = 10_240


class Ranks(NamedTuple):
    """Positions of the largest entry of each row and of the one after it; and the largest itself.

    Of equal entries the one with the lower position comes first, in reference and stream alike.
    """

    first: Counts
    second: Counts
    score: Floats

    def of(self, chosen: "NDArray[np.bool_] | NDArray[np.int64] | slice") -> "Ranks":
        """The ranks of some of the rows."""
        return Ranks(self.first[chosen], self.second[chosen], self.score[chosen])


def ranks(rows: Rows) -> Ranks:
    """The ranks of softmax rows without negative entries; of a row with a NaN, anything.

    >>> first, second, score = ranks(np.array([[0.1, 0.6, 0.3], [0.5, 0.5, 0.0]]))
    >>> first.tolist(), second.tolist(), score.tolist()
    ([1, 0], [2, 1], [0.6, 0.5])
    """
    return (by_column if rows.shape[1] <= BY_COLUMN_LABELS else by_row)(rows)


def by_column(rows: Rows) -> Ranks:
    """The ranks of rows of at most 255 entries."""
    columns = np.ascontiguousarray(rows.T)
    k, n = columns.shape
    largest = columns[0].copy()
    next_largest = np.full(n, -1.0)
    lower = np.empty(n)
    for column in columns[1:]:
        np.minimum(largest, column, out=lower)
        np.maximum(largest, column, out=largest)
        np.maximum(next_largest, lower, out=next_largest)
    # Where an entry is the largest, k for the first position, k - 1 for the next, and so on: the
    # most of these is the first of equals. In bytes, of which a processor compares dozens at once.
    weight = np.arange(k, 0, -1, dtype=np.uint8)[:, None]
    first = ((columns == largest).view(np.uint8) * weight).max(axis=0)
    candidates = (columns == next_largest).view(np.uint8) * weight
    if (largest == next_largest).any():
        # Two are the largest: the first of them is not its own runner-up.
        candidates *= weight != first
    second = candidates.max(axis=0)
    return Ranks(_position(k, first), _position(k, second), largest)


def _position(k: int, weight: NDArray[np.uint8]) -> Counts:
    # Nothing is equal to a NaN, and nothing comes second to the only entry.
    return np.minimum(k - weight, k - 1).astype(np.int64)


def by_row(rows: Rows) -> Ranks:
    """The same for rows of any length."""
    n = len(rows)
    found = Ranks(np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64), np.empty(n))
    # A block at a time: it stays in the caches, and the system is not asked for large memory.
    size = max(1, BLOCK_CELLS // rows.shape[1])
    for begin in range(0, n, size):
        block = np.array(rows[begin : begin + size], order="C")
        first, second, score = found.of(slice(begin, begin + size))
        block.argmax(axis=1, out=first)
        place = np.arange(len(block)), first
        score[:] = block[place]
        block[place] = -1.0
        block.argmax(axis=1, out=second)
    return found
