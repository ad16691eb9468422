"""The commands, as a container's start or an orchestrator's probe runs them."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.journeys.processes import ROOT, Server, free_port

SECRET = "5f0c9d2b7a6e4831f0c9d2b7a6e48315"
START_SECONDS = 30.0


def shiftwatch(*command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("SHIFTWATCH_")}
    return subprocess.run(
        [sys.executable, "-m", "app", *command],
        env={**inherited, **environ},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )


def create_key(url: str, scope: str, place: Path) -> subprocess.CompletedProcess[str]:
    command = ["key", "create", "--name", "robot", "--scope", scope, "--secret-file", str(place)]
    return shiftwatch(*command, SHIFTWATCH_DATABASE_URL=url)


def healthy(server: Server, *options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Asked with the server's own environment, as in its container."""
    own = {k: v for k, v in server.environ.items() if k.startswith("SHIFTWATCH_")}
    return shiftwatch("healthy", *options, **own, **environ)


def until_healthy(server: Server, *options: str) -> subprocess.CompletedProcess[str]:
    deadline = time.monotonic() + START_SECONDS
    while (done := healthy(server, *options)).returncode and time.monotonic() < deadline:
        pass
    return done


@pytest.fixture
def url(clone: Callable[[], str]) -> str:
    return clone()


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    place = tmp_path / "secret"
    place.write_text(f"{SECRET}\n")
    return place


def test_a_key_from_a_file_opens_a_service_that_others_can_reach(
    url: str, secret_file: Path
) -> None:
    made = create_key(url, "read", secret_file)

    with Server("api", SHIFTWATCH_DATABASE_URL=url, SHIFTWATCH_HOST="0.0.0.0") as server:
        without = httpx.get(f"{server.url}/v1/models")
        with_it = httpx.get(
            f"{server.url}/v1/models", headers={"Authorization": f"Bearer {SECRET}"}
        )

    assert (made.returncode, made.stdout) == (0, "key 1 (robot) is made\n")
    assert SECRET not in made.stderr
    assert (without.status_code, with_it.status_code) == (401, 200)


def test_the_same_key_from_a_file_again_changes_nothing(url: str, secret_file: Path) -> None:
    create_key(url, "read", secret_file)

    again = create_key(url, "read", secret_file)

    assert (again.returncode, again.stdout) == (0, "key 1 (robot) was there already\n")
    listed = shiftwatch("key", "list", SHIFTWATCH_DATABASE_URL=url).stdout
    assert len(listed.splitlines()) == 1


def test_a_key_from_a_file_that_cannot_be_as_asked_is_refused(url: str, secret_file: Path) -> None:
    create_key(url, "read", secret_file)

    other = create_key(url, "admin", secret_file)
    shiftwatch("key", "revoke", "1", SHIFTWATCH_DATABASE_URL=url)
    revoked = create_key(url, "read", secret_file)

    assert (other.returncode, revoked.returncode) == (1, 1)
    assert "has the scopes read, not admin" in other.stderr
    assert "was revoked" in revoked.stderr
    assert "Traceback" not in other.stderr + revoked.stderr


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"short\n", "at least 32 characters, not 5"),
        (b"\xff\xfe" * 20, "not UTF-8"),
        (None, "No such file or directory"),
    ],
)
def test_a_file_without_a_secret_is_named(
    url: str, tmp_path: Path, content: bytes | None, complaint: str
) -> None:
    place = tmp_path / "secret"
    if content is not None:
        place.write_bytes(content)

    done = create_key(url, "read", place)

    assert done.returncode == 1
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::", "localhost"])
def test_health_is_found_wherever_the_service_listens(url: str, host: str) -> None:
    server = Server("api", SHIFTWATCH_DATABASE_URL=url, SHIFTWATCH_HOST=host, SHIFTWATCH_AUTH="off")
    try:
        done = until_healthy(server)
        ready = healthy(server, "--path", "/readyz")
    finally:
        server.kill()

    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f" port {server.port}, /livez: ok\n")
    assert "schema: ok" in ready.stdout


def test_a_worker_is_asked_on_its_own_port(url: str) -> None:
    port = str(free_port())
    server = Server("worker", SHIFTWATCH_DATABASE_URL=url, SHIFTWATCH_WORKER_PORT=port)
    try:
        done = until_healthy(server, "--port", port)
    finally:
        server.kill()
    afterwards = healthy(server, "--port", port)

    assert done.returncode == 0, done.stderr
    assert afterwards.returncode == 1


def test_a_proxy_is_not_asked_for_health(url: str) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"

    with Server("api", SHIFTWATCH_DATABASE_URL=url) as server:
        done = healthy(server, http_proxy=nowhere, HTTP_PROXY=nowhere)

    assert done.returncode == 0, done.stderr


def test_what_does_not_answer_well_is_not_healthy(url: str) -> None:
    with Server("api", SHIFTWATCH_DATABASE_URL=url) as server:
        elsewhere = healthy(server, "--port", str(free_port()))
        unknown = healthy(server, "--path", "/readyz/nothing")

    assert (elsewhere.returncode, unknown.returncode) == (1, 1)
    assert "no answer: " in elsewhere.stderr
    assert "/readyz/nothing: 404 " in unknown.stderr
    assert "Traceback" not in elsewhere.stderr + unknown.stderr
