"""Statements of psycopg's own: what SQLAlchemy does not see of them must not matter."""

from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import text

from app.storage import db
from app.storage.db import Connection, Database, Outage, run
from tests.conftest import admin


@pytest.fixture
def lone(database: Database) -> Iterator[Database]:
    """A database with one connection, which is not tried before it is lent."""
    found = Database(database.url, pool_size=1, pre_ping=False)
    yield found
    found.close()


def backend(conn: Connection) -> int:
    return int(conn.execute(text("SELECT pg_backend_pid()")).scalar_one())


def end_own_backend(lone: Database) -> None:
    with lone.begin() as conn:
        admin(lone.url, f"SELECT pg_terminate_backend({backend(conn)}, 5000)")
        run(conn, "SELECT 1", {})


def test_a_connection_that_is_lost_in_such_a_statement_is_not_lent_again(lone: Database) -> None:
    with pytest.raises(Outage):
        end_own_backend(lone)

    with lone.begin() as conn:
        assert conn.execute(text("SELECT 1")).scalar_one() == 1


def test_nor_is_anything_logged_about_it(lone: Database, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Outage):
        end_own_backend(lone)

    assert caplog.records == []


def test_what_the_database_refuses_is_a_bug_and_the_connection_stays(lone: Database) -> None:
    with lone.begin() as conn:
        before = backend(conn)
    with pytest.raises(psycopg.errors.DivisionByZero), lone.begin() as conn:
        run(conn, "SELECT 1 / 0", {})

    with lone.begin() as conn:
        assert backend(conn) == before


def test_a_statement_runs_once_for_each_row(conn: Connection) -> None:
    conn.execute(text("CREATE TEMPORARY TABLE seen (n int)"))

    run(conn, "INSERT INTO seen VALUES (%(n)s)", {"n": 1})
    run(conn, "INSERT INTO seen VALUES (%(n)s)", {"n": 2}, {"n": 3})

    assert sorted(conn.execute(text("SELECT n FROM seen")).scalars()) == [1, 2, 3]


def test_a_statement_is_written_with_the_names_of_its_parameters() -> None:
    assert db.written(text("SELECT :one")) == "SELECT %(one)s"
