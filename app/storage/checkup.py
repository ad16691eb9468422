"""What `shiftwatch doctor` asks of a database; nothing here changes anything."""

from dataclasses import dataclass
from datetime import datetime

import psycopg
from sqlalchemy import Connection, text
from sqlalchemy.exc import ArgumentError, DBAPIError

from app.errors import Unavailable
from app.storage.db import Database


@dataclass(frozen=True, slots=True)
class Server:
    """`connections` are those that are not kept back for the superuser; `unsafe` are settings that
    are off and should not be; `replica`: it only repeats what another server says."""

    version: int
    now: datetime
    replica: bool
    unsafe: frozenset[str]
    connections: int
    may_create: bool


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits for a worker, since when, and the models that it could not evaluate."""

    models: int
    due_since: datetime | None
    arrived_at: datetime | None
    failing: tuple[str, ...]


# An account that does not own the tables cannot attach a partition. No table, nothing to own.
_SERVER = text(
    """
SELECT current_setting('server_version_num')::int AS version, clock_timestamp() AS now,
       pg_is_in_recovery() AS replica,
       array(SELECT name FROM pg_settings WHERE setting = 'off' AND name IN
             ('fsync', 'full_page_writes', 'synchronous_commit')) AS unsafe,
       current_setting('max_connections')::int
           - current_setting('superuser_reserved_connections')::int AS connections,
       coalesce(has_schema_privilege(current_schema(), 'CREATE'), false) AND coalesce(
           (SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass('pane')),
           true) AS may_create
"""
)


def server(conn: Connection) -> Server:
    row = conn.execute(_SERVER).one()
    return Server(
        row.version,
        row.now,
        row.replica,
        frozenset(row.unsafe),
        row.connections,
        row.may_create,
    )


# A model that cannot be evaluated is put off: what waits for it does not wait for a worker.
_BACKLOG = text(
    """
SELECT (SELECT count(*) FROM model) AS models,
       (SELECT min(due_at) FROM model WHERE failures = 0 AND due_at <= :now) AS due_since,
       (SELECT min(a.arrived_at) FROM arrival a JOIN model m ON m.id = a.model_id
        WHERE m.failures = 0) AS arrived_at,
       array(SELECT name FROM model WHERE failures > 0 ORDER BY name) AS failing
"""
)


def backlog(conn: Connection, now: datetime) -> Backlog:
    row = conn.execute(_BACKLOG, {"now": now}).one()
    return Backlog(row.models, row.due_since, row.arrived_at, tuple(row.failing))


def unreachable(url: str) -> str | None:
    """Why no connection can be made; None if one can. A password is in none of these reasons."""
    try:
        database = Database(url)
    except (ArgumentError, ValueError):
        return "its URL cannot be read"
    try:
        database.ping()
    except (Unavailable, DBAPIError, psycopg.Error) as error:
        return _root(error)
    finally:
        database.close()
    return None


def _root(error: BaseException) -> str:
    """What the driver said, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
