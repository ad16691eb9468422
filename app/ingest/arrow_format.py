"""Batches as tables: Arrow streams and Parquet files, a slice of rows at a time.

What comes in was written by anybody. So buffers are validated before they are read, and nothing is
taken at its word that could make us allocate much more than a slice.
"""

import io
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from shutil import copyfileobj
from typing import IO, Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from app.errors import Flaw, InvalidInput, Malformed, TooLarge, escaped
from app.ingest import flatbuffer
from app.ingest.columns import (
    NO_TIME,
    Coded,
    Columns,
    Matrix,
    after,
    column_pointer,
    no_room,
    refuse_too_many,
)
from app.ingest.json_format import MOST_CHARACTERS

# How much is looked at together: small enough that a dozen requests of this kind fit into memory.
SLICE_ROWS = 65_536
SLICE_CELLS = 250_000
# The largest message of a stream that does not fit into memory itself.
MESSAGE_BYTES = 64 * 1024 * 1024
# What a decompressed body may take of the memory before it goes to a file.
MEMORY_BYTES = 4 * 1024 * 1024
READ_BYTES = 1024 * 1024
# Of what a file says of itself: the longest name, and columns times row groups.
THRIFT_BYTES, THRIFT_ITEMS = 1_000_000, 100_000

COLUMNS = ("predicted", "probabilities", "timestamp", "id")
# Those of a reference, which needs the last.
LABELLED = ("predicted", "probabilities", "actual")


def stream_parts(
    source: IO[bytes],
    labels: tuple[str, ...] = (),
    *,
    skip: bool,
    most_rows: int,
    columns: tuple[str, ...] = COLUMNS,
) -> Iterator[Columns]:
    """The columns of an Arrow IPC stream."""
    del skip  # what is wrong with a cell is found where all formats are looked at
    with _seekable(source) as body, _refusing("Arrow stream"):
        _refuse_compressed(body)
        body.seek(0)
        with pa.ipc.open_stream(_opened(body)) as reader:
            _refuse_schema(reader.schema, columns)
            yield from _parts(reader, labels, most_rows)


def parquet_parts(
    source: IO[bytes],
    labels: tuple[str, ...] = (),
    *,
    skip: bool,
    most_rows: int,
    columns: tuple[str, ...] = COLUMNS,
) -> Iterator[Columns]:
    """The columns of a Parquet file, which can only be read when all of it is there."""
    del skip
    with _seekable(source) as body, _refusing("Parquet file"):
        file = _parquet(body)
        refuse_too_many(file.metadata.num_rows, most_rows)
        _refuse_schema(file.schema_arrow, columns)
        names = [name for name in file.schema_arrow.names if name in ("predicted", "actual")]
        if names:
            # Once more, now that we know of columns that are quicker to read by their dictionaries.
            file = _parquet(body, metadata=file.metadata, read_dictionary=names)
        batches = file.iter_batches(_slice_rows(file.schema_arrow, labels), use_threads=False)
        yield from _parts(batches, labels, most_rows)


def _parquet(body: IO[bytes], **options: Any) -> Any:
    return pq.ParquetFile(
        body,
        buffer_size=READ_BYTES,
        pre_buffer=False,
        thrift_string_size_limit=THRIFT_BYTES,
        thrift_container_size_limit=THRIFT_ITEMS,
        **options,
    )


