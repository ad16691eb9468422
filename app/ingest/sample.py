"""Labelled predictions, read part by part: counted, and their softmax rows gathered."""

from collections.abc import Iterable
from datetime import datetime

import numpy as np

from app.domain.reference import LabelledRows, Singles
from app.errors import Flaw, InvalidInput, TooLarge
from app.ingest.columns import Columns
from app.ingest.reduce import (
    SHOWN_FLAWS,
    Records,
    Watched,
    flaws_of,
    named,
    records_of,
    unknown,
)
from app.stats import reference as references
from app.stats.moments import Counts, Floats
from app.stats.ranking import Ranks, ranks
from app.stats.reference import Reference

# Softmax rows of one sample, in numbers: 256 MB in single precision. Of so many records no estimate
# gets any better.
MOST_NUMBERS = 2**26
# A record of few labels takes memory besides its row, as much as this many numbers.
LEAST_WIDTH = 16
# Large enough that the allocator takes a block from the system and gives it back by itself.
BLOCK_NUMBERS = 4 * 1024 * 1024


def read(
    parts: Iterable[Columns], watched: Watched, now: datetime
) -> tuple[Reference, LabelledRows | None]:
    """The statistics of a sample and its softmax rows, if any. A bad record refuses all of it."""
    k = watched.model.k
    counts = np.zeros(k * k, dtype=np.int64)
    gathered = Gathered(k)
    for part in parts:
        records, actual = _checked(part, watched, now)
        if records.rows is None:
            np.add.at(counts, records.predicted * k + actual, 1)
        else:
            gathered.add(records, records.rows, actual)
    if gathered.records:
        rows, ranked = gathered.joined()
        found = references.from_sample(k, rows.predicted, rows.actual, rows.rows, ranked)
        return found, rows
    if not counts.any():
        raise InvalidInput("has no record at all", "#/actual")
    return references.from_confusion(counts.reshape(k, k)), None


class Gathered:
    """Softmax rows in single precision, with their labels and their ranks before rounding.

    No more than a block of rows is ever in memory twice.
    """

    def __init__(self, k: int) -> None:
        self.records = 0
        self._k = k
        self._most = MOST_NUMBERS // max(k, LEAST_WIDTH)
        self._small: list[Singles] = []
        self._blocks: list[Singles] = []
        self._labels: list[tuple[Counts, Counts, Ranks]] = []

    def add(self, records: Records, rows: Floats, actual: Counts) -> None:
        self.records += len(rows)
        if self.records > self._most:
            raise TooLarge(
                f"a reference of {self._k} labels may have {self._most} records with softmax rows",
                self._most,
            )
        self._small.append(rows.astype(np.float32, order="C"))
        self._labels.append((actual, records.predicted, records.ranks or ranks(rows)))
        if sum(map(len, self._small)) * self._k >= BLOCK_NUMBERS:
            self._blocks.append(np.concatenate(self._small))
            self._small = []

    def joined(self) -> tuple[LabelledRows, Ranks]:
        """All that was added; nothing is left here."""
        actual, predicted, ranked = zip(*self._labels, strict=True)
        labels = np.concatenate(actual), np.concatenate(predicted)
        whole = np.empty((self.records, self._k), dtype=np.float32)
        blocks = [*self._blocks, *self._small][::-1]
        self._blocks, self._small, self._labels = [], [], []
        place = 0
        while blocks:
            block = blocks.pop()
            whole[place : place + len(block)] = block
            place += len(block)
        return LabelledRows(whole, *labels), Ranks(*map(np.concatenate, zip(*ranked, strict=True)))


def _checked(part: Columns, watched: Watched, now: datetime) -> tuple[Records, Counts]:
    """The records of a part and their true labels, of which none may be wrong."""
    records, good = records_of(part, watched, now)
    flaws = [] if good.all() else flaws_of(part, watched, now, good)
    if part.rows is not None and not records.has_row.all():
        without = np.flatnonzero(~records.has_row & good)[:SHOWN_FLAWS].tolist()
        detail = "needs `probabilities`, which other records have"
        flaws += [Flaw(detail, part.pointer("probabilities", record)) for record in without]
    actual = _actual(part, watched)
    wrong = np.flatnonzero(actual < 0)[:SHOWN_FLAWS].tolist()
    flaws += [_flaw_of_actual(part, watched, record) for record in wrong]
    if flaws:
        raise InvalidInput(f"{flaws[0].pointer}: {flaws[0].detail}", flaws=flaws[:SHOWN_FLAWS])
    return records, actual


def _actual(part: Columns, watched: Watched) -> Counts:
    """The position of each true label; negative where there is none that is known."""
    if part.actual is None:
        return np.full(part.size, -1)
    found, is_named = named(part.actual, watched)
    return np.where(is_named, found, -1)


def _flaw_of_actual(part: Columns, watched: Watched, record: int) -> Flaw:
    label = None if part.actual is None else part.actual[record]
    detail = "needs `actual`" if label is None else unknown(label, watched.model)
    return Flaw(detail, part.pointer("actual", record))
