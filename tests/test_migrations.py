"""The schema, as the migrations make it, on every PostgreSQL that is there."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Column, Integer, MetaData, text
from sqlalchemy.exc import IntegrityError

from app.domain.notice import Event, Shape
from app.stats import moments
from app.storage import deliveries, partitions, postgres_binaries, schema, webhooks
from app.storage.db import Connection, Database
from app.storage.embedded import Embedded
from app.storage.tables import metadata
from tests.conftest import admin, in_database
from tests.factories import NOW

ROOT = Path(__file__).parents[1]
OTHER_POSTGRES = {
    15: Path("/usr/lib/postgresql/15/bin"),
    16: postgres_binaries._wheel() / "pginstall" / "bin",
}
SEED = 20261118


@pytest.fixture(scope="module", params=[15, 16, 18])
def any_server(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a PostgreSQL of this major version."""
    major: int = request.param
    if major not in OTHER_POSTGRES:
        yield request.getfixturevalue("server_url")
        return
    if not (OTHER_POSTGRES[major] / "postgres").exists():
        pytest.skip(f"no PostgreSQL {major} in {OTHER_POSTGRES[major]}")
    with (
        tempfile.TemporaryDirectory(prefix="shiftwatch-migrations-") as home,
        Embedded(Path(home) / "data", OTHER_POSTGRES[major]) as embedded,
    ):
        url = embedded.start().url
        admin(url, "ALTER SYSTEM SET fsync = off")
        admin(url, "SELECT pg_reload_conf()")
        yield url


@pytest.fixture(scope="module")
def migrated(any_server: str) -> Iterator[Database]:
    """Empty, then at head."""
    admin(any_server, "CREATE DATABASE migrated")
    database = Database(in_database(any_server, "migrated"))
    schema.upgrade(database)
    yield database
    database.close()


@pytest.fixture
def empty(server_url: str) -> Iterator[str]:
    """The URL of a database that nothing was done to."""
    admin(server_url, "CREATE DATABASE empty_for_migrations")
    yield in_database(server_url, "empty_for_migrations")
    admin(server_url, "DROP DATABASE empty_for_migrations WITH (FORCE)")


PARTITIONS = "SELECT relname FROM pg_class WHERE relispartition"


def differences(database: Database, wanted: MetaData) -> list[Any]:
    with database.begin() as conn:
        partition = {row[0] for row in rows(conn, PARTITIONS)}
        context = MigrationContext.configure(
            conn,
            opts={
                "compare_type": True,
                "compare_server_default": True,
                "include_name": lambda name, kind, _: kind != "table" or name not in partition,
            },
        )
        return list(compare_metadata(context, wanted))


def rows(conn: Connection, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in conn.execute(text(query))]


def test_the_migrations_lead_to_the_tables(migrated: Database) -> None:
    assert differences(migrated, metadata) == []


@pytest.mark.parametrize("change", ["column", "type", "default", "index"])
def test_a_difference_to_the_tables_would_be_seen(migrated: Database, change: str) -> None:
    other = MetaData()
    for table in metadata.sorted_tables:
        table.to_metadata(other)
    model = other.tables["model"]
    if change == "column":
        model.append_column(Column("colour", Integer))
    elif change == "type":
        model.c.keep_ids.type = Integer()
    elif change == "default":
        model.c.revision.server_default = None
    else:
        model.c.name.index = True
        model.append_column(Column("name", model.c.name.type, index=True), replace_existing=True)

    assert differences(migrated, other)


def test_a_migrated_database_is_at_head(migrated: Database) -> None:
    with migrated.begin() as conn:
        assert schema.at_head(conn)


def test_migrating_again_changes_nothing(migrated: Database) -> None:
    schema.upgrade(migrated)

    assert differences(migrated, metadata) == []


def test_looking_again_and_again_leaves_no_statement_behind(migrated: Database) -> None:
    with migrated.begin() as conn:
        schema.at_head(conn)
        cache = conn.engine._compiled_cache
        assert cache is not None
        before = len(cache)
        for _ in range(3):
            schema.at_head(conn)

        assert len(cache) == before


