"""Black-box shift detection: has the mix of predictions changed between reference and window?

If the labels shifted, and the classifier is not blind to it, so did the predictions (Lipton, Wang
and Smola, 2018, section 4.2), and any two-sample test on them will do. Each p-value here is for
one look at one window; a stream watched all day needs `app.stats.shift_detector`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import chdtrc, kolmogorov

from app.stats.moments import Counts, Floats

# Cochran's rule: below this expected count the chi-square distribution is not to be trusted.
LEAST_EXPECTED = 5.0
# Tables are resampled so many times, or, as that takes time in proportion to the labels, until they
# have so many numbers: 600 times for a hundred labels, 300 for two hundred, which still tells .01.
RESAMPLES = 1999
RESAMPLED_NUMBERS = 60_000

# Resampling takes time in proportion to the labels, and fails for astronomic counts.
MOST_RESAMPLED_LABELS = 200
MOST_RESAMPLED = 10**8

# Bins for per-label histograms of softmax scores, by log-odds: fixed, so histograms add up.
LOGIT_EDGES = np.linspace(-9.0, 9.0, 31)
LOGIT_BINS = len(LOGIT_EDGES) + 1

Method = Literal["asymptotic", "monte_carlo", "moments", "pooled", "none"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a test found; `df` is None where the null distribution has none.

    A test that had nothing to compare has statistic 0 and p-value 1, by the method `none`.
    """

    test: str
    statistic: float
    df: int | None
    p_value: float
    method: Method


NOTHING = Evidence("chi2", 0.0, 0, 1.0, "none")


@dataclass(frozen=True, slots=True)
class LabelEvidence:
    """A Kolmogorov-Smirnov test for each label's score; `holm` p-values hold for all together."""

    statistics: Floats
    p_values: Floats
    holm: Floats


def chi_square(
    reference: Counts,
    window: Counts,
    *,
    phi: float = 1.0,
    seed: int | None = None,
) -> Evidence:
    """Pearson's chi-square test of homogeneity on the counts of each predicted label.

    `X2 = n m sum_i (r_i / n - c_i / m)^2 / (r_i + c_i)`. Testing `w = 1` by Wald's test with the
    null's variance gives the same number, so there is no separate test on weights. Where a label
    is expected less than 5 times, the p-value comes from resampling with `seed` (exact), or, as
    for very many labels, from a chi-square law with the statistic's exact mean and variance.
    `phi` is the stream's overdispersion.

    >>> found = chi_square(np.array([50, 50, 0]), np.array([30, 70, 0]))
    >>> round(found.statistic, 4), found.df, round(found.p_value, 4), found.method
    (8.3333, 1, 0.0039, 'asymptotic')
    """
    r, c = _seen(reference, window, phi)
    if not r.sum() or not c.sum() or len(r) < 2:
        return NOTHING
    if _expected(r, c).min() >= LEAST_EXPECTED:
        return _asymptotic(r, c, "asymptotic")
    small = len(reference) <= MOST_RESAMPLED_LABELS and r.sum() + c.sum() <= MOST_RESAMPLED
    if seed is not None and phi == 1.0 and small:
        return _monte_carlo(r.astype(np.int64), c.astype(np.int64), seed)
    return _moment_matched(r, c)


def pooled_chi_square(reference: Counts, window: Counts, *, phi: float = 1.0) -> Evidence:
    """Chi-square with all rare labels as one: the classical remedy, for comparison.

    Where all labels are rare it has nothing left to test, which `chi_square` has.

    >>> found = pooled_chi_square(np.array([60, 30, 6, 4]), np.array([30, 60, 3, 7]))
    >>> round(found.statistic, 6), found.df, found.method
    (20.0, 2, 'pooled')
    """
    r, c = _seen(reference, window, phi)
    if not r.sum() or not c.sum():
        return NOTHING
    return _asymptotic(*_pooled(r, c), "pooled")


def ks_labels(reference: Counts, window: Counts) -> Evidence:
    """The paper's test: Kolmogorov-Smirnov on label indices. For comparison only.

    It depends on the order of the labels, and ties make it conservative.

    >>> found = ks_labels(np.array([50, 50, 0]), np.array([30, 70, 0]))
    >>> round(found.statistic, 4), round(found.p_value, 4)
    (0.2, 0.0314)
    """
    n, m = reference.sum(), window.sum()
    if not n or not m:
        return Evidence("ks", 0.0, None, 1.0, "none")
    statistic = float(np.abs(np.cumsum(reference) / n - np.cumsum(window) / m).max())
    return Evidence("ks", statistic, None, float(_ks_p(statistic, n, m)), "asymptotic")


def logit_histograms(rows: Floats) -> Counts:
    """How often each label's score (first axis) falls in each bin of log-odds; these add up.

    >>> logit_histograms(np.array([[0.5, 0.5], [0.99, 0.01]]))[0].nonzero()[0].tolist()
    [16, 23]
    """
    k = rows.shape[1]
    with np.errstate(divide="ignore"):
        logit = np.log(rows) - np.log1p(-rows)
    place = np.searchsorted(LOGIT_EDGES, logit, side="right") + LOGIT_BINS * np.arange(k)
    return np.bincount(place.ravel(), minlength=k * LOGIT_BINS).reshape(k, LOGIT_BINS)


