"""Formats of a batch by content type: a new one joins by adding a line here.

A batch of JSON is parsed whole. The others are read a part at a time, and may be larger than the
memory that we want to spend on them.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import IO, Any, Protocol

from app.errors import UnsupportedMedia
from app.ingest import json_format, ndjson_format
from app.ingest.columns import Columns

try:
    from app.ingest import arrow_format
except ImportError:
    arrow_format = None  # type: ignore[assignment]

JSON = "application/json"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
PARQUET = "application/vnd.apache.parquet"


class Parts(Protocol):
    def __call__(
        self, source: IO[bytes], labels: tuple[str, ...], *, skip: bool, most_rows: int
    ) -> Iterator[Columns]: ...


IN_PARTS: dict[str, Parts] = {NDJSON: ndjson_format.parts}
if arrow_format is not None:
    IN_PARTS |= {ARROW: arrow_format.stream_parts, PARQUET: arrow_format.parquet_parts}

# A reference as a table of labelled predictions.
LABELLED: dict[str, Parts] = {}
if arrow_format is not None:
    LABELLED = {
        ARROW: partial(arrow_format.stream_parts, columns=arrow_format.LABELLED),
        PARQUET: partial(arrow_format.parquet_parts, columns=arrow_format.LABELLED),
    }

# What is read at once, without a thread: larger bodies take more than two milliseconds, which other
# callers should not wait for. A thread of its own takes twice the time of the processor, because
# NumPy gives the interpreter away for each small step and has to wait until it gets it back.
INLINE_BYTES = {NDJSON: 256 * 1024, ARROW: 1024 * 1024, PARQUET: 64 * 1024}

_FILE = {"type": "string", "format": "binary"}
SCHEMAS: dict[str, Any] = {
    JSON: json_format.Body,
    NDJSON: json_format.Row,
    ARROW: _FILE,
    PARQUET: _FILE,
}
TABLES: dict[str, Any] = {ARROW: _FILE, PARQUET: _FILE}


def media_type(content_type: str | None) -> str:
    """A content type without its parameters; JSON where none is given.

    >>> media_type("Application/JSON; charset=utf-8")
    'application/json'
    """
    return (content_type or JSON).partition(";")[0].strip().lower()


def is_in_parts(media: str) -> bool:
    """Whether bodies of a media type are read in parts; raises for one that nobody reads."""
    return parts_of(media, IN_PARTS, SCHEMAS) is not None


def parts_of(media: str, readers: Mapping[str, Parts], known: Collection[str]) -> Parts | None:
    """What reads a body in parts, None for JSON; raises for a media type that nobody reads."""
    if media in readers:
        return readers[media]
    if media == JSON:
        return None
    if media in known:
        raise UnsupportedMedia(f"content type {media!r} needs the extra `formats` on the server")
    names = ", ".join(known)
    raise UnsupportedMedia(f"content type {media!r} is not known; use one of: {names}")
