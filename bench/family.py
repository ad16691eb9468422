"""Processes under measurement, on one embedded PostgreSQL with everything durable."""

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from app.storage import schema
from app.storage.db import Database
from app.storage.embedded import Embedded

LABELS = [f"label-{i}" for i in range(10)]
CONFUSION = [[100 if i == j else 2 for j in range(10)] for i in range(10)]
MODEL = "bench"


@dataclass(frozen=True, slots=True)
class Running:
    url: str
    pid: int

    @property
    def predictions(self) -> str:
        return f"{self.url}/v1/models/{MODEL}/predictions"

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_megabytes(self) -> float:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def peak_megabytes(self) -> float:
        """The most that it ever took."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1e3


@contextmanager
def database() -> Iterator[str]:
    """A new PostgreSQL in the working directory's file system, fsync on."""
    with (
        tempfile.TemporaryDirectory(prefix=".bench-", dir=".") as home,
        Embedded(Path(home).resolve() / "data") as embedded,
    ):
        url = embedded.start().url
        migrated = Database(url)
        schema.upgrade(migrated)
        migrated.close()
        yield url


@contextmanager
def process(url: str, variant: str = "api") -> Iterator[Running]:
    """The service's API, or one of the variants it is compared with."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["app", "api"] if variant == "api" else ["bench.variants", variant]
    environ = {
        **os.environ,
        "SHIFTWATCH_DATABASE_URL": url,
        "SHIFTWATCH_PORT": str(port),
        "SHIFTWATCH_LOG_LEVEL": "warning",
    }
    child = subprocess.Popen([sys.executable, "-m", *command], env=environ)
    try:
        running = Running(f"http://127.0.0.1:{port}", child.pid)
        _wait(running, child)
        yield running
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait()


def register(running: Running) -> None:
    with httpx.Client(base_url=running.url) as client:
        client.put(f"/v1/models/{MODEL}", json={"labels": LABELS}).raise_for_status()
        client.put(
            f"/v1/models/{MODEL}/references/v1", json={"confusion": CONFUSION}
        ).raise_for_status()


def labels(size: int) -> list[str]:
    return random.Random(size).choices(LABELS, k=size)


def _wait(running: Running, child: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise RuntimeError(f"exited with {child.returncode}")
        try:
            if httpx.get(f"{running.url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise TimeoutError(running.url)
