"""What a reference can promise before any traffic is seen: how many predictions are needed.

All of it follows from the confusion matrix and the size of the reference. Where no number of
predictions suffices, the answer is how much larger the reference would have to be.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.stats import chi2, ncx2

from app.stats import reference as references
from app.stats.bbse import Prepared
from app.stats.intervals import quantile
from app.stats.moments import Floats

# Bets of the shift detector's dictionary for each label: the price of not knowing the shift.
BETS_PER_LABEL = 6
MOST_PREDICTIONS = 1e12


@dataclass(frozen=True, slots=True)
class Needed:
    """How many predictions will do."""

    predictions: int


@dataclass(frozen=True, slots=True)
class Unattainable:
    """No number of predictions will do: the reference must be at least this many times larger."""

    reference_factor: float


def predictions_to_detect(
    prepared: Prepared, q: Floats, *, alpha: float = 0.05, power: float = 0.8
) -> Needed | Unattainable:
    """How long a window must be for chi-square at `alpha` to see a shift to `q` with this power.

    The statistic is non-central chi-square with
    `lambda = n m / (n + m) sum_i (p1_i - p0_i)^2 / pbar_i`, `p0 = A nu`, `p1 = A q` and `pbar` both
    samples together. `q` is by column.

    >>> from app.stats import bbse, diagnosis, reference
    >>> two = reference.from_confusion(np.array([[900, 200], [100, 800]]))
    >>> prepared = bbse.prepare(two, diagnosis.diagnose(two))
    >>> predictions_to_detect(prepared, np.array([0.6, 0.4]))
    Needed(predictions=491)
    >>> type(predictions_to_detect(prepared, np.array([0.51, 0.49]))).__name__
    'Unattainable'
    """
    if not prepared.estimable:
        return Unattainable(np.inf)
    A = _predicted_given_label(prepared)
    p0, p1 = A @ prepared.nu, A @ q
    rows = int(((p0 + p1) > 0.0).sum())
    needed = noncentrality(rows - 1, alpha, power)
    n = float(prepared.reference.n)

    def shortfall(log_m: float) -> float:
        return needed - _noncentral(p0, p1, n, float(np.exp(log_m)))

    if shortfall(np.log(MOST_PREDICTIONS)) > 0.0:
        distance = _noncentral(p0, p1, n, MOST_PREDICTIONS)
        return Unattainable(needed / distance if distance > 0.0 else np.inf)
    if shortfall(0.0) <= 0.0:
        return Needed(1)
    return Needed(int(np.ceil(np.exp(brentq(shortfall, 0.0, np.log(MOST_PREDICTIONS))))))


def smallest_visible_shift(
    prepared: Prepared, predictions: float, *, alpha: float = 0.05, power: float = 0.8
) -> Floats:
    """How far each label's share must grow for a window of this size to show it with this power.

    The label grows at the cost of all others alike, see `moved`: the predictions become
    `p1 = (1 - f) p0 + f A_c`, whose non-centrality grows with f, so there is one f where it is
    just enough. Labels of a group share a column and thus f. NaN where even a window of nothing
    but this label would not do, and for absent labels.

    >>> from app.stats import bbse, diagnosis, reference
    >>> two = reference.from_confusion(np.array([[900, 200], [100, 800]]))
    >>> prepared = bbse.prepare(two, diagnosis.diagnose(two))
    >>> smallest_visible_shift(prepared, 491).round(4).tolist()
    [0.1, 0.1005]
    >>> smallest_visible_shift(prepared, 1).tolist()
    [nan, nan]
    """
    if not prepared.estimable:
        return np.full(prepared.k, np.nan)
    A = _predicted_given_label(prepared)
    p0 = A @ prepared.nu
    needed = noncentrality(int((p0 > 0.0).sum()) - 1, alpha, power)
    n = float(prepared.reference.n)
    parts = [_smallest_part(p0, column, n, predictions, needed) for column in A.T]
    return np.asarray(prepared.repeat(np.array(parts)) * (1.0 - prepared.spread(prepared.nu)))


def moved(prepared: Prepared, label: int, to: float) -> Floats:
    """The label mix, by column, when a label's share is `to` and all others share the rest as ever.

    With `nu_y` the label's share now, `f = (to - nu_y) / (1 - nu_y)` and c its column,
    `q = (1 - f) nu + f e_c`. The label must not be absent, nor the only one.

    >>> from app.stats import bbse, diagnosis, reference
    >>> three = reference.from_confusion(np.diag([500, 300, 200]))
    >>> prepared = bbse.prepare(three, diagnosis.diagnose(three))
    >>> moved(prepared, 0, 0.75).round(4).tolist()
    [0.75, 0.15, 0.1]
    """
    share = float(prepared.spread(prepared.nu)[label])
    f = (to - share) / (1.0 - share)
    q = (1.0 - f) * prepared.nu
    q[prepared.owner[label]] += f
    return np.asarray(q)


def predictions_for_half_width(
    prepared: Prepared, q: Floats, half_width: float, *, level: float = 0.95
) -> list[Needed | Unattainable]:
    """How long a window must be for each column's interval to be `+- half_width` at mix `q`.

    `half_width^2 = z^2 (T_jj / m + R_jj)`, with T the window's variance for one prediction and R
    the reference's, which no window removes.
    """
    if not prepared.estimable:
        return [Unattainable(np.inf)] * len(prepared.columns)
    window, reference = _noise_at(prepared, q)
    room = half_width**2 / quantile(level) ** 2
    return [
        Needed(max(1, int(np.ceil(T / (room - R))))) if room > R else Unattainable(float(R / room))
        for T, R in zip(window, reference, strict=True)
    ]


def detection_delay(
    prepared: Prepared, q: Floats, *, per_pane: float, average_run_length: float
) -> float:
    """Panes until the shift detector is expected to fire after a change to `q`; inf if never.

    `(log ARL + log(2 bets)) / (per_pane KL(p1 || p0))`: the bar to clear over what one pane
    brings, a first-order rule.
    """
    A = _predicted_given_label(prepared)
    p0, p1 = A @ prepared.nu, A @ q
    seen = p1 > 0.0
    divergence = float(p1[seen] @ np.log(p1[seen] / p0[seen]))
    bar = np.log(average_run_length) + np.log(2 * BETS_PER_LABEL * prepared.k)
    return float(bar / (per_pane * divergence)) if divergence > 1e-12 else np.inf


def worst_direction_error(sigma_min: float, w: Floats, n: int, m: float) -> float:
    """A rule of thumb: the standard error of `w` in its worst direction is at most this.

    >>> round(worst_direction_error(0.08, np.ones(10), 10_000, 1000), 3)
    0.559
    """
    return float(np.sqrt(1.0 / m + float(w @ w) / n) / sigma_min)


def noncentrality(df: int, alpha: float, power: float) -> float:
    """The non-centrality at which a chi-square test at level `alpha` has this power.

    >>> round(noncentrality(1, 0.05, 0.8), 2)
    7.85
    """
    critical = float(chi2.isf(alpha, df))
    reach = 10.0 * (critical + 100.0)
    return float(brentq(lambda nc: float(ncx2.sf(critical, df, nc)) - power, 1e-9, reach))


def _noncentral(p0: Floats, p1: Floats, n: float, m: float) -> float:
    pooled = (n * p0 + m * p1) / (n + m)
    seen = pooled > 0.0
    apart = (p1 - p0)[seen] ** 2 / pooled[seen]
    return float(n * m / (n + m) * apart.sum())


def _smallest_part(p0: Floats, column: Floats, n: float, m: float, needed: float) -> float:
    """The least part of a window that must be of one column alone to be seen; NaN if none is."""

    def surplus(f: float) -> float:
        return _noncentral(p0, (1.0 - f) * p0 + f * column, n, m) - needed

    return float(brentq(surplus, 0.0, 1.0)) if surplus(1.0) > 0.0 else np.nan


def _predicted_given_label(prepared: Prepared) -> Floats:
    """The tests are on predicted labels, whatever the moment map of the estimate."""
    counts = references.by_column(prepared.reference.counts, prepared.columns)
    return counts / prepared.given.n_j


def _noise_at(prepared: Prepared, q: Floats) -> tuple[Floats, Floats]:
    """Variance of each raw estimate at mix `q`: for one prediction, and from the reference."""
    smoothed = np.outer((prepared.inverse**2).sum(axis=1), prepared.smoothing)
    window = (prepared.variance - smoothed) @ q + q * (1.0 - q)
    return window, prepared.variance @ (q**2 / prepared.given.n_j)
