"""Panes of one stream, newest first, whose label mix has changed some time ago."""

import numpy as np

from app.stats import reference
from app.stats.estimator import Operator
from app.stats.moments import Floats, Sums
from tests.calibration import answers, streams
from tests.fashion import UNIFORM

PANES = 512
PER_PANE = 20


def prepared(n: int, rng: np.random.Generator | None = None) -> Operator:
    """A reference of `n` records: the population itself, or a sample of it."""
    joint = streams.confusion()
    counts = np.round(n * joint) if rng is None else streams.references(joint, n, 1, rng)[0].counts
    return answers.hard(reference.from_confusion(counts.astype(np.int64)))


def abrupt(label: int, to: float, ago: int, panes: int = PANES) -> Floats:
    """The label mix of each pane, newest first: one label at `to` since `ago` panes."""
    mixes = np.tile(UNIFORM, (panes, 1))
    mixes[:ago] = streams.grown(UNIFORM, label, to - 0.1)
    return mixes


def gradual(label: int, to: float, since: int) -> Floats:
    moved = np.clip(1.0 - np.arange(PANES) / since, 0.0, 1.0)[:, None]
    after = streams.grown(UNIFORM, label, to - 0.1)
    return np.asarray(moved * after + (1.0 - moved) * UNIFORM)


def history(mixes: Floats, rng: np.random.Generator) -> list[Sums]:
    """Panes of predictions with these label mixes."""
    joint = streams.confusion()
    predictions = mixes @ (joint / joint.sum(axis=0)).T
    return [Sums(counts) for counts in rng.multinomial(PER_PANE, predictions)]
