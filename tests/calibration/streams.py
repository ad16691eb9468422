"""Many streams at once through the detectors' own arithmetic: when does each one alarm first?"""

from collections.abc import Callable

import numpy as np

from app.stats import sequential, shift_detector, worst_case
from app.stats.dictionary import Dictionary
from app.stats.moments import Counts, Floats
from app.stats.reference import Reference
from app.stats.shift_detector import ShiftDetector
from app.stats.worst_case import WorstCaseDetector
from tests import fashion

Panes = Callable[[int], Floats]
Bets = Callable[[ShiftDetector, Floats, Floats, Floats], Floats]


def confusion() -> Floats:
    """The joint matrix `C` of the good Fashion-MNIST classifier, taken as a population."""
    pool = fashion.outputs("good", "all")
    counts = np.zeros((fashion.LABELS, fashion.LABELS))
    np.add.at(counts, (pool.predicted, pool.labels), 1.0)
    return np.asarray(counts / counts.sum())


def blurred(prior: Floats, accuracy: float) -> Floats:
    """The joint matrix of a classifier that errs evenly over the other labels."""
    k = len(prior)
    conditional = np.full((k, k), (1.0 - accuracy) / (k - 1))
    np.fill_diagonal(conditional, accuracy)
    return np.asarray(conditional * prior)


def grown(nu: Floats, label: int, by: float) -> Floats:
    """A label mix in which one label has grown by so much, at the cost of all others alike."""
    q = nu * (1.0 - nu[label] - by) / (1.0 - nu[label])
    q[label] = nu[label] + by
    return np.asarray(q)


def references(joint: Floats, n: int, streams: int, rng: np.random.Generator) -> list[Reference]:
    """References of `n` records, one per stream, from a population with this joint matrix."""
    return [
        Reference(rng.multinomial(n, joint.ravel()).reshape(joint.shape)) for _ in range(streams)
    ]


def stacked_bets(bets: list[Dictionary]) -> Dictionary:
    """Dictionaries side by side, on a leading axis; all must know the same labels."""
    return Dictionary(
        labels=bets[0].labels,
        tilt=np.stack([one.tilt for one in bets]),
        strides=np.stack([one.strides for one in bets]),
    )


def stacked(detectors: list[ShiftDetector]) -> ShiftDetector:
    """Detectors side by side, on a leading axis."""
    return ShiftDetector(
        predicted=np.stack([one.predicted for one in detectors]),
        bets=stacked_bets([one.bets for one in detectors]),
        log_weights=detectors[0].log_weights,
        log_arl=detectors[0].log_arl,
    )


def fleet(joint: Floats, n: int, count: int, arl: float, rng: np.random.Generator) -> ShiftDetector:
    """So many detectors side by side, each on a reference of its own."""
    drawn = references(joint, n, count, rng)
    return stacked([shift_detector.prepare(reference, arl) for reference in drawn])


def steady(joint: Floats, per_pane: int, count: int, rng: np.random.Generator) -> Panes:
    """Panes of streams in which nothing changes."""
    mix = joint.sum(axis=1)
    return lambda _: rng.multinomial(per_pane, mix, size=count).astype(np.float64)


def stacked_worst_case(detectors: list[WorstCaseDetector]) -> WorstCaseDetector:
    """Worst-case detectors side by side, on a leading axis."""
    return WorstCaseDetector(
        predicted=np.stack([one.predicted for one in detectors]),
        radius=detectors[0].radius,
        bets=stacked_bets([one.bets for one in detectors]),
        log_bounds=np.stack([one.log_bounds for one in detectors]),
        log_weights=detectors[0].log_weights,
        log_arl=detectors[0].log_arl,
    )


def first_alarms(
    detector: ShiftDetector,
    panes: Panes,
    length: int,
    *,
    bets: Bets = shift_detector.log_bets,
    phi: float | Floats = 1.0,
) -> Counts:
    """The pane of each stream's first alarm, or `length` where there is none.

    `panes(t)` gives the counts of pane `t` of all streams. Other `bets` than the detector's own
    are for controls that are meant to fail.
    """
    baseline = detector.predicted + shift_detector.JEFFREYS
    streams, k = baseline.shape
    recent = np.zeros((streams, len(shift_detector.HALF_LIVES), k))
    log_m = np.full((streams, len(detector.log_weights)), -sequential.LIMIT)
    first = np.full(streams, length)
    for t in range(length):
        counts = panes(t) / phi
        log_m = sequential.grown(log_m, bets(detector, baseline, recent, counts))
        raised = sequential.log_mean(log_m, detector.log_weights) >= detector.log_arl
        first[raised & (first == length)] = t
        baseline = baseline + counts
        recent = sequential.remember(recent, counts, shift_detector.HALF_LIVES)
        if (first < length).all():
            break
    return first


def first_worst_case_alarms(detector: WorstCaseDetector, panes: Panes, length: int) -> Counts:
    """The pane of each stream's first alarm of the worst-case detector."""
    streams, k = detector.predicted.shape
    recent = np.zeros((streams, len(worst_case.HALF_LIVES), k))
    log_m = np.full((streams, len(detector.log_weights)), -sequential.LIMIT)
    first = np.full(streams, length)
    for t in range(length):
        counts = panes(t)
        log_m = sequential.grown(log_m, worst_case.log_bets(detector, log_m, recent, counts))
        raised = sequential.log_mean(log_m, detector.log_weights) >= detector.log_arl
        first[raised & (first == length)] = t
        recent = sequential.remember(recent, counts, worst_case.HALF_LIVES)
        if (first < length).all():
            break
    return first
