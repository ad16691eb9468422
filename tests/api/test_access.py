"""The access log, and what every line of a request has."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.types import ASGIApp, Message

from app.api import server
from app.api.app import create_app
from app.config import Settings
from app.ingest.recorder import Recorder
from app.logs import logger
from app.storage.db import Database
from tests.conftest import Written
from tests.factories import register

log = logger(__name__)
BATCH = {"predicted": ["fraud"]}


@pytest.fixture
def app(database: Database) -> FastAPI:
    return create_app(Settings(), database)


@contextmanager
def serving(app: ASGIApp, **settings: Any) -> Iterator[TestClient]:
    """The application as uvicorn would get it."""
    with TestClient(server._watched(app, Settings(**settings)), "http://localhost") as client:
        yield client


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    with serving(app, access_log=True) as found:
        register(found)
        yield found


def without_duration(line: dict[str, Any]) -> dict[str, Any]:
    assert line.pop("duration_ms") > 0
    del line["timestamp"]
    return line


def test_ingest_has_a_line_with_template_status_id_and_model(
    client: TestClient, written: Written
) -> None:
    client.post("/v1/models/fraud/predictions", json=BATCH, headers={"x-request-id": "req-7"})

    (line,) = written.of("request")
    assert without_duration(line) == {
        "level": "info",
        "logger": "app.api.access",
        "event": "request",
        "method": "POST",
        "route": "/v1/models/{model}/predictions",
        "path": "/v1/models/fraud/predictions",
        "status": 202,
        "request_id": "req-7",
        "model": "fraud",
    }


@pytest.mark.parametrize(
    ("path", "route", "status", "model"),
    [
        ("/v1/models/fraud/estimate", "/v1/models/{model}/estimate", 200, "fraud"),
        ("/v1/models/fraud/counts", "/v1/models/{model}/counts", 405, "fraud"),
        ("/v1/models/nobody", "/v1/models/{model}", 404, "nobody"),
        ("/v1/alarms/7", "/v1/alarms/{alarm_id}", 404, None),
        ("/v1/keys/7", "/v1/keys/{key_id}", 405, None),
        ("/nowhere", "none", 404, None),
    ],
)
def test_every_other_request_has_one_too(
    client: TestClient, written: Written, path: str, route: str, status: int, model: str | None
) -> None:
    client.get(path)

    (line,) = written.of("request")
    assert (line["route"], line["status"], line.get("model")) == (route, status, model)


@pytest.mark.parametrize("path", ["/v1/models?limit=", "/v1/models/fraud/predictions?on_error="])
def test_the_query_is_left_out(client: TestClient, written: Written, path: str) -> None:
    client.request("POST" if "predictions" in path else "GET", f"{path}T0KEN")

    (line,) = written.of("request")
    assert "T0KEN" not in str(line)


def test_without_being_wanted_there_is_none(app: FastAPI, written: Written) -> None:
    with serving(app) as client:
        register(client)
        client.post("/v1/models/fraud/predictions", json=BATCH)

    assert written.of("request") == []


def test_what_nobody_wants_to_see_is_not_there(app: FastAPI) -> None:
    assert server._watched(app, Settings()) is app


def test_a_path_cannot_forge_a_line(client: TestClient, written: Written) -> None:
    client.post('/v1/models/a%0A{"event": "request"}/predictions', json=BATCH)

    (line,) = written.of("request")
    assert line["model"] == 'a\n{"event": "request"}'


def test_a_caller_who_hangs_up_has_a_line_without_a_status(
    app: FastAPI, client: TestClient, written: Written
) -> None:
    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/models/fraud/predictions",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }
    watched = server._watched(app, Settings(access_log=True))
    client.portal.call(watched, scope, receive, send)  # type: ignore[union-attr]

    (line,) = written.of("request")
    assert (line["status"], line["model"]) == (None, "fraud")


# Every line of a request.


def test_a_line_from_any_thread_of_a_request_has_its_id_and_model(
    app: FastAPI, written: Written
) -> None:
    both = threading.Barrier(2, timeout=20)

    @app.get("/v1/models/{model}/here")
    def here(model: str) -> None:
        both.wait()
        log.info("hello", asked_for=model)

    with serving(app) as client:
        asking = [
            threading.Thread(
                target=client.get,
                args=[f"/v1/models/{name}/here"],
                kwargs={"headers": {"x-request-id": f"req-{name}"}},
            )
            for name in ("a", "b")
        ]
        for one in asking:
            one.start()
        for one in asking:
            one.join()

    found = {(line["asked_for"], line["model"], line["request_id"]) for line in written.of("hello")}
    assert found == {("a", "a", "req-a"), ("b", "b", "req-b")}


def test_after_a_request_lines_are_not_about_it(client: TestClient, written: Written) -> None:
    client.get("/v1/models/fraud", headers={"x-request-id": "req-7"})

    log.info("later")

    assert not {"request_id", "model"} & written.of("later")[0].keys()


# Bugs.


def break_ingest(_app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any) -> None:
        await asyncio.sleep(0)
        raise RuntimeError("a bug")

    monkeypatch.setattr(Recorder, "record", broken)


def break_a_route(app: FastAPI, _monkeypatch: pytest.MonkeyPatch) -> None:
    @app.post("/v1/models/{model}/broken")
    def broken(model: str) -> None:
        raise RuntimeError("a bug")


@pytest.mark.parametrize(
    ("break_it", "place"), [(break_ingest, "predictions"), (break_a_route, "broken")]
)
def test_a_bug_is_told_of_once_with_traceback_id_and_model(
    app: FastAPI,
    written: Written,
    monkeypatch: pytest.MonkeyPatch,
    break_it: Callable[[FastAPI, pytest.MonkeyPatch], None],
    place: str,
) -> None:
    break_it(app, monkeypatch)

    # This client raises what the application raises, which uvicorn would log once more.
    with serving(app) as client:
        register(client)
        answer = client.post(
            f"/v1/models/fraud/{place}", json=BATCH, headers={"x-request-id": "req-7"}
        )

    (line,) = [line for line in written.lines if "exception" in line]
    assert answer.status_code == 500
    assert (line["event"], line["request_id"], line["model"]) == ("bug", "req-7", "fraud")
    assert line["exception"].endswith("RuntimeError: a bug")
