"""Outputs of classifiers that are wrong in a known way, on labels that are Gaussian clouds."""

from dataclasses import dataclass

import numpy as np
from scipy.special import softmax

from app.stats.moments import Floats
from bench.paper.experiment import random
from tests.fashion import Outputs

PER_LABEL = 4000
# The classifier takes the clouds to be this much tighter than they are (a label's logit is too
# large by this factor) and their centres to be elsewhere: its rows are not what they say.
OVERCONFIDENCE = 1.6
MISPLACED = 0.25
# How far the logit of a silent label stays below the largest one.
SILENCED = 4.0


@dataclass(frozen=True, slots=True)
class Family:
    """`k` clouds of unit width, their centres `spread` wide; `silent` ones are never predicted."""

    name: str
    k: int
    dimensions: int
    spread: float
    silent: tuple[int, ...] = ()


FAMILIES = (
    Family("2 clouds", 2, 2, 0.9),
    Family("5 clouds", 5, 3, 1.3),
    Family("8 clouds", 8, 4, 1.2),
    Family("16 clouds", 16, 6, 1.1),
    Family("16 clouds, 2 silent", 16, 6, 1.1, silent=(3, 11)),
)


def pool(family: Family) -> Outputs:
    """`PER_LABEL` outputs of each label.

    >>> outputs = pool(Family("test", 3, 2, 1.0, silent=(1,)))
    >>> np.unique(outputs.predicted).tolist(), outputs.rows.shape
    ([0, 2], (12000, 3))
    """
    rng = random("peers", family.name)
    centres = family.spread * rng.standard_normal((family.k, family.dimensions))
    believed = centres + MISPLACED * rng.standard_normal(centres.shape)
    labels = np.repeat(np.arange(family.k), PER_LABEL)
    points = centres[labels] + rng.standard_normal((len(labels), family.dimensions))
    logits = OVERCONFIDENCE * _log_density(points, believed)
    silent = list(family.silent)
    largest = np.delete(logits, silent, axis=1).max(axis=1, keepdims=True)
    logits[:, silent] = np.minimum(logits[:, silent], largest) - SILENCED
    return Outputs(np.asarray(softmax(logits, axis=1)), labels)


def _log_density(points: Floats, centres: Floats) -> Floats:
    """Of each point in a cloud around each centre, but for a constant of the point."""
    return np.asarray(points @ centres.T - (centres**2).sum(axis=1) / 2.0)
