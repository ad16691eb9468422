"""From columns of predictions to sums per pane: validate, place in time, add up.

Nothing here loops over predictions in Python; what is wrong with a record is put into words only
for the first few that are wrong.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain, compress, repeat
from operator import is_not

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from app.domain.model import Model
from app.domain.window import EPOCH, pane_start
from app.errors import Conflict, Flaw, InvalidInput
from app.ingest.columns import NO_TIME, Coded, Columns, Matrix
from app.stats import moments
from app.stats.moments import Bools, Counts, Floats, Sums
from app.stats.ranking import Ranks, ranks
from app.storage.panes import Kind, PaneKey
from app.storage.predictions import KeptPredictions

Times = NDArray[np.int64]

MICROSECOND = timedelta(microseconds=1)
# Clocks differ by seconds; more than this is a mistake in the timestamp.
FUTURE_TOLERANCE = timedelta(minutes=5)
SHOWN_FLAWS = 20


@dataclass(frozen=True, slots=True)
class Watched:
    """A model with its labels ready for looking up, by name or by position."""

    model: Model
    index: Mapping[str | int | None, int] = field(repr=False)

    @classmethod
    def of(cls, model: Model) -> "Watched":
        by_name: dict[str | int | None, int] = {name: i for i, name in enumerate(model.labels)}
        return cls(model, by_name | {i: i for i in range(model.k)})


class Reduced(Struct, frozen=True, eq=False):
    """A batch as it will be stored: sums per pane, and what to answer."""

    model: Model
    version: str
    panes: Mapping[PaneKey, Sums]
    accepted: int
    late: int = 0
    rejected: int = 0
    flaws: Sequence[Flaw] = ()
    kept: KeptPredictions | None = None

    def since(self, first: datetime) -> "Reduced":
        """The same batch, with what falls into panes that begin before `first` as late."""
        pane = self.model.settings.pane
        panes = {key: sums for key, sums in self.panes.items() if key.start >= first}
        counted = sum(sums.n for sums in panes.values())
        return replace(
            self,
            panes=panes,
            accepted=counted,
            late=self.late + self.accepted - counted,
            kept=self.kept and self.kept.where(lambda at: pane_start(at, pane) >= first),
        )


@dataclass(frozen=True, slots=True)
class Records:
    """The records of a batch as arrays.

    Where `has_row` is False, `rows` says nothing, and neither do `ranks`.
    """

    predicted: Counts
    rows: Floats | None
    ranks: Ranks | None
    has_row: Bools
    times: Times


def reduce(columns: Columns, watched: Watched, now: datetime, *, skip: bool = False) -> Reduced:
    """The sums of a batch. A bad record refuses all of it, or with `skip` only itself."""
    model = watched.model
    version = chosen_version(columns.version, model)
    plain = _plain(columns, watched, version, now)
    if plain is not None:
        return plain
    records, good = records_of(columns, watched, now)
    rejected = columns.size - int(np.count_nonzero(good))
    flaws = flaws_of(columns, watched, now, good) if rejected else []
    if flaws and not skip:
        raise refusal(flaws, rejected, f"{columns.size}")
    late = good & (records.times < _micros(now - model.settings.allowed_lateness))
    counted = good & ~late
    return Reduced(
        model=model,
        version=version,
        panes=dict(_panes(model, version, records, counted)),
        accepted=int(np.count_nonzero(counted)),
        late=int(np.count_nonzero(late)),
        rejected=rejected,
        flaws=flaws,
        kept=_kept(columns, records, counted) if model.settings.keep_ids else None,
    )


def _plain(columns: Columns, watched: Watched, version: str, now: datetime) -> Reduced | None:
    """The short way for the most common batches: labels alone, or softmax rows alone, no times.

    None if it is not such a batch, or there is something wrong with it.
    """
    model = watched.model
    if not columns.size or columns.times is not None or columns.flaws:
        return None
    if model.settings.keep_ids and columns.ids is not None:
        return None
    if columns.rows is None:
        found = _sums_of_labels(columns, watched)
    else:
        found = _sums_of_rows(columns, model.k)
    if found is None:
        return None
    kind: Kind = "hard" if found.soft is None else "soft"
    key = PaneKey(model.id, version, pane_start(now, model.settings.pane), kind)
    return Reduced(model, version, {key: found}, columns.size)


def _sums_of_labels(columns: Columns, watched: Watched) -> Sums | None:
    counts = None if columns.predicted is None else _counts(columns.predicted, watched)
    return None if counts is None else Sums(counts)


def _sums_of_rows(columns: Columns, k: int) -> Sums | None:
    if columns.predicted is not None:
        return None
    rows, has_row, good = _rows(columns, k)
    if rows is None or not (good & has_row).all():
        return None
    ranked = ranks(rows)
    return moments.sums(k, ranked.first, rows, ranked)


def _counts(predicted: Sequence[str | int | None] | Coded, watched: Watched) -> Counts | None:
    """How often each label is named; None if some record names none, or one that nobody knows."""
    if not isinstance(predicted, Coded):
        return _added_up(Counter(predicted).items(), watched)
    tally = predicted.tally()
    if tally[0]:
        return None
    if predicted.values is watched.model.labels:
        return tally[1:]
    return _added_up(zip(predicted.values, tally[1:].tolist(), strict=True), watched)


def _added_up(counted: Iterable[tuple[str | int | None, int]], watched: Watched) -> Counts | None:
    counts = np.zeros(watched.model.k, dtype=np.int64)
    for label, count in counted:
        place = watched.index.get(label)
        if place is not None:
            counts[place] += count
        elif count:
            return None
    return counts


def chosen_version(named: str | None, model: Model, pointer: str = "#/version") -> str:
    """The version that is named, which must have a reference, or the active one."""
    if named is None:
        if model.active_version is None:
            raise Conflict(
                f"model {model.name!r} has no reference yet; "
                f"PUT one to /v1/models/{model.name}/references/{{version}} first"
            )
        return model.active_version
    # A version nobody knows would be counted where nobody looks: most likely it is misspelt.
    if named not in model.versions:
        raise InvalidInput(f"model {model.name!r} has no reference {named!r}", pointer)
    return named


def records_of(columns: Columns, watched: Watched, now: datetime) -> tuple[Records, Bools]:
    """All records, and which of them are fit to be counted."""
    rows, has_row, good = _rows(columns, watched.model.k)
    found = None if rows is None else ranks(rows)
    predicted = _predicted(columns, watched, found and found.first, has_row)
    times = _times(columns, now)
    good &= (predicted >= 0) & (times <= _micros(now + FUTURE_TOLERANCE))
    good[list(columns.flaws)] = False
    return Records(predicted, rows, found, has_row, times), good


def _rows(columns: Columns, k: int) -> tuple[Floats | None, Bools, Bools]:
    """Softmax rows, which records have one, and which records do not have a bad one."""
    if columns.rows is None:
        return None, np.zeros(columns.size, dtype=bool), np.ones(columns.size, dtype=bool)
    if isinstance(columns.rows, Matrix):
        rows, good = moments.normalised(columns.rows.values)
        return rows, columns.rows.given, good | ~columns.rows.given
    has_row = np.fromiter(map(is_not, columns.rows, repeat(None)), bool, columns.size)
    rows, good = moments.normalised(_matrix(columns.rows, has_row, k))
    return rows, has_row, good | ~has_row


def _matrix(rows: Sequence[Sequence[float] | None], has_row: Bools, k: int) -> Floats:
    """Rows as a matrix; one that is missing or of another length becomes NaN."""
    # No None is left, which a type checker cannot see.
    given: list[Sequence[float]] = list(compress(rows, has_row))  # type: ignore[arg-type]
    fits = np.fromiter(map(len, given), np.int64, len(given)) == k
    flat = chain.from_iterable(given if fits.all() else compress(given, fits))
    values = np.fromiter(flat, np.float64).reshape(-1, k)
    if len(values) == len(rows):
        return values
    matrix = np.full((len(rows), k), np.nan)
    matrix[np.flatnonzero(has_row)[fits]] = values
    return matrix


def _predicted(columns: Columns, watched: Watched, first: Counts | None, has_row: Bools) -> Counts:
    """Each record's label: the one named, else the argmax of its row, else -1."""
    by_row = np.full(columns.size, -1) if first is None else np.where(has_row, first, -1)
    if columns.predicted is None:
        return by_row
    found, is_named = named(columns.predicted, watched)
    return np.where(is_named, found, by_row)


