"""Everybody's errors on the same draws, and how often our intervals hold."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from app.stats.moments import Bools, Floats
from bench.peers import drawing, ours, plain
from bench.peers.asking import Quapy
from bench.peers.drawing import Draw
from bench.peers.ours import Answer
from bench.peers.settings import Setting
from tests.fashion import Outputs


@dataclass(frozen=True, slots=True)
class Coverage:
    """Whether intervals held and how wide they were.

    By reference, cell and (but for the accuracy) label.
    """

    held: Bools
    width: Floats
    accuracy_held: Bools


@dataclass(frozen=True, slots=True)
class Measured:
    """`errors` are L1 distances from the true mix times 100, by reference and cell."""

    setting: Setting
    errors: dict[str, Floats]
    coverage: dict[str, Coverage]


def measure(
    setting: Setting, references: int, quapy: Quapy | None, done: Callable[[], object]
) -> Measured:
    """Many references, each with all its windows; `done` is called after each."""
    errors: dict[str, list[Floats]] = defaultdict(list)
    coverages: dict[str, list[Coverage]] = defaultdict(list)
    recall = recalls(setting.stream, setting.k)
    for number in range(references):
        draw = drawing.draw(setting, number)
        if quapy:
            quapy.ask(draw)
        estimates = plain.estimates(draw)
        for name, soft in ours.METHODS.items():
            answers = list(ours.answers(draw, soft=soft))
            estimates[name] = np.stack([answer.q for answer in answers])
            coverages[name].append(coverage(draw, answers, recall))
        if quapy:
            estimates |= quapy.hear()
        truth = np.stack([window.q for window in draw.windows])
        for name, q in estimates.items():
            errors[name].append(100.0 * np.abs(q - truth).sum(axis=1))
        done()
    return Measured(
        setting,
        {name: np.stack(each) for name, each in errors.items()},
        {name: _together(each) for name, each in coverages.items()},
    )


def recalls(pool: Outputs, k: int) -> Floats:
    """The share of each label that is predicted correctly: with a mix, it makes the accuracy."""
    correct = pool.predicted == pool.labels
    return np.array([correct[pool.labels == label].mean() for label in range(k)])


def coverage(draw: Draw, answers: Sequence[Answer], recall: Floats) -> Coverage:
    """Of the answers to the windows of one draw."""
    truth = np.stack([window.q for window in draw.windows])
    lower, upper = (
        np.stack([getattr(one, side) for one in answers]) for side in ("lower", "upper")
    )
    accuracy = truth @ recall
    least, most = np.array([answer.accuracy for answer in answers]).T
    return Coverage(
        held=(lower <= truth) & (truth <= upper),
        width=upper - lower,
        accuracy_held=(least <= accuracy) & (accuracy <= most),
    )


def _together(each: Sequence[Coverage]) -> Coverage:
    return Coverage(
        held=np.stack([one.held for one in each]),
        width=np.stack([one.width for one in each]),
        accuracy_held=np.stack([one.accuracy_held for one in each]),
    )
