"""What the doctor finds: each check on something that is well and on something that is not."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from app import doctor
from app.config import Settings
from app.doctor import Finding, Level, examine
from app.domain.address import Reach
from app.domain.fleet import Fleet
from app.domain.notice import Event, Shape
from app.storage import deliveries, keys, models, schema, webhooks
from app.storage.checkup import Backlog, Server
from app.storage.db import Database
from app.storage.deliveries import GaveUp
from app.storage.embedded import Embedded
from app.storage.keys import Scope
from app.storage.webhooks import Webhook
from tests.conftest import admin, in_database
from tests.factories import NOW, settings
from tests.journeys.processes import ROOT, free_port

EVERYWHERE = "93.184.216.34"
GOOD = Server(180004, NOW, False, frozenset(), 97, True)


def now() -> datetime:
    return datetime.now(UTC)


def examined(
    url: str | None = None, clock: Callable[[], datetime] = now, connect: bool = False, **more: str
) -> dict[str, Finding]:
    """What is found of a database, by the name of the check."""
    environ = {"SHIFTWATCH_PORT": str(free_port())} | more
    if url is not None:
        environ["SHIFTWATCH_DATABASE_URL"] = url
    return {one.name: one for one in examine(environ, {}, clock, connect=connect)}


def levels(found: dict[str, Finding], *names: str) -> list[str]:
    return [found[name].level.value for name in names]


# Without a database.


@pytest.mark.parametrize(
    ("version", "system", "level"),
    [((3, 13, 1), "Linux", "ok"), ((3, 10, 9), "Linux", "fail"), ((3, 12, 0), "Darwin", "warn")],
)
def test_python_and_its_platform(version: tuple[int, ...], system: str, level: str) -> None:
    assert doctor.python(version, system, "x86_64").level == level


def test_every_setting_that_cannot_be_used_is_named_and_no_secret_is() -> None:
    found = examine(
        {
            "SHIFTWATCH_PORT": "no",
            "SHIFTWATCH_NONSENSE": "1",
            "SHIFTWATCH_DATABASE_URL": "mysql://me:secret@x",
        },
        {},
        now,
    )

    said = [one.said for one in found if one.name == "settings"]
    assert len(said) == 3
    assert all(any(name in one for one in said) for name in ("PORT", "NONSENSE", "DATABASE_URL"))
    assert "secret" not in str(found)
    assert {one.level for one in found[1:]} == {Level.FAIL}


def test_a_data_directory_is_made_by_serve_and_not_by_the_doctor(tmp_path: Path) -> None:
    place = tmp_path / "not" / "there"

    found = examined(SHIFTWATCH_DATA_DIR=str(place))

    assert levels(found, "data dir", "database") == ["ok", "ok"]
    assert "`shiftwatch serve` makes one" in found["database"].said
    assert not place.exists()


def test_without_the_programs_of_postgresql_there_is_no_embedded_one(tmp_path: Path) -> None:
    found = examined(SHIFTWATCH_DATA_DIR=str(tmp_path / "data"), SHIFTWATCH_PG_BIN=str(tmp_path))

    assert found["database"].level == "fail"
    assert "SHIFTWATCH_PG_BIN" in found["database"].advice


@pytest.mark.parametrize(("free", "level"), [(5e9, "ok"), (5e8, "warn"), (5e7, "fail")])
def test_room_on_the_disk(free: float, level: str) -> None:
    assert doctor.space(Path("/data"), int(free)).level == level


@contextmanager
def answering(status: int, body: bytes) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.02])
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "body", "level", "said"),
    [
        (200, b"database: ok\nschema: ok\nrecorder: ok\n", "ok", "ready"),
        (503, b"database: away\nschema: ok\nrecorder: ok\n", "fail", "not ready: database: away"),
        (200, b"<html>hello</html>", "fail", "something else"),
    ],
)
def test_who_answers_on_the_port(
    tmp_path: Path, status: int, body: bytes, level: str, said: str
) -> None:
    with answering(status, body) as port:
        found = examined(SHIFTWATCH_PORT=str(port), SHIFTWATCH_DATA_DIR=str(tmp_path / "data"))

    assert found["port"].level == level
    assert said in found["port"].said


def test_a_port_that_nobody_has_and_one_that_cannot_be_had(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))

        taken = examined(SHIFTWATCH_PORT=str(bound.getsockname()[1]), SHIFTWATCH_DATA_DIR=data)

    assert examined(SHIFTWATCH_DATA_DIR=data)["port"].level == "ok"
    assert taken["port"].level == "fail"


# The database.


@pytest.mark.parametrize(
    "url",
    ["postgresql://me:secret@127.0.0.1:1/x", "postgresql://me:secret@127.0.0.1:none/x"],
)
def test_a_database_that_cannot_be_reached(url: str) -> None:
    found = examined(url)

    assert found["database"].level == "fail"
    assert "cannot be reached" in found["database"].said
    assert "secret" not in str(found)
    assert "schema" not in found


def test_a_healthy_database(clone: Callable[[], str]) -> None:
    found = examined(clone())

    healthy = ["database", "connections", "clock", "schema", "keys", "worker", "notices"]
    assert levels(found, *healthy) == ["ok"] * len(healthy)
    assert "rights" not in found


def test_a_server_that_does_not_sync_is_reported(clone: Callable[[], str]) -> None:
    # As the one of these tests does not.
    found = examined(clone())

    assert (found["durability"].level, found["durability"].said) == ("fail", "fsync off")


@pytest.mark.parametrize(
    ("server", "names"),
    [
        (GOOD, {}),
        (Server(140010, NOW, False, frozenset(), 97, True), {"database": "fail"}),
        (Server(190000, NOW, False, frozenset(), 97, True), {"database": "warn"}),
        (Server(180004, NOW, True, frozenset(), 97, True), {"database": "fail"}),
        (
            Server(180004, NOW, False, frozenset({"synchronous_commit"}), 97, True),
            {"durability": "warn"},
        ),
        (Server(180004, NOW, False, frozenset(), 12, True), {"connections": "warn"}),
        (Server(180004, NOW, False, frozenset(), 97, False), {"rights": "fail"}),
    ],
)
def test_what_is_asked_of_a_server(server: Server, names: dict[str, str]) -> None:
    found = doctor.server(server, pool_size=10)

    assert {one.name: one.level for one in found if one.level != "ok"} == names


def test_an_account_that_may_not_make_tables(clone: Callable[[], str], server_url: str) -> None:
    url = clone()
    admin(server_url, "DROP ROLE IF EXISTS guest")
    admin(server_url, "CREATE ROLE guest LOGIN")
    admin(url, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO guest")

    found = examined(url.replace("shiftwatch@", "guest@"))

    assert found["rights"].level == "fail"
    admin(url, "DROP OWNED BY guest")
    admin(server_url, "DROP ROLE guest")


def test_commits_that_do_not_wait_are_seen_where_they_are_set(clone: Callable[[], str]) -> None:
    url = clone()
    name = url.split("?")[0].rsplit("/", 1)[1]
    admin(url, f"ALTER DATABASE {name} SET synchronous_commit = off")

    assert "synchronous_commit" in examined(url)["durability"].said


@pytest.mark.parametrize(("minutes", "level"), [(0, "ok"), (-2, "warn"), (2, "warn"), (7, "fail")])
def test_clocks_that_differ(clone: Callable[[], str], minutes: int, level: str) -> None:
    found = examined(clone(), clock=lambda: now() + timedelta(minutes=minutes))

    assert found["clock"].level == level
    if minutes:
        assert ("behind" if minutes > 0 else "ahead") in found["clock"].said


def test_a_database_without_the_schema(server_url: str) -> None:
    admin(server_url, "CREATE DATABASE empty_for_the_doctor")

    found = examined(in_database(server_url, "empty_for_the_doctor"))

    assert found["schema"].level == "fail"
    assert "shiftwatch migrate" in found["schema"].advice
    assert "keys" not in found
    admin(server_url, "DROP DATABASE empty_for_the_doctor WITH (FORCE)")


@pytest.mark.parametrize(
    ("current", "embedded", "level"),
    [
        ("0003", False, "fail"),
        ("0003", True, "warn"),
        (None, False, "fail"),
        ("0004", False, "ok"),
        ("0005", False, "ok"),
    ],
)
def test_schemas_of_other_releases(current: str | None, embedded: bool, level: str) -> None:
    assert doctor.migrations(current, "0004", embedded=embedded).level == level


# Who may use it.


def make_key(url: str, *scopes: Scope, revoked: bool = False) -> None:
    database = Database(url)
    with database.begin() as conn:
        key, _ = keys.create(conn, "robot", scopes, NOW)
        if revoked:
            keys.revoke(conn, key.id, NOW)
    database.close()


def test_beyond_this_machine_a_key_is_needed(clone: Callable[[], str]) -> None:
    url = clone()

    before = examined(url, SHIFTWATCH_HOST="0.0.0.0")
    make_key(url, Scope.ADMIN, revoked=True)
    revoked = examined(url, SHIFTWATCH_HOST="0.0.0.0")
    make_key(url, Scope.READ)
    reader = examined(url, SHIFTWATCH_HOST="0.0.0.0")
    make_key(url, Scope.ADMIN)
    after = examined(url, SHIFTWATCH_HOST="0.0.0.0")

    found = [levels(one, "keys")[0] for one in (before, revoked, reader, after)]
    assert found == ["fail", "fail", "warn", "ok"]
    assert "shiftwatch key create --scope admin" in before["keys"].advice


@pytest.mark.parametrize(("host", "level"), [("127.0.0.1", "ok"), ("0.0.0.0", "warn")])
def test_a_service_that_asks_for_no_key(host: str, level: str) -> None:
    assert doctor.access(Settings(host=host, auth="off"), []).level == level


# The worker.


def test_predictions_that_nobody_evaluates(clone: Callable[[], str]) -> None:
    url = clone()
    database = Database(url)
    with database.begin() as conn:
        made, _ = models.put(conn, "fraud", settings(), now())
        models.mark_due(conn, [made.id], now() - timedelta(minutes=3))

    waiting = examined(url)
    with database.begin() as conn:
        models.postpone(conn, made.id, now())
    failing = examined(url)
    with database.begin() as conn:
        models.evaluated(conn, made.id, None, now())
    done = examined(url)

    assert levels(waiting, "worker") == ["fail"]
    assert "is `shiftwatch worker` (or `serve`) running?" in waiting["worker"].advice
    assert levels(failing, "worker", "models") == ["ok", "fail"]
    assert "fraud" in failing["models"].said
    assert levels(done, "worker") == ["ok"]
    assert "models" not in done
    database.close()


def test_arrivals_that_nobody_takes() -> None:
    old, fresh = NOW - timedelta(minutes=2), NOW - timedelta(seconds=5)

    found = [list(doctor.worker(Backlog(1, None, at, ()), NOW)) for at in (old, fresh)]

    assert [one[0].level.value for one in found] == ["fail", "ok"]


# Webhooks.


def hook(database: Database, url: str, shape: Shape = Shape.STANDARD) -> Webhook:
    with database.begin() as conn:
        return webhooks.create(conn, url, [Event.FIRING], shape, NOW)


def test_webhooks_that_would_get_their_notices_and_others(clone: Callable[[], str]) -> None:
    url = clone()
    database = Database(url)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        good = hook(database, f"http://127.0.0.1:{listener.getsockname()[1]}/hook")
        closed = hook(database, f"http://127.0.0.1:{free_port()}/hook")
        private = hook(database, "https://10.1.2.3/hook")
        nowhere = hook(database, "https://nowhere.invalid/hook")
        off = hook(database, "http://127.0.0.1:1/hook")
        with database.begin() as conn:
            webhooks.disable(conn, off.id, "HTTP 410", NOW)

        asked = examined(url)
        tried = examined(url, connect=True)

        listener.settimeout(5)
        sent = listener.accept()[0]
        with sent:
            said = sent.recv(100)

    names = [f"webhook {one.id}" for one in (good, closed, private, nowhere, off)]
    assert levels(asked, *names) == ["ok", "ok", "fail", "fail", "warn"]
    assert levels(tried, *names) == ["ok", "fail", "fail", "fail", "warn"]
    assert said == b""
    assert "cannot be resolved" in asked[names[3]].said
    assert "HTTP 410" in asked[names[4]].said
    database.close()


def test_a_name_that_leads_inside_is_refused_and_a_chat_keeps_its_secret(
    database: Database,
) -> None:
    chat = hook(database, "https://chat.example/T0/secret", Shape.SLACK)

    public = doctor.webhook(chat, Reach.PUBLIC, lambda *_: [EVERYWHERE], None)
    inside = doctor.webhook(chat, Reach.PUBLIC, lambda *_: ["10.0.0.1"], None)

    assert (public.level, inside.level) == (Level.OK, Level.FAIL)
    assert "private" in inside.said
    assert "secret" not in f"{public} {inside}"


def test_notices_that_were_given_up(clone: Callable[[], str]) -> None:
    url = clone()
    database = Database(url)
    made = hook(database, "http://127.0.0.1:1/hook")
    with database.begin() as conn:
        deliveries.queue_for(conn, made.id, {"type": "test"}, Event.TEST, None, now())
    pending = examined(url)
    with database.begin() as conn:
        claimed = deliveries.claim(conn, now(), timedelta(seconds=60))
        assert claimed is not None
        deliveries.settle(conn, claimed, GaveUp("HTTP 500", 500), now())
    dead = examined(url)
    stuck = Fleet((), (), None, 1, NOW - timedelta(minutes=5), 0)

    assert levels(pending, "notices") == ["ok"]
    assert levels(dead, "notices") == ["warn"]
    assert doctor.outbox(stuck, NOW).level == "fail"
    database.close()


# The command.


def command(*options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app", "doctor", *options],
        cwd=ROOT,
        env={"PATH": "", "SHIFTWATCH_PORT": str(free_port()), **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_command_says_what_to_do_and_fails_if_something_does() -> None:
    done = command(SHIFTWATCH_DATABASE_URL="postgresql://me:secret@127.0.0.1:1/x")

    assert done.returncode == 1
    assert "fail  database      cannot be reached" in done.stdout
    assert "-> is PostgreSQL running there" in done.stdout
    assert done.stderr == ""


def test_an_embedded_database_is_examined_whether_it_runs_or_not(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Embedded(data) as embedded:
        empty = command("--json", "--data-dir", str(data))
        database = Database(embedded.start().url)
        schema.upgrade(database)
        with database.begin() as conn:
            models.put(conn, "fraud", settings(), NOW)
            conn.execute(text("UPDATE model SET due_at = '2020-01-01'"))
        database.close()
        running = command("--json", "--data-dir", str(data))
    stopped = command("--json", "--data-dir", str(data))

    def found(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
        return {one["name"]: one["level"] for one in json.loads(done.stdout)}

    assert (empty.returncode, found(empty)["schema"]) == (0, "warn")
    assert (running.returncode, found(running)["worker"]) == (1, "fail")
    assert stopped.returncode == 0
    assert set(found(stopped).values()) == {"ok"}
    assert not (data / "pgdata/postmaster.pid").exists()
