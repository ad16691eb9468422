"""The alarm for "more than reference error can explain" (F2 in docs/statistics-sequential.md).

The null is every prediction mix `pi` in a confidence set around the reference's, and it may even
wander about in there from pane to pane: nothing is learned from the stream, so slow drift is not
absorbed. Given that the set holds the truth the mean time to a false alarm is at least `arl` panes
for every such stream; it misses it with probability `beta`, by large-sample approximations. The
price is blindness to changes smaller than the reference's own error.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import rel_entr
from scipy.stats import chi2

from app.stats import bounds, sequential
from app.stats.dictionary import Dictionary, dictionary, log_tilted
from app.stats.moments import Counts, Floats
from app.stats.reference import Reference
from app.stats.sequential import State

HALF_LIVES = np.array([4.0, 16.0, 64.0])
PRIOR_RECORDS = 50.0
NEWTON_STEPS = 50


@dataclass(frozen=True, slots=True)
class WorstCaseDetector:
    """The confidence set, the bets and the threshold.

    The set is `KL(predicted || pi) <= radius` for the adaptive bets, and for the dictionary
    `E_pi[1 + stride tilt] <= U` for each bet, with `log U` in `log_bounds`.
    """

    predicted: Floats
    radius: float
    bets: Dictionary
    log_bounds: Floats
    log_weights: Floats
    log_arl: float


def prepare(
    reference: Reference, arl: float, *, tolerance: float = 0.0, beta: float = 0.05
) -> WorstCaseDetector:
    """The detector of a reference; `tolerance`, in nats, widens its set to what is harmless.

    Half of `beta` goes to each of the two descriptions of the set.

    >>> from app.stats.reference import from_confusion
    >>> round(prepare(from_confusion(np.array([[90, 10], [10, 90]])), 1e4).radius, 4)
    0.0126
    """
    bets = dictionary(reference)
    predicted = reference.predicted / reference.n
    wilks = chi2.isf(beta / 2.0, max(1, reference.k - 1)) / (2.0 * reference.n)
    limits = _bounds(predicted, bets, reference.n, beta / (2.0 * bets.size), tolerance)
    return WorstCaseDetector(
        predicted=predicted,
        radius=float(wilks + tolerance),
        bets=bets,
        log_bounds=np.log(limits),
        log_weights=sequential.half_and_half(bets.size, len(HALF_LIVES)),
        log_arl=float(np.log(arl)),
    )


def start(detector: WorstCaseDetector) -> State:
    """Before the first pane."""
    recent = np.zeros((len(HALF_LIVES), len(detector.predicted)))
    return sequential.fresh(len(detector.log_weights), np.zeros(0), recent)


def step(
    detector: WorstCaseDetector,
    state: State,
    counts: Counts | Floats,
    *,
    phi: float = 1.0,
    mark: int | None = None,
    opens: bool = True,
) -> State:
    """The state after one more pane; an empty one, and any after an alarm, changes nothing.

    >>> from app.stats.reference import from_confusion
    >>> detector = prepare(from_confusion(np.array([[90, 10], [10, 90]])), 1000.0)
    >>> state = start(detector)
    >>> for _ in range(20):
    ...     state = step(detector, state, np.array([17, 3]))
    >>> state.alarm
    Alarm(at=3, onset=0, bet=11)
    """
    if state.alarm is not None or len(counts) < 2 or not counts.any():
        return state
    effective = counts / phi
    log_e = log_bets(detector, state.log_m, state.recent, effective, opens=opens)
    moved = sequential.advance(
        state, log_e, detector.log_weights, detector.log_arl, mark, opens=opens
    )
    recent = sequential.remember(state.recent, effective, HALF_LIVES, opens=opens)
    return replace(moved, recent=recent)


def log_bets(
    detector: WorstCaseDetector,
    log_m: Floats,
    recent: Floats,
    counts: Floats,
    *,
    opens: bool = True,
) -> Floats:
    """Log e-values of the dictionary's bets, then of "the next pane is like the last few"."""
    records = counts.sum(axis=-1)[..., None, None]
    gain = log_tilted(detector.bets.tilt, detector.bets.strides, counts)
    dictionary = gain - records * detector.log_bounds
    running = log_m[..., detector.bets.size :]
    adaptive = _log_adaptive(detector, running, recent, counts, opens=opens)
    return np.concatenate([dictionary.reshape(*gain.shape[:-2], -1), adaptive], axis=-1)


def projection(predicted: Floats, Q: Floats, radius: float) -> Floats:
    """How far from the reference towards `Q` the set reaches: 1 where `Q` is in it.

    The `a` that solves `KL(predicted || (1-a) predicted + a Q) = radius`. The left side is convex
    and grows with `a`, so Newton's steps from `a = 1` come down to the solution and never pass it.

    >>> a = projection(np.array([0.5, 0.5]), np.array([[0.9, 0.1]]), 0.1)
    >>> float(rel_entr([0.5, 0.5], 0.5 + a[0] * np.array([0.4, -0.4])).sum().round(9))
    0.1
    """
    a = np.ones(Q.shape[:-1])
    for _ in range(NEWTON_STEPS):  # pragma: no branch (it converges in ten or so)
        P = predicted + a[..., None] * (Q - predicted)
        excess = rel_entr(predicted, P).sum(axis=-1) - radius
        far = excess > 1e-12
        if not far.any():
            break
        slope = np.divide(predicted * (predicted - Q), P, where=P > 0.0, out=np.zeros_like(P))
        a = a - np.divide(excess, slope.sum(axis=-1), where=far, out=np.zeros_like(a))
    return a


def _bounds(predicted: Floats, bets: Dictionary, n: int, alpha: float, tolerance: float) -> Floats:
    """Upper bounds of `E_pi[1 + stride tilt]`, which is one at the reference's own mix.

    Within `tolerance` nats a mean moves by about `sqrt(2 tolerance)` standard deviations.
    """
    tilts = np.stack([predicted @ bets.tilt**power for power in (1, 2, 3)])
    moments = np.stack([tilts[power] * bets.strides ** (power + 1) for power in range(3)])
    harmless = np.sqrt(2.0 * tolerance) * np.abs(bets.strides) * np.sqrt(tilts[1])
    return np.asarray(1.0 + bounds.upper_mean(moments, n, alpha) + harmless)


def _log_adaptive(
    detector: WorstCaseDetector, log_m: Floats, recent: Floats, counts: Floats, *, opens: bool
) -> Floats:
    """Log e-values of the bets `Q` against their projections `P` on the set.

    `P` is the mix in the set that is hardest to tell from `Q`, and on the line from `Q` to the
    reference; `E_pi[Q / P] <= 1` for every `pi` in the set because that is convex. A `Q` in the
    set is no bet, and there `M <- max(1, M)` rather than `1 + M`: waiting must not add up to an
    alarm.
    """
    predicted = detector.predicted[..., None, :]
    weights = PRIOR_RECORDS * predicted + recent
    Q = weights / weights.sum(axis=-1, keepdims=True)
    reach = projection(predicted, Q, detector.radius)
    P = predicted + reach[..., None] * (Q - predicted)
    ratio = np.divide(Q, P, where=Q > 0.0, out=np.ones_like(Q))
    waiting = np.maximum(0.0, log_m) - np.logaddexp(0.0, log_m) if opens else 0.0
    placed = (counts[..., None, :] * np.log(ratio)).sum(axis=-1)
    return np.where(reach < 1.0, placed, waiting)
