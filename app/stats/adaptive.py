"""How far back to look: the longest stretch of recent panes over which the label mix stood still.

Longer windows are less noisy and staler. Lengths 1, 2, 4, ... panes back from now are compared with
all shorter ones: what an estimate differs from a shorter one's by, beyond that one's own noise, is
bias from a mix that moved (the method of Lepski, 1991). Only the window's noise counts here, as the
reference's error is the same for every length.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2

from app.stats import bbsd, bbse, intervals, moments
from app.stats.bbse import Estimate, Prepared
from app.stats.intervals import Intervals
from app.stats.moments import Floats, Sums

LEAST_PREDICTIONS = 50
CONFIDENCE = 0.97

# Once the window's variance is this part of the reference's, looking further back gains nothing.
NEGLIGIBLE = 0.1


@dataclass(frozen=True, slots=True)
class Span:
    """The newest `panes` panes together: their sums, estimate and noise.

    `variance` is the expected squared error of the raw estimate due to the window, and `bound` is
    what it stays below with confidence .97.
    """

    panes: int
    sums: Sums
    raw: Floats
    variance: float
    bound: float


@dataclass(frozen=True, slots=True)
class AdaptiveWindow:
    """The chosen window: how many of the newest panes, their sums, and why not more.

    `recent` are the sums of its newest quarter. `stopped_by` is the p-value of homogeneity between
    the window and what is next to it in a window of twice the length; None where there was no
    more to look at, or no need to.
    """

    panes: int
    sums: Sums
    recent: Sums
    stopped_by: float | None


def choose(prepared: Prepared, panes: Sequence[Sums], *, phi: float = 1.0) -> AdaptiveWindow | None:
    """The adaptive window over panes, newest first; None with fewer than 50 predictions in all.

    `L* = argmin B(L) + kappa V(L)`, `B(L) = max_{L' < L} (|q_L - q_L'|^2 - kappa V(L'))_+`.

    >>> from app.stats import diagnosis, reference
    >>> two = reference.from_confusion(np.array([[900, 100], [100, 900]]))
    >>> prepared = bbse.prepare(two, diagnosis.diagnose(two))
    >>> old, new = Sums(np.array([80, 20])), Sums(np.array([40, 60]))
    >>> choose(prepared, [new] * 8 + [old] * 24).panes
    8
    """
    spans = _spans(prepared, panes, phi)
    if not spans:
        return None
    chosen = int(np.argmin(_risks(spans)))
    best = spans[chosen]
    return AdaptiveWindow(
        panes=best.panes,
        sums=best.sums,
        recent=_newest_quarter(panes, best),
        stopped_by=_homogeneity(best, spans[chosen + 1]) if chosen + 1 < len(spans) else None,
    )


def interval(
    prepared: Prepared,
    window: AdaptiveWindow,
    estimate: Estimate,
    *,
    level: float = 0.95,
    phi: float = 1.0,
) -> Intervals:
    """The interval to publish with the estimate on an adaptive window.

    The hull of the intervals on the window and on its newest quarter: a drift too small or too
    slow to shorten the window would otherwise leave the moving label's interval behind.
    """
    whole = intervals.score(prepared, estimate, window.sums, level=level, phi=phi)
    newest = bbse.estimate(prepared, window.recent, phi)
    recent = intervals.score(prepared, newest, window.recent, level=level, phi=phi)
    return Intervals(
        lower=np.minimum(whole.lower, recent.lower),
        upper=np.maximum(whole.upper, recent.upper),
        vacuous=whole.vacuous | recent.vacuous,
    )


def _spans(prepared: Prepared, panes: Sequence[Sums], phi: float) -> list[Span]:
    """Windows of 1, 2, 4, ... panes, from the first that has enough predictions."""
    spans: list[Span] = []
    length, held = 1, panes[:1]
    enough = _reference_variance(prepared) * NEGLIGIBLE
    while held:
        sums = moments.total([*held])
        if sums.n >= LEAST_PREDICTIONS:
            spans.append(_span(prepared, length, sums, phi))
            if spans[-1].variance <= enough:
                break
        held = [sums, *panes[length : 2 * length]] if length < len(panes) else []
        length = min(2 * length, len(panes)) if held else length
    return spans


def _span(prepared: Prepared, length: int, sums: Sums, phi: float) -> Span:
    mu = prepared.mean(sums)
    spread = prepared.second_moment(sums) - np.outer(mu, mu)
    G = prepared.inverse @ spread @ prepared.inverse.T
    trace, square = float(np.trace(G)), float((G * G).sum())
    variance = trace * phi / sums.n
    # A quadratic form in normals is about a chi-square with this many degrees of freedom.
    df = trace**2 / square if square > 0.0 else 1.0
    kappa = float(chi2.ppf(CONFIDENCE, df)) / df
    return Span(length, sums, prepared.inverse @ mu, variance, kappa * variance)


def _risks(spans: Sequence[Span]) -> list[float]:
    risks = []
    for i, span in enumerate(spans):
        drifts = [_drift(span, shorter) for shorter in spans[:i]]
        risks.append(max(drifts, default=0.0) + span.bound)
    return risks


def _drift(span: Span, shorter: Span) -> float:
    moved = span.raw - shorter.raw
    return max(0.0, float(moved @ moved) - shorter.bound)


def _reference_variance(prepared: Prepared) -> float:
    return float((prepared.variance @ (prepared.nu**2 / prepared.given.n_j)).sum())


def _newest_quarter(panes: Sequence[Sums], window: Span) -> Sums:
    """The newest quarter of the window's panes, or more, until it has enough predictions."""
    length = -(-window.panes // 4)
    sums = moments.total(panes[:length])
    while sums.n < LEAST_PREDICTIONS and length < window.panes:
        sums = moments.total([sums, panes[length]])
        length += 1
    return sums


def _homogeneity(window: Span, longer: Span) -> float:
    return bbsd.chi_square(window.sums.counts, longer.sums.counts - window.sums.counts).p_value
