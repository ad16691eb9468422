"""Formats of a batch by content type: a new one joins by adding a line here."""

from typing import Any, Protocol

from app.errors import UnsupportedMedia
from app.ingest import json_format
from app.ingest.columns import Columns


class Parser(Protocol):
    def __call__(self, content: bytes, labels: tuple[str, ...], *, skip: bool) -> Columns: ...


PARSERS: dict[str, Parser] = {"application/json": json_format.parse}
SCHEMAS: dict[str, Any] = {"application/json": json_format.Body}


def media_type(content_type: str | None) -> str:
    """A content type without its parameters; JSON where none is given.

    >>> media_type("Application/JSON; charset=utf-8")
    'application/json'
    """
    return (content_type or "application/json").partition(";")[0].strip().lower()


def parser(content_type: str | None) -> Parser:
    """The parser for a content type."""
    media = media_type(content_type)
    if media not in PARSERS:
        known = ", ".join(sorted(PARSERS))
        raise UnsupportedMedia(f"content type {media!r} is not known; use one of: {known}")
    return PARSERS[media]
