"""NumPy arrays to and from PostgreSQL's `bigint[]` and `double precision[]`.

psycopg adapts lists element by element; a pane of a thousand labels holds fourteen thousand
numbers, and a window reads many panes. One array operation does for all of them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from psycopg import Connection
from psycopg.abc import Buffer
from psycopg.adapt import Dumper, Loader, PyFormat
from psycopg.pq import Format
from sqlalchemy.types import UserDefinedType

BIGINT_OID, BIGINT_ARRAY_OID = 20, 1016
DOUBLE_OID, DOUBLE_ARRAY_OID = 701, 1022


class BigInts(UserDefinedType[NDArray[np.int64]]):
    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "BIGINT[]"


class Doubles(UserDefinedType[NDArray[np.float64]]):
    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "DOUBLE PRECISION[]"


class _ArrayDumper(Dumper):
    """PostgreSQL's binary array: a header, then each element behind its length in bytes."""

    format = Format.BINARY
    element_oid: int
    big_endian: str

    def dump(self, obj: NDArray[Any]) -> Buffer:
        dimensions = [1, 0, self.element_oid, len(obj), 1] if len(obj) else [0, 0, self.element_oid]
        body = np.empty(len(obj), dtype=[("size", ">i4"), ("value", self.big_endian)])
        body["size"] = 8
        body["value"] = obj
        return np.array(dimensions, dtype=">i4").tobytes() + body.tobytes()


class _BigIntsDumper(_ArrayDumper):
    oid, element_oid, big_endian = BIGINT_ARRAY_OID, BIGINT_OID, ">i8"


class _DoublesDumper(_ArrayDumper):
    oid, element_oid, big_endian = DOUBLE_ARRAY_OID, DOUBLE_OID, ">f8"


class _AnyArrayDumper(Dumper):
    """Chooses by the array's element type, which psycopg does not look at."""

    format = Format.BINARY

    def get_key(self, obj: NDArray[Any], _format: PyFormat) -> Any:
        return (self.cls, obj.dtype.kind)

    def upgrade(self, obj: NDArray[Any], _format: PyFormat) -> Dumper:
        return (_DoublesDumper if obj.dtype.kind == "f" else _BigIntsDumper)(self.cls)

    def dump(self, obj: NDArray[Any]) -> Buffer:
        raise NotImplementedError("psycopg calls upgrade() first")


class _ArrayLoader(Loader):
    dtype: type[np.generic]

    def load(self, data: Buffer) -> NDArray[Any]:
        inside = bytes(data)[1:-1]
        # NULL never comes: CHECKs keep it out of every array column.
        return np.array(inside.split(b",") if inside else [], dtype=self.dtype)


class _BigIntsLoader(_ArrayLoader):
    dtype = np.int64


class _DoublesLoader(_ArrayLoader):
    dtype = np.float64


# What stands before the elements of an array of one dimension, and of one that is empty.
_HEADER_BYTES, _EMPTY_BYTES = 20, 12


class _BinaryArrayLoader(Loader):
    """The inverse of the dumper: no text in between, which for a window of panes is most of it."""

    format = Format.BINARY
    big_endian: str
    dtype: type[np.generic]

    def load(self, data: Buffer) -> NDArray[Any]:
        if len(data) <= _EMPTY_BYTES:
            return np.zeros(0, dtype=self.dtype)
        element = np.dtype([("size", ">i4"), ("value", self.big_endian)])
        return np.frombuffer(data, element, offset=_HEADER_BYTES)["value"].astype(self.dtype)


class _BinaryBigIntsLoader(_BinaryArrayLoader):
    big_endian, dtype = ">i8", np.int64


class _BinaryDoublesLoader(_BinaryArrayLoader):
    big_endian, dtype = ">f8", np.float64


def register(connection: "Connection[Any]") -> None:
    """Teach one connection both ways."""
    connection.adapters.register_dumper(np.ndarray, _AnyArrayDumper)
    connection.adapters.register_loader(BIGINT_ARRAY_OID, _BigIntsLoader)
    connection.adapters.register_loader(BIGINT_ARRAY_OID, _BinaryBigIntsLoader)
    connection.adapters.register_loader(DOUBLE_ARRAY_OID, _DoublesLoader)
    connection.adapters.register_loader(DOUBLE_ARRAY_OID, _BinaryDoublesLoader)
