"""A reference goes or is replaced while a batch is being counted under it: one of them wins.

Each story is told twice: as it should be, and without the lock that makes it so.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from app.ingest.record import Outcome, Receipt, Stale, Submission, needed_partitions, record
from app.ingest.reduce import Reduced
from app.stats.moments import Sums
from app.storage import models, panes, partitions, references
from app.storage.db import Connection, Database
from app.storage.panes import PaneKey
from tests.factories import CONFUSION, VERSION, register

MODEL = "/v1/models/fraud"
PLACE = f"{MODEL}/references/{VERSION}"
NOW = datetime.now(UTC)
OTHER = {"confusion": np.array(CONFUSION).T.tolist()}

Change = Callable[[TestClient], Any]


def delete(client: TestClient) -> Any:
    return client.delete(PLACE)


def replace(client: TestClient) -> Any:
    return client.put(PLACE, json=OTHER)


@pytest.fixture
def fraud(client: TestClient) -> TestClient:
    register(client)
    return client


@pytest.fixture
def batch(fraud: TestClient, database: Database) -> Submission:
    """Five predictions, reduced while the reference is there."""
    with database.begin() as conn:
        model = models.get(conn, "fraud")
        place = PaneKey(model.id, VERSION, NOW.replace(second=0, microsecond=0), "hard")
        found = Submission(Reduced(model, VERSION, {place: Sums(np.array([3, 1, 1]))}, 5))
        partitions.ensure(conn, needed_partitions([found], NOW))
    return found


def count(conn: Connection, batch: Submission) -> Outcome:
    (outcome,) = record(conn, [batch], 0, NOW)
    return outcome


def wait(database: Database, other: "Future[Any]") -> None:
    """Until the other one is done, or waits for a lock."""
    waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    deadline = time.monotonic() + 20
    while not other.done():
        with database.begin() as conn:
            if conn.execute(waiting).scalar_one():
                return
        assert time.monotonic() < deadline
        time.sleep(0.01)


def change_while_counting(
    client: TestClient, database: Database, batch: Submission, change: Change
) -> tuple[Outcome, Any]:
    with ThreadPoolExecutor(1) as pool:
        with database.begin() as conn:
            outcome = count(conn, batch)
            answer = pool.submit(change, client)
            wait(database, answer)
        return outcome, answer.result()


def count_while_deleting(database: Database, batch: Submission) -> Outcome:
    def counted() -> Outcome:
        with database.begin() as conn:
            return count(conn, batch)

    with ThreadPoolExecutor(1) as pool:
        with database.begin() as conn:
            model = models.get(conn, "fraud", lock=True)
            references.forget(conn, model, VERSION)
            models.drop_version(conn, model, VERSION, NOW)
            outcome = pool.submit(counted)
            wait(database, outcome)
        return outcome.result()


def stored(database: Database, batch: Submission) -> int:
    (key,) = batch.reduced.panes
    with database.begin() as conn:
        found = panes.between(conn, key.model_id, key.start, NOW)
    return sum(int(pane.counts.sum()) for pane in found)


@pytest.mark.parametrize("change", [delete, replace])
def test_who_comes_while_a_batch_is_counted_is_refused(
    fraud: TestClient, database: Database, batch: Submission, change: Change
) -> None:
    before = fraud.get(PLACE).json()

    outcome, answer = change_while_counting(fraud, database, batch, change)

    assert (outcome, answer.status_code) == (Receipt(VERSION, 5, 0, 0), 409)
    assert fraud.get(PLACE).json() == before
    assert stored(database, batch) == 5


@pytest.mark.parametrize(("change", "status"), [(delete, 204), (replace, 200)])
def test_the_control_without_the_models_lock_both_win(
    fraud: TestClient,
    database: Database,
    batch: Submission,
    change: Change,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find = models.find
    monkeypatch.setattr(models, "find", lambda conn, name, **_: find(conn, name))

    outcome, answer = change_while_counting(fraud, database, batch, change)

    assert (outcome, answer.status_code) == (Receipt(VERSION, 5, 0, 0), status)


def test_a_batch_that_comes_while_the_reference_goes_is_not_counted(
    database: Database, batch: Submission
) -> None:
    assert count_while_deleting(database, batch) == Stale()
    assert stored(database, batch) == 0


def test_the_control_a_batch_that_does_not_wait_is_counted_under_nothing(
    fraud: TestClient, database: Database, batch: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "_HOLD", models._HOLD.removesuffix(" FOR KEY SHARE"))

    assert count_while_deleting(database, batch) == Receipt(VERSION, 5, 0, 0)
    assert fraud.get(PLACE).status_code == 404
    assert stored(database, batch) == 5


def test_a_client_whose_version_is_gone_is_told_so(fraud: TestClient) -> None:
    # Ingest remembers the model as it was.
    fraud.put(f"{MODEL}/references/v2", json={"confusion": CONFUSION}).raise_for_status()
    fraud.post(f"{MODEL}/predictions", json={"predicted": [0]}).raise_for_status()
    fraud.delete(PLACE).raise_for_status()

    answer = fraud.post(f"{MODEL}/predictions", json={"predicted": [0], "version": VERSION})

    assert answer.status_code == 422
    assert f"no reference '{VERSION}'" in answer.json()["detail"]
