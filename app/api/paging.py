"""Cursors: opaque to the caller, the sort key of the last item to us."""

import base64
import json
from typing import Annotated, Any

from fastapi import Query

from app.errors import Flaw, InvalidInput

Limit = Annotated[int, Query(ge=1, le=1000, description="how many items at the most")]
Cursor = Annotated[str | None, Query(description="`next` of the page before")]


def encode(*key: Any) -> str:
    """
    >>> decode(encode("fraud", 3), 2)
    ['fraud', 3]
    """
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def decode(cursor: str | None, size: int) -> list[Any] | None:
    """The sort key inside, of `size` parts; None at the beginning."""
    if cursor is None:
        return None
    try:
        key = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except ValueError:
        key = None
    if not isinstance(key, list) or len(key) != size:
        detail = "is not a cursor of this list"
        raise InvalidInput(f"cursor {detail}", flaws=[Flaw(detail, parameter="cursor")])
    return key
