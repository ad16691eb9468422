"""References and windows whose estimates are known, to four digits or six, from another program.

It was written to the same formulas (docs/statistics.md) and shares no code with this one.
"""

from dataclasses import dataclass

import numpy as np

from app.stats import cells, estimator
from app.stats.cells import CellTable
from app.stats.estimator import Operator
from app.stats.moments import Counts, Floats

# How far the two programs may be apart.
NEAR = 1e-4


@dataclass(frozen=True, slots=True)
class Case:
    """A window's counts of cells, and what is known of it; what is not is None."""

    on: Operator
    window: tuple[float, ...]
    q: tuple[float, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    vacuous: tuple[bool, ...]
    accuracy: tuple[float, float, float] | None = None
    raw: tuple[float, ...] | None = None
    pull: float | None = None

    @property
    def counts(self) -> Floats:
        return np.array(self.window, dtype=np.float64)


def hard(counts: Counts) -> Operator:
    """What estimates use of a confusion matrix (rows predicted, columns true)."""
    present = np.flatnonzero(counts.sum(axis=0) >= 5)
    return estimator.prepare(cells.of_confusion(counts, present))


def soft_table(counts: Counts, believed: Floats, first: Counts) -> CellTable:
    """Cells of codes, whatever those are; estimates do not look at them."""
    k, code = counts.shape[1], np.arange(len(first))
    return CellTable(k, np.arange(k), first, counts, np.full(k, -1), believed, code, code)


THREE = np.array([[180, 30, 10], [15, 150, 60], [5, 20, 130]])
TWO = np.array([[90, 20], [10, 80]])
# Labels 1 and 2 are predicted alike.
TWINS = np.array([[180, 20, 20], [10, 90, 90], [10, 90, 90]])
# Label 2 is never predicted.
SILENT = np.array([[180, 40, 10], [20, 160, 190], [0, 0, 0]])

SIX_CELLS = np.array(
    [[150, 8, 2], [25, 20, 6], [12, 110, 20], [8, 40, 45], [3, 12, 70], [2, 10, 57]]
)
SIX_BELIEVED = np.array(
    [[148, 9, 3], [24, 19, 8], [13, 108, 21], [9, 41, 43], [3, 13, 69], [3, 10, 56]],
    dtype=np.float64,
)
SIX_FIRST = np.array([0, 0, 1, 1, 2, 2])


def six_cells() -> Operator:
    """Three labels in six cells, with calibrated rows beside the counts."""
    return estimator.prepare(soft_table(SIX_CELLS, SIX_BELIEVED, SIX_FIRST))


def cases() -> dict[str, Case]:
    """All of them by name."""
    known, unknown = (False, False, False), (True, True, True)
    return {
        "three labels": Case(
            on=hard(THREE),
            window=(90, 200, 210),
            q=(0.121124, 0.283036, 0.595840),
            raw=(0.119753, 0.282099, 0.598148),
            lower=(0.069357, 0.156831, 0.497568),
            upper=(0.174786, 0.398423, 0.716605),
            vacuous=known,
            accuracy=(0.708585, 0.656962, 0.759334),
            pull=1.2,
        ),
        "the reference's own": Case(
            on=hard(THREE),
            window=(220, 225, 155),
            q=(1 / 3, 1 / 3, 1 / 3),
            raw=(1 / 3, 1 / 3, 1 / 3),
            lower=(0.275979, 0.241568, 0.260006),
            upper=(0.392787, 0.428492, 0.419946),
            vacuous=known,
            accuracy=(0.766667, 0.729629, 0.803705),
            pull=76.8,
        ),
        "six cells": Case(
            on=six_cells(),
            window=(60, 30, 80, 90, 130, 110),
            q=(0.141622, 0.140173, 0.718205),
            lower=(0.101626, 0.044256, 0.627550),
            upper=(0.189842, 0.236374, 0.817888),
            vacuous=known,
            accuracy=(0.678378, 0.622114, 0.734282),
            pull=0.3,
        ),
        "one label only": Case(
            on=six_cells(),
            window=(300, 50, 24, 16, 6, 4),
            q=(0.995831, 0.002684, 0.001485),
            lower=(0.934370, 0.0, 0.0),
            upper=(1.0, 0.078168, 0.050165),
            vacuous=known,
        ),
        "one prediction": Case(
            on=six_cells(),
            window=(0, 0, 0, 1, 0, 0),
            q=(0.214887, 0.368772, 0.416340),
            lower=(0.0, 0.0, 0.0),
            upper=(1.0, 1.0, 1.0),
            vacuous=unknown,
        ),
        "a label never predicted": Case(
            on=hard(SILENT),
            window=(120, 380),
            q=(0.146728, 0.466323, 0.386949),
            lower=(0.003436, 0.0, 0.0),
            upper=(0.272414, 1.0, 0.813935),
            vacuous=(False, True, False),
            accuracy=(0.505113, 0.127029, 0.890537),
        ),
        "two labels": Case(
            on=hard(TWO),
            window=(270, 730),
            q=(0.1007, 0.8993),
            # The study has (0, .2012) and (.7988, 1): two labels have an interval of their own,
            # worked out apart from this code (docs/rare-labels.md).
            lower=(0.0, 0.8074),
            upper=(0.1926, 1.0),
            vacuous=(False, False),
            accuracy=(0.8101, 0.7283, 0.8917),
        ),
        "two labels alike": Case(
            on=hard(TWINS),
            window=(100, 200, 200),
            q=(0.1316, 0.4342, 0.4342),
            lower=(0.0722, 0.0, 0.0),
            upper=(0.1819, 1.0, 1.0),
            vacuous=(False, True, True),
            accuracy=(0.5092, 0.4535, 0.5590),
        ),
    }


CASES = cases()
