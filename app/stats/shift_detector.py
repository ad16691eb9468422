"""The alarm for "the mix of predictions has changed" (F1 in docs/statistics-sequential.md).

The null is that the reference's predictions and the stream's are exchangeable: one unknown mix,
learned from the reference and from every pane since. What the next pane may then look like is
known exactly, it is Polya's urn, so there is no mix to plug in and no reference error to ignore.
Against it stand two kinds of bets: a dictionary (one true label grows or shrinks) and adaptive
ones (the next pane looks like the last few).

Guarantee: mean time to a false alarm at least `arl` panes, on average over references whose
prediction mix is drawn from Jeffreys' prior; for one fixed mix it is asymptotic in the size of
the reference. It needs independent predictions: divide the counts of dependent ones by their
overdispersion `phi`.
"""

from dataclasses import dataclass, replace

import numpy as np

from app.stats import sequential
from app.stats.dictionary import Dictionary, dictionary, log_tilted
from app.stats.moments import Counts, Floats
from app.stats.reference import Reference
from app.stats.sequential import State

JEFFREYS = 0.5
HALF_LIVES = np.array([0.0, 4.0, 16.0, 64.0])
PRIOR_RECORDS = 50.0


@dataclass(frozen=True, slots=True)
class ShiftDetector:
    """What a reference fixes: its prediction counts, the bets, their weights, the threshold."""

    predicted: Floats
    bets: Dictionary
    log_weights: Floats
    log_arl: float


def prepare(reference: Reference, arl: float) -> ShiftDetector:
    """The detector of a reference, with false alarms at least `arl` panes apart on average."""
    bets = dictionary(reference)
    return ShiftDetector(
        predicted=reference.predicted.astype(np.float64),
        bets=bets,
        log_weights=sequential.half_and_half(bets.size, len(HALF_LIVES)),
        log_arl=float(np.log(arl)),
    )


def start(detector: ShiftDetector, baseline: Counts | Floats | None = None) -> State:
    """Before the first pane, with the reference's prediction counts as what has been learned.

    Another `baseline` of counts takes their place where the reference's label mix is not that of
    production by design: those of the first quiet panes (a *self-baseline*), those since the
    onset of a shift that was accepted as the new normal, or those `frozen` at an onset.
    """
    counts = detector.predicted if baseline is None else baseline
    learned = JEFFREYS + counts.astype(np.float64)
    recent = np.zeros((len(HALF_LIVES), len(learned)))
    return sequential.fresh(len(detector.log_weights), learned, recent)


def step(
    detector: ShiftDetector,
    state: State,
    counts: Counts | Floats,
    *,
    phi: float = 1.0,
    mark: int | None = None,
    opens: bool = True,
) -> State:
    """The state after one more pane of predictions.

    With `opens` False it is more of a pane that was begun before: of the open one, or late. An
    empty pane changes nothing, and neither does any pane after an alarm: start anew from the frozen
    baseline or an accepted one.

    >>> from app.stats.reference import from_confusion
    >>> detector = prepare(from_confusion(np.array([[90, 10], [10, 90]])), 1000.0)
    >>> state = start(detector)
    >>> for _ in range(5):
    ...     state = step(detector, state, np.array([17, 3]))
    >>> state.alarm
    Alarm(at=2, onset=0, bet=11)
    """
    if state.alarm is not None or len(counts) < 2 or not counts.any():
        return state
    effective = counts / phi
    log_e = log_bets(detector, state.baseline, state.recent, effective)
    moved = sequential.advance(
        state, log_e, detector.log_weights, detector.log_arl, mark, opens=opens
    )
    recent = sequential.remember(state.recent, effective, HALF_LIVES, opens=opens)
    return replace(moved, baseline=state.baseline + effective, recent=recent)


def log_bets(detector: ShiftDetector, baseline: Floats, recent: Floats, counts: Floats) -> Floats:
    """Log e-values of all bets on one pane: the dictionary's, then the adaptive ones.

    Each is the probability of the pane under the bet over that under the null, both as sequences
    of draws, so that its mean given the past is exactly one.
    """
    b = baseline / baseline.sum(axis=-1, keepdims=True)
    urns = PRIOR_RECORDS * b[..., None, :] + recent
    adaptive = sequential.log_polya(counts[..., None, :], urns)
    dictionary = _log_tilted_mix(detector.bets, b, counts)
    null = sequential.log_polya(counts, baseline)[..., None]
    return np.concatenate([dictionary, adaptive], axis=-1) - null


def frozen(state: State, since_onset: Counts | Floats, *, phi: float = 1.0) -> Floats:
    """The counts that had been learned when the change began: a baseline for `start`.

    `since_onset` are the counts of the panes from the alarm's onset on. A detector started from
    here is quiet once the old mix is back, and alarms again as long as it is not.
    """
    return np.maximum(state.baseline - JEFFREYS - since_onset / phi, 0.0)


def _log_tilted_mix(bets: Dictionary, b: Floats, counts: Floats) -> Floats:
    lean = b[..., None, :] @ bets.tilt
    records = counts.sum(axis=-1)[..., None, None]
    gain = log_tilted(bets.tilt, bets.strides, counts) - records * np.log1p(bets.strides * lean)
    untilted = (counts * np.log(b)).sum(axis=-1, keepdims=True)
    return np.asarray(gain.reshape(*gain.shape[:-2], -1) + untilted)
