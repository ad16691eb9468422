"""Bring a database to the schema of this release, and tell whether it is there."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

import app
from app.storage.db import Database

# Any fixed number will do, as long as nobody else uses it: "shift" on a telephone's keys.
MIGRATION_LOCK = 74438

# A migration must not queue behind a long reader and stop everybody who queues behind it.
LOCK_TIMEOUT = "4s"
STATEMENT_TIMEOUT = "60s"

OLDEST_SERVER = 150000


class WrongServer(Exception):
    """The database is one that the service cannot work with."""


def upgrade(database: Database) -> None:
    """Run the migrations that are missing; any number of processes may ask at once."""
    with database.connect() as conn, _migration_lock(conn):
        if not at_head(conn):
            conn.rollback()
            config = _config()
            config.attributes["connection"] = conn
            command.upgrade(config, "head")


def at_head(conn: Connection) -> bool:
    """Whether every migration of this release has been run; one of the next may have been, too.

    While releases are replaced one by one, the older one serves on the newer one's schema.
    """
    found, own = current(conn), head()
    # Revisions are numbered one after the other, with as many digits each.
    return found is not None and own is not None and found >= own


_IS_MIGRATED = text("SELECT to_regclass('alembic_version') IS NOT NULL")
_CURRENT = text("SELECT version_num FROM alembic_version")


def current(conn: Connection) -> str | None:
    # Not by Alembic, which makes a new statement each time: every look at /readyz would leave one
    # more in the engine's cache of compiled statements.
    if not conn.execute(_IS_MIGRATED).scalar_one():
        return None
    found: str | None = conn.execute(_CURRENT).scalar_one_or_none()
    return found


@cache
def head() -> str | None:
    return ScriptDirectory.from_config(_config()).get_current_head()


@contextmanager
def _migration_lock(conn: Connection) -> Iterator[None]:
    """One migrating process at a time; the others wait, then find nothing left to do."""
    _refuse_old_server(conn)
    conn.execute(text("SET statement_timeout = 0"))
    conn.execute(text("SET lock_timeout = 0"))
    conn.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": MIGRATION_LOCK})
    conn.execute(text(f"SET lock_timeout = '{LOCK_TIMEOUT}'"))
    conn.execute(text(f"SET statement_timeout = '{STATEMENT_TIMEOUT}'"))
    conn.commit()
    try:
        yield
    finally:
        # Closing the session gives up the lock and the settings with it.
        conn.invalidate()


def _refuse_old_server(conn: Connection) -> None:
    number = int(conn.execute(text("SHOW server_version_num")).scalar_one())
    if number < OLDEST_SERVER:
        raise WrongServer(f"PostgreSQL 15 or newer is needed; this is {number // 10000}")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_script_location()).replace("%", "%%"))
    return config


def _script_location() -> Path:
    package = Path(app.__file__).parent
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parent / "migrations"
