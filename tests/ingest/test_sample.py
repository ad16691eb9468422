"""Labelled predictions read part by part."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from app.ingest import sample
from app.ingest.columns import Columns, Matrix
from app.ingest.reduce import Watched, records_of
from app.ingest.sample import Gathered
from tests.factories import NOW, model

SEED = 20261118
K = 1000
WATCHED = Watched.of(model(labels=tuple(f"label-{i}" for i in range(K))))


def part(rows: int, seed: int) -> Matrix:
    values = np.random.default_rng([SEED, seed]).exponential(size=(rows, K))
    return Matrix(values / values.sum(axis=1, keepdims=True), np.ones(rows, dtype=bool))


def gather(parts: int, rows: int) -> Gathered:
    gathered = Gathered(K)
    for seed in range(parts):
        records, _ = records_of(Columns(rows, rows=part(rows, seed)), WATCHED, NOW)
        assert records.rows is not None
        gathered.add(records, records.rows, np.zeros(rows, dtype=np.int64))
    return gathered


def test_rows_are_gathered_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "BLOCK_NUMBERS", 20 * K)

    found, ranked = gather(parts=5, rows=7).joined()

    wanted = np.concatenate([part(7, seed).values for seed in range(5)])
    assert found.rows.dtype == np.float32
    assert found.rows == pytest.approx(wanted, abs=1e-7)
    assert ranked.first.tolist() == wanted.argmax(axis=1).tolist()
    assert found.predicted.tolist() == ranked.first.tolist()


MEASURE = """
import sys
from pathlib import Path

from app import allocator
from app.ingest import sample
from tests.ingest.test_sample import gather

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

allocator.settle()
sample.BLOCK_NUMBERS = int(sys.argv[1])
gather(1, 250).joined()
before = peak()
gather(96, 250).joined()
print(peak() - before)
"""


def megabytes(block_numbers: int) -> float:
    """What it takes to gather 92 MB of rows, in a process as the service runs it."""
    command = [sys.executable, "-c", MEASURE, str(block_numbers)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return float(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_rows_are_not_in_memory_twice() -> None:
    assert megabytes(sample.BLOCK_NUMBERS) < 140


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_control_rows_in_one_block_are() -> None:
    assert megabytes(1_000_000_000) > 170
