"""What most monitors go by: an alarm when a test on the last hour has a small p-value."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc

from app.stats.moments import Bools, Counts, Floats

WINDOW_PANES = 60

# Panes of few predictions have small counts, and a month of many streams has many panes.
Small = NDArray[np.uint8]


def p_values(predicted: Counts | Floats, panes: Counts | Small) -> Floats:
    """Chi-square on the last hour, once a minute from the first full hour on."""
    sums = np.cumsum(np.vstack([np.zeros_like(panes[:1]), panes]), axis=0, dtype=np.int64)
    window = (sums[WINDOW_PANES:] - sums[:-WINDOW_PANES]).astype(np.float64)
    return _chi_square(predicted.astype(np.float64), window)


def raised(low: Bools) -> Bools:
    """Where an alarm begins that lasts for as long as the p-value stays low."""
    return np.asarray(low & ~np.append(False, low[:-1]))


def _chi_square(r: Floats, c: Floats) -> Floats:
    n, m = r.sum(), c.sum(axis=1)
    gap = (r / n - c / m[:, None]) ** 2 / (r + c)
    return np.asarray(chdtrc(len(r) - 1, n * m * gap.sum(axis=1)))
