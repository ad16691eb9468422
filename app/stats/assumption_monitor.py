"""The alarm for "this is not, or not only, label shift" (F3 in docs/statistics-sequential.md).

It watches how sure the model is of what it predicts. With `s` the largest probability of a softmax
row, `eta` a rate and an offset `a[i]` for each prediction, let `f = exp(eta s) a[predicted]`. Its
mean under a label mix `q` is `sum_j q_j E_j f`, so offsets that make `E_j f = 1` for every true
label `j` make it one under *any* label mix, and under any label drift, sudden or slow. Whoever bets
`f` therefore wins only on a rise (`eta > 0`) or drop of confidence that label shift cannot make.

`E_j f` is known from the reference, so `f` is divided by its largest upper confidence bound. With
few records of some label the bound is wide: the monitor then is silent rather than wrong.
"""

from dataclasses import dataclass

import numpy as np

from app.stats import bounds, sequential
from app.stats.moments import CONFIDENCE_BINS, CONFIDENCE_EDGES, Counts, Floats
from app.stats.reference import ABSENT_BELOW, Reference, SoftReference
from app.stats.sequential import State

RATES = np.array([0.25, 0.5, 1.0, 2.0, -0.25, -0.5, -1.0, -2.0])

# The chance, over references, that some label's mean exceeds its bound: shared out among labels
# and the two directions. Rates of one direction miss together, so they need no share each.
MISS = 0.05

# Offsets may fall to this part of their first-order value on the way to exact ones, which can be
# negative for a poor classifier.
SMALLEST_OFFSET = 0.1


@dataclass(frozen=True, slots=True)
class AssumptionMonitor:
    """`log_offsets[r, i] = log(a_i / U)` for each rate and prediction, and the threshold."""

    log_offsets: Floats
    log_weights: Floats
    log_arl: float


@dataclass(frozen=True, slots=True)
class _Scores:
    """Records by prediction, confidence bin and true label, and where in the bins they lie.

    The mean score of records predicted `i` of label `j` is known; it puts each of them at the
    same fraction `place[i, j]` of the way through its bin.
    """

    cells: Floats
    place: Floats
    low: Floats
    high: Floats
    support: Counts


def prepare(reference: Reference, arl: float) -> AssumptionMonitor | None:
    """The monitor of a reference; none without softmax rows or without a label of five records."""
    present = np.flatnonzero(reference.support >= ABSENT_BELOW)
    if reference.soft is None or not len(present):
        return None
    scores = _scores(reference.k, reference.soft, present, reference.support[present])
    return AssumptionMonitor(
        log_offsets=np.stack([_log_offsets(scores, float(eta)) for eta in RATES]),
        log_weights=np.full(len(RATES), -np.log(len(RATES))),
        log_arl=float(np.log(arl)),
    )


def start(monitor: AssumptionMonitor) -> State:
    """Before the first pane."""
    return sequential.fresh(len(monitor.log_weights), np.zeros(0), np.zeros(0))


def step(
    monitor: AssumptionMonitor,
    state: State,
    counts: Counts | Floats,
    score: float,
    *,
    phi: float = 1.0,
    mark: int | None = None,
    opens: bool = True,
) -> State:
    """The state after a pane with these predictions, whose largest probabilities sum to `score`.

    An empty pane, and any after an alarm, changes nothing.

    >>> sure = AssumptionMonitor(RATES[:, None] * [-0.9, -0.8], np.full(8, -np.log(8)), np.log(20))
    >>> state = start(sure)
    >>> for _ in range(5):
    ...     state = step(sure, state, np.array([4, 4]), 6.0)
    >>> state.alarm
    Alarm(at=2, onset=0, bet=7)
    """
    if state.alarm is not None or not counts.any():
        return state
    log_e = log_bets(monitor, counts, np.asarray(score)) / phi
    return sequential.advance(state, log_e, monitor.log_weights, monitor.log_arl, mark, opens=opens)


def log_bets(monitor: AssumptionMonitor, counts: Counts | Floats, score: Floats) -> Floats:
    """Log e-values of one pane, a sum over its records of `eta s + log(a[predicted] / U)`.

    Divided by `phi` they stay e-values when up to `phi` records at a time depend on each other in
    whatever way (Hoelder's inequality).
    """
    return np.asarray(RATES * score[..., None] + counts @ monitor.log_offsets.T)


def _scores(k: int, soft: SoftReference, present: Counts, support: Counts) -> _Scores:
    cells = soft.cells[:, present].reshape(k, CONFIDENCE_BINS, len(present)).astype(np.float64)
    low = np.concatenate([[1.0 / k], CONFIDENCE_EDGES])
    high = np.concatenate([CONFIDENCE_EDGES, [1.0]])
    low = np.minimum(low, high)
    least = np.einsum("b,ibj->ij", low, cells)
    room = np.einsum("b,ibj->ij", high - low, cells)
    place = np.divide(
        soft.score_by_label[:, present] - least, room, where=room > 0.0, out=np.zeros_like(room)
    )
    return _Scores(cells, np.clip(place, 0.0, 1.0), low, high, support)


def _exponential(scores: _Scores, eta: float) -> Floats:
    """`E_j[exp(eta s); predicted i]`, bounded above by the chord of each confidence bin."""
    low = np.einsum("b,ibj->ij", np.exp(eta * scores.low), scores.cells)
    high = np.einsum("b,ibj->ij", np.exp(eta * scores.high), scores.cells)
    return np.asarray((low + scores.place * (high - low)) / scores.support)


def _log_offsets(scores: _Scores, eta: float) -> Floats:
    B = _exponential(scores, eta)
    a = _offsets(B, _implied_by_mean(scores, eta))
    moments = np.stack([a**power @ _exponential(scores, power * eta) for power in (1, 2, 3)])
    bound = bounds.upper_mean(moments, scores.support, MISS / (2 * B.shape[1]))
    return np.asarray(np.log(a) - np.log(bound.max()))


def _implied_by_mean(scores: _Scores, eta: float) -> Floats:
    """Offsets `exp(-eta h)` with `h = A^-T E[s | y]`: right to first order, and positive."""
    A = scores.cells.sum(axis=1) / scores.support
    least = np.einsum("b,ibj->ij", scores.low, scores.cells)
    room = np.einsum("b,ibj->ij", scores.high - scores.low, scores.cells)
    mean = (least + scores.place * room).sum(axis=0) / scores.support
    h = np.clip(np.linalg.lstsq(A.T, mean, rcond=None)[0], 0.0, 1.0)
    return np.asarray(np.exp(-eta * h))


def _offsets(B: Floats, mild: Floats) -> Floats:
    """Offsets with `a' B = 1'`, or as far on the way there from `mild` as they stay positive."""
    mild = mild / (mild @ B).max()
    even = np.linalg.lstsq(B.T, np.ones(B.shape[1]), rcond=None)[0]
    drop = mild - even
    most = (1.0 - SMALLEST_OFFSET) * mild
    reach = np.divide(most, drop, where=drop > most, out=np.ones_like(mild)).min()
    return np.asarray(mild - reach * drop)
