"""The Dockerfile names nothing that the project does not have, and its steps work."""

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.config import PREFIX, Settings
from tests.deploy.files import ROOT, dockerfile, load, pairs, parsed, settings, stages
from tests.journeys.processes import free_port

TEXT = (ROOT / "Dockerfile").read_text()
IGNORED = (ROOT / ".dockerignore").read_text()
WORKER_PORT = load(ROOT / "docker-compose.yml")["services"]["worker"]["environment"][
    "SHIFTWATCH_WORKER_PORT"
]
START_SECONDS = 60.0


def complaints(text: str, ignored: str = IGNORED) -> list[str]:
    """Everything the image would do that the project does not know of."""
    build, final = stages(dockerfile(text))
    return [
        *_about_base(text),
        *_about_copies(build, ignored),
        *_about_commands(final),
        *_about_environment(final),
        *_about_user(final),
        *_about_dependencies(build),
    ]


def _about_base(text: str) -> Iterator[str]:
    instructions = dockerfile(text)
    base = pairs(instructions[:1], "ARG").get("BASE", "")
    if not re.fullmatch(r"python:3\.\d+\.\d+-slim-bookworm(@sha256:[0-9a-f]{64})?", base):
        yield f"{base!r} is no exact release"
    if any(one[0].argv[0] != "${BASE}" for one in stages(instructions)):
        yield "a stage begins from something else"


def _about_copies(build: Any, ignored: str) -> Iterator[str]:
    copied = {source for one in build if one.word == "COPY" for source in one.argv[:-1]}
    allowed = {line[1:] for line in ignored.splitlines() if line.startswith("!")}
    if "*" not in ignored.splitlines():
        yield "the builder gets everything"
    yield from (f"{name} is not there" for name in copied if not (ROOT / name).exists())
    yield from (f"{name} is kept from the builder" for name in copied - allowed)
    yield from (f"{name} goes to the builder for nothing" for name in allowed - copied)


def _about_commands(final: Any) -> Iterator[str]:
    last = {one.word: one for one in final}
    health = last["HEALTHCHECK"].rest.partition(" CMD ")[2]
    commands = [
        last["ENTRYPOINT"].argv + last["CMD"].argv,
        next(iter(dockerfile(f"CMD {health}"))).argv,
    ]
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for program, *command in commands:
        if program not in scripts:
            yield f"{program} is no command of the package"
        elif isinstance(found := parsed(command), str):
            yield found


def _about_environment(final: Any) -> Iterator[str]:
    environ = pairs(final, "ENV")
    found = settings(environ, {})
    if isinstance(found, str):
        yield found
        return
    if found.loopback:
        yield "nobody outside of the container reaches it"
    exposed = {port for one in final if one.word == "EXPOSE" for port in one.argv}
    if exposed != {str(found.port), WORKER_PORT}:
        yield f"other ports are exposed than those it listens on: {sorted(exposed)}"
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):
        if environ.get(name) != "1":
            yield f"{name} is not set"


def _about_user(final: Any) -> Iterator[str]:
    users = [one.rest for one in final if one.word == "USER"]
    if users != ["10001:10001"]:
        yield f"it runs as {users}"
    if any(one.word == "ADD" for one in final) or "pip" in str(final):
        yield "the final stage fetches something"


def _about_dependencies(build: Any) -> Iterator[str]:
    installs = [one.argv for one in build if one.word == "RUN" and "install" in one.argv]
    for argv in installs:
        local = {"--no-deps", "--no-index"} <= set(argv)
        if not local and "--require-hashes" not in argv:
            yield "something is installed without a hash"
    if not any("requirements.txt" in argv for argv in installs):
        yield "requirements.txt is not installed"


def test_the_dockerfile_has_no_lint() -> None:
    linted = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), ROOT / "Dockerfile"],
        capture_output=True,
        text=True,
    )

    assert linted.returncode == 0, linted.stdout


def test_a_careless_dockerfile_has_lint(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM python:latest\nRUN sudo pip install flask\n")

    linted = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), tmp_path / "Dockerfile"], capture_output=True
    )

    assert linted.returncode == 1


