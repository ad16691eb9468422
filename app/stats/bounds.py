"""How large a mean may be, from the first three moments of a sample."""

import numpy as np
from scipy.special import ndtri

from app.stats.moments import Counts, Floats


def upper_mean(moments: Floats, n: Counts | int, alpha: float) -> Floats:
    """Upper confidence bounds, level `1 - alpha`, of means with these raw moments (first axis).

    Normal theory with Johnson's (1978) correction for skewness, `gamma (2 z^2 + 1) / (6 n)`
    standard deviations, which is left out where it would lower the bound.

    >>> upper_mean(np.array([0.1, 0.1, 0.1]), 400, 0.025).round(4).tolist()  # 40 of 400 are ones
    0.1323
    """
    first, second, third = moments
    z = -ndtri(alpha)
    sd = np.sqrt(np.maximum(second - first**2, 0.0) * n / np.maximum(n - 1.0, 1.0))
    central = np.maximum(third - 3.0 * first * second + 2.0 * first**3, 0.0)
    skewness = np.divide(central, sd**2, where=sd > 0.0, out=np.zeros_like(sd))
    return np.asarray(first + z * sd / np.sqrt(n) + skewness * (2.0 * z**2 + 1.0) / (6.0 * n))
