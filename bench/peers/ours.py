"""What Shiftwatch serves by default, computed as the service computes it."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from app.stats import analysis, moments
from app.stats import reference as references
from app.stats.analysis import Analysis
from app.stats.moments import Floats
from bench.peers.drawing import Draw

METHODS = {"Shiftwatch": True, "Shiftwatch hard": False}


@dataclass(frozen=True, slots=True)
class Answer:
    """The estimated mix, an interval for each label, and one for the accuracy."""

    q: Floats
    lower: Floats
    upper: Floats
    accuracy: tuple[float, float]


def answers(draw: Draw, *, soft: bool) -> Iterator[Answer]:
    """An answer for each window, from softmax rows or from predicted labels alone."""
    k, of = draw.reference.rows.shape[1], draw.reference
    made = references.from_sample(k, of.predicted, of.labels, of.rows if soft else None)
    on = analysis.basis(made)
    for window in draw.windows:
        rows = window.outputs.rows if soft else None
        yield answer(analysis.analyse(on, moments.sums(k, window.outputs.predicted, rows)))


def answer(found: Analysis) -> Answer:
    """A share that is not known counts as none, a bound that is not known as no bound."""
    labels = found.labels
    assert labels is not None
    return Answer(
        q=np.nan_to_num(labels.q),
        lower=np.nan_to_num(labels.q_lower),
        upper=np.nan_to_num(labels.q_upper, nan=1.0),
        accuracy=(found.accuracy.lower, found.accuracy.upper) if found.accuracy else (0.0, 1.0),
    )
