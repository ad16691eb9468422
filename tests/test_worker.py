"""The loops of the worker: when they begin, and that they end."""

import threading
import time

import pytest

from app import prune, worker
from app.config import Settings
from app.errors import Unavailable
from app.storage import schema
from app.storage.db import Database
from app.worker import Loops
from tests.conftest import admin, in_database


@pytest.fixture
def empty(server_url: str) -> str:
    """The URL of a database that nothing was done to."""
    admin(server_url, "DROP DATABASE IF EXISTS empty_for_the_worker WITH (FORCE)")
    admin(server_url, "CREATE DATABASE empty_for_the_worker")
    return in_database(server_url, "empty_for_the_worker")


def soon(done: threading.Event) -> bool:
    return done.wait(20)


def test_a_worker_waits_for_the_schema_and_begins_by_itself(
    empty: str, caplog: pytest.LogCaptureFixture
) -> None:
    database = Database(empty)
    loops = Loops(Settings(), database)
    begun = threading.Event()

    def start() -> None:
        loops.start()
        begun.set()

    starter = threading.Thread(target=start)
    starter.start()
    time.sleep(0.5)
    waited = not begun.is_set()
    schema.upgrade(database)

    assert waited
    assert soon(begun)
    assert "waiting for `shiftwatch migrate`" in caplog.text
    starter.join()
    loops.stop()
    database.close()


def test_a_worker_that_waits_can_be_told_to_stop(empty: str) -> None:
    database = Database(empty)
    loops = Loops(Settings(), database)
    starter = threading.Thread(target=loops.start)
    starter.start()

    loops.ask_to_stop()

    starter.join(20)
    assert not starter.is_alive()
    loops.stop()
    database.close()


def test_a_worker_prunes_by_the_hour_whatever_becomes_of_it(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker, "FIRST_PRUNE_SECONDS", 0.01)
    monkeypatch.setattr(worker, "PRUNE_EVERY_SECONDS", 0.01)
    calls = []
    done = threading.Event()

    def fail_at_first(*given: object) -> None:
        calls.append(given)
        if len(calls) == 1:
            raise ValueError("a surprise")
        if len(calls) == 2:
            raise Unavailable("nobody there")
        done.set()

    monkeypatch.setattr(prune, "prune", fail_at_first)
    settings = Settings()
    loops = Loops(settings, database)
    loops.start()

    pruned = soon(done)

    evaluating = [one for one in loops._threads if one.name == "evaluate" and one.is_alive()]
    loops.stop()
    assert pruned
    assert evaluating
    assert calls[0][:2] == (database, settings)
    assert "pruning failed" in caplog.text
    assert "cannot prune, trying again later" in caplog.text
