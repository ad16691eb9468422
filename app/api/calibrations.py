"""Calibrations of softmax rows, which take a while to fit and are then used again and again."""

from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock

import numpy as np

from app.domain.model import Model
from app.domain.reference import LabelledRows
from app.stats import calibration
from app.stats.calibration import Calibration
from app.storage import references
from app.storage.db import Database

MOST_CALIBRATIONS = 64


@dataclass(slots=True)
class _Fit:
    calibration: Calibration | None = None
    done: bool = False
    lock: Lock = field(default_factory=Lock)


class Calibrations:
    """Calibrations of references, each fitted once, and again if the reference is replaced."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._fits = lru_cache(maxsize=MOST_CALIBRATIONS)(lambda *_: _Fit())

    def get(self, model: Model, version: str) -> Calibration | None:
        """The calibration of a reference; None if it came without softmax rows."""
        fit = self._fits(model.reference_key(version))
        # A fit can take seconds. Whoever else wants this one waits for it, without a connection.
        with fit.lock:
            if not fit.done:
                fit.calibration = self._fitted(model, version)
                fit.done = True
            return fit.calibration

    def _fitted(self, model: Model, version: str) -> Calibration | None:
        with self._database.begin() as conn:
            sample = references.labelled_rows(conn, model, version)
        return None if sample is None else _fit(sample)


def _fit(sample: LabelledRows) -> Calibration:
    return calibration.fit(sample.rows.astype(np.float64), sample.actual)
