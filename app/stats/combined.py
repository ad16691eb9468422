"""One test of a window from three: counts of argmaxes, mean softmax, and each label's mean score.

Each looks at a different side of the same predictions. Chi-square sees argmaxes only; Hotelling's
T2 sees every direction of the mean softmax; Student's t sees one label at a time and is the
sharpest when only one moved. Their p-values are dependent, which the Cauchy combination bears.
"""

from dataclasses import dataclass

import numpy as np
from scipy import special

from app.stats import bbsd, moments
from app.stats.bbsd import Evidence
from app.stats.moments import FULL_OUTER_LABELS, Floats, SoftSums, Sums
from app.stats.reference import Reference

# Directions of the softmax with less than this share of the average variance, after scaling each
# label's scores to variance one, are rounding noise; there is always one, as rows sum to one.
LEAST_VARIANCE = 1e-9

# A p-value of one, which Bonferroni's correction often gives, would outweigh every other.
LARGEST_P = 0.99


@dataclass(frozen=True, slots=True)
class _Scores:
    """Mean of the softmax rows of one sample of (effective) size `n`, and their squares about it.

    `scatter` is the sum of squares and products about the mean.
    """

    n: float
    mean: Floats
    scatter: Floats


_NONE = np.zeros(0, dtype=np.int64)


def overall(reference: Reference) -> Sums:
    """The sums of a reference over all its labels, as if it were a window; without codes."""
    soft = reference.soft
    if soft is None:
        return Sums(reference.predicted)
    return Sums(
        reference.predicted,
        SoftSums(
            prob=soft.prob.sum(axis=1),
            outer=soft.outer.sum(axis=1),
            cells=soft.cells.sum(axis=1),
            codes=_NONE,
            code_counts=_NONE,
            score=float(soft.score.sum()),
            score_squared=float(soft.score_squared.sum()),
            score_by_label=soft.score_by_label.sum(axis=1),
        ),
    )


def combined(
    reference: Sums,
    window: Sums,
    counts: Evidence | None = None,
    *,
    phi: float = 1.0,
    seed: int | None = None,
) -> Evidence:
    """Chi-square, Hotelling's T2 and the largest t as one test; chi-square alone without softmax.

    `counts` is chi-square's result where it is known already.

    >>> rows = np.repeat([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8]], [40, 20, 40], axis=0)
    >>> sums = moments.sums(2, rows.argmax(axis=1), rows)
    >>> combined(sums, sums).p_value
    0.99
    >>> combined(sums, moments.sums(2, rows[30:].argmax(axis=1), rows[30:])).p_value < 0.05
    True
    """
    counts = counts or bbsd.chi_square(reference.counts, window.counts, phi=phi, seed=seed)
    r, w = _scores(reference), _scores(window, phi)
    parts = [counts, _hotelling(r, w), _largest_t(r, w)]
    p_values = np.array([part.p_value for part in parts if part.method != "none"])
    if not len(p_values):
        return Evidence("combined", 0.0, None, 1.0, "none")
    statistic = cauchy_statistic(p_values)
    shown = min(statistic, LARGEST_STATISTIC)
    return Evidence("combined", shown, None, cauchy_tail(statistic), "asymptotic")


def hotelling(reference: Sums, window: Sums, *, phi: float = 1.0) -> Evidence:
    """Hotelling's two-sample T2 on mean softmax rows.

    `T2 = n m / (n + m) d' S^- d` with `d` the difference of means and `S` the pooled covariance,
    right under the null hypothesis that nothing changed; `(n+m-p-1) / ((n+m-2) p) T2` has an
    F distribution with `p` (the rank of `S`, at most k - 1) and `n+m-p-1` degrees of freedom.
    Sums over many labels have no covariances, and then there is nothing to compare.
    """
    return _hotelling(_scores(reference), _scores(window, phi))


