"""The engine, and the one way to open a transaction."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import ClauseElement, Engine, TextClause, create_engine, event, text
from sqlalchemy import Connection as Connection
from sqlalchemy.dialects.postgresql import psycopg as psycopg_dialect
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app.errors import Unavailable
from app.storage import arrays

# A statement of the service that takes longer is stuck, not slow.
STATEMENT_TIMEOUT = "30s"
# Waiting for a lock longer than this means that somebody else is stuck.
LOCK_TIMEOUT = "10s"
CONNECT_TIMEOUT_SECONDS = 5


class Outage(Unavailable):
    """The database went away, rather than refusing what was asked of it."""


class Contention(Unavailable):
    """Somebody else was in the way; the same again may well succeed."""


class Database:
    """A pool of connections to one PostgreSQL.

    With `pre_ping`, a connection is tried before it is lent, so that one that broke while idle is
    replaced unnoticed. Whoever tries again anyway can save that round trip.
    """

    def __init__(self, url: str, pool_size: int = 5, *, pre_ping: bool = True) -> None:
        self.url = url
        self.engine: Engine = create_engine(
            url,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=CONNECT_TIMEOUT_SECONDS,
            pool_pre_ping=pre_ping,
            # Its errors are logged with their statement; what was sent with it is nobody's affair.
            hide_parameters=True,
            connect_args={
                "connect_timeout": CONNECT_TIMEOUT_SECONDS,
                "application_name": "shiftwatch",
                "options": f"-c timezone=UTC -c statement_timeout={STATEMENT_TIMEOUT}"
                f" -c lock_timeout={LOCK_TIMEOUT}",
            },
        )
        event.listen(self.engine, "connect", _teach_arrays)

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """A connection whose transactions are the caller's own affair."""
        try:
            with self.engine.connect() as conn:
                yield conn
        except (DBAPIError, psycopg.Error) as error:
            raise _translated(error) from error

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A transaction: committed when the block ends, rolled back when it raises."""
        try:
            with self.engine.begin() as conn:
                yield conn
        except (DBAPIError, psycopg.Error) as error:
            raise _translated(error) from error
        except PoolTimeout as error:
            raise Contention("every database connection is busy; try again soon") from error

    def ping(self) -> None:
        """Ask for an answer, any answer."""
        with self.begin() as conn:
            conn.execute(text("SELECT 1"))

    def close(self) -> None:
        self.engine.dispose()


# SQLSTATE classes: connection failure, insufficient resources (a full disk, too many clients),
# the operator's (shutdown, crash recovery, not yet accepting connections), system errors, and a
# server that only reads, as one is while it takes over from another.
OUTAGE = ("08", "53", "57P", "58", "25006")
# Serialisation failure, deadlock, lock not available, statement timeout.
CONTENTION = ("40001", "40P01", "55P03", "57014")


def binary_rows(conn: Connection, query: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The rows of a query of psycopg's own, sent in binary: for many arrays, text is slow."""
    # SQLAlchemy's wrapper passes on what it does not know, which its types do not say.
    connection: Any = conn.connection
    with connection.cursor(binary=True) as cursor:
        rows: list[tuple[Any, ...]] = cursor.execute(query, parameters).fetchall()
    return rows


def written(statement: ClauseElement) -> str:
    """A statement as psycopg takes it.

    For those that run many times a second: SQLAlchemy takes longer to find out again what it has
    made of a statement than PostgreSQL takes to run it.
    """
    dialect: Any = psycopg_dialect.dialect
    return str(statement.compile(dialect=dialect()))


def run(conn: Connection, query: str, *rows: Mapping[str, Any]) -> None:
    """Run a statement of psycopg's own that returns nothing, once for each row."""
    connection: Any = conn.connection
    with connection.cursor() as cursor:
        if len(rows) == 1:
            cursor.execute(query, rows[0])
        else:
            cursor.executemany(query, rows)


# Whoever waits for a lock that nobody else can share keeps out all who come after him. So he waits
# this long at the most, lets them pass, and tries again a few times.
SHORT_WAIT = "300ms"
PAUSES = (0.2, 0.5, 1.0, 2.0)


def give_way(conn: Connection) -> None:
    """From now on, wait for locks only as long as nobody minds."""
    conn.execute(text(f"SET LOCAL lock_timeout = '{SHORT_WAIT}'"))


def patiently(conn: Connection, *statements: TextClause) -> None:
    """Run statements that need a table for themselves."""
    give_way(conn)
    for pause in (*PAUSES, None):
        try:
            with conn.begin_nested():
                for statement in statements:
                    conn.execute(statement)
        except DBAPIError as error:
            if pause is None or getattr(error.orig, "sqlstate", None) not in CONTENTION:
                raise
            time.sleep(pause)
        else:
            break
    conn.execute(text(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'"))


def _translated(error: DBAPIError | psycopg.Error) -> Exception:
    """An outage or a contention as such; anything else is a bug and stays what it is."""
    told = error.orig if isinstance(error, DBAPIError) else error
    state = getattr(told, "sqlstate", None) or ""
    if state.startswith(CONTENTION):
        return Contention("the database is busy; try again soon")
    # Without a state the server had no chance to say anything.
    silent = isinstance(error, (OperationalError, psycopg.OperationalError)) and not state
    lost = isinstance(error, DBAPIError) and error.connection_invalidated
    if lost or silent or state.startswith(OUTAGE):
        return Outage("the database cannot be reached; try again soon")
    return error


def _teach_arrays(connection: Any, _record: object) -> None:
    # SQLAlchemy's wrapper around the psycopg connection passes unknown attributes through.
    arrays.register(connection)