@contextmanager
def _refusing(kind: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        # Its first line: what follows is where in pyarrow it was noticed.
        said = str(error).partition("\n")[0]
        raise Malformed(f"the body is not a valid {kind}: {said}") from None


@contextmanager
def _seekable(source: IO[bytes]) -> Iterator[IO[bytes]]:
    """The source, or a copy of it where it can only be read onwards."""
    if source.seekable():
        yield source
        return
    with tempfile.SpooledTemporaryFile(MEMORY_BYTES) as copy:
        with no_room():
            copyfileobj(source, copy)
            copy.seek(0)
        yield copy


def _opened(body: IO[bytes]) -> Any:
    """For pyarrow: what is in memory stays where it is."""
    if isinstance(body, io.BytesIO):
        return pa.BufferReader(body.getvalue())  # its own bytes, not a copy
    return pa.PythonFile(_Messages(body), mode="r")


class _Messages:
    """A file for pyarrow, which asks for a message at a time and believes what the stream says."""

    closed = False

    def __init__(self, body: IO[bytes]) -> None:
        self._body = body

    def read(self, size: int) -> bytes:
        if size > MESSAGE_BYTES:
            raise TooLarge(
                f"a record batch has {size} bytes; in so large a body the most is {MESSAGE_BYTES}",
                MESSAGE_BYTES,
            )
        return self._body.read(size)

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """The body is whoever's made it."""


def _refuse_compressed(body: IO[bytes]) -> None:
    for message in pa.ipc.MessageReader.open_stream(_opened(body)):
        if flatbuffer.is_compressed(message.metadata.to_pybytes()):
            raise Malformed(
                "the buffers of the Arrow stream are compressed; "
                "compress the body instead, with `Content-Encoding: zstd`"
            )


def _refuse_schema(schema: Any, columns: tuple[str, ...]) -> None:
    """Refuse what no record of the table could mend."""
    for name in schema.names:
        if name not in columns:
            known = ", ".join(columns)
            raise InvalidInput(f"unknown column {name!r}; known are: {known}", f"#/{escaped(name)}")
        if schema.names.count(name) > 1:
            raise InvalidInput(f"the column {name!r} is there twice", f"#/{name}")
        kind = schema.field(name).type
        if not _TYPES[name](kind):
            raise InvalidInput(f"is of type {kind}, but {_WANTED[name]}", f"#/{name}")
    if "predicted" not in schema.names and "probabilities" not in schema.names:
        raise InvalidInput("a table needs a column `predicted` or `probabilities`", "#")
    if "actual" in columns and "actual" not in schema.names:
        raise InvalidInput("the table of a reference needs a column `actual`", "#")


def _is_text(kind: Any) -> bool:
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(is_one(kind) for is_one in (*texts, pa.types.is_null))


def _is_label(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_label(kind.value_type)
    return _is_text(kind) or pa.types.is_integer(kind)


def _is_row(kind: Any) -> bool:
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if any(is_one(kind) for is_one in lists):
        return bool(pa.types.is_floating(kind.value_type))
    return bool(pa.types.is_null(kind))


def _is_moment(kind: Any) -> bool:
    if pa.types.is_timestamp(kind):
        return kind.tz is not None
    return bool(pa.types.is_null(kind))


_TYPES = {
    "predicted": _is_label,
    "probabilities": _is_row,
    "timestamp": _is_moment,
    "id": _is_text,
    "actual": _is_label,
}
_LABELS = "must hold labels by name or position: strings, integers, or a dictionary of them"
_WANTED = {
    "predicted": _LABELS,
    "actual": _LABELS,
    "probabilities": "must hold lists of floating-point numbers",
    "timestamp": "must hold timestamps with a time zone",
    "id": "must hold strings",
}


def _slice_rows(schema: Any, labels: tuple[str, ...]) -> int:
    if "probabilities" not in schema.names:
        return SLICE_ROWS
    return min(SLICE_ROWS, max(1, SLICE_CELLS // max(1, len(labels))))


def _parts(batches: Iterable[Any], labels: tuple[str, ...], most_rows: int) -> Iterator[Columns]:
    before = 0
    for batch in _slices(batches, labels):
        refuse_too_many(before + batch.num_rows, most_rows)
        yield _columns(batch, len(labels), before)
        before += batch.num_rows


def _slices(batches: Iterable[Any], labels: tuple[str, ...]) -> Iterator[Any]:
    """The same rows, however they were batched: a slice at a time, and a last one.

    A body of very small batches would take very long, and one large one much memory.
    """
    gathered: list[Any] = []
    rows = 0
    for batch in batches:
        batch.validate(full=True)
        if not batch.num_rows:
            continue
        gathered.append(batch)
        rows += batch.num_rows
        most = _slice_rows(batch.schema, labels)
        if rows < most:
            continue
        whole = _joined(gathered)
        full = rows - rows % most
        for first in range(0, full, most):
            yield whole.slice(first, most)
        gathered, rows = ([whole.slice(full)], rows - full) if full < rows else ([], 0)
    if gathered:
        yield _joined(gathered)


def _joined(batches: Sequence[Any]) -> Any:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _columns(batch: Any, k: int, before: int) -> Columns:
    given = {
        name: batch.column(name)
        for name in batch.schema.names
        if not pa.types.is_null(batch.schema.field(name).type)
    }
    ids = given.get("id")
    return Columns(
        size=batch.num_rows,
        predicted=_labels(given["predicted"], k) if "predicted" in given else None,
        rows=_rows(given["probabilities"], k) if "probabilities" in given else None,
        times=_times(given["timestamp"]) if "timestamp" in given else None,
        ids=None if ids is None else Texts(ids),
        flaws={} if ids is None else _flaws_of_ids(ids, before),
        pointer=after(column_pointer, before),
        actual=_labels(given["actual"], k) if "actual" in given else None,
    )


def _labels(column: Any, k: int) -> Coded:
    if pa.types.is_dictionary(column.type):
        # One that is longer than the column was made for all of a file, and one with a null in it
        # would need a second look at every record.
        if len(column.dictionary) > len(column) or column.dictionary.null_count:
            return _labels(column.dictionary_decode(), k)
        codes = pc.fill_null(column.indices.cast(pa.int64()), -1)
        return Coded(codes.to_numpy(), column.dictionary.to_pylist())
    if pa.types.is_integer(column.type):
        return _positions(column, k)
    return _labels(column.dictionary_encode(), k)


def _positions(column: Any, k: int) -> Coded:
    missing = column.is_null().to_numpy(zero_copy_only=False)
    numbers = pc.fill_null(column, 0).to_numpy()
    if numbers.min() >= 0 and numbers.max() < k:
        codes = numbers.astype(np.int64)
        values: Sequence[int] = range(k)
    else:
        found, codes = np.unique(numbers, return_inverse=True)
        values = found.tolist()
    return Coded(np.where(missing, -1, codes), values)


def _rows(column: Any, k: int) -> Matrix | list[list[float] | None]:
    """As a matrix; as lists, for what is to be said about them, if some row has not `k` entries."""
    if _is_dense(column, k):
        values = column.values.slice(column.offset * k, len(column) * k)
        return Matrix(_floats(values).reshape(-1, k), np.ones(len(column), dtype=bool))
    given = column.is_valid().to_numpy(zero_copy_only=False)
    begins, lengths = _extents(column)
    if (lengths[given] != k).any():
        rows: list[list[float] | None] = column.to_pylist()
        return [None if row is None else _numbers(row) for row in rows]
    if len(given) and given.all():
        values = _floats(column.values.slice(int(begins[0]), len(column) * k))
        return Matrix(values.reshape(-1, k), given)
    matrix = np.full((len(column), k), np.nan)
    matrix[given] = _floats(column.values)[begins[given, None] + np.arange(k)]
    return Matrix(matrix, given)


def _is_dense(column: Any, k: int) -> bool:
    """Whether it is a matrix already, which most are."""
    fixed = pa.types.is_fixed_size_list(column.type)
    return fixed and column.type.list_size == k and not column.null_count


def _numbers(row: Sequence[float | None]) -> list[float]:
    return [np.nan if one is None else one for one in row]


def _extents(column: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each row begins among the values, and how long it is."""
    if pa.types.is_fixed_size_list(column.type):
        width = column.type.list_size
        begins = (column.offset + np.arange(len(column))) * width
        return begins, np.full(len(column), width)
    offsets = column.offsets.to_numpy().astype(np.int64)
    return offsets[:-1], np.diff(offsets)


def _floats(values: Any) -> NDArray[np.float64]:
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.float64)


def _times(column: Any) -> NDArray[np.int64]:
    """Microseconds; finer ones are cut off, and what does not fit into them is refused."""
    finer = column.type.unit == "ns"
    micros = pc.cast(column, pa.timestamp("us", tz=column.type.tz), safe=not finer)
    times: NDArray[np.int64] = pc.fill_null(micros.cast(pa.int64()), NO_TIME).to_numpy()
    return times


class Texts(Sequence[str | None]):
    """A column of strings, which are made only if somebody wants to have them."""

    def __init__(self, column: Any) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    @overload
    def __getitem__(self, place: int) -> str | None: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[str | None]: ...

    def __getitem__(self, place: int | slice) -> str | Sequence[str | None] | None:
        if isinstance(place, slice):
            return Texts(self._column[place])
        found: str | None = self._column[place].as_py()
        return found

    def __iter__(self) -> Iterator[str | None]:
        return iter(self._column.to_pylist())


def _flaws_of_ids(column: Any, before: int) -> dict[int, Flaw]:
    """What JSON's decoder refuses too: an empty id, a very long one, one with a NUL in it."""
    length = pc.utf8_length(column)
    wrong = pc.or_(
        pc.or_(pc.equal(length, 0), pc.greater(length, MOST_CHARACTERS)),
        pc.match_substring(column, "\x00"),
    )
    found = np.flatnonzero(pc.fill_null(wrong, False).to_numpy(zero_copy_only=False)).tolist()
    detail = f"must have 1 to {MOST_CHARACTERS} characters, none of them NUL"
    return {record: Flaw(detail, column_pointer("id", before + record)) for record in found}
