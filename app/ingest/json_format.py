"""Batches in JSON: columns, or rows.

The strict way decodes straight into typed lists and is fast; the lenient way, taken when bad
records are to be skipped and there are some, looks at each cell by itself.
"""

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, NoReturn

import msgspec
import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from app.errors import Flaw, InvalidInput, Malformed, escaped
from app.ingest.columns import (
    NO_TIME,
    Coded,
    Columns,
    Field,
    column_pointer,
    microseconds,
    row_pointer,
)

Moment = Annotated[datetime, Meta(tz=True)]
MOST_CHARACTERS = 200
# PostgreSQL stores no NUL character.
Name = Annotated[str, Meta(min_length=1, max_length=MOST_CHARACTERS, pattern="^[^\\x00]*$")]


# There are thousands of them at once, and none can hold another: no need to look for cycles.
class Row(Struct, forbid_unknown_fields=True, gc=False):
    predicted: str | int | None = None
    probabilities: list[float] | None = None
    timestamp: Moment | None = None
    id: Name | None = None


class Body(Struct, forbid_unknown_fields=True):
    predicted: list[str | int] | None = None
    probabilities: list[list[float]] | None = None
    timestamps: list[Moment] | None = None
    timestamp: Moment | None = None
    ids: list[Name] | None = None
    rows: list[Row] | None = None
    version: str | None = None
    batch_id: Name | None = None


class LooseBody(Struct, forbid_unknown_fields=True):
    """The same outside, with anything at all in the records."""

    predicted: list[Any] | None = None
    probabilities: list[Any] | None = None
    timestamps: list[Any] | None = None
    timestamp: Moment | None = None
    ids: list[Any] | None = None
    rows: list[Any] | None = None
    version: str | None = None
    batch_id: Name | None = None


_decoder = msgspec.json.Decoder(Body)


class Letter(StrEnum):
    """A label, its value, that is a string of one character: the one that its position numbers.

    So a list of them, joined, is an array of positions, in a third of the time that it takes to
    look each of them up in a dictionary.
    """

    def __new__(cls, label: str, position: int) -> "Letter":
        one = str.__new__(cls, chr(position))
        one._value_ = label
        return one


def _column(predicted: list[Any], labels: tuple[str, ...]) -> list[str | int | None] | Coded:
    """The column of letters alone as positions, any other as names and positions.

    There are letters for 55,000 labels.
    """
    with suppress(TypeError):
        positions = "".join(predicted).encode("utf-32-le")
        return Coded(np.frombuffer(positions, dtype="<u4"), labels)
    with suppress(TypeError):
        # Positions alone add up, which is quicker to try than to look at each.
        sum(predicted)
        return predicted
    return [one.value if isinstance(one, Letter) else one for one in predicted]


class Lettered(Body, forbid_unknown_fields=True):
    """A batch whose labels are letters and positions, not names."""


class LetteredRow(Row, forbid_unknown_fields=True):
    """A row whose label is a letter or a position."""


class Decoders(NamedTuple):
    """They know the labels, so that no string is made of each prediction."""

    body: msgspec.json.Decoder[Body]
    row: msgspec.json.Decoder[Row]


# Of a thousand labels each takes most of a megabyte.
@lru_cache(maxsize=256)
def decoders_for(labels: tuple[str, ...]) -> Decoders:
    members: Any = [(f"at_{place}", (label, place)) for place, label in enumerate(labels)]
    letter: Any = Letter("Known", members)

    class KnownRow(LetteredRow, forbid_unknown_fields=True):
        predicted: letter | int | None = None

    row: Any = KnownRow

    class KnownBody(Lettered, forbid_unknown_fields=True):
        predicted: list[letter | int] | None = None
        rows: list[row] | None = None

    return Decoders(msgspec.json.Decoder(KnownBody), msgspec.json.Decoder(KnownRow))


# What msgspec raises for a body that is not what it should be; the other is not one of its own.
BROKEN = (msgspec.DecodeError, UnicodeDecodeError)

CELL_TYPES: dict[Field, Any] = {
    "predicted": str | int | None,
    "probabilities": list[float] | None,
    "timestamp": Moment | None,
    "id": Name | None,
}


