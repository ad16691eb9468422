"""A real PostgreSQL for every test that wants one: the embedded one, started once."""

import io
import itertools
import json
import logging
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import make_url
from structlog.contextvars import clear_contextvars

from app import logs
from app.api.app import create_app
from app.config import Settings
from app.storage import schema
from app.storage.db import Connection, Database
from app.storage.embedded import Embedded
from app.storage.tables import metadata

DATABASE_FIXTURES = {"server_url", "conn", "database", "client", "clone"}
_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if DATABASE_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.db)


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """The URL of a PostgreSQL that lives as long as the tests."""
    with (
        tempfile.TemporaryDirectory(prefix="shiftwatch-tests-") as home,
        Embedded(Path(home) / "data") as embedded,
    ):
        url = embedded.start().url
        # Nothing here outlives a crash; tests that crash something bring a server of their own.
        admin(url, "ALTER SYSTEM SET fsync = off")
        admin(url, "SELECT pg_reload_conf()")
        yield url


def in_database(url: str, name: str) -> str:
    return make_url(url).set(database=name).render_as_string(hide_password=False)


def admin(url: str, statement: str) -> None:
    """Run a statement that does not go into a transaction, such as CREATE DATABASE."""
    plain = url.replace("postgresql+psycopg://", "postgresql://")
    with psycopg.connect(plain, autocommit=True) as conn:
        conn.execute(statement.encode())


@pytest.fixture(scope="session")
def template(server_url: str) -> str:
    """The name of a migrated database, to be cloned."""
    admin(server_url, "CREATE DATABASE template_of_tests")
    database = Database(in_database(server_url, "template_of_tests"))
    schema.upgrade(database)
    database.close()
    return "template_of_tests"


@pytest.fixture
def clone(server_url: str, template: str) -> Iterator[Callable[[], str]]:
    """Makes a fresh migrated database and returns its URL; for tests that truly commit."""
    names: list[str] = []

    def make() -> str:
        name = f"clone_{next(_numbers)}"
        admin(server_url, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        names.append(name)
        return in_database(server_url, name)

    yield make
    for name in names:
        admin(server_url, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def shared(server_url: str, template: str) -> Iterator[Database]:
    admin(server_url, f"CREATE DATABASE shared TEMPLATE {template}")
    found = Database(in_database(server_url, "shared"))
    yield found
    found.close()


@pytest.fixture
def conn(shared: Database) -> Iterator[Connection]:
    """A transaction that is rolled back."""
    with shared.engine.connect() as connection:
        transaction = connection.begin()
        yield connection
        transaction.rollback()


@pytest.fixture
def database(shared: Database) -> Iterator[Database]:
    """For tests that truly commit: empty before, emptied after."""
    yield shared
    with shared.engine.begin() as connection:
        for table in reversed(metadata.sorted_tables):
            connection.execute(table.delete())


@pytest.fixture
def client(database: Database) -> Iterator[TestClient]:
    """The whole API, in this process, on a database of its own; no key is needed."""
    with TestClient(
        create_app(Settings(), database), base_url="http://localhost", raise_server_exceptions=False
    ) as found:
        yield found


@pytest.fixture(autouse=True)
def about_nothing() -> None:
    """A step of the worker leaves behind what its lines were about; the loop clears it away."""
    clear_contextvars()


@dataclass(frozen=True)
class Written:
    """The log of this process, as the service would write it."""

    stream: io.StringIO = field(default_factory=io.StringIO)

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]

    def of(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == event]


@pytest.fixture
def written() -> Iterator[Written]:
    """Everything that is logged, at any level."""
    found = Written()
    handler = logs.handler("json", found.stream)
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.DEBUG)
    root.addHandler(handler)
    yield found
    root.removeHandler(handler)
    root.setLevel(level)
