"""The process that looks after the demo: the service, and the process that tells the story."""

import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from app import logs, serve
from app.config import PREFIX, Settings
from app.serve import Child

LAST_WORDS = 15


class DemoError(Exception):
    """The demo cannot be shown; the message says why."""


def run(configured: Settings, home: Path | None, speed: float, minutes: float | None) -> None:
    """Show it until a signal comes or the minutes are over."""
    port = _usable(configured.port)
    with serve.stopping_on_signals(once=True) as asked, _home(home) as place:
        log = place / "demo.log"
        _log_to(log)
        settings = _on_its_own(configured, place, port)
        _say(f"Starting PostgreSQL, the API and a worker; their log is {log}")
        try:
            _show(settings, asked, log, speed, minutes)
        except SystemExit:
            raise DemoError(f"a process of the demo has ended:\n{_last_words(log)}") from None


def _show(settings: Settings, asked: Event, log: Path, speed: float, minutes: float | None) -> None:
    with serve.migrated(settings) as (url, embedded), log.open("ab") as output:
        with serve.children(settings, url, output) as service:
            told = ["demo", "--tell", settings.root_url, "--speed", str(speed)]
            told += [] if minutes is None else ["--minutes", str(minutes)]
            story = Child(told, dict(os.environ))
            errors = Errors(log)

            def is_over() -> bool:
                errors.show()
                return asked.is_set() or story.process.poll() is not None

            try:
                serve.look_after(service, embedded, until=is_over)
            finally:
                _say("\nStopping.")
                story.stop()
                errors.close()
        if story.process.returncode > 0:
            raise SystemExit(story.process.returncode)


@contextmanager
def _home(wanted: Path | None) -> Iterator[Path]:
    """Nobody's data directory: a new one that is kept, or one that goes when the demo ends."""
    if wanted is not None:
        try:
            wanted.mkdir(parents=True)
        except FileExistsError:
            raise DemoError(
                f"{wanted} is there already, and the demo goes into nobody's data: "
                "name a directory that is not"
            ) from None
        yield wanted.resolve()
        return
    made = Path(tempfile.mkdtemp(prefix="shiftwatch-demo-"))
    try:
        yield made
    finally:
        shutil.rmtree(made)


def _on_its_own(configured: Settings, place: Path, port: int) -> Settings:
    """What is configured is for the real service: the demo must not touch its database, answer on
    its address or send its traces. Its children inherit no setting, either."""
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        if "DATABASE_URL" in name:
            _say(f"{name} is set; the demo does not use it")
        del os.environ[name]
    os.environ[f"{PREFIX}LOG_FORMAT"] = "text"
    if configured.pg_bin is not None:
        os.environ[f"{PREFIX}PG_BIN"] = str(configured.pg_bin)
    return Settings(data_dir=place / "data", pg_bin=configured.pg_bin, port=port)


def _usable(port: int) -> int:
    """The port, if nobody has it; a free one for 0."""
    with socket.socket() as probe:
        # Connections of a service that has just ended do not keep the next one from starting.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise DemoError(
                f"port {port} of 127.0.0.1 cannot be used ({error.strerror}): "
                "choose another with --port"
            ) from None
        usable: int = probe.getsockname()[1]
        return usable


def _log_to(place: Path) -> None:
    # Open as long as the process lives, since anything may be logged until then.
    lines = logs.handler("text", place.open("a"))
    logging.basicConfig(level=logging.INFO, handlers=[lines], force=True)


class Errors:
    """What goes wrong is shown; everything else stays in the log."""

    def __init__(self, log: Path) -> None:
        self._lines = log.open(errors="replace")

    def close(self) -> None:
        self._lines.close()

    def show(self) -> None:
        for line in self._lines:
            # The moment, the level, and the rest.
            if line.lower().split(" ")[1:2] in (["error"], ["critical"]):
                _say(f"  {line.rstrip()}")


def _last_words(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LAST_WORDS:])


def _say(line: str) -> None:
    print(line, flush=True)