def test_an_empty_database_is_not_at_head(empty: str) -> None:
    database = Database(empty)

    with database.begin() as conn:
        found = (schema.current(conn), schema.at_head(conn))

    database.close()
    assert found == (None, False)


def test_a_release_works_on_the_schema_of_the_next(empty: str) -> None:
    database = Database(empty)
    schema.upgrade(database)
    with database.begin() as conn:
        conn.execute(text("UPDATE alembic_version SET version_num = '9999'"))

    # It neither takes the schema for too old nor fails on a revision that it does not know.
    schema.upgrade(database)

    with database.begin() as conn:
        found = (schema.current(conn), schema.at_head(conn))
    database.close()
    assert found == ("9999", True)


def test_a_release_does_not_work_on_the_schema_of_the_one_before(empty: str) -> None:
    database = Database(empty)
    schema.upgrade(database)
    with database.begin() as conn:
        conn.execute(text("UPDATE alembic_version SET version_num = '0001'"))
        found = schema.at_head(conn)
    database.close()

    assert not found


def test_revisions_are_numbered_one_after_the_other() -> None:
    script = ScriptDirectory.from_config(schema._config())

    revisions = sorted(one.revision for one in script.walk_revisions())

    assert revisions == [f"{number:04d}" for number in range(1, len(revisions) + 1)]


WAITING = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")