def test_the_image_knows_its_project() -> None:
    assert complaints(TEXT) == []


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("python:3.13.14-slim-bookworm", "python:3-slim", "no exact release"),
        ("FROM ${BASE}\n", "FROM debian:12\n", "something else"),
        ("COPY app app", "COPY src src", "src is not there"),
        ("COPY migrations migrations", "COPY tests tests", "tests is kept from the builder"),
        ('CMD ["api"]', 'CMD ["server"]', "invalid choice: 'server'"),
        ('"shiftwatch", "healthy"', '"shiftwatch", "healthy", "--url"', "unrecognized"),
        ('ENTRYPOINT ["shiftwatch"]', 'ENTRYPOINT ["shiftwatchd"]', "no command of the package"),
        ("SHIFTWATCH_HOST=", "SHIFTWATCH_BIND=", "SHIFTWATCH_BIND: there is no such setting"),
        ("SHIFTWATCH_HOST=0.0.0.0", "SHIFTWATCH_HOST=127.0.0.1", "nobody outside"),
        ("EXPOSE 8000 9464", "EXPOSE 8080 9464", "other ports"),
        ("USER 10001:10001", "USER shiftwatch", "it runs as"),
        ('"--require-hashes", ', "", "without a hash"),
        ("PYTHONDONTWRITEBYTECODE=1", "PYTHONDONTWRITEBYTECODE=", "is not set"),
    ],
)
def test_a_mistake_in_the_dockerfile_is_seen(before: str, after: str, complaint: str) -> None:
    assert before in TEXT

    found = complaints(TEXT.replace(before, after))

    assert complaint in "\n".join(found)


def test_what_the_builder_should_not_see_is_seen() -> None:
    assert complaints(TEXT, IGNORED + "!deploy\n") == ["deploy goes to the builder for nothing"]
    assert "the builder gets everything" in complaints(TEXT, IGNORED.replace("*\n!L", "!L"))


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """The environment that the build stage makes, by its own steps, where any user can reach it."""
    build, _ = stages(dockerfile(TEXT))
    with tempfile.TemporaryDirectory(prefix="shiftwatch-image-") as directory:
        home = Path(directory)
        home.chmod(0o755)
        (home / "src").mkdir()
        for one in build:
            if one.word == "COPY":
                _copy(one.argv[:-1], home / "src")
            elif one.word == "RUN":
                subprocess.run(_here(one.argv, home), cwd=home / "src", check=True)
        shutil.rmtree(home / "src")
        yield home / "venv"


def _copy(sources: list[str], to: Path) -> None:
    for name in sources:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, to)


def _here(argv: list[str], home: Path) -> list[str]:
    """A step of the Dockerfile with this machine's Python, in a directory of its own."""
    program, *rest = argv
    own = {"python": [sys.executable], "pip": [sys.executable, "-m", "pip"]}[program]
    return own + [part.replace("/opt/shiftwatch", str(home / "venv")) for part in rest]


@pytest.mark.slow
def test_what_the_steps_install_serves_and_leaves_itself_alone(
    installed: Path, tmp_path: Path
) -> None:
    """With a container's environment: no home, nothing of the project in the current directory."""
    port = free_port()
    environ = pairs(stages(dockerfile(TEXT))[-1], "ENV") | {
        "PATH": f"{installed}/bin:/usr/bin:/bin",
        f"{PREFIX}DATA_DIR": str(tmp_path / "data"),
        f"{PREFIX}PORT": str(port),
    }
    before = _content(installed)

    secret = _run(installed, environ, "key", "create", "--scope", "read").stdout.strip()
    server = subprocess.Popen([installed / "bin/shiftwatch", "serve"], env=environ, cwd="/")
    try:
        healthy = _becomes_healthy(installed, environ)
        answer = httpx.get(
            f"http://127.0.0.1:{port}/v1/models", headers={"Authorization": f"Bearer {secret}"}
        )
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(60)

    assert healthy
    assert answer.status_code == 200
    assert code == 0
    assert _content(installed) == before


def _content(home: Path) -> dict[Path, int]:
    """Every file, with the time of its last change."""
    return {place: place.lstat().st_mtime_ns for place in home.rglob("*")}


def _run(
    installed: Path, environ: dict[str, str], *command: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [installed / "bin/shiftwatch", *command],
        env=environ,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )


def _becomes_healthy(installed: Path, environ: dict[str, str]) -> bool:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if _run(installed, environ, "healthy").returncode == 0:
            return True
    return False


def test_the_worker_listens_where_the_image_says() -> None:
    assert isinstance(settings({f"{PREFIX}WORKER_PORT": WORKER_PORT}, {}), Settings)
