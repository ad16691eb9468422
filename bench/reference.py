"""How much memory does a large reference take? 50,000 softmax rows of a thousand labels.

`python -m bench.reference [--rows 50000] [--labels 1000] [--body NAME]` prints what the server
takes at its peak while it reads, diagnoses and stores them, and how long that takes; writes
bench/results/reference.json.
"""

import argparse
import http.client
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.ingest import formats
from bench import family

PIECE_ROWS = 5000


@dataclass(frozen=True, slots=True)
class Stored:
    body: str
    megabytes: float
    seconds: float
    idle_megabytes: float
    peak_megabytes: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--labels", type=int, default=1000)
    parser.add_argument("--body", choices=BODIES)
    asked = parser.parse_args()
    found = []
    print(f"{'body':24} {'MB':>7} {'seconds':>8} {'idle MB':>8} {'peak MB':>8}")
    for name in [asked.body] if asked.body else BODIES:
        with family.database() as url, family.process(url) as server:
            one = _measured(server, name, asked.rows, asked.labels)
        print(
            f"{name:24} {one.megabytes:7.1f} {one.seconds:8.2f}"
            f" {one.idle_megabytes:8.1f} {one.peak_megabytes:8.1f}",
            flush=True,
        )
        found.append(asdict(one))
    place = Path("bench/results/reference.json")
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps(found, indent=2))


def _measured(server: family.Running, name: str, rows: int, labels: int) -> Stored:
    media, write = BODIES[name]
    names = [f"label-{i}" for i in range(labels)]
    httpx.put(f"{server.url}/v1/models/wide", json={"labels": names}).raise_for_status()
    with tempfile.TemporaryFile() as file:
        write(file, rows, labels)
        size = file.tell()
        file.seek(0)
        idle = server.rss_megabytes()
        began = time.monotonic()
        answer = _put(f"{server.url}/v1/models/wide/references/v1", file, size, media)
        took = time.monotonic() - began
    if answer.get("n") != rows:
        raise SystemExit(f"{name}: {answer} instead of {rows} records")
    return Stored(name, size / 1e6, took, idle, server.peak_megabytes())


def _put(url: str, file: IO[bytes], size: int, media: str) -> Any:
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=1800)
    headers = {"Content-Type": media, "Content-Length": str(size)}
    connection.request("PUT", f"{place.path}?activate=force", file, headers)
    return json.load(connection.getresponse())


def _batches(rows: int, k: int, kind: Any) -> Iterator[Any]:
    rng = np.random.default_rng(1)
    for first in range(0, rows, PIECE_ROWS):
        size = min(PIECE_ROWS, rows - first)
        actual = rng.integers(0, k, size)
        # As of a good classifier: mostly the true label, and a few others.
        values = rng.exponential(size=(size, k)) ** 6 / k
        values[np.arange(size), actual] += 1000 * rng.uniform(size=size)
        values /= values.sum(axis=1, keepdims=True)
        flat = pa.array(values.ravel().astype(kind))
        yield pa.record_batch(
            {
                "probabilities": pa.FixedSizeListArray.from_arrays(flat, k),
                "actual": pa.array(actual, pa.int16()),
            }
        )


def _parquet(kind: Any) -> Callable[[IO[bytes], int, int], None]:
    def write(file: IO[bytes], rows: int, k: int) -> None:
        schema = next(_batches(1, k, kind)).schema
        with pq.ParquetWriter(file, schema) as writer:
            for batch in _batches(rows, k, kind):
                writer.write_batch(batch)

    return write


def _arrow(kind: Any) -> Callable[[IO[bytes], int, int], None]:
    def write(file: IO[bytes], rows: int, k: int) -> None:
        with pa.ipc.new_stream(file, next(_batches(1, k, kind)).schema) as writer:
            for batch in _batches(rows, k, kind):
                writer.write_batch(batch)

    return write


BODIES: dict[str, tuple[str, Callable[[IO[bytes], int, int], None]]] = {
    "Parquet, single": (formats.PARQUET, _parquet(np.float32)),
    "Parquet, double": (formats.PARQUET, _parquet(np.float64)),
    "Arrow, single": (formats.ARROW, _arrow(np.float32)),
    "Arrow, double": (formats.ARROW, _arrow(np.float64)),
}

if __name__ == "__main__":
    main()
