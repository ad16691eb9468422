"""How good the classifier still is on a window, without its labels.

Under label shift the recalls stay what they were in the reference, so accuracy is
`sum_j q_j p(correct | j)` with the window's own label mix, and precision follows from Bayes. If
something other than the label mix moved, none of this holds: see `app.stats.assumption`.
"""

from dataclasses import dataclass

import numpy as np

from app.stats import reference as references
from app.stats.bbse import WINDOW_SMOOTHING_SOFT, Estimate, Prepared
from app.stats.intervals import quantile
from app.stats.moments import Counts, Floats, Sums


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


def accuracy(
    prepared: Prepared, estimate: Estimate, sums: Sums, *, level: float = 0.95, phi: float = 1.0
) -> Accuracy:
    """Accuracy under the estimated label mix.

    With `r_j = p(correct | j)` and `h = A^+' r` it is `r.q = h.mu`, whose variance is
    `Var(h.g) / m + sum_j q_j^2 / n_j Var_j(1(correct) - h.g)`: window and reference.

    >>> from app.stats import bbse, diagnosis, reference
    >>> two = reference.from_confusion(np.array([[900, 200], [100, 800]]))
    >>> prepared = bbse.prepare(two, diagnosis.diagnose(two))
    >>> window = Sums(np.array([270, 730]))
    >>> found = accuracy(prepared, bbse.estimate(prepared, window), window)
    >>> round(found.estimate, 6), round(found.lower, 3), round(found.upper, 3), found.reference
    (0.81, 0.784, 0.836, 0.85)
    """
    r = _correct_by_column(prepared) / prepared.given.n_j
    h = prepared.inverse.T @ r
    excess = _soft_excess(prepared, r, h) if prepared.soft else _hard_excess(prepared, h)
    window = prepared.second_moment_along(sums, h[None, :])[0] - (h @ estimate.mu) ** 2
    reference = excess @ (estimate.q**2 / prepared.given.n_j)
    variance = max(float(window), 0.0) * phi / sums.n + float(reference)
    # Rounding must not make a perfect classifier more than perfect.
    centre, half = min(1.0, float(r @ estimate.q)), quantile(level) * variance**0.5
    return Accuracy(
        estimate=centre,
        lower=max(0.0, centre - half),
        upper=min(1.0, centre + half),
        reference=prepared.diagnosis.accuracy,
    )


def recall(prepared: Prepared, *, level: float = 0.95) -> Rates:
    """`p(predicted y | true y)` with Wilson's interval; label shift leaves it alone.

    >>> from app.stats import bbse, diagnosis, reference
    >>> two = reference.from_confusion(np.array([[90, 20], [10, 80]]))
    >>> found = recall(bbse.prepare(two, diagnosis.diagnose(two)))
    >>> found.estimate.tolist(), found.lower.round(3).tolist(), found.upper.round(3).tolist()
    ([0.9, 0.8], [0.826, 0.711], [0.945, 0.867])
    """
    z2 = quantile(level) ** 2
    n = np.where(prepared.diagnosis.support > 0, prepared.diagnosis.support, np.nan)
    p = prepared.diagnosis.recall
    centre = (p + z2 / (2.0 * n)) / (1.0 + z2 / n)
    half = np.sqrt(z2 * (p * (1.0 - p) + z2 / (4.0 * n)) / n) / (1.0 + z2 / n)
    return Rates(p, np.minimum(centre - half, p), np.maximum(centre + half, p))


def precision(
    prepared: Prepared, estimate: Estimate, sums: Sums, *, level: float = 0.95, phi: float = 1.0
) -> Rates:
    """`p(true y | predicted y) = recall_y q_y / p(predicted y)` on the window, by the delta method.

    NaN for labels not predicted in the window, and for labels absent from the reference.

    >>> from app.stats import bbse, diagnosis, reference
    >>> two = reference.from_confusion(np.array([[900, 200], [100, 800]]))
    >>> prepared = bbse.prepare(two, diagnosis.diagnose(two))
    >>> window = Sums(np.array([270, 730]))
    >>> precision(prepared, bbse.estimate(prepared, window), window).estimate.round(6).tolist()
    [0.333333, 0.986301]
    """
    share = np.where(sums.counts > 0, sums.counts, np.nan) / sums.n
    theta = prepared.diagnosis.recall * prepared.spread(estimate.q) / share
    H = _rows(prepared)
    hits = _with_own_prediction(H, estimate.mu, sums.counts, _own_score(prepared, sums)) / sums.n
    window = prepared.second_moment_along(sums, H) - 2.0 * theta * hits + theta**2 * share
    reference = _precision_excess(prepared, H) @ (estimate.q**2 / prepared.given.n_j)
    # Smoothed like the intervals for q: few predictions of a label can agree by chance.
    smoothing = WINDOW_SMOOTHING_SOFT * (H**2).sum(axis=1) * (phi / sums.n) ** 2
    variance = np.maximum(window, 0.0) * phi / sums.n + smoothing + reference
    half = quantile(level) * np.sqrt(variance) / share
    return Rates(*(np.clip(theta + arm, 0.0, 1.0) for arm in (0.0, -half, half)))


