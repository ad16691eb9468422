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

from app.stats import bbsd, cells, intervals, moments
from app.stats.estimator import Operator
from app.stats.intervals import Linear
from app.stats.moments import Floats, Sums

LEAST_PREDICTIONS = 50
CONFIDENCE = 0.97

# Once the window's variance is this part of the reference's, looking further back gains nothing.
NEGLIGIBLE = 0.1
# Spans are compared by one linear estimate: that for a window of so many predictions. Its ridge, in
# records, keeps labels that look alike from drowning the others in noise.
TYPICAL_PREDICTIONS = 1000.0
RIDGE = 1.0


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


def choose(on: Operator, panes: Sequence[Sums], *, phi: float = 1.0) -> AdaptiveWindow | None:
    """The adaptive window over panes, newest first; None with fewer than 50 predictions in all.

    `L* = argmin B(L) + kappa V(L)`, `B(L) = max_{L' < L} (|q_L - q_L'|^2 - kappa V(L'))_+`.

    >>> from app.stats import estimator
    >>> on = estimator.prepare(cells.of_confusion(np.array([[900, 100], [100, 900]]), np.arange(2)))
    >>> old, new = Sums(np.array([80, 20])), Sums(np.array([40, 60]))
    >>> choose(on, [new] * 8 + [old] * 24).panes
    8
    """
    at = intervals.planned(on, on.even, TYPICAL_PREDICTIONS)
    spans = _spans(on, at.ridge(RIDGE), panes, phi)
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


def _spans(on: Operator, by: Linear, panes: Sequence[Sums], phi: float) -> list[Span]:
    """Windows of 1, 2, 4, ... panes, from the first that has enough predictions."""
    spans: list[Span] = []
    length, held = 1, panes[:1]
    enough = float(intervals.reference_noise(on, by, on.nu**2).sum()) * NEGLIGIBLE
    while held:
        sums = moments.total([*held])
        span = _span(on, by, length, sums, phi) if sums.n >= LEAST_PREDICTIONS else None
        if span is not None:
            spans.append(span)
            if span.variance <= enough:
                break
        held = [sums, *panes[length : 2 * length]] if length < len(panes) else []
        length = min(2 * length, len(panes)) if held else length
    return spans


def _span(on: Operator, by: Linear, length: int, sums: Sums, phi: float) -> Span | None:
    """None where the reference knows none of the predictions."""
    counts = cells.in_window(on.table, sums).counts
    if not counts.any():
        return None
    raw = by.K @ (counts / counts.sum())
    # With one prediction like the reference's: none is sure to come again and again.
    mu = (counts + on.mix) / (counts.sum() + 1.0)
    scaled, mean = by.K * np.sqrt(mu), by.K @ mu
    G = scaled @ scaled.T - np.outer(mean, mean)
    trace, square = float(np.trace(G)), float((G * G).sum())
    variance = trace * phi / float(counts.sum())
    # A quadratic form in normals is about a chi-square with this many degrees of freedom.
    df = trace**2 / square if square > 0.0 else 1.0
    kappa = float(chi2.ppf(CONFIDENCE, df)) / df
    return Span(length, sums, raw, variance, kappa * variance)


def _risks(spans: Sequence[Span]) -> list[float]:
    risks = []
    for i, span in enumerate(spans):
        drifts = [_drift(span, shorter) for shorter in spans[:i]]
        risks.append(max(drifts, default=0.0) + span.bound)
    return risks


def _drift(span: Span, shorter: Span) -> float:
    moved = span.raw - shorter.raw
    return max(0.0, float(moved @ moved) - shorter.bound)


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