def _hotelling(r: _Scores | None, w: _Scores | None) -> Evidence:
    if r is None or w is None or r.n + w.n <= 2.0 or len(r.mean) > FULL_OUTER_LABELS:
        return Evidence("hotelling", 0.0, 0, 1.0, "none")
    pooled = r.scatter + w.scatter
    T2, p = _mahalanobis(r.mean - w.mean, pooled / (r.n + w.n - 2.0))
    T2 *= r.n * w.n / (r.n + w.n)
    left = r.n + w.n - p - 1.0
    if not p or left < 1.0:
        return Evidence("hotelling", 0.0, 0, 1.0, "none")
    p_value = float(special.fdtrc(p, left, T2 * left / ((r.n + w.n - 2.0) * p)))
    return Evidence("hotelling", T2, p, p_value, "asymptotic")


def largest_t(reference: Sums, window: Sums, *, phi: float = 1.0) -> Evidence:
    """Student's t on each label's mean score; the largest, with Bonferroni's correction.

    The variance is pooled, again right under the null hypothesis. Welch's t, which is not, rejects
    far too often for short windows: scores are skewed, and a window without its share of the rare
    high scores has too low a mean and too low a variance at once. Labels whose score never varies
    say nothing.
    """
    return _largest_t(_scores(reference), _scores(window, phi))


def _largest_t(r: _Scores | None, w: _Scores | None) -> Evidence:
    if r is None or w is None or r.n + w.n <= 2.0:
        return Evidence("t", 0.0, 0, 1.0, "none")
    df = r.n + w.n - 2.0
    variance = (
        np.maximum(np.diag(r.scatter) + np.diag(w.scatter), 0.0) / df * (1.0 / r.n + 1.0 / w.n)
    )
    moving = variance > 0.0
    if not moving.any():
        return Evidence("t", 0.0, 0, 1.0, "none")
    t = float((np.abs(r.mean - w.mean)[moving] / np.sqrt(variance[moving])).max())
    p_value = min(1.0, 2.0 * int(moving.sum()) * float(special.stdtr(df, -t)))
    return Evidence("t", t, int(df), p_value, "asymptotic")


# It grows as 1 / p without end. More than this is what nobody reads, and a number of three hundred
# digits wherever exponents are not written.
LARGEST_STATISTIC = 1e15


def cauchy_statistic(p_values: Floats) -> float:
    """The mean of `tan((1/2 - p) pi)`: standard Cauchy in its tail, however p-values depend.

    Liu and Xie (2020).

    >>> round(cauchy_statistic(np.array([0.25, 0.25])), 6)
    1.0
    """
    p = np.minimum(p_values, LARGEST_P)
    # Rounding would lose tiny p-values inside the tangent, which is 1 / (pi p) there.
    tails = 1.0 / (np.pi * np.maximum(p, np.finfo(np.float64).tiny))
    return float(np.where(p < 1e-9, tails, np.tan((0.5 - p) * np.pi)).mean())


def cauchy_tail(statistic: float) -> float:
    """`P(C > statistic)` of the standard Cauchy distribution.

    >>> cauchy_tail(1.0)
    0.25
    """
    if statistic > 1.0:
        return float(np.arctan(1.0 / statistic) / np.pi)
    return float(0.5 - np.arctan(statistic) / np.pi)


def _scores(sums: Sums, phi: float = 1.0) -> _Scores | None:
    if sums.soft is None or not sums.n:
        return None
    n, mean = sums.n / phi, sums.soft.prob / sums.n
    second = moments.outer_matrix(len(sums.counts), sums.soft.outer) / sums.n
    return _Scores(n, mean, n * (second - np.outer(mean, mean)))


def _mahalanobis(d: Floats, S: Floats) -> tuple[float, int]:
    """`d' S^- d` over the directions in which `S` is not zero, and how many there are."""
    # Rounding may leave less than nothing of the variance of a score that never moves.
    scale = np.sqrt(np.maximum(np.diag(S), 0.0))
    moving = scale > 0.0
    if not moving.any():
        return 0.0, 0
    d, scale = d[moving] / scale[moving], scale[moving]
    variances, directions = np.linalg.eigh(S[np.ix_(moving, moving)] / np.outer(scale, scale))
    kept = variances > LEAST_VARIANCE
    along = d @ directions[:, kept]
    return float((along**2 / variances[kept]).sum()), int(kept.sum())
