"""Predictions kept by id, for models that ask for it; and counts of what came late."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.storage import partitions, predictions
from app.storage.db import Connection, Database
from app.storage.predictions import KeptPredictions
from app.storage.tables import late, prediction
from tests.factories import NOW, VERSION, register

URL = "/v1/models/fraud/predictions"
LATER = NOW + timedelta(minutes=1)


def keep(conn: Connection, ids: list[str], at: datetime, predicted: list[int]) -> None:
    partitions.ensure(conn, [partitions.containing("prediction", at)])
    kept = KeptPredictions(ids, [at] * len(ids), predicted)
    predictions.keep(conn, 1, VERSION, kept)


def kept(conn: Connection) -> list[tuple[str, datetime, int]]:
    rows = conn.execute(select(prediction).order_by(prediction.c.id, prediction.c.at))
    return [(row.id, row.at, row.predicted) for row in rows]


def test_each_prediction_is_kept_by_its_id(conn: Connection) -> None:
    keep(conn, ["b", "a"], NOW, [2, 0])

    assert kept(conn) == [("a", NOW, 0), ("b", NOW, 2)]


def test_what_is_kept_stays_as_it_was(conn: Connection) -> None:
    keep(conn, ["a"], NOW, [0])

    keep(conn, ["a", "b"], NOW, [2, 1])

    assert kept(conn) == [("a", NOW, 0), ("b", NOW, 1)]


def test_an_id_twice_in_one_batch_is_kept_once(conn: Connection) -> None:
    keep(conn, ["a", "a"], NOW, [0, 0])

    assert kept(conn) == [("a", NOW, 0)]


def test_an_id_of_another_time_is_another_prediction(conn: Connection) -> None:
    keep(conn, ["a"], NOW, [0])

    keep(conn, ["a"], LATER, [1])

    assert kept(conn) == [("a", NOW, 0), ("a", LATER, 1)]


def test_late_predictions_are_counted_by_day(conn: Connection) -> None:
    for now, shard in ((NOW, 0), (LATER, 0), (NOW, 1), (NOW + timedelta(days=1), 0)):
        predictions.count_late(conn, {(1, "v1"): 2, (2, "v1"): 1}, shard, now)

    rows = conn.execute(
        select(late.c.received_on, late.c.shard, late.c.predictions)
        .where(late.c.model_id == 1)
        .order_by(late.c.received_on, late.c.shard)
    )
    today, tomorrow = NOW.date(), NOW.date() + timedelta(days=1)
    assert [tuple(row) for row in rows] == [(today, 0, 4), (today, 1, 2), (tomorrow, 0, 2)]


def ids_after(client: TestClient, database: Database, body: Any, query: str = "") -> list[str]:
    client.post(URL + query, json=body).raise_for_status()
    with database.begin() as conn:
        return [id for id, _, _ in kept(conn)]


@pytest.mark.parametrize("body", [{}, {"keep_ids": False}])
def test_ids_are_kept_only_if_the_model_asks_for_it(
    client: TestClient, database: Database, body: Any
) -> None:
    register(client, **body)

    assert ids_after(client, database, {"predicted": [0], "ids": ["a"]}) == []


def test_a_model_that_asks_for_it_has_its_ids_kept(client: TestClient, database: Database) -> None:
    register(client, keep_ids=True)
    at = datetime.now(UTC)

    ids = ids_after(
        client,
        database,
        {"predicted": [2, "fraud"], "ids": ["b", "a"], "timestamp": at.isoformat()},
    )

    assert ids == ["a", "b"]
    with database.begin() as conn:
        assert kept(conn) == [("a", at, 1), ("b", at, 2)]


def test_rows_without_an_id_are_counted_but_not_kept(
    client: TestClient, database: Database
) -> None:
    register(client, keep_ids=True)

    rows = [{"predicted": 0, "id": "a"}, {"predicted": 1}, {"probabilities": [0, 0, 1], "id": "c"}]

    assert ids_after(client, database, {"rows": rows}) == ["a", "c"]


def test_what_is_late_or_bad_is_not_kept(client: TestClient, database: Database) -> None:
    register(client, keep_ids=True)
    now = datetime.now(UTC)
    times = [now - timedelta(days=3), now, now]

    ids = ids_after(
        client,
        database,
        {
            "predicted": [0, 1, "?"],
            "ids": ["late", "good", "bad"],
            "timestamps": [time.isoformat() for time in times],
        },
        "?on_error=skip",
    )

    assert ids == ["good"]


def test_a_repeated_batch_is_kept_once(client: TestClient, database: Database) -> None:
    register(client, keep_ids=True)
    body = {"predicted": [0], "ids": ["a"], "batch_id": "batch-1"}
    client.post(URL, json=body)

    assert ids_after(client, database, body) == ["a"]
