"""A batch as columns, whatever format it came in.

What is made for every batch is a msgspec struct: making a frozen dataclass takes ten times as long.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import MappingProxyType
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from app.errors import Flaw, TooLarge, Unavailable

Field = Literal["predicted", "probabilities", "timestamp", "id", "actual"]

# Stands in a column of times for "none given": the moment of arrival counts.
NO_TIME = np.iinfo(np.int64).min


def column_pointer(name: Field | None, record: int) -> str:
    """Where a field of a record stands in a body of columns."""
    columns = {"timestamp": "timestamps", "id": "ids", None: "predicted"}
    return f"#/{columns.get(name, name)}/{record}"


def row_pointer(name: Field | None, record: int) -> str:
    """Where a field of a record, or all of the record, stands in a body of rows."""
    return f"#/rows/{record}" if name is None else f"#/rows/{record}/{name}"


def element_pointer(name: Field | None, record: int) -> str:
    """Where a field of a record stands in a body that is an array of records."""
    return f"#/{record}" if name is None else f"#/{record}/{name}"


def after(
    pointer: Callable[[Field | None, int], str], before: int
) -> Callable[[Field | None, int], str]:
    """Where it stands for records of a part that comes after so many others."""
    return lambda name, record: pointer(name, before + record)


class Coded(Struct, frozen=True, eq=False):
    """A column of labels as positions in a list of those that occur, -1 where there is none."""

    codes: NDArray[np.integer]
    values: Sequence[str | int]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, record: int) -> str | int | None:
        code = int(self.codes[record])
        return None if code < 0 else self.values[code]

    def tally(self) -> NDArray[np.int64]:
        """How many records have no label, and how many have each."""
        return np.bincount(self.codes + 1, minlength=len(self.values) + 1)


class Matrix(Struct, frozen=True, eq=False):
    """A column of softmax rows, all of the same width; `given` says which records have one."""

    values: NDArray[np.float64]
    given: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, record: int) -> Sequence[float] | None:
        row: list[float] = self.values[record].tolist()
        return row if self.given[record] else None


class Columns(Struct, frozen=True, eq=False):
    """`size` records; a column that was not given is None, and so is a cell that a record lacks.

    `times` are microseconds since the epoch, one for all records or one each. `flaws` are records
    that the format's parser had to give up, by position. `actual` are true labels, which only the
    records of a reference have.
    """

    size: int
    predicted: Sequence[str | int | None] | Coded | None = None
    rows: Sequence[Sequence[float] | None] | Matrix | None = None
    times: NDArray[np.int64] | None = None
    ids: Sequence[str | None] | None = None
    version: str | None = None
    key: str | None = None
    flaws: Mapping[int, Flaw] = MappingProxyType({})
    pointer: Callable[[Field | None, int], str] = column_pointer
    actual: Sequence[str | int | None] | Coded | None = None


def refuse_too_many(rows: int, most_rows: int) -> None:
    if rows > most_rows:
        raise TooLarge(f"the body has more than {most_rows} records", most_rows)


@contextmanager
def no_room() -> Iterator[None]:
    """Around what writes a body to a file: a full disk is nothing that the client did."""
    try:
        yield
    except OSError as error:
        raise Unavailable(
            f"there is no room to receive the body ({error.strerror}); send smaller ones"
        ) from None


def microseconds(times: Sequence[datetime]) -> NDArray[np.int64]:
    """Aware datetimes as microseconds since the epoch."""
    seconds = np.fromiter(map(datetime.timestamp, times), np.float64, len(times))
    # Doubles hold today's seconds to a quarter of a microsecond, so rounding is exact.
    return np.rint(seconds * 1e6).astype(np.int64)
