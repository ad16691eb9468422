"""How much memory does a large body take? Five million predictions in one request, by format.

`python -m bench.stream [--rows 5000000]` prints what the server takes at its peak, how long it
takes, and what it takes while it is idle; writes bench/results/stream.json.
"""

import argparse
import http.client
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.ingest import formats
from bench import family

PIECE_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Streamed:
    body: str
    megabytes: float
    seconds: float
    predictions_per_second: float
    idle_megabytes: float
    peak_megabytes: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    rows = parser.parse_args().rows
    found = []
    print(f"{'body':24} {'MB':>7} {'seconds':>8} {'1/s':>11} {'idle MB':>8} {'peak MB':>8}")
    for name, (media, write) in BODIES.items():
        with family.database() as url, family.process(url) as server:
            family.register(server)
            one = _send(server, name, media, write, rows)
        print(
            f"{name:24} {one.megabytes:7.1f} {one.seconds:8.2f} {one.predictions_per_second:11,.0f}"
            f" {one.idle_megabytes:8.1f} {one.peak_megabytes:8.1f}",
            flush=True,
        )
        found.append(asdict(one))
    place = Path("bench/results/stream.json")
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps(found, indent=2))


def _send(
    server: family.Running,
    name: str,
    media: str,
    write: Callable[[IO[bytes], int], None],
    rows: int,
) -> Streamed:
    with tempfile.TemporaryFile() as file:
        write(file, rows)
        size = file.tell()
        file.seek(0)
        idle = server.rss_megabytes()
        began = time.monotonic()
        answer = _post(server.predictions, file, size, media)
        took = time.monotonic() - began
    if answer["accepted"] != rows:
        raise SystemExit(f"{name}: {answer} instead of {rows} accepted")
    peak = server.peak_megabytes()
    return Streamed(name, size / 1e6, took, rows / took, idle, peak)


def _post(url: str, file: IO[bytes], size: int, media: str) -> Any:
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=600)
    headers = {"Content-Type": media, "Content-Length": str(size)}
    connection.request("POST", place.path, file, headers)
    return json.load(connection.getresponse())


def _pieces(rows: int) -> list[int]:
    whole, rest = divmod(rows, PIECE_ROWS)
    return [PIECE_ROWS] * whole + ([rest] if rest else [])


def _labels(rng: np.random.Generator, rows: int) -> pa.Array:
    codes = pa.array(rng.integers(0, len(family.LABELS), rows), pa.int8())
    return pa.DictionaryArray.from_arrays(codes, pa.array(family.LABELS)).cast(pa.string())


def _softmax(rng: np.random.Generator, rows: int) -> pa.Array:
    values = rng.exponential(size=(rows, len(family.LABELS))) ** 3
    values /= values.sum(axis=1, keepdims=True)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), len(family.LABELS))


def _batches(rows: int, soft: bool) -> Any:
    rng = np.random.default_rng(1)
    make = _softmax if soft else _labels
    name = "probabilities" if soft else "predicted"
    return (pa.record_batch({name: make(rng, size)}) for size in _pieces(rows))


def _parquet(soft: bool) -> Callable[[IO[bytes], int], None]:
    def write(file: IO[bytes], rows: int) -> None:
        writer = None
        for batch in _batches(rows, soft):
            writer = writer or pq.ParquetWriter(file, batch.schema)
            writer.write_batch(batch, row_group_size=1_000_000)
        if writer is not None:
            writer.close()

    return write


def _arrow(soft: bool) -> Callable[[IO[bytes], int], None]:
    def write(file: IO[bytes], rows: int) -> None:
        first = next(iter(_batches(1, soft)))
        with pa.ipc.new_stream(file, first.schema) as writer:
            for batch in _batches(rows, soft):
                writer.write_batch(batch)

    return write


def _ndjson(file: IO[bytes], rows: int) -> None:
    for batch in _batches(rows, soft=False):
        labels = batch.column(0).to_pylist()
        file.write(b"".join(b'{"predicted":"%b"}\n' % one.encode() for one in labels))


BODIES: dict[str, tuple[str, Callable[[IO[bytes], int], None]]] = {
    "Parquet, hard": (formats.PARQUET, _parquet(soft=False)),
    "Parquet, softmax of 10": (formats.PARQUET, _parquet(soft=True)),
    "Arrow, hard": (formats.ARROW, _arrow(soft=False)),
    "Arrow, softmax of 10": (formats.ARROW, _arrow(soft=True)),
    "NDJSON, hard": (formats.NDJSON, _ndjson),
}


if __name__ == "__main__":
    main()
