"""Real processes of the service, to be killed."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

ROOT = Path(__file__).parents[2]
START_SECONDS = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def until(done: Callable[[], bool], seconds: float = 60.0) -> float:
    """Wait for something to become true, and say how long it took; fails if it does not."""
    began = time.monotonic()
    while not done():
        assert time.monotonic() < began + seconds, f"not even after {seconds} seconds"
        time.sleep(0.02)
    return time.monotonic() - began


class Server:
    """A process of the service on a port of its own; `sabotage` names a guard to take away.

    What it writes to standard error goes to the file `log`, if there is one.
    """

    def __init__(
        self,
        *command: str,
        sabotage: str | None = None,
        log: str | None = None,
        **environ: str,
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        module = "app" if sabotage is None else "tests.journeys.sabotaged"
        self.command = [sys.executable, "-m", module, *filter(None, [sabotage]), *command]
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("SHIFTWATCH_")
        }
        self.log = log
        self.environ = {**inherited, **environ, "SHIFTWATCH_PORT": str(self.port)}
        self.start()

    def start(self) -> None:
        with nullcontext() if self.log is None else open(self.log, "ab") as stderr:
            self.process = subprocess.Popen(self.command, env=self.environ, cwd=ROOT, stderr=stderr)

    def wait_until_ready(self) -> Self:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"exited with {self.process.returncode}"
            try:
                if httpx.get(f"{self.url}/readyz").status_code == 200:
                    return self
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise TimeoutError(self.url)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)

    def __enter__(self) -> Self:
        return self.wait_until_ready()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.kill()


def children(pid: int) -> list[int]:
    """Pids of a process's children, and of theirs."""
    found: list[int] = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = status.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(after_name[1]) == pid and after_name[0] != "Z":
            child = int(status.parent.name)
            found += [child, *children(child)]
    return found


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def stored(url: str, model: str, **parameters: Any) -> dict[str, int]:
    """What all panes of a model hold together, by label."""
    found: dict[str, int] = {}
    cursor = None
    while True:
        query = {"limit": 1000, **parameters} | ({"cursor": cursor} if cursor else {})
        page = httpx.get(f"{url}/v1/models/{model}/panes", params=query, timeout=30).json()
        for pane in page["items"]:
            for one in pane["counts"]:
                found[one["label"]] = found.get(one["label"], 0) + one["count"]
        cursor = page["next"]
        if cursor is None:
            return found
