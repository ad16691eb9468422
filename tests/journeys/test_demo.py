"""`shiftwatch demo` as somebody sees it who tries it for the first time, and after he ends it."""

import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.journeys.processes import ROOT, children, free_port, is_running

# The promise: from the command to both alarms.
A_MINUTE = 60.0
PATIENCE_SECONDS = 60.0


class Demo:
    """A running demo, and the lines that it prints as they come."""

    def __init__(self, *options: str, home: Path, **environ: str) -> None:
        self.began = time.monotonic()
        self.temporary = home / "tmp"
        self.temporary.mkdir()
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "app", "demo", *options],
            # Where it makes the directory that it must not leave behind.
            env={**os.environ, **environ, "TMPDIR": str(self.temporary)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._printed: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._printed.put(line)
        self._printed.put(None)

    def until(self, *words: str) -> str:
        """The next line that has all these words."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            line = self._printed.get(timeout=max(0.1, deadline - time.monotonic()))
            assert line is not None, "".join(self.lines)
            self.lines.append(line)
            if all(word in line for word in words):
                return line

    def end(self, *numbers: int) -> int:
        for number in numbers:
            self.process.send_signal(number)
            time.sleep(0.05)
        return self.process.wait(PATIENCE_SECONDS)

    def rest(self) -> str:
        while (line := self._printed.get(timeout=PATIENCE_SECONDS)) is not None:
            self.lines.append(line)
        return "".join(self.lines)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path: a socket's may have no more than a hundred characters."""
    with tempfile.TemporaryDirectory(prefix="demo-") as found:
        yield Path(found)


@contextmanager
def demo(home: Path, *options: str, **environ: str) -> Iterator[Demo]:
    found = Demo(*options, home=home, **environ)
    try:
        yield found
    finally:
        found.close()


def gone(family: list[int]) -> bool:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if not [pid for pid in family if is_running(pid)]:
            return True
        time.sleep(0.05)
    return False


def alarms(url: str) -> dict[str, dict[str, Any]]:
    """The newest of each model."""
    items = httpx.get(f"{url}/v1/alarms", trust_env=False).raise_for_status().json()["items"]
    return {one["model"]: one for one in reversed(items)}


def shown(url: str, model: str) -> list[dict[str, Any]]:
    """The history that the page draws, oldest first."""
    answer = httpx.get(
        f"{url}/v1/models/{model}/evaluations", params={"limit": 200}, trust_env=False
    )
    found: list[dict[str, Any]] = answer.raise_for_status().json()["items"]
    return found[::-1]


def shirts(evaluation: dict[str, Any]) -> float:
    return float(next(one["q"] for one in evaluation["labels"] if one["label"] == "shirt"))


def test_both_alarms_are_there_within_a_minute_and_nothing_is_afterwards(home: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with demo(home, "--port", str(port)) as seen:
        seen.until(f"{url}/")
        shift = seen.until("alarm.firing", "fashion-shop")
        other = seen.until("alarm.firing", "fashion-camera")
        took = seen.seconds
        time.sleep(2)
        found = alarms(url)
        shop, camera = shown(url, "fashion-shop"), shown(url, "fashion-camera")
        family = children(seen.process.pid)

        # Somebody who cannot wait must not keep it from tidying up.
        code = seen.end(signal.SIGINT, signal.SIGINT, signal.SIGTERM)

        assert took < A_MINUTE
        assert "(signature ok): fashion-shop: label shift" in shift
        assert "'shirt' is about" in shift
        assert "(signature ok): fashion-camera: a change that label shift cannot explain" in other
        assert {name: (one["state"], one["verdict"]) for name, one in found.items()} == {
            "fashion-shop": ("firing", "label_shift"),
            "fashion-camera": ("firing", "not_label_shift"),
        }
        assert shop[5]["verdict"] == camera[5]["verdict"] == "no_shift"
        assert (shop[-1]["verdict"], camera[-1]["verdict"]) == ("label_shift", "not_label_shift")
        assert len(shop) > 15
        assert shirts(shop[5]) < 0.15 < 0.2 < shirts(shop[-1])
        assert code == 0
        assert len(family) > 4
        assert gone(family)
        assert list(seen.temporary.iterdir()) == []
        assert "Stopping." in seen.rest()


@pytest.mark.parametrize("moment", ["Starting", "The page"])
def test_it_can_be_ended_at_any_moment(home: Path, moment: str) -> None:
    with demo(home, "--port", "0") as seen:
        seen.until(moment)
        time.sleep(0.2)
        family = children(seen.process.pid)

        code = seen.end(signal.SIGINT)

        said = seen.rest()
        assert code == 0, said
        assert gone(family)
        assert list(seen.temporary.iterdir()) == []
        assert "Traceback" not in said


def test_a_killed_one_leaves_no_process(home: Path) -> None:
    with demo(home, "--port", "0") as seen:
        seen.until("quiet:")
        family = children(seen.process.pid)

        seen.end(signal.SIGKILL)

        assert len(family) > 4
        assert gone(family)


def test_it_ends_by_itself_when_told_to_and_keeps_its_data_where_told_to(home: Path) -> None:
    kept = home / "kept"
    url = "postgresql://nobody:secret@127.0.0.1:1/production"
    options = ["--port", "0", "--minutes", "0.02", "--data-dir", str(kept)]
    with demo(home, *options, SHIFTWATCH_DATABASE_URL=url) as seen:
        said = seen.rest()

        assert seen.process.wait(PATIENCE_SECONDS) == 0
        assert "The time is up." in said
        assert "SHIFTWATCH_DATABASE_URL is set; the demo does not use it" in said
        assert "secret" not in said
        assert {place.name for place in kept.iterdir()} == {"data", "demo.log"}


def refused(*options: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "app", "demo", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 1
    return done.stderr


def test_a_port_in_use_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        assert f"port {port} of 127.0.0.1 cannot be used" in refused("--port", str(port))


def test_it_goes_into_nobodys_data(home: Path) -> None:
    assert "nobody's data" in refused("--port", "0", "--data-dir", str(home))