def _correct_by_column(prepared: Prepared) -> Counts:
    return references.by_column(np.diag(prepared.reference.counts), prepared.columns)


def _hard_excess(prepared: Prepared, h: Floats) -> Floats:
    """`Var_j(1(correct) - h_i)` over predictions i, with 1/k of a record added to every cell.

    Without it a label that happens to have no errors in the reference would count as perfect.
    """
    k, columns = prepared.k, np.arange(len(prepared.columns))
    own = prepared.owner[:, None] == columns
    cells = references.by_column(prepared.reference.counts, prepared.columns) + 1.0 / k
    correct = np.where(own, np.diag(prepared.reference.counts)[:, None] + 1.0 / k, 0.0)
    n = cells.sum(axis=0)
    mean = (correct.sum(axis=0) - h @ cells) / n
    return np.asarray((h**2 @ cells + (1.0 - 2.0 * h) @ correct) / n - mean**2)


def _soft_excess(prepared: Prepared, r: Floats, h: Floats) -> Floats:
    """`Var_j(1(correct) - h.p)`; `h.A_j = r_j`, so its mean is zero."""
    H = np.broadcast_to(h, (prepared.k, prepared.k))
    hits = references.by_column(_reference_hits(prepared, H), prepared.columns)
    second = prepared.given.second_moment(h[None, :])[0]
    return np.asarray(np.maximum(r - 2.0 * hits / prepared.given.n_j + second, 0.0))


def _precision_excess(prepared: Prepared, H: Floats) -> Floats:
    """`Var_j(1(true and predicted y) - H_y.g)` for each label y and column j."""
    recalls = np.nan_to_num(prepared.diagnosis.recall)
    excess = (recalls * prepared.share)[:, None] ** 2 * prepared.variance[prepared.owner]
    own = np.flatnonzero(prepared.owner >= 0)
    column = prepared.owner[own]
    rho = (recalls * prepared.share)[own]
    hits = _reference_hits(prepared, H)[own] / prepared.given.n_j[column]
    excess[own, column] += rho * (1.0 - rho) - 2.0 * (hits - rho**2)
    return np.maximum(excess, 0.0)


def _rows(prepared: Prepared) -> Floats:
    """For each label y the `H_y` whose `H_y.mu` estimates `p(true and predicted y)`."""
    scale = np.nan_to_num(prepared.diagnosis.recall) * prepared.share
    return np.asarray(scale[:, None] * prepared.inverse[prepared.owner])


def _reference_hits(prepared: Prepared, H: Floats) -> Floats:
    """Sums of `H_y.g` over the reference records of each label y that were predicted y."""
    counts, soft = np.diag(prepared.reference.counts), prepared.reference.soft
    score = counts if soft is None or not prepared.soft else np.diag(soft.score_by_label)
    mean = prepared.given.A[:, prepared.owner].T
    return _with_own_prediction(H, mean, counts, score)


def _own_score(prepared: Prepared, sums: Sums) -> Floats | Counts:
    """Sums of the predicted label's own entry of the moment map, by predicted label."""
    return sums.soft.score_by_label if prepared.soft and sums.soft else sums.counts


def _with_own_prediction(H: Floats, mean: Floats, counts: Counts, score: Floats | Counts) -> Floats:
    """Sums of `H_y.g` over the records predicted y, from `counts` of them and sums of `g_y`.

    For one-hot `g` this is exact. For a softmax only the entry of the predicted label is known
    in sum; what is left to the other labels is split among them like their mean.
    """
    others = np.array(np.broadcast_to(mean, H.shape))
    np.fill_diagonal(others, 0.0)
    typical = (H * others).sum(axis=1) / np.maximum(others.sum(axis=1), 1e-300)
    return np.asarray(np.diag(H) * score + typical * (counts - score))