def migrating(url: str) -> subprocess.Popen[str]:
    environ = {name: value for name, value in os.environ.items() if "SHIFTWATCH" not in name}
    return subprocess.Popen(
        [sys.executable, "-m", "app", "migrate"],
        cwd=ROOT,
        env={**environ, "SHIFTWATCH_DATABASE_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_many_processes_may_migrate_at_once(empty: str) -> None:
    database = Database(empty)
    with database.engine.connect() as conn:
        # Held until all have come as far as the lock: then they truly start at once.
        conn.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": schema.MIGRATION_LOCK})
        processes = [migrating(empty) for _ in range(3)]
        deadline = time.monotonic() + 60
        while conn.execute(WAITING).scalar_one() < len(processes):
            assert time.monotonic() < deadline, "somebody migrates without waiting"
            assert all(process.poll() is None for process in processes)
            time.sleep(0.02)
        conn.execute(text("SELECT pg_advisory_unlock(:lock)"), {"lock": schema.MIGRATION_LOCK})
        conn.commit()

    said = [process.communicate(timeout=60)[0] for process in processes]

    found = differences(database, metadata)
    database.close()
    head = f"the schema is at {schema.head()}\n"
    assert ([process.returncode for process in processes], said) == ([0] * 3, [head] * 3)
    assert found == []


UNIQUE_INDEXES = """
SELECT own.relname, index.relname, first.attname
FROM pg_index
JOIN pg_class AS own ON own.oid = indrelid
JOIN pg_class AS index ON index.oid = indexrelid
LEFT JOIN pg_attribute AS first ON first.attrelid = indrelid AND first.attnum = indkey[0]
WHERE indisunique AND own.relnamespace = 'public'::regnamespace
AND EXISTS (SELECT FROM pg_attribute AS a WHERE a.attrelid = own.oid AND a.attname = 'model_id')
"""


def test_every_key_of_a_per_model_table_starts_with_the_model(migrated: Database) -> None:
    with migrated.begin() as conn:
        partitions.ensure(conn, [partitions.containing(table, NOW) for table in partitions.SPAN])
        found = rows(conn, UNIQUE_INDEXES)
        conn.rollback()

    per_model = {table.name for table in metadata.sorted_tables if "model_id" in table.c}
    assert {table for table, _, _ in found} >= per_model | {"pane_2026_11_01"}
    assert [row for row in found if row[2] != "model_id"] == []


def test_there_is_no_trigger(migrated: Database) -> None:
    with migrated.begin() as conn:
        found = rows(
            conn,
            "SELECT tgname FROM pg_trigger LEFT JOIN pg_constraint AS c ON c.oid = tgconstraint"
            " WHERE NOT tgisinternal OR c.contype IS DISTINCT FROM 'f'",
        )

    assert found == []


def test_every_function_is_immutable(migrated: Database) -> None:
    with migrated.begin() as conn:
        found = rows(
            conn,
            "SELECT proname, provolatile FROM pg_proc"
            " WHERE pronamespace = 'public'::regnamespace ORDER BY proname",
        )

    assert found == [
        ("add_arrays", "i"),
        ("add_arrays", "i"),
        ("merged_code_counts", "i"),
        ("merged_codes", "i"),
    ]


@pytest.fixture
def before_retention(any_server: str) -> Iterator[Database]:
    """A database of the release that had deliveries in one table."""
    admin(any_server, "CREATE DATABASE before_retention")
    database = Database(in_database(any_server, "before_retention"))
    migrate_to(database, "0003")
    yield database
    database.close()
    admin(any_server, "DROP DATABASE before_retention WITH (FORCE)")


def migrate_to(database: Database, revision: str) -> None:
    with database.connect() as conn:
        config = schema._config()
        config.attributes["connection"] = conn
        command.upgrade(config, revision)
        conn.commit()


# As the previous release does it.
QUEUE = text(
    "INSERT INTO delivery (webhook_id, event, message_id, notice, state, created_at, due_at)"
    " SELECT webhook.id, 'test', 'msg', '{}', :state, :at, :at FROM webhook RETURNING id"
)


def queue(database: Database, at: datetime, state: str = "pending") -> int:
    with database.begin() as conn:
        found: int = conn.execute(QUEUE, {"at": at, "state": state}).scalar_one()
    return found


def test_deliveries_are_kept_when_they_get_partitions(before_retention: Database) -> None:
    today = datetime.now(UTC)
    with before_retention.begin() as conn:
        webhooks.create(conn, "https://a.example", tuple(Event), Shape.STANDARD, today)
    times = [today - timedelta(days=days) for days in (900, 40, 1)]
    old = [queue(before_retention, at) for at in times]

    schema.upgrade(before_retention)

    new = [queue(before_retention, today + timedelta(days=days)) for days in (0, 31, 120)]
    assert sorted([*old, *new]) == [*old, *new]
    with before_retention.begin() as conn:
        owner = webhooks.page(conn, None, 1)[0]
        found = [one.id for one in deliveries.page(conn, owner.id, None, None, 10)]
        first = deliveries.claim(conn, today, timedelta(hours=1))
        first_partition, *_ = partitions.existing(conn, "delivery")
    assert found == [*old, *new][::-1]
    assert first is not None
    assert first.id == old[0]
    # It begins before anything, so that whose clock is behind finds it too.
    assert first_partition.name == "delivery_1970_01_01"
    assert differences(before_retention, metadata) == []


def test_deliveries_of_now_and_much_later_find_or_make_their_partition(
    before_retention: Database,
) -> None:
    today = datetime.now(UTC)
    with before_retention.begin() as conn:
        webhooks.create(conn, "https://a.example", tuple(Event), Shape.STANDARD, today)
    queue(before_retention, today)
    schema.upgrade(before_retention)

    later = [today + timedelta(days=days) for days in (-40, 0, 400)]
    with before_retention.begin() as conn:
        queued = [deliveries.queue(conn, {}, Event.TEST, None, at) for at in later]

    assert queued == [1, 1, 1]


def test_a_webhook_takes_its_deliveries_with_it(before_retention: Database) -> None:
    today = datetime.now(UTC)
    with before_retention.begin() as conn:
        owner = webhooks.create(conn, "https://a.example", tuple(Event), Shape.STANDARD, today)
    queue(before_retention, today, "dead")
    schema.upgrade(before_retention)
    queue(before_retention, today + timedelta(days=40), "dead")

    with before_retention.begin() as conn:
        webhooks.forget(conn, owner.id)
        left = rows(conn, "SELECT count(*) FROM delivery")

    assert left == [(0,)]


def test_partitions_are_made_and_dropped_everywhere(migrated: Database) -> None:
    day = NOW.replace(year=1999)
    with migrated.begin() as conn:
        wanted = [partitions.containing(table, day) for table in partitions.SPAN]
        partitions.ensure(conn, wanted)
        made = [one for table in partitions.SPAN for one in partitions.existing(conn, table)]
        for one in wanted:
            partitions.drop(conn, one)
        left = [one for table in partitions.SPAN for one in partitions.existing(conn, table)]

    assert {*made} - {*left} == {*wanted}


# A row of each table that has arrays, as SQL: two labels everywhere.
GOOD: dict[str, dict[str, str]] = {
    "model": {
        "name": "'fraud'",
        "labels": "ARRAY['a', 'b']",
        "pane": "'1 minute'",
        "windows": "'[]'",
        "alarm": "'{}'",
        "allowed_lateness": "'1 day'",
        "keep_ids": "false",
        "created_at": "now()",
        "updated_at": "now()",
    },
    "reference": {
        "model_id": "1",
        "version": "'v1'",
        "kind": "'hard'",
        "counts": "ARRAY[4, 1, 1, 4]::bigint[]",
        "diagnosis": "'{}'",
        "fingerprint": "''",
        "created_at": "now()",
    },
    "pane": {
        "model_id": "1",
        "version": "'v1'",
        "start": "'2026-11-17 10:00:00+00'",
        "kind": "'soft'",
        "shard": "0",
        "counts": "ARRAY[1, 1]::bigint[]",
        "prob": "ARRAY[1.5, 0.5]::float8[]",
        '"outer"': "ARRAY[1, 0.5, 0.25]::float8[]",
        "cells": "array_fill(1, ARRAY[28])::bigint[]",
        "codes": "ARRAY[3, 5]::bigint[]",
        "code_counts": "ARRAY[1, 1]::bigint[]",
        "score": "ARRAY[1, 0.5, 0.5, 0.5]::float8[]",
        "updated_at": "now()",
    },
    "arrival": {
        "model_id": "1",
        "version": "'v1'",
        "start": "'2026-11-17 10:00:00+00'",
        "kind": "'hard'",
        "counts": "ARRAY[1, 1]::bigint[]",
        "score": "0",
        "arrived_at": "now()",
    },
    "rollup": {
        "model_id": "1",
        "version": "'v1'",
        "panes": "60",
        "start": "'2026-11-17 10:00:00+00'",
        "kind": "'soft'",
        "counts": "ARRAY[1, 1]::bigint[]",
        "prob": "ARRAY[1.5, 0.5]::float8[]",
        '"outer"': "ARRAY[1, 0.5, 0.25]::float8[]",
        "cells": "array_fill(1, ARRAY[28])::bigint[]",
        "codes": "ARRAY[3, 5]::bigint[]",
        "code_counts": "ARRAY[1, 1]::bigint[]",
        "score": "ARRAY[1, 0.5, 0.5, 0.5]::float8[]",
    },
    "webhook": {
        "url": "'https://example.com'",
        "events": "ARRAY['test', 'alarm.firing']",
        "shape": "'standard'",
        "secret": "'whsec_'",
        "created_at": "now()",
    },
    "alarm": {
        "model_id": "1",
        "version": "'v1'",
        "kind": "'shift'",
        "state": "'firing'",
        "severity": "'warning'",
        "reason": "''",
        "since": "now()",
        "evidence": "'{}'",
    },
    "evaluation": {
        "model_id": "1",
        "version": "'v1'",
        '"window"': "'1h'",
        "slot": "'2026-11-17 10:00:00+00'",
        "revision": "1",
        "start": "now()",
        '"end"': "now()",
        "n": "5",
        "verdict": "'no_shift'",
        "evaluated_at": "now()",
        "result": "'{}'",
    },
    "api_key": {
        "name": "'k'",
        "scopes": "ARRAY['read', 'ingest']",
        "hint": "'sw_'",
        "digest": "''",
        "created_at": "now()",
    },
}
ARRAYS = {
    ("model", "labels"): "text",
    ("reference", "counts"): "bigint",
    ("pane", "counts"): "bigint",
    ("pane", "prob"): "float8",
    ("pane", '"outer"'): "float8",
    ("pane", "cells"): "bigint",
    ("pane", "codes"): "bigint",
    ("pane", "code_counts"): "bigint",
    ("pane", "score"): "float8",
    ("arrival", "counts"): "bigint",
    ("rollup", "counts"): "bigint",
    ("rollup", "prob"): "float8",
    ("rollup", '"outer"'): "float8",
    ("rollup", "cells"): "bigint",
    ("rollup", "codes"): "bigint",
    ("rollup", "code_counts"): "bigint",
    ("rollup", "score"): "float8",
    ("webhook", "events"): "text",
    ("api_key", "scopes"): "text",
}
HARD = {"kind": "'hard'"} | {
    column: "NULL" for table, column in ARRAYS if table == "pane" and column != "counts"
}


def put(conn: Connection, table: str, **changes: str) -> None:
    """Add the good row of a table, with these changes."""
    with conn.begin_nested() as savepoint:
        own = ("pane", "rollup", "evaluation")
        partitions.ensure(conn, [partitions.containing(one, NOW) for one in own])
        # References name a model that exists in no other test; its number does not matter.
        conn.execute(text("ALTER TABLE reference DROP CONSTRAINT reference_model_id_fkey"))
        row = GOOD[table] | changes
        conn.execute(
            text(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join(row.values())})")
        )
        savepoint.rollback()


@pytest.fixture
def anywhere(migrated: Database) -> Iterator[Connection]:
    """A transaction that is rolled back, on each PostgreSQL."""
    with migrated.engine.connect() as conn:
        yield conn


def test_every_array_column_is_tried_below(anywhere: Connection) -> None:
    found = rows(
        anywhere,
        "SELECT table_name, quote_ident(column_name) FROM information_schema.columns"
        " WHERE table_schema = 'public' AND data_type = 'ARRAY'",
    )

    assert {(table, column) for table, column in found} == set(ARRAYS)


@pytest.mark.parametrize("table", GOOD)
def test_a_good_row_is_taken(anywhere: Connection, table: str) -> None:
    put(anywhere, table)


def test_a_good_pane_of_hard_labels_is_taken(anywhere: Connection) -> None:
    put(anywhere, "pane", **HARD)


@pytest.mark.parametrize(("table", "column"), ARRAYS)
def test_no_array_has_a_null_element(anywhere: Connection, table: str, column: str) -> None:
    good, kind = GOOD[table][column], ARRAYS[table, column]
    holed = f"array_append(({good})[2:], NULL::{kind})"

    with pytest.raises(IntegrityError, match="_check"):
        put(anywhere, table, **{column: holed})


@pytest.mark.parametrize(
    ("table", "column"), [array for array in ARRAYS if array[0] in ("pane", "rollup")]
)
@pytest.mark.parametrize("change", ["array_append({}, 0)", "({})[2:]", "'{{}}'"])
def test_no_array_of_sums_has_another_length(
    anywhere: Connection, table: str, column: str, change: str
) -> None:
    with pytest.raises(IntegrityError, match="_check"):
        put(anywhere, table, **{column: change.format(GOOD[table][column])})


@pytest.mark.parametrize(
    ("table", "changes"),
    [
        ("pane", {"kind": "'hard'"}),
        ("pane", {**HARD, "kind": "'soft'"}),
        ("pane", {"kind": "'other'"}),
        ("pane", {"prob": "NULL"}),
        ("pane", {**HARD, "counts": "ARRAY[1]::bigint[]"}),
        ("pane", {**HARD, "counts": "array_fill(1, ARRAY[1001])::bigint[]"}),
        ("rollup", {"kind": "'hard'"}),
        ("rollup", {"prob": "NULL"}),
        ("arrival", {"kind": "'other'"}),
        ("arrival", {"counts": "ARRAY[1]::bigint[]"}),
        ("webhook", {"shape": "'fax'"}),
        ("webhook", {"events": "'{}'"}),
        ("alarm", {"kind": "'other'"}),
        ("alarm", {"state": "'ok'"}),
        ("alarm", {"severity": "'fatal'"}),
        ("evaluation", {"verdict": "'maybe'"}),
        ("reference", {"kind": "'soft'"}),
        ("reference", {"soft": "''"}),
        ("reference", {"kind": "'other'"}),
        ("reference", {"counts": "'{}'"}),
        ("model", {"labels": "ARRAY['a']"}),
        ("model", {"labels": "'{}'"}),
        ("model", {"pane": "'0'"}),
        ("api_key", {"scopes": "'{}'"}),
        ("api_key", {"scopes": "ARRAY['write']"}),
    ],
)
def test_a_row_that_makes_no_sense_is_refused(
    anywhere: Connection, table: str, changes: dict[str, str]
) -> None:
    with pytest.raises(IntegrityError, match="_check"):
        put(anywhere, table, **changes)


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ("add_arrays(ARRAY[1, 2]::bigint[], ARRAY[10, 20]::bigint[])", [11, 22]),
        ("add_arrays(ARRAY[0.5, 2]::float8[], ARRAY[0.25, -2]::float8[])", [0.75, 0.0]),
        ("add_arrays('{}'::bigint[], '{}'::bigint[])", []),
        ("merged_codes(ARRAY[1, 5]::bigint[], ARRAY[3, 5]::bigint[])", [1, 3, 5]),
        ("merged_codes('{}'::bigint[], ARRAY[3, 5]::bigint[])", [3, 5]),
        ("merged_codes('{}'::bigint[], '{}'::bigint[])", []),
        (
            "merged_code_counts(ARRAY[1, 5]::bigint[], ARRAY[10, 50]::bigint[],"
            " ARRAY[3, 5]::bigint[], ARRAY[7, 8]::bigint[])",
            [10, 7, 58],
        ),
        ("merged_code_counts('{}', '{}', ARRAY[3]::bigint[], ARRAY[7]::bigint[])", [7]),
        ("merged_code_counts('{}', '{}', '{}', '{}')", []),
    ],
)
def test_arrays_add_up(anywhere: Connection, call: str, result: list[float]) -> None:
    assert anywhere.execute(text(f"SELECT {call}")).scalar_one().tolist() == result


