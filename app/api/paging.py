"""Cursors: opaque to the caller, the sort key of the last item to us."""

import base64
import json
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Query

from app.errors import InvalidInput, wrong_parameter

Limit = Annotated[int, Query(ge=1, le=1000, description="how many items at the most")]
Cursor = Annotated[str | None, Query(description="`next` of the page before")]


def by_name(name: str) -> str:
    """
    >>> name_in(by_name("fraud"))
    'fraud'
    """
    return _encode(name)


def by_time(at: datetime, name: str) -> str:
    """
    >>> time_in(by_time(datetime(2026, 11, 17, tzinfo=UTC), "v1"))
    (datetime.datetime(2026, 11, 17, 0, 0, tzinfo=datetime.timezone.utc), 'v1')
    """
    return _encode(at.isoformat(), name)


def name_in(cursor: str | None) -> str | None:
    """Where a list by name goes on; None at its beginning."""
    return None if cursor is None else _name(_decode(cursor, 1)[0])


def time_in(cursor: str | None) -> tuple[datetime, str] | None:
    """Where a list by time and name goes on; None at its beginning."""
    if cursor is None:
        return None
    at, name = _decode(cursor, 2)
    try:
        moment = datetime.fromisoformat(at)
    except (TypeError, ValueError):
        raise _foreign() from None
    return moment.astimezone(UTC), _name(name)


def by_place(at: datetime, number: int) -> str:
    """
    >>> place_in(by_place(datetime(2026, 11, 17, tzinfo=UTC), 2))
    (datetime.datetime(2026, 11, 17, 0, 0, tzinfo=datetime.timezone.utc), 2)
    """
    return by_time(at, str(number))


def place_in(cursor: str | None) -> tuple[datetime, int] | None:
    """Where a list by time and number goes on; None at its beginning."""
    found = time_in(cursor)
    if found is None:
        return None
    at, number = found
    if not number.isdecimal():
        raise _foreign()
    return at, int(number)


def by_number(number: int) -> str:
    """
    >>> number_in(by_number(7))
    7
    """
    return by_name(str(number))


def number_in(cursor: str | None) -> int | None:
    """Where a list by number goes on; None at its beginning."""
    found = name_in(cursor)
    if found is None:
        return None
    if not found.isdecimal():
        raise _foreign()
    return int(found)


def _encode(*key: str) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def _decode(cursor: str, size: int) -> list[Any]:
    try:
        key = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except ValueError:
        raise _foreign() from None
    if not isinstance(key, list) or len(key) != size:
        raise _foreign()
    return key


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise _foreign()
    return value


def _foreign() -> InvalidInput:
    return wrong_parameter("cursor", "is not a cursor of this list")
