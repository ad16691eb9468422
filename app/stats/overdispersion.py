"""How much more a stream scatters than independent predictions would, and what to do about it.

Records that come in bursts of the same thing are worth fewer than their number. The factor `phi`
says how much fewer: every test and interval takes it, and counts `m / phi` predictions.
"""

from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2

from app.stats.moments import Counts

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
        return Overdispersion(1.0, 1.0, 1.0, 0)
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
    statistic = float(((table - expected) ** 2 / expected).sum())
    estimate = statistic / df
    # Bursts scale the statistic itself, so its chi-square quantile bounds phi from above.
    upper = max(1.0, statistic / float(chi2.ppf(0.05, df)))
    return Overdispersion(estimate, upper, float(chi2.sf(statistic, df)), df)
