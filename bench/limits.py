"""What the disk and PostgreSQL allow on this machine, measured on a table of its own."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, LiteralString

from psycopg import Connection

from app.storage.db import Database
from bench.family import labels
from bench.formats import Format, rows

AT = "2026-01-01T00:00:00Z"
COPY: LiteralString = "COPY bench_limit FROM STDIN"


@contextmanager
def connection(url: str) -> Iterator[Connection[Any]]:
    """A connection of psycopg's own, with the table to write to."""
    database = Database(url, pool_size=1)
    with database.connect() as conn:
        driver: Connection[Any] = conn.connection.driver_connection  # type: ignore[assignment]
        driver.execute(
            "CREATE TABLE bench_limit"
            " (model_id int, at timestamptz, predicted text, probabilities float8[])"
        )
        driver.commit()
        yield driver
    database.close()


def block(format: Format, size: int) -> bytes:
    """The rows of a batch as COPY reads them, ready to be sent: the loop over rows is not timed."""
    if format.soft:
        lines = (
            rf"1	{AT}	\N	{{{','.join(map(repr, row))}}}" for row in rows(size).tolist()
        )
    else:
        lines = (rf"1	{AT}	{label}	\N" for label in labels(size))
    return "".join(f"{line}\n" for line in lines).encode()


def copied_per_second(conn: Connection[Any], some: bytes, size: int, seconds: float) -> float:
    """Predictions per second by COPY, one commit for each batch."""
    count, took = 0, 0.0
    began = time.perf_counter()
    while took < seconds:
        with conn.cursor() as cursor, cursor.copy(COPY) as copy:
            copy.write(some)
        conn.commit()
        count += size
        took = time.perf_counter() - began
    _empty(conn)
    return count / took


def commits_per_second(conn: Connection[Any], seconds: float) -> float:
    """Transactions of one row, one after the other, each waiting for the disk."""
    count, took = 0, 0.0
    began = time.perf_counter()
    while took < seconds:
        conn.execute("INSERT INTO bench_limit (model_id, predicted) VALUES (1, 'label-0')")
        conn.commit()
        count += 1
        took = time.perf_counter() - began
    _empty(conn)
    return count / took


def _empty(conn: Connection[Any]) -> None:
    conn.execute("TRUNCATE bench_limit")
    conn.commit()
