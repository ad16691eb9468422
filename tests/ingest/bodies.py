"""The same predictions as a body of every format."""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from app.ingest import formats
from tests.factories import LABELS


@dataclass(frozen=True)
class Prediction:
    predicted: str | int | None = None
    probabilities: tuple[float, ...] | None = None
    timestamp: datetime | None = None
    id: str | None = None

    def as_json(self) -> dict[str, Any]:
        own: dict[str, Any] = {
            "predicted": self.predicted,
            "probabilities": self.probabilities,
            "timestamp": self.timestamp and self.timestamp.isoformat(),
            "id": self.id,
        }
        return {name: value for name, value in own.items() if value is not None}


Predictions = Sequence[Prediction]


def json_rows(some: Predictions) -> bytes:
    return json.dumps({"rows": [one.as_json() for one in some]}).encode()


def ndjson(some: Predictions) -> bytes:
    return b"".join(json.dumps(one.as_json()).encode() + b"\n" for one in some)


def table(some: Predictions, rows: Any = None, labels: Any = None) -> pa.Table:
    """Labels that are partly names and partly positions cannot stand in one column: names."""
    columns = {
        "predicted": pa.array([one.predicted for one in some], labels or pa.string()),
        "probabilities": pa.array(
            [one.probabilities for one in some], rows or pa.list_(pa.float64())
        ),
        "timestamp": pa.array([one.timestamp for one in some], pa.timestamp("us", tz="UTC")),
        "id": pa.array([one.id for one in some], pa.string()),
    }
    return pa.table(columns)


def stream(whole: pa.Table, rows_a_batch: int | None = None, **options: Any) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, whole.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(whole, max_chunksize=rows_a_batch)
    return sink.getvalue()


def parquet(whole: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(whole, sink, **options)
    return sink.getvalue()


WAYS: dict[str, tuple[str, Callable[[Predictions], bytes]]] = {
    "NDJSON": (formats.NDJSON, lambda some: ndjson(some)),
    "Arrow": (formats.ARROW, lambda some: stream(table(some))),
    "Arrow, small batches": (formats.ARROW, lambda some: stream(table(some), 3)),
    "Arrow, rows of a fixed size": (
        formats.ARROW,
        lambda some: stream(table(some, pa.list_(pa.float64(), len(LABELS))), 5),
    ),
    "Arrow, dictionary": (
        formats.ARROW,
        lambda some: stream(
            table(some, labels=pa.dictionary(pa.int8(), pa.string())), 4, unify_dictionaries=True
        ),
    ),
    "Parquet": (formats.PARQUET, lambda some: parquet(table(some))),
    "Parquet, small row groups": (
        formats.PARQUET,
        lambda some: parquet(table(some), row_group_size=4, compression="zstd"),
    ),
    "Parquet, plain": (
        formats.PARQUET,
        lambda some: parquet(table(some, pa.large_list(pa.float64())), use_dictionary=False),
    ),
}