def parse(content: bytes, labels: tuple[str, ...] = (), *, skip: bool) -> Columns:
    """The columns of a JSON body; with `skip`, bad records are given up one by one.

    Knowing the model's `labels` makes it quicker, and makes no other difference.
    """
    try:
        body = _decode(content, labels)
    except BROKEN as error:
        if skip:
            return _parse_leniently(content)
        refuse(content, error)
    if body.rows is not None:
        _refuse_columns_beside_rows(body)
        return from_rows(body, body.rows, labels)
    return _from_columns(body, labels)


def _decode(content: bytes, labels: tuple[str, ...]) -> Body:
    if labels:
        # Whatever is wrong, the plain decoder says it better; a label that nobody knows is not
        # even its business.
        with suppress(*BROKEN):
            return decoders_for(labels).body.decode(content)
    return _decoder.decode(content)


def refuse(content: bytes, error: Exception) -> NoReturn:
    """Say what is wrong and where, for a body that msgspec could not decode."""
    if isinstance(error, msgspec.ValidationError):
        flaw = flaw_of(error)
        raise InvalidInput(flaw.detail, flaw.pointer) from None
    pointer = _not_a_number(content)
    if pointer is not None:
        raise InvalidInput("NaN and Infinity are not numbers in JSON", pointer) from None
    raise Malformed(f"the body is not valid JSON: {error}") from None


def flaw_of(error: msgspec.ValidationError) -> Flaw:
    """msgspec's message, with its `$.predicted[3]` turned into a JSON Pointer.

    >>> flaw_of(msgspec.ValidationError("Expected `int`, got `bool` - at `$.predicted[3]`"))
    Flaw(detail='Expected `int`, got `bool`', pointer='#/predicted/3', parameter=None)
    """
    detail, _, path = str(error).partition(" - at `")
    pointer = "#" + re.sub(r"\[(\d+)\]", r"/\1", path.strip("$`")).replace(".", "/")
    unknown = re.search(r"unknown field `(.*)`", detail)
    return Flaw(detail, f"{pointer}/{escaped(unknown[1])}" if unknown else pointer)


def flaw_within(error: msgspec.ValidationError, pointer: str) -> Flaw:
    """The same, for a value that stands at `pointer` in the body."""
    inner = flaw_of(error)
    return Flaw(inner.detail, pointer + (inner.pointer or "#")[1:])


def _from_columns(body: Body, labels: tuple[str, ...]) -> Columns:
    size = _common_length(body)
    predicted: Sequence[str | int | None] | Coded | None = body.predicted
    if body.predicted and isinstance(body, Lettered):
        predicted = _column(body.predicted, labels)
    if body.timestamps is not None:
        times: NDArray[np.int64] | None = microseconds(body.timestamps)
    else:
        times = None if body.timestamp is None else microseconds([body.timestamp])
    return Columns(
        size=size,
        predicted=predicted,
        rows=body.probabilities,
        times=times,
        ids=body.ids,
        version=body.version,
        key=body.batch_id,
    )


def from_rows(body: Body, rows: Sequence[Row], labels: tuple[str, ...] = ()) -> Columns:
    """The columns of rows; of the body, what stands beside them."""
    predicted = _given(rows, "predicted")
    return Columns(
        size=len(rows),
        predicted=_column(predicted, labels) if predicted and _is_lettered(rows) else predicted,
        rows=_given(rows, "probabilities"),
        times=_times_of_rows(_given(rows, "timestamp") or [], body.timestamp),
        ids=_given(rows, "id"),
        version=body.version,
        key=body.batch_id,
        pointer=row_pointer,
    )


def _given(rows: Sequence[Row], name: str) -> list[Any] | None:
    """A column of rows; None if none of them has anything there."""
    found = list(map(attrgetter(name), rows))
    # The first of them mostly tells, and labels are slow to compare with None.
    has_some = not found or found[0] is not None or found.count(None) < len(found)
    return found if has_some else None


def _is_lettered(rows: Sequence[Row]) -> bool:
    """Of all rows or of none: they come from one decoder."""
    return isinstance(rows[0], LetteredRow)


def _times_of_rows(
    stamps: Sequence[datetime | None], batch: datetime | None
) -> NDArray[np.int64] | None:
    """A row's own time, else the batch's, else none."""
    given = [stamp for stamp in stamps if stamp is not None]
    fallback = NO_TIME if batch is None else int(microseconds([batch])[0])
    if not given:
        return None if batch is None else np.array([fallback])
    times = np.full(len(stamps), fallback)
    times[[stamp is not None for stamp in stamps]] = microseconds(given)
    return times


