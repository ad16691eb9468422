"""What a reference can promise before any traffic is seen: how many predictions are needed.

All of it follows from the confusion matrix and the size of the reference. Where no number of
predictions suffices, the answer is how much larger the reference would have to be.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.stats import chi2, ncx2

from app.stats import intervals
from app.stats.estimator import ENDLESS, Operator
from app.stats.identification import UNKNOWN_FLOOR
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
    on: Operator, q: Floats, *, alpha: float = 0.05, power: float = 0.8
) -> Needed | Unattainable:
    """How long a window must be for chi-square at `alpha` to see a shift to `q` with this power.

    The statistic is non-central chi-square with
    `lambda = n m / (n + m) sum_i (p1_i - p0_i)^2 / pbar_i`, `p0 = A nu`, `p1 = A q` and `pbar` both
    samples together. `on` is of hard predictions, which is what is tested.

    >>> from app.stats import cells, estimator
    >>> confusion = np.array([[900, 200], [100, 800]])
    >>> on = estimator.prepare(cells.of_confusion(confusion, np.arange(2)))
    >>> predictions_to_detect(on, np.array([0.6, 0.4]))
    Needed(predictions=491)
    >>> type(predictions_to_detect(on, np.array([0.51, 0.49]))).__name__
    'Unattainable'
    """
    p0, p1 = on.A @ on.nu, on.A @ q
    rows = int(((p0 + p1) > 0.0).sum())
    if rows < 2:
        return Unattainable(np.inf)
    needed = noncentrality(rows - 1, alpha, power)
    n = float(on.n_j.sum())

    def shortfall(log_m: float) -> float:
        return needed - _noncentral(p0, p1, n, float(np.exp(log_m)))

    if shortfall(np.log(MOST_PREDICTIONS)) > 0.0:
        distance = _noncentral(p0, p1, n, MOST_PREDICTIONS)
        return Unattainable(needed / distance if distance > 0.0 else np.inf)
    if shortfall(0.0) <= 0.0:
        return Needed(1)
    return Needed(int(np.ceil(np.exp(brentq(shortfall, 0.0, np.log(MOST_PREDICTIONS))))))


def smallest_visible_shift(
    on: Operator, predictions: float, *, alpha: float = 0.05, power: float = 0.8
) -> Floats:
    """How far each label's share must grow for a window of this size to show it with this power.

    The label grows at the cost of all others alike, see `moved`: the predictions become
    `p1 = (1 - f) p0 + f A_c`, whose non-centrality grows with f, so there is one f where it is
    just enough. NaN where even a window of nothing but this label would not do, and for absent
    labels. `on` is of hard predictions, which is what is tested.

    >>> from app.stats import cells, estimator
    >>> confusion = np.array([[900, 200], [100, 800]])
    >>> on = estimator.prepare(cells.of_confusion(confusion, np.arange(2)))
    >>> smallest_visible_shift(on, 491).round(4).tolist()
    [0.1, 0.1005]
    >>> smallest_visible_shift(on, 1).tolist()
    [nan, nan]
    """
    p0 = on.A @ on.nu
    if len(p0) < 2:
        return np.full(on.k, np.nan)
    needed = noncentrality(len(p0) - 1, alpha, power)
    n = float(on.n_j.sum())
    parts = [_smallest_part(p0, column, n, predictions, needed) for column in on.A.T]
    return on.spread(np.array(parts) * (1.0 - on.nu))


def moved(on: Operator, label: int, to: float) -> Floats:
    """The label mix when a label's share is `to` and all others share the rest as ever.

    With `nu_y` the label's share now and `f = (to - nu_y) / (1 - nu_y)`, `q = (1 - f) nu + f e_y`.
    The label must be present, and not the only one.

    >>> from app.stats import cells, estimator
    >>> on = estimator.prepare(cells.of_confusion(np.diag([500, 300, 200]), np.arange(3)))
    >>> moved(on, 0, 0.75).round(4).tolist()
    [0.75, 0.15, 0.1]
    """
    place = int(np.searchsorted(on.table.present, label))
    share = float(on.nu[place])
    f = (to - share) / (1.0 - share)
    q = (1.0 - f) * on.nu
    q[place] += f
    return np.asarray(q)


# Sizes of windows that expected intervals are worked out for; between two of them the square of
# the length is next to linear in 1 / m.
SIZES = 10.0 ** np.arange(1.0, 8.1, 0.5)


def predictions_for_half_width(
    on: Operator, q: Floats, half_width: float, *, level: float = 0.95
) -> list[Needed | Unattainable]:
    """How long a window must be for each label's interval to be `+- half_width` at mix `q`.

    A window without end leaves the label's floor: the reference's noise, which falls with the root
    of its records, and what labels that look alike leave open, which no record mends.
    """
    halves = np.stack(
        [
            intervals.expected_half_lengths(intervals.planned(on, q, m), level=level)
            for m in (*SIZES, ENDLESS)
        ]
    )
    return [_size_for(column, half_width) for column in halves.T]


def _size_for(halves: Floats, wanted: float) -> Needed | Unattainable:
    short = np.flatnonzero(halves <= wanted)
    if not len(short):
        floor = float(halves[-1])
        return Unattainable(np.inf if floor > UNKNOWN_FLOOR else (floor / wanted) ** 2)
    sizes = np.append(SIZES, ENDLESS)
    at = int(short[0])
    # Backwards, because less than the first size is as good as the first.
    above, below = (halves[max(0, at - 1)] ** 2, halves[at] ** 2)
    if at == 0 or above == below:
        return Needed(int(sizes[at]))
    part = (above - wanted**2) / (above - below)
    inverse = 1.0 / sizes[at - 1] + part * (1.0 / sizes[at] - 1.0 / sizes[at - 1])
    return Needed(int(np.ceil(1.0 / inverse)))


def detection_delay(
    on: Operator, q: Floats, *, per_pane: float, average_run_length: float
) -> float:
    """Panes until the shift detector is expected to fire after a change to `q`; inf if never.

    `(log ARL + log(2 bets)) / (per_pane KL(p1 || p0))`: the bar to clear over what one pane
    brings, a first-order rule.
    """
    p0, p1 = on.A @ on.nu, on.A @ q
    seen = p1 > 0.0
    divergence = float(p1[seen] @ np.log(p1[seen] / p0[seen]))
    bar = np.log(average_run_length) + np.log(2 * BETS_PER_LABEL * on.k)
    return float(bar / (per_pane * divergence)) if divergence > 1e-12 else np.inf


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
