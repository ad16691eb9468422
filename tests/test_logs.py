"""Lines: what is in them, and that nobody can forge one."""

import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.contextvars import bound_contextvars
from structlog.stdlib import BoundLogger

from app import logs
from app.logs import Format
from tests.journeys.processes import ROOT, free_port

NAME = "tests.lines"
FORMATS: tuple[Format, ...] = ("json", "text")
# What ends a line for somebody, or steers a terminal.
ODD = "\n\r\x0b\x0c\x1c\x85\u2028\u2029\x00\x1b[2J\x7f\x9b\u202e"


@contextmanager
def writing(format: Format, stream: io.StringIO) -> Iterator[BoundLogger]:
    own = logging.getLogger(NAME)
    handler = logs.handler(format, stream)
    own.addHandler(handler)
    own.setLevel(logging.INFO)
    own.propagate = False
    try:
        yield logs.logger(NAME)
    finally:
        own.removeHandler(handler)


def wrote(format: Format, write: Callable[[BoundLogger], object]) -> str:
    stream = io.StringIO()
    with writing(format, stream) as log:
        write(log)
    return stream.getvalue()


def fail(log: BoundLogger, message: str = "no") -> None:
    try:
        raise ValueError(message)
    except ValueError:
        log.exception("step failed", step="evaluate")


# What is in a line.


def test_a_line_is_a_json_object_that_begins_with_time_level_logger_and_event() -> None:
    line = json.loads(wrote("json", lambda log: log.info("delivery", id=1, webhook=2)))

    at = line.pop("timestamp")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", at)
    assert abs(datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds() < 60
    assert list(line.items()) == [
        ("level", "info"),
        ("logger", NAME),
        ("event", "delivery"),
        ("id", 1),
        ("webhook", 2),
    ]


def test_for_people_the_same_is_a_line_to_read() -> None:
    text = wrote("text", lambda log: log.info("delivery", id=1, error="no answer", to="a=b", by=""))

    at, _, rest = text.partition(" ")
    assert at.endswith("Z")
    assert rest == f'info {NAME} delivery id=1 error="no answer" to="a=b" by=""\n'


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "first"), [(Terminal(), "2"), (io.StringIO(), "{")])
def test_people_get_text_and_machines_get_json(stream: io.StringIO, first: str) -> None:
    with writing("auto", stream) as log:
        log.info("hello")

    assert stream.getvalue()[0] == first


def test_a_librarys_line_is_like_ours() -> None:
    library = logging.getLogger(NAME)

    line = json.loads(wrote("json", lambda _: library.warning("lost %d of %s", 3, "them")))

    assert (line["level"], line["logger"], line["event"]) == ("warning", NAME, "lost 3 of them")


def test_what_is_too_quiet_is_not_written() -> None:
    assert wrote("json", lambda log: log.debug("hello")) == ""


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {(1, 2): 3}, {1, 2}, object()])
def test_what_json_does_not_have_becomes_a_string(value: object) -> None:
    line = json.loads(wrote("json", lambda log: log.info("x", value=value, n=1)))

    assert isinstance(line["value"], str)
    assert line["n"] == 1


def test_a_traceback_is_one_field() -> None:
    text = wrote("json", fail)

    assert text.count("\n") == 1
    line = json.loads(text)
    assert list(line)[-1] == "exception"
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("ValueError: no")


def test_a_traceback_for_people_is_indented() -> None:
    first, *rest = wrote("text", lambda log: fail(log, f"no\n2026-11-17 info x{ODD}")).splitlines()

    assert first.endswith("step failed step=evaluate")
    assert len(rest) > 3
    assert all(line.startswith("    ") and line.isprintable() for line in rest)


# What a line is about.


def test_a_line_has_the_request_and_the_model_that_it_names() -> None:
    logs.request.set({"request_id": "req-7", "path_params": {"model": "fraud"}})
    try:
        line = json.loads(wrote("json", lambda log: log.info("x")))
    finally:
        logs.request.set(None)

    assert (line["request_id"], line["model"]) == ("req-7", "fraud")


def test_a_line_has_what_is_bound_but_its_own_fields_go_before() -> None:
    with bound_contextvars(model="fraud", webhook=1):
        line = json.loads(wrote("json", lambda log: log.info("x", model="own")))

    assert (line["model"], line["webhook"]) == ("own", 1)


def test_no_field_takes_the_place_of_what_every_line_has() -> None:
    line = json.loads(wrote("json", lambda log: log.info("x", level="none", logger="nobody")))

    assert (line["level"], line["logger"]) == ("info", NAME)


# Forgeries.


def test_the_odd_characters_would_forge_a_line() -> None:
    text = wrote("json", lambda log: log.info("x", value=ODD))

    assert len(json.loads(text)["value"].splitlines()) > 5


@pytest.mark.parametrize("format", FORMATS)
@given(text=st.text() | st.text(st.sampled_from(ODD)))
def test_no_value_and_no_event_ends_a_line_or_steers_a_terminal(format: Format, text: str) -> None:
    found = wrote(format, lambda log: log.info(text or "x", value=text, many=[text], of={text: 1}))

    (line,) = found.splitlines()
    assert line.isprintable()


@given(st.text())
def test_what_is_written_as_json_can_be_read_again(text: str) -> None:
    line = json.loads(wrote("json", lambda log: log.info("x", value=text)))

    assert line["value"] == text


# The process.


def ran(code: str, *arguments: str) -> list[str]:
    """What a process writes to standard error."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stderr.splitlines()


CRASHING = """
import sys, threading, warnings
from app import logs
logs.configure("info", "json")
warnings.warn("soon gone", DeprecationWarning, stacklevel=1)
sys.stderr.flush()
dying = threading.Thread(target=lambda: 1 / 0, name="recorder")
dying.start()
dying.join()
raise SystemError("over\\nand out")
"""


def test_what_nobody_catches_is_a_line_too() -> None:
    warning, thread, crash = [json.loads(line) for line in ran(CRASHING)]

    assert "soon gone" in warning["event"]
    assert (thread["event"], thread["thread"]) == ("thread died", "recorder")
    assert "ZeroDivisionError" in thread["exception"]
    assert crash["event"] == "crashed"
    assert crash["exception"].endswith("SystemError: over\nand out")


AWAY = """
import sys, threading
from app import worker
from app.config import Settings
from app import logs
from app.storage.db import Database
logs.configure("debug", sys.argv[1])
database = Database(sys.argv[2])
loops = worker.Loops(Settings(database_url=sys.argv[2]), database)
threading.Timer(1.5, loops.ask_to_stop).start()
loops.start()
raise RuntimeError(database.engine)
"""


@pytest.mark.parametrize("format", FORMATS)
def test_the_password_of_a_database_that_is_away_is_not_in_the_log(format: Format) -> None:
    url = f"postgresql+psycopg://somebody:hunter2@127.0.0.1:{free_port()}/x"

    lines = ran(AWAY, format, url)

    assert any("waiting for the database" in line for line in lines)
    assert any("crashed" in line for line in lines)
    assert not [line for line in lines if "hunter2" in line]
