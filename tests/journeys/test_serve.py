"""`shiftwatch serve` from the first start to the last, with everything killed in between."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.factories import CONFUSION, LABELS, VERSION
from tests.journeys.processes import ROOT, Server, children, is_running, stored

SOON_SECONDS = 30.0


def serve(home: Path) -> Server:
    return Server("serve", SHIFTWATCH_DATA_DIR=str(home / "data"))


def shiftwatch(home: Path, *command: str) -> str:
    """Another command on the same data directory."""
    environ = {**os.environ, "SHIFTWATCH_DATA_DIR": str(home / "data")}
    done = subprocess.run(
        [sys.executable, "-m", "app", *command],
        env=environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def soon(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SOON_SECONDS
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


def register(url: str) -> None:
    httpx.put(f"{url}/v1/models/fraud", json={"labels": LABELS}).raise_for_status()
    httpx.put(
        f"{url}/v1/models/fraud/references/{VERSION}", json={"confusion": CONFUSION}
    ).raise_for_status()


def send(url: str, key: str | None = None) -> httpx.Response:
    return httpx.post(
        f"{url}/v1/models/fraud/predictions",
        json={"predicted": ["fraud"]},
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=30,
    )


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def the_child(server: Server, word: str) -> int:
    """The pid of the direct child whose command has that word."""
    for pid in children(server.process.pid):
        if word in command_of(pid):
            return pid
    raise LookupError(word)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_starts_from_nothing_and_leaves_nothing_running(tmp_path: Path, number: int) -> None:
    with serve(tmp_path) as server:
        register(server.url)
        send(server.url).raise_for_status()
        family = children(server.process.pid)

        code = server.stop(number)

    assert code == 0
    assert len(family) > 2
    assert not [pid for pid in family if is_running(pid)]


def test_what_was_acknowledged_is_there_after_everything_was_killed(tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        register(server.url)
        for _ in range(5):
            send(server.url).raise_for_status()
        family = children(server.process.pid)
        server.kill()

        assert soon(lambda: not [pid for pid in family if is_running(pid)])

    with serve(tmp_path) as again:
        assert stored(again.url, "fraud")["fraud"] == 5
        again.stop()


def test_it_heals_when_the_api_or_the_database_is_killed(tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        register(server.url)
        send(server.url).raise_for_status()

        os.kill(the_child(server, "postgres"), signal.SIGKILL)
        after_database = send(server.url)
        time.sleep(5)  # a child that dies young is taken for one that cannot live
        os.kill(the_child(server, "app api"), signal.SIGKILL)
        server.wait_until_ready()
        after_api = send(server.url)

        assert (after_database.status_code, after_api.status_code) == (202, 202)
        assert stored(server.url, "fraud")["fraud"] == 3
        server.stop()


def test_a_worker_that_dies_again_and_again_does_not_end_the_service(tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        register(server.url)
        time.sleep(6)  # a child that dies young is taken for one that cannot live
        for _ in range(3):
            assert soon(lambda: bool(workers(server)))
            os.kill(workers(server)[0], signal.SIGKILL)
            time.sleep(0.3)

        assert soon(lambda: bool(workers(server)))
        assert send(server.url).status_code == 202
        assert server.stop() == 0


def workers(server: Server) -> list[int]:
    return [pid for pid in children(server.process.pid) if "app worker" in command_of(pid)]


def test_a_graceful_stop_finishes_what_it_took(tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        register(server.url)
        acknowledged = 0
        stopped = threading.Event()

        def keep_sending() -> None:
            nonlocal acknowledged
            with httpx.Client(timeout=30) as client:
                while not stopped.is_set():
                    try:
                        answer = client.post(
                            f"{server.url}/v1/models/fraud/predictions", json={"predicted": [1]}
                        )
                    except httpx.TransportError:
                        return
                    # A request is either finished or refused, never failed.
                    assert answer.status_code in (202, 503)
                    acknowledged += answer.status_code == 202

        threads = [threading.Thread(target=keep_sending) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(1)
        assert server.stop() == 0
        stopped.set()
        for thread in threads:
            thread.join()

    with serve(tmp_path) as again:
        assert stored(again.url, "fraud")["fraud"] == acknowledged > 0
        again.stop()


def test_a_key_made_while_it_serves_is_needed_from_then_on(tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        register(server.url)

        secret = shiftwatch(tmp_path, "key", "create", "--scope", "ingest", "--name", "robot")
        assert soon(lambda: send(server.url).status_code == 401)
        answer = send(server.url, secret)

        assert answer.status_code == 202
        listed = shiftwatch(tmp_path, "key", "list")
        assert "robot" in listed
        assert secret not in listed
        shiftwatch(tmp_path, "key", "revoke", listed.split("\t")[0])
        assert soon(lambda: send(server.url, secret).status_code == 401)
        server.stop()


def test_a_port_in_use_is_said_and_ends_it(tmp_path: Path) -> None:
    server = serve(tmp_path)
    with socket.socket() as taken:
        server.kill()
        taken.bind(("127.0.0.1", server.port))
        taken.listen()
        server.start()
        try:
            assert server.process.wait(60) > 0
            assert not children(server.process.pid)
        finally:
            server.kill()


def test_beyond_this_machine_it_does_not_start_without_a_key(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "app", "serve", "--host", "0.0.0.0", "--port", "0"],
        env={**os.environ, "SHIFTWATCH_DATA_DIR": str(tmp_path / "data")},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 1
    assert "shiftwatch key create --scope admin" in done.stderr