def _common_length(body: Body | LooseBody) -> int:
    if body.predicted is None and body.probabilities is None:
        raise InvalidInput("a batch needs `predicted`, `probabilities` or `rows`", "#")
    if body.timestamp is not None and body.timestamps is not None:
        raise InvalidInput("give `timestamp` or `timestamps`, not both", "#/timestamps")
    columns = (
        ("predicted", body.predicted),
        ("probabilities", body.probabilities),
        ("timestamps", body.timestamps),
        ("ids", body.ids),
    )
    (first, size), *others = [(name, len(some)) for name, some in columns if some is not None]
    for name, length in others:
        if length != size:
            raise InvalidInput(
                f"`{name}` has {length} entries, but `{first}` has {size}", f"#/{name}"
            )
    return size


def _refuse_columns_beside_rows(body: Body | LooseBody) -> None:
    for name in ("predicted", "probabilities", "timestamps", "ids"):
        if getattr(body, name) is not None:
            raise InvalidInput("give `rows` or columns, not both", f"#/{name}")


def _parse_leniently(content: bytes) -> Columns:
    try:
        body = msgspec.convert(json.loads(content), LooseBody)
    except msgspec.ValidationError as error:
        flaw = flaw_of(error)
        raise InvalidInput(flaw.detail, flaw.pointer) from None
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the body is not valid JSON: {error}") from None
    if body.rows is not None:
        _refuse_columns_beside_rows(body)
        return _cells_of_rows(body, body.rows)
    return _cells_of_columns(body)


def _cells_of_columns(body: LooseBody) -> Columns:
    size = _common_length(body)
    flaws: dict[int, Flaw] = {}
    predicted = _cells("predicted", body.predicted, flaws)
    rows = _cells("probabilities", body.probabilities, flaws)
    stamps = _cells("timestamp", body.timestamps, flaws)
    ids = _cells("id", body.ids, flaws)
    times = _times_of_rows(stamps or [None] * size, body.timestamp)
    return Columns(size, predicted, rows, times, ids, body.version, body.batch_id, flaws)


def _cells(name: Field, column: list[Any] | None, flaws: dict[int, Flaw]) -> list[Any] | None:
    if column is None:
        return None
    return [
        _cell(name, value, flaws, record, column_pointer(name, record))
        for record, value in enumerate(column)
    ]


def _cell(name: Field, value: Any, flaws: dict[int, Flaw], record: int, pointer: str) -> Any:
    try:
        return msgspec.convert(value, CELL_TYPES[name])
    except msgspec.ValidationError as error:
        flaws.setdefault(record, flaw_within(error, pointer))
        return None


def _cells_of_rows(body: LooseBody, rows: Sequence[Any]) -> Columns:
    flaws: dict[int, Flaw] = {}
    good = [
        row_of(value, record, row_pointer(None, record), flaws) for record, value in enumerate(rows)
    ]
    strict = Body(timestamp=body.timestamp, version=body.version, batch_id=body.batch_id)
    return replace(from_rows(strict, good), flaws=flaws)


def row_of(value: Any, record: int, pointer: str, flaws: dict[int, Flaw]) -> Row:
    """A row that stands at `pointer`; an empty one, and a flaw more, if it is none."""
    try:
        return msgspec.convert(value, Row)
    except msgspec.ValidationError as error:
        flaws[record] = flaw_within(error, pointer)
        return Row()


def _not_a_number(content: bytes) -> str | None:
    """Where the first NaN or infinity of an otherwise valid body stands, in any spelling."""
    try:
        return _pointer_to_constant(json.loads(content, parse_constant=_Constant), "#")
    except (ValueError, RecursionError):
        return None


class _Constant(str):
    """`NaN`, `Infinity` or `-Infinity`, which JSON does not have but many programs write."""


def _pointer_to_constant(value: Any, pointer: str) -> str | None:
    if isinstance(value, _Constant):
        return pointer
    inside: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, list):
        inside = enumerate(value)
    elif isinstance(value, dict):
        inside = ((escaped(name), part) for name, part in value.items())
    for name, part in inside:
        found = _pointer_to_constant(part, f"{pointer}/{name}")
        if found is not None:
            return found
    return None
