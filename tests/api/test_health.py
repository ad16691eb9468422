"""Alive, and able to work: two questions."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import make_url

from app.api.app import create_app
from app.config import Settings
from app.storage import keys
from app.storage.db import Database
from app.storage.keys import Scope
from tests.conftest import admin, in_database

NOWHERE = "postgresql+psycopg://nobody@127.0.0.1:1/nothing"


@contextmanager
def serving(url: str) -> Iterator[TestClient]:
    database = Database(url)
    try:
        with TestClient(create_app(Settings(), database), "http://localhost") as client:
            yield client
    finally:
        database.close()


@pytest.fixture
def empty(server_url: str) -> Iterator[str]:
    """The URL of a database without any schema."""
    admin(server_url, "CREATE DATABASE empty_for_health")
    yield in_database(server_url, "empty_for_health")
    admin(server_url, "DROP DATABASE empty_for_health WITH (FORCE)")


def checks(client: TestClient) -> dict[str, bool]:
    """Which checks /readyz calls ok."""
    lines = client.get("/readyz").text.splitlines()
    return {name: why == "ok" for name, _, why in (line.partition(": ") for line in lines)}


@pytest.mark.parametrize("path", ["/livez", "/healthz"])
def test_a_process_is_alive_without_its_database(path: str) -> None:
    with serving(NOWHERE) as client:
        assert client.get(path).status_code == 200


def test_a_healthy_service_is_ready(client: TestClient) -> None:
    answer = client.get("/readyz")

    assert answer.status_code == 200
    assert checks(client) == {"database": True, "schema": True, "recorder": True}


def test_without_its_database_it_is_not_ready() -> None:
    with serving(NOWHERE) as client:
        answer = client.get("/readyz")

        assert answer.status_code == 503
        assert checks(client) == {"database": False, "schema": False, "recorder": True}


def test_it_is_ready_again_when_the_database_is_back(clone: Callable[[], str]) -> None:
    url = clone()
    name, elsewhere = make_url(url).database, in_database(url, "postgres")
    statuses: list[int] = []

    with serving(url) as client:
        statuses.append(client.get("/readyz").status_code)
        admin(elsewhere, f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        admin(elsewhere, f"{kill} WHERE datname = '{name}'")
        statuses.append(client.get("/readyz").status_code)
        admin(elsewhere, f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        statuses.append(client.get("/readyz").status_code)

    assert statuses == [200, 503, 200]


def test_a_database_without_the_schema_is_not_ready(empty: str) -> None:
    with serving(empty) as client:
        answer = client.get("/readyz/schema")

        assert answer.status_code == 503
        assert "shiftwatch migrate" in answer.text
        assert checks(client)["database"]


def test_an_older_schema_is_not_ready(clone: Callable[[], str]) -> None:
    url = clone()
    admin(url.replace("+psycopg", ""), "UPDATE alembic_version SET version_num = '0000'")

    with serving(url) as client:
        answer = client.get("/readyz/schema")

    assert answer.status_code == 503
    assert "0000" in answer.text


def stop_recorder(client: TestClient) -> None:
    recorder: Any = client.app.state.services.recorder  # type: ignore[attr-defined]
    assert client.portal is not None
    client.portal.call(recorder.stop)


def test_without_its_recorder_it_is_not_ready(client: TestClient) -> None:
    stop_recorder(client)

    assert client.get("/readyz").status_code == 503
    assert checks(client) == {"database": True, "schema": True, "recorder": False}


def test_without_its_recorder_it_is_still_alive(client: TestClient) -> None:
    stop_recorder(client)

    assert client.get("/livez").status_code == 200


@pytest.mark.parametrize("check", ["database", "schema", "recorder"])
def test_each_check_can_be_asked_for_alone(client: TestClient, check: str) -> None:
    answer = client.get(f"/readyz/{check}")

    assert (answer.status_code, answer.text) == (200, f"{check}: ok\n")


def test_a_check_fails_by_itself_alone() -> None:
    with serving(NOWHERE) as client:
        statuses = [
            client.get(f"/readyz/{check}").status_code for check in ("database", "recorder")
        ]

    assert statuses == [503, 200]


def test_an_unknown_check_is_not_found(client: TestClient) -> None:
    assert client.get("/readyz/weather").status_code == 404


def test_health_is_told_to_anyone(client: TestClient, database: Database) -> None:
    with database.begin() as conn:
        keys.create(conn, "test", [Scope.ADMIN], datetime.now(UTC))

    answers = [client.get(path, headers={"host": "10.0.0.7"}) for path in ("/livez", "/readyz")]

    assert [answer.status_code for answer in answers] == [200, 200]
