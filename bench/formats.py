"""The same batch in every format that ingest takes, and how each is to be sent."""

import gzip
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.stats.moments import Floats
from bench.family import LABELS, labels

JSON = "application/json"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
PARQUET = "application/vnd.apache.parquet"


@dataclass(frozen=True, slots=True)
class Format:
    """How a batch of some size is written, and what is said of it in the headers.

    `soft` batches have softmax rows and no labels. With `keyed`, each request has its own key.
    """

    write: Callable[[int], bytes]
    content_type: str = JSON
    encoding: str | None = None
    soft: bool = False
    keyed: bool = False

    @property
    def headers(self) -> dict[str, str]:
        encoding = {} if self.encoding is None else {"content-encoding": self.encoding}
        return {"content-type": self.content_type, **encoding}


@lru_cache(maxsize=8)
def rows(size: int) -> Floats:
    """Softmax rows, most of them rather sure of a label."""
    logits = np.random.default_rng(size).normal(scale=2.0, size=(size, len(LABELS)))
    odds = np.exp(logits)
    return np.asarray(odds / odds.sum(axis=1, keepdims=True))


def json_columns(size: int) -> bytes:
    return _json({"predicted": labels(size)})


def json_softmax(size: int) -> bytes:
    return _json({"probabilities": rows(size).tolist()})


def json_rows(size: int) -> bytes:
    return _json({"rows": [{"predicted": label} for label in labels(size)]})


def ndjson(size: int) -> bytes:
    return b"".join(_json({"predicted": label}) + b"\n" for label in labels(size))


def gzipped(size: int) -> bytes:
    return gzip.compress(json_columns(size), mtime=0)


def zstd(size: int) -> bytes:
    return bytes(pa.compress(json_columns(size), codec="zstd", asbytes=True))


def arrow_labels(size: int) -> bytes:
    return _stream(pa.table({"predicted": pa.array(labels(size)).dictionary_encode()}))


def arrow_softmax(size: int) -> bytes:
    return _stream(_softmax_table(size))


def parquet_softmax(size: int) -> bytes:
    sink = io.BytesIO()
    pq.write_table(_softmax_table(size), sink)
    return sink.getvalue()


FORMATS = {
    "json": Format(json_columns),
    "json-softmax": Format(json_softmax, soft=True),
    "json-rows": Format(json_rows),
    "json-gzip": Format(gzipped, encoding="gzip"),
    "json-zstd": Format(zstd, encoding="zstd"),
    "json-keyed": Format(json_columns, keyed=True),
    "ndjson": Format(ndjson, NDJSON),
    "arrow": Format(arrow_labels, ARROW),
    "arrow-softmax": Format(arrow_softmax, ARROW, soft=True),
    "parquet-softmax": Format(parquet_softmax, PARQUET, soft=True),
}


def _json(value: object) -> bytes:
    # As most clients write it: Python's json puts a space after each comma and colon.
    return json.dumps(value).encode()


def _softmax_table(size: int) -> pa.Table:
    flat = pa.array(rows(size).ravel())
    return pa.table({"probabilities": pa.FixedSizeListArray.from_arrays(flat, len(LABELS))})


def _stream(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()