def named(predicted: Sequence[str | int | None] | Coded, watched: Watched) -> tuple[Counts, Bools]:
    """The position of each label that is named, -1 for one that nobody knows; and which are."""
    if isinstance(predicted, Coded):
        # The last stands for "none", whose code is -1.
        positions = [watched.index.get(value, -1) for value in predicted.values] + [-1]
        return np.array(positions)[predicted.codes], predicted.codes >= 0
    # The loops over predictions are map's, in C.
    found = map(watched.index.get, predicted, repeat(-1))
    is_named = map(is_not, predicted, repeat(None))
    size = len(predicted)
    return np.fromiter(found, np.int64, size), np.fromiter(is_named, bool, size)


def _times(columns: Columns, now: datetime) -> Times:
    if columns.times is None:
        return np.full(columns.size, _micros(now))
    times = np.where(columns.times == NO_TIME, _micros(now), columns.times)
    return np.broadcast_to(times, (columns.size,))


def _micros(at: datetime) -> int:
    return (at - EPOCH) // MICROSECOND


def _panes(
    model: Model, version: str, records: Records, counted: Bools
) -> Iterator[tuple[PaneKey, Sums]]:
    """The sums of the counted records, by pane; those with and without softmax rows apart."""
    for kind, chosen in _kinds(records, counted):
        rows = None if kind == "hard" or records.rows is None else records.rows[chosen]
        ranked = records.ranks and records.ranks.of(chosen)
        slots, group = _slots(records.times[chosen], model.settings.pane // MICROSECOND)
        predicted = records.predicted[chosen]
        parts = moments.sums_by_group(model.k, predicted, rows, group, len(slots), ranked)
        for slot, part in zip(slots, parts, strict=True):
            start = EPOCH + slot * model.settings.pane
            yield PaneKey(model.id, version, start, kind), part


def _slots(times: Times, width: int) -> tuple[list[int], Counts]:
    """The panes that times fall in, by number since the epoch, and which of them each is in."""
    # Most batches lie within one pane, and comparing is cheaper than sorting.
    first, last = int(times.min()) // width, int(times.max()) // width
    if first == last:
        return [first], np.zeros(len(times), dtype=np.int64)
    slots, group = np.unique(times // width, return_inverse=True)
    return slots.tolist(), group


def _kinds(records: Records, counted: Bools) -> Iterator[tuple[Kind, Bools | slice]]:
    kinds: dict[Kind, Bools] = {
        "hard": counted & ~records.has_row,
        "soft": counted & records.has_row,
    }
    for kind, chosen in kinds.items():
        if chosen.all() and len(chosen):
            yield kind, slice(None)
        elif chosen.any():
            yield kind, chosen


def _kept(columns: Columns, records: Records, counted: Bools) -> KeptPredictions | None:
    if columns.ids is None:
        return None
    chosen = counted & np.fromiter(map(is_not, columns.ids, repeat(None)), bool, columns.size)
    # No None is left, which a type checker cannot see.
    ids: list[str] = list(compress(columns.ids, chosen))  # type: ignore[arg-type]
    at = [EPOCH + micros * MICROSECOND for micros in records.times[chosen].tolist()]
    return KeptPredictions(ids, at, records.predicted[chosen].tolist()) if ids else None


def flaws_of(columns: Columns, watched: Watched, now: datetime, good: Bools) -> list[Flaw]:
    """What is wrong with the first few records that are wrong."""
    wrong = np.flatnonzero(~good)[:SHOWN_FLAWS].tolist()
    return [_flaw(columns, watched, now, record) for record in wrong]


def _flaw(columns: Columns, watched: Watched, now: datetime, record: int) -> Flaw:
    if record in columns.flaws:
        return columns.flaws[record]
    label = None if columns.predicted is None else columns.predicted[record]
    row = None if columns.rows is None else columns.rows[record]
    if label is None and row is None:
        detail = "needs `predicted` or `probabilities`"
        return Flaw(detail, columns.pointer(None, record))
    if label is not None and label not in watched.index:
        return Flaw(unknown(label, watched.model), columns.pointer("predicted", record))
    wrong = None if row is None else wrong_row(row, watched.model.k)
    if wrong is not None:
        return Flaw(wrong, columns.pointer("probabilities", record))
    minutes = FUTURE_TOLERANCE // timedelta(minutes=1)
    detail = f"lies more than {minutes} minutes in the future (it is {now:%Y-%m-%dT%H:%M:%SZ})"
    return Flaw(detail, columns.pointer("timestamp", record))


def unknown(label: str | int, model: Model) -> str:
    if isinstance(label, int):
        return f"there is no label at position {label}: model {model.name!r} has {model.k}"
    return f"model {model.name!r} has no label {label!r}"


def wrong_row(row: Sequence[float], k: int) -> str | None:
    """What keeps a row from being a softmax over `k` labels."""
    if len(row) != k:
        return f"has {len(row)} probabilities, but there are {k} labels"
    values = np.array([row], dtype=np.float64)
    if moments.normalised(values)[1].all():
        return None
    if not np.isfinite(values).all():
        return "has an entry that is not finite"
    if values.min() < -moments.NEGATIVE_TOLERANCE:
        return f"has a negative probability, {values.min():g}"
    return f"sums to {values.sum():g}, not to 1"


def refusal(flaws: Sequence[Flaw], rejected: int, size: str) -> InvalidInput:
    """What to say of a batch of that size with bad records in it."""
    first = f"{flaws[0].pointer}: {flaws[0].detail}"
    detail = f"{rejected} of {size} records cannot be counted, so none was; the first: {first}"
    return InvalidInput(detail, flaws=flaws)
