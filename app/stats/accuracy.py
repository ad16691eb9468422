"""How good the classifier still is on a window, without its labels.

Under label shift the recalls stay what they were in the reference, so accuracy is
`sum_j q_j p(correct | j)` with the window's own label mix, and precision follows from Bayes. If
something other than the label mix moved, none of this holds: see `app.stats.assumption`.
"""

from dataclasses import dataclass

import numpy as np

from app.stats.estimator import Estimate, Operator
from app.stats.intervals import (
    WORTH_A_RIDGE,
    Design,
    Intervals,
    Linear,
    arm,
    quantile,
    reference_noise,
    wilson,
)
from app.stats.moments import Counts, Floats


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Accuracy on the window with its interval, and what it was in the reference."""

    estimate: float
    lower: float
    upper: float
    reference: float


@dataclass(frozen=True, slots=True)
class Rates:
    """A rate for each label with its interval; NaN where it is undefined."""

    estimate: Floats
    lower: Floats
    upper: Floats


@dataclass(frozen=True, slots=True)
class _Line:
    """A linear estimate of the accuracy: its value, its noise, and the range of its bias."""

    value: float
    sd: float
    low: float
    high: float

    @property
    def middle(self) -> float:
        return self.value + (self.high + self.low) / 2.0

    @property
    def bias(self) -> float:
        return (self.high - self.low) / 2.0


def accuracy(at: Design, estimate: Estimate, reference: float, *, level: float = 0.95) -> Accuracy:
    """Accuracy under the estimated label mix; `reference` is what it was in the reference.

    With `R_l = p(correct | l)` and `h = R' K` it is `R.q`, estimated without bias by `h.mu`, of
    which the interval has window noise, reference noise and the worst bias of `h A` as one of `R`.

    >>> from app.stats import cells, estimator, intervals
    >>> on = estimator.prepare(cells.of_confusion(np.array([[90, 20], [10, 80]]), np.arange(2)))
    >>> found = estimator.estimate(on, np.array([270.0, 730.0]))
    >>> now = accuracy(intervals.design(on, found), found, 0.85)
    >>> round(now.estimate, 3), round(now.lower, 3), round(now.upper, 3)
    (0.81, 0.728, 0.892)
    """
    R = at.on.recall
    lines = [_line(at, of, estimate.mu) for of, _ in at.of_labels]
    bias, sd = np.array([[line.bias, line.sd] for line in lines]).T
    halves = bias + arm(bias, sd, level) * sd
    worth = np.where(np.arange(len(lines)) > 0, WORTH_A_RIDGE, 1.0)
    chosen = int((halves / worth).argmin())
    middle, half = lines[chosen].middle, float(halves[chosen])
    # Rounding must not make a perfect classifier more than perfect.
    found = min(1.0, float(R @ estimate.q))
    return Accuracy(
        estimate=found,
        lower=min(found, max(0.0, middle - half)),
        upper=max(found, min(1.0, middle + half)),
        reference=reference,
    )


def recall(support: Counts, recalled_: Floats, *, level: float = 0.95) -> Rates:
    """`p(predicted y | true y)` with Wilson's interval; label shift leaves it alone.

    >>> found = recall(np.array([100, 100]), np.array([0.9, 0.8]))
    >>> found.lower.round(3).tolist(), found.upper.round(3).tolist()
    ([0.826, 0.711], [0.945, 0.867])
    """
    n = np.where(support > 0, support, np.nan)
    return Rates(recalled_, *wilson(recalled_, n, quantile(level)))


def precision(at: Design, estimate: Estimate, q: Intervals, *, level: float = 0.95) -> Rates:
    """`p(true y | predicted y) = R_y q_y / p(predicted y)` on the window, by estimated label.

    Where the label is identified, the interval is made around the raw share by the delta method,
    and reaches to the estimate; else it goes as far as the share's. NaN for labels not predicted in
    the window.

    >>> from app.stats import cells, estimator, intervals
    >>> on = estimator.prepare(cells.of_confusion(np.array([[90, 20], [10, 80]]), np.arange(2)))
    >>> found = estimator.estimate(on, np.array([270.0, 730.0]))
    >>> at = intervals.design(on, found)
    >>> precision(at, found, intervals.shares(at, found)).estimate.round(3).tolist()
    [0.336, 0.986]
    """
    on, R, mu = at.on, at.on.recall, estimate.mu
    share = on.predicting(mu[on.hits[0]])
    share = np.where(share > 0.0, share, np.nan)
    theta = np.clip(R * estimate.q / share, 0.0, 1.0)
    half = quantile(level) * _precision_error(at, theta) / share
    centre = R * (at.unbiased.K @ mu) / share
    lower = np.where(at.exact, centre - half, R * q.lower / share)
    upper = np.where(at.exact, centre + half, R * q.upper / share)
    return Rates(
        theta,
        np.minimum(theta, np.clip(lower, 0.0, 1.0)),
        np.maximum(theta, np.clip(upper, 0.0, 1.0)),
    )


def _line(at: Design, of: Linear, mu: Floats) -> _Line:
    """`h = R' K`, with `Var(h) / m + sum_l q_l^2 / n_l Var_l(h - 1(correct))` for its noise."""
    on, q, R = at.on, at.q, at.on.recall
    h = R @ of.K
    g, p = (R if of.G is None else R @ of.G), on.A @ q
    window = (h**2 @ p - float(h @ p) ** 2) / at.m
    reference = (q**2 / on.n_j) @ _excess(on, h, g)
    bias = R - g
    low, high = float(bias.min()), float(bias.max())
    sd = max(float(window) + float(reference), 1e-300) ** 0.5
    return _Line(float(h @ mu), sd, low, high)


def _excess(on: Operator, h: Floats, g: Floats) -> Floats:
    """`Var_l(h_b - 1(b predicts l))` over the cells of label l's records, some of them astray."""
    cell, _ = on.hits
    mean, mix = g - on.recall, on.mix[cell]
    own = on.predicting(on.A[on.hits] * h[cell])
    spread = h**2 @ on.A - 2.0 * own + on.recall - mean**2
    mixed, mixed_h = on.predicting(mix), on.predicting(mix * h[cell])
    anywhere = float(on.mix @ h**2) - 2.0 * mixed_h + mixed
    strayed = anywhere - 2.0 * mean * (float(on.mix @ h) - mixed) + mean**2
    return np.maximum(spread, 0.0) + on.stray * strayed


def _precision_error(at: Design, theta: Floats) -> Floats:
    """The standard error of `R_y K_y.mu - theta_y p(predicted y)`, which is zero on average."""
    on, of, q, R = at.on, at.unbiased, at.q, at.on.recall
    p = on.A @ q
    cell, label = on.hits
    K_own = of.K[label, cell]
    own_share = on.predicting(p[cell])
    own = on.predicting(p[cell] * K_own)
    G_own, mixed = (np.ones(on.size), q) if of.G is None else (np.diag(of.G), of.G @ q)
    square = R**2 * (of.K**2 @ p) - 2.0 * R * theta * own + theta**2 * own_share
    mean = R * mixed - theta * own_share
    hit = on.predicting(on.A[on.hits] * K_own)
    # Of its own records, those that hit also make the recall.
    with_hits = R * (1.0 - R) - 2.0 * R * (hit - G_own * R)
    reference = R**2 * reference_noise(on, of, q**2) + q**2 / on.n_j * with_hits
    return np.sqrt(np.maximum(square - mean**2, 0.0) / at.m + np.maximum(reference, 0.0))
