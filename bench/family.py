"""Processes under measurement, on one embedded PostgreSQL with everything durable."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from app.processes import ends_with_parent
from app.storage import schema
from app.storage.db import Database
from app.storage.embedded import Cluster, Embedded
from tests.journeys.processes import children, free_port

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
        return cpu_seconds(self.pid)

    def rss_megabytes(self) -> float:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def peak_megabytes(self) -> float:
        """The most that it ever took."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1e3


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A new PostgreSQL in the working directory's file system, fsync on."""
    with (
        tempfile.TemporaryDirectory(prefix=".bench-", dir=".") as home,
        Embedded(Path(home).resolve() / "data") as embedded,
    ):
        started = embedded.start()
        migrated = Database(started.url)
        schema.upgrade(migrated)
        migrated.close()
        yield started


@contextmanager
def database() -> Iterator[str]:
    with cluster() as started:
        yield started.url


@contextmanager
def process(url: str, variant: str = "api") -> Iterator[Running]:
    """The service's API or worker, or one of the variants that the API is compared with."""
    port = free_port()
    own = variant in ("api", "worker")
    command = ["app", variant] if own else ["bench.variants", variant]
    environ = {
        **os.environ,
        "SHIFTWATCH_DATABASE_URL": url,
        "SHIFTWATCH_WORKER_PORT" if variant == "worker" else "SHIFTWATCH_PORT": str(port),
        "SHIFTWATCH_LOG_LEVEL": "warning",
    }
    child = subprocess.Popen(
        [sys.executable, "-m", *command],
        env=environ,
        preexec_fn=ends_with_parent(signal.SIGTERM),
    )
    try:
        running = Running(f"http://127.0.0.1:{port}", child.pid)
        _wait(f"{running.url}/{'livez' if variant == 'worker' else 'readyz'}", child)
        yield running
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait()


def cpu_seconds(pid: int) -> float:
    """Processor time of a process, of its children and of theirs, those that ended included."""
    ticks = sum(_ticks(one) for one in (pid, *children(pid)))
    return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def others() -> Iterator["Others"]:
    """How many cores whoever is not of this benchmark takes meanwhile."""
    found = Others()
    began, before = time.monotonic(), _of_others()
    yield found
    found.cores = max(0.0, _of_others() - before) / (time.monotonic() - began)


@dataclass(slots=True)
class Others:
    cores: float = 0.0


def _of_others() -> float:
    # All but idling and waiting for the disk; what the host of a virtual machine takes counts, too.
    fields = [int(one) for one in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    busy = sum(fields) - fields[3] - fields[4]
    return busy / os.sysconf("SC_CLK_TCK") - cpu_seconds(os.getpid())


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0  # its parent has taken its time over by now
    return sum(int(field) for field in fields[11:15])


def machine() -> dict[str, object]:
    """What there is of it, and whether others want it too: figures of a busy one mean little."""
    return {"cores": os.cpu_count(), "load_average": os.getloadavg()}


def register(running: Running, name: str = MODEL) -> None:
    with httpx.Client(base_url=running.url) as client:
        client.put(f"/v1/models/{name}", json={"labels": LABELS}).raise_for_status()
        client.put(
            f"/v1/models/{name}/references/v1", json={"confusion": CONFUSION}
        ).raise_for_status()


def labels(size: int) -> list[str]:
    return random.Random(size).choices(LABELS, k=size)


def _wait(url: str, child: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise RuntimeError(f"exited with {child.returncode}")
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise TimeoutError(url)
