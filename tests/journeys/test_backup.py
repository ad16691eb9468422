"""A backup made in the middle of everything, restored elsewhere, and work that goes on there."""

import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient
from sqlalchemy import text

from app.api.app import create_app
from app.config import Settings
from app.evaluate.due import Worker
from app.storage import postgres_binaries, schema
from app.storage.db import Database
from tests.conftest import admin, in_database
from tests.factories import VERSION, register
from tests.journeys.processes import ROOT

PROGRAMS = postgres_binaries._wheel() / "pginstall18" / "bin"
LABELS = ["legit"] * 15 + ["fraud"] * 4 + ["abuse"]


def commands(section: str) -> list[str]:
    """What the document tells an operator to type."""
    document = (ROOT / "docs/operations.md").read_text()
    found = re.search(rf"## {section}\n(.*?)\n## ", document, re.S)
    assert found is not None
    return re.findall(r"```\n(.*?)```", found[1], re.S)


def run(command: str, home: Path, **environ: str) -> None:
    subprocess.run(
        ["bash", "-euc", command],
        cwd=home,
        env={"PATH": f"{PROGRAMS}:{os.environ['PATH']}", **environ},
        check=True,
        timeout=120,
    )


@contextmanager
def serving(url: str) -> Iterator[tuple[TestClient, Database]]:
    database = Database(url)
    with TestClient(create_app(Settings(), database), "http://localhost") as client:
        yield client, database
    database.close()


def send(client: TestClient, number: int) -> dict[str, Any]:
    answer = client.post(
        "/v1/models/fraud/predictions",
        json={"predicted": LABELS},
        headers={"idempotency-key": f"batch-{number}"},
    )
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


@contextmanager
def sending(client: TestClient) -> Iterator[list[int]]:
    """Batches one after the other, until the block ends; yields their numbers."""
    sent: list[int] = []
    enough = threading.Event()

    def send_on() -> None:
        while not enough.wait(0.01):
            number = len(sent) + 1
            send(client, number)
            sent.append(number)

    sender = threading.Thread(target=send_on)
    sender.start()
    yield sent
    enough.set()
    sender.join()


def counted(client: TestClient) -> int:
    panes = client.get("/v1/models/fraud/panes?limit=1000").raise_for_status().json()["items"]
    return sum(pane["n"] for pane in panes)


def evaluate(database: Database) -> None:
    worker = Worker(database, "http://localhost")
    while worker.evaluate_next(datetime.now(UTC)):
        pass


TABLES = text(
    "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace"
    " AND relkind IN ('r', 'p') AND NOT relispartition ORDER BY relname"
)
FINGERPRINT = "SELECT md5(string_agg(one::text, ' ' ORDER BY one::text)) FROM {} AS one"


def contents(database: Database) -> dict[str, str | None]:
    """A fingerprint of every table, partitions included."""
    with database.begin() as conn:
        return {
            name: conn.execute(
                text(
                    f"SELECT md5(string_agg(one::text, ' ' ORDER BY one::text)) FROM {name} AS one"
                )
            ).scalar_one()
            for name in conn.execute(TABLES).scalars()
        }


def test_a_backup_is_restored_and_nothing_is_lost_or_counted_twice(
    clone: Callable[[], str], server_url: str, tmp_path: Path
) -> None:
    url = clone()
    backup, restore = commands("Backup and restore")
    with serving(url) as (client, database):
        register(client)
        send(client, 0)
        evaluate(database)
        with sending(client) as sent:
            run(backup, tmp_path, SHIFTWATCH_DATABASE_URL=_plain(url))
        at_the_source = counted(client)

    admin(server_url, "CREATE DATABASE restored")
    restored = in_database(server_url, "restored")
    run(restore, tmp_path, SHIFTWATCH_DATABASE_URL=_plain(restored))
    with serving(restored) as (client, database):
        schema.upgrade(database)
        before = counted(client)
        again = [send(client, number) for number in range(len(sent) + 1)]
        evaluate(database)
        after = counted(client)
        estimate = client.get("/v1/models/fraud/estimate").json()
    admin(server_url, "DROP DATABASE restored WITH (FORCE)")

    assert len(LABELS) <= before < at_the_source == len(again) * len(LABELS)
    assert again[0]["duplicate"] is True
    assert sum(not one["duplicate"] for one in again) == (after - before) // len(LABELS)
    assert (after, estimate["n"], estimate["version"]) == (at_the_source, at_the_source, VERSION)


def test_a_restored_database_has_every_row(
    clone: Callable[[], str], server_url: str, tmp_path: Path
) -> None:
    url = clone()
    backup, restore = commands("Backup and restore")
    with serving(url) as (client, database):
        register(client)
        send(client, 0)
        evaluate(database)
        client.post("/v1/webhooks", json={"url": "http://127.0.0.1:9/"}).raise_for_status()
        client.post("/v1/keys", json={"name": "one", "scopes": ["read"]}).raise_for_status()
        run(backup, tmp_path, SHIFTWATCH_DATABASE_URL=_plain(url))
        original = contents(database)
    admin(server_url, "CREATE DATABASE restored_rows")
    restored = in_database(server_url, "restored_rows")

    run(restore, tmp_path, SHIFTWATCH_DATABASE_URL=_plain(restored))

    database = Database(restored)
    found = contents(database)
    database.close()
    admin(server_url, "DROP DATABASE restored_rows WITH (FORCE)")
    assert found == original
    assert original["api_key"]


def _plain(url: str) -> str:
    return url.replace("postgresql+psycopg://", "postgresql://")
