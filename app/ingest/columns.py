"""A batch as columns, whatever format it came in."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.errors import Flaw

Field = Literal["predicted", "probabilities", "timestamp", "id"]

# Stands in a column of times for "none given": the moment of arrival counts.
NO_TIME = np.iinfo(np.int64).min


def column_pointer(name: Field | None, record: int) -> str:
    """Where a field of a record stands in a body of columns."""
    columns = {"timestamp": "timestamps", "id": "ids", None: "predicted"}
    return f"#/{columns.get(name, name)}/{record}"


def row_pointer(name: Field | None, record: int) -> str:
    """Where a field of a record, or all of the record, stands in a body of rows."""
    return f"#/rows/{record}" if name is None else f"#/rows/{record}/{name}"


@dataclass(frozen=True, slots=True)
class Columns:
    """`size` records; a column that was not given is None, and so is a cell that a record lacks.

    `times` are microseconds since the epoch, one for all records or one each. `flaws` are records
    that the format's parser had to give up, by position.
    """

    size: int
    predicted: Sequence[str | int | None] | None = None
    rows: Sequence[Sequence[float] | None] | None = None
    times: NDArray[np.int64] | None = None
    ids: Sequence[str | None] | None = None
    version: str | None = None
    key: str | None = None
    flaws: Mapping[int, Flaw] = field(default_factory=dict)
    pointer: Callable[[Field | None, int], str] = column_pointer


def microseconds(times: Sequence[datetime]) -> NDArray[np.int64]:
    """Aware datetimes as microseconds since the epoch."""
    seconds = np.fromiter(map(datetime.timestamp, times), np.float64, len(times))
    # Doubles hold today's seconds to a quarter of a microsecond, so rounding is exact.
    return np.rint(seconds * 1e6).astype(np.int64)