def test_arrays_of_unequal_length_leave_a_hole_behind(anywhere: Connection) -> None:
    call = "add_arrays(ARRAY[1, 2]::bigint[], ARRAY[10]::bigint[])"

    found = anywhere.execute(text(f"SELECT array_position({call}, NULL)")).scalar_one()

    assert found == 2


def test_the_order_of_an_addition_is_that_of_the_arrays(anywhere: Connection) -> None:
    a, b = np.arange(20_000), np.arange(20_000)[::-1] * 3

    found = anywhere.execute(
        text("SELECT add_arrays(CAST(:a AS bigint[]), CAST(:b AS bigint[]))"), {"a": a, "b": b}
    ).scalar_one()

    assert np.array_equal(found, a + b)


def test_the_database_merges_codes_as_the_statistics_do(anywhere: Connection) -> None:
    rng = np.random.default_rng(SEED)
    parts = []
    for n in (50, 70):
        softmax = rng.dirichlet(np.ones(4), n)
        parts.append(moments.sums(4, moments.argmax(softmax), softmax))
    one, two = (part.soft for part in parts)
    assert one is not None
    assert two is not None

    codes, counts = anywhere.execute(
        text(
            "SELECT merged_codes(CAST(:a AS bigint[]), CAST(:b AS bigint[])), merged_code_counts("
            "CAST(:a AS bigint[]), CAST(:a_counts AS bigint[]),"
            " CAST(:b AS bigint[]), CAST(:b_counts AS bigint[]))"
        ),
        {"a": one.codes, "a_counts": one.code_counts, "b": two.codes, "b_counts": two.code_counts},
    ).one()

    whole = moments.total(parts).soft
    assert whole is not None
    assert (codes.tolist(), counts.tolist()) == (whole.codes.tolist(), whole.code_counts.tolist())
