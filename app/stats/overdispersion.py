"""How much more a stream scatters than independent predictions would, and what to do about it.

Records that come in bursts of the same thing are worth fewer than their number. The factor `phi`
says how much fewer: every test and interval takes it, and counts `m / phi` predictions.
"""

from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2

from app.stats.moments import Counts, Floats

SIGNIFICANT = 0.01


@dataclass(frozen=True, slots=True)
class Overdispersion:
    """Pearson's dispersion over panes: 1 for independent predictions.

    `upper` is a 95 % upper limit, for detectors that must not be armed with too small a value.
    `phi` is what windows should use: the estimate where it is significantly above 1, else 1.
    """

    estimate: float
    upper: float
    p_value: float
    df: int

    @property
    def phi(self) -> float:
        return self.estimate if self.p_value < SIGNIFICANT else 1.0


INDEPENDENT = Overdispersion(1.0, 1.0, 1.0, 0)


def overdispersion(panes: Counts) -> Overdispersion:
    """The overdispersion of prediction counts over quiet panes (first axis) and labels.

    `X2 / df` of the table's homogeneity, `df = (panes - 1)(labels - 1)`; empty panes and labels
    never predicted are left out. A table too small to tell counts as independent.

    >>> doubled = overdispersion(np.array([[20, 0], [0, 20], [20, 0], [0, 20]]))
    >>> round(doubled.estimate, 2), doubled.df
    (26.67, 3)
    """
    table = panes[:, panes.sum(axis=0) > 0][panes.sum(axis=1) > 0].astype(np.float64)
    df = (table.shape[0] - 1) * (table.shape[1] - 1)
    if df < 1:
        return INDEPENDENT
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
    return _scaled(float(((table - expected) ** 2 / expected).sum()), df)


def between_neighbours(panes: Counts | Floats) -> Overdispersion:
    """The overdispersion of panes from differences between each one and the next.

    The panes of a table need not be quiet for this: where the mix changed, one pair in all tells of
    it, and slow drift hardly shows between neighbours. It costs half the degrees of freedom. A pair
    of N predictions has an X2 of `df N / (N - 1)` on average, however few they are.

    >>> round(between_neighbours(np.array([[12, 8], [8, 12], [0, 20], [0, 20]])).estimate, 6)
    1.56
    """
    kept = panes[panes.sum(axis=1) > 0].astype(np.float64)
    first, second = kept[0 : len(kept) - 1 : 2], kept[1::2]
    both = first + second
    a, b = first.sum(axis=1), second.sum(axis=1)
    df = np.maximum((both > 0.0).sum(axis=1) - 1, 0)
    if not df.any():
        return INDEPENDENT
    gap = first / a[:, None] - second / b[:, None]
    squares = np.divide(gap**2, both, where=both > 0.0, out=np.zeros_like(both)).sum(axis=1)
    statistic = a * b * squares * (a + b - 1.0) / (a + b)
    return _scaled(float(statistic.sum()), int(df.sum()))


def _scaled(statistic: float, df: int) -> Overdispersion:
    # Bursts scale the statistic itself, so its chi-square quantile bounds phi from above.
    upper = max(1.0, statistic / float(chi2.ppf(0.05, df)))
    return Overdispersion(statistic / df, upper, float(chi2.sf(statistic, df)), df)