def ks_scores(reference: Counts, window: Counts) -> LabelEvidence:
    """Kolmogorov-Smirnov for each label's score, from histograms: which label's scores moved.

    Comparing at bin edges only can miss part of a difference but never invents one, so it is
    valid and conservative. Holm's step-down corrects for the number of labels.

    >>> calm = ks_scores(np.array([[50, 50], [50, 50]]), np.array([[48, 52], [90, 10]]))
    >>> calm.holm.round(4).tolist()
    [1.0, 0.0]
    """
    n, m = reference.sum(axis=1), window.sum(axis=1)
    if not n.all() or not m.all():
        nothing = np.zeros(len(reference))
        return LabelEvidence(nothing, nothing + 1.0, nothing + 1.0)
    below = np.cumsum(reference, axis=1) / n[:, None] - np.cumsum(window, axis=1) / m[:, None]
    statistics: Floats = np.abs(below).max(axis=1)
    p_values = _ks_p(statistics, n, m)
    return LabelEvidence(statistics, p_values, holm(p_values))


def holm(p_values: Floats) -> Floats:
    """Holm's adjusted p-values: valid together whatever the dependence between the tests.

    >>> holm(np.array([0.01, 0.04, 0.03])).round(4).tolist()
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(p_values), 0, -1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(np.maximum.accumulate(p_values[order] * factors), 1.0)
    return adjusted


def total_variation(
    reference: Floats, window: Floats, together: Sequence[Sequence[int]] = ()
) -> float:
    """Half the L1 distance of two distributions: the share of records that changed label.

    Each set of labels in `together` counts as one label: at least so many records changed.

    >>> total_variation(np.array([0.5, 0.5]), np.array([0.25, 0.75]))
    0.25
    >>> total_variation(np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.75, 0.0]), [(1, 2)])
    0.25
    """
    change = window - reference
    for labels in together:
        change[list(labels)] = np.sum(change[list(labels)]) / len(labels)
    return float(np.abs(change).sum() / 2.0)


def _seen(reference: Counts, window: Counts, phi: float) -> tuple[Floats, Floats]:
    """The counts of labels seen at all, the window's as effective ones."""
    seen = (reference > 0) | (window > 0)
    return reference[seen].astype(np.float64), window[seen] / phi


def _expected(r: Floats, c: Floats) -> Floats:
    """The smaller of the two expected counts of each label if nothing changed."""
    n, m = r.sum(), c.sum()
    return np.asarray((r + c) * min(n, m) / (n + m))


def _statistic(r: Floats, c: Floats) -> Floats:
    n, m = r.sum(axis=-1, keepdims=True), c.sum(axis=-1, keepdims=True)
    return np.asarray((n * m * (r / n - c / m) ** 2 / (r + c)).sum(axis=-1))


def _asymptotic(r: Floats, c: Floats, method: Method) -> Evidence:
    df = len(r) - 1
    if not df:
        return NOTHING
    statistic = float(_statistic(r, c))
    return Evidence("chi2", statistic, df, float(chdtrc(df, statistic)), method)


def _pooled(r: Floats, c: Floats) -> tuple[Floats, Floats]:
    """The labels with expected counts below 5 as one row, and with the next rarest if need be."""
    expected = _expected(r, c)
    rare = expected < LEAST_EXPECTED
    if 0.0 < expected[rare].sum() < LEAST_EXPECTED and not rare.all():
        # All labels equally rare go together: choosing among them would be choosing the result.
        rare |= expected <= expected[~rare].min()
    if not rare.any():
        return r, c
    return np.append(r[rare].sum(), r[~rare]), np.append(c[rare].sum(), c[~rare])


def _moment_matched(r: Floats, c: Floats) -> Evidence:
    """A scaled chi-square law with the exact conditional mean and variance of the statistic.

    Given the margins of the table these are known (Dawson, 1954; Haldane, 1940), however sparse
    it is; only the shape of the distribution is approximate.
    """
    both, N, rows = r + c, float(r.sum() + c.sum()), len(r)
    if N <= 3.0:
        return NOTHING
    mean = N * (rows - 1) / (N - 1.0)
    samples = (N * (1.0 / r.sum() + 1.0 / c.sum()) - 4.0) / (N - 2.0)
    labels = (N * float((1.0 / both).sum()) - rows**2) / (N - 2.0)
    across = (N - 2.0) / (N - 1.0) - samples
    down = (rows - 1) * (N - rows) / (N - 1.0) - labels
    variance = 2.0 * N / (N - 3.0) * across * down + N**2 / (N - 1.0) * samples * labels
    statistic = float(_statistic(r, c))
    if variance <= 1e-9 * mean**2:
        return Evidence("chi2", statistic, rows - 1, 1.0, "moments")
    scale = variance / (2.0 * mean)
    p_value = float(chdtrc(mean / scale, statistic / scale))
    return Evidence("chi2", statistic, rows - 1, p_value, "moments")


def _monte_carlo(r: Counts, c: Counts, seed: int) -> Evidence:
    """The p-value given the pooled counts, under which the window is a hypergeometric draw."""
    rng = np.random.default_rng(seed)
    # Sorted, so that the draws and with them the p-value do not depend on the order of labels.
    order = np.lexsort((r, c))
    r, c = r[order], c[order]
    both = r + c
    times = min(RESAMPLES, RESAMPLED_NUMBERS // len(both))
    draws = rng.multivariate_hypergeometric(both, int(c.sum()), size=times)
    statistic = float(_statistic(r.astype(np.float64), c.astype(np.float64)))
    resampled = _statistic((both - draws).astype(np.float64), draws.astype(np.float64))
    # Equal tables can differ in the last digit, and a tie must count as at least as extreme.
    as_extreme = int((resampled >= statistic * (1.0 - 1e-12)).sum())
    p_value = (1 + as_extreme) / (times + 1)
    return Evidence("chi2", statistic, len(r) - 1, p_value, "monte_carlo")


def _ks_p(statistic: Floats | float, n: Counts, m: Counts) -> Floats:
    """Kolmogorov's limit law, with Stephens' (1970) correction for small samples."""
    root = (1.0 / n + 1.0 / m) ** -0.5
    return np.asarray(kolmogorov((root + 0.12 + 0.11 / root) * statistic))
