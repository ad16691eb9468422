"""GET /metrics: what a scrape gets, in which format, and what it gets when the database is away."""

import gzip
import subprocess
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text

from app import metrics
from app.api import gauges
from app.api.app import create_app
from app.config import Settings
from app.domain.notice import Event, Shape
from app.evaluate.due import Worker
from app.storage import deliveries, fleet, schema, webhooks
from app.storage.db import Database
from app.storage.embedded import Embedded
from tests.factories import CONFUSION, VERSION, register
from tests.tools import tool

OPENMETRICS = "application/openmetrics-text;version=1.0.0"


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauges, "REMEMBERED_SECONDS", 0.0)


def evaluate(database: Database, after_seconds: float = 0.0) -> None:
    worker = Worker(database, "http://localhost")
    while worker.evaluate_next(datetime.now(UTC) + timedelta(seconds=after_seconds)):
        pass


def send(client: TestClient, counts: tuple[int, ...] = (800, 150, 50), **more: Any) -> None:
    predicted = np.repeat(np.arange(len(counts)), counts).tolist()
    answer = client.post("/v1/models/fraud/predictions", json={"predicted": predicted, **more})
    answer.raise_for_status()


def samples(
    client: TestClient, name: str, **labels: str
) -> dict[frozenset[tuple[str, str]], float]:
    """The samples of that name that have these labels, by the labels that are left."""
    answer = client.get("/metrics")
    assert answer.status_code == 200
    return {
        frozenset(sample.labels.items() - labels.items()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    }


def value(client: TestClient, name: str, **labels: str) -> float | None:
    return samples(client, name, **labels).get(frozenset())


def by_label(client: TestClient, name: str, **labels: str) -> dict[str, float]:
    return {dict(key)["label"]: found for key, found in samples(client, name, **labels).items()}


def test_metrics_say_what_the_api_says(client: TestClient, database: Database) -> None:
    register(client)
    send(client)
    evaluate(database)
    estimate = client.get("/v1/models/fraud/estimate?window=1h").json()
    of_window = {"model": "fraud", "version": VERSION, "window": "1h"}

    shown = {
        column: by_label(client, name, **of_window) for name, column in gauges.OF_LABELS.items()
    }

    assert shown == {
        column: {one["label"]: one[column] for one in estimate["labels"]}
        for column in gauges.OF_LABELS.values()
    }
    accuracy = estimate["accuracy"]
    assert value(client, "shiftwatch_estimated_accuracy_ratio", **of_window) == accuracy["estimate"]
    assert value(client, "shiftwatch_window_samples", **of_window) == 1000.0
    assert value(client, "shiftwatch_estimate_valid", **of_window) == 1.0
    assert (
        value(client, "shiftwatch_bbsd_p_value", **of_window, test="chi2")
        == estimate["tests"][0]["p_value"]
    )
    assert (
        value(client, "shiftwatch_shift_distance_ratio", **of_window, metric="tv")
        == estimate["effect"]["total_variation"]
    )
    verdict = estimate["verdict"]
    assert value(client, "shiftwatch_verdict", **of_window, verdict=verdict) == 1.0


def test_the_reference_is_shown_before_any_prediction(client: TestClient) -> None:
    register(client)
    of_version = {"model": "fraud", "version": VERSION}
    reference = client.get(f"/v1/models/fraud/references/{VERSION}").json()

    assert by_label(client, "shiftwatch_reference_prevalence_ratio", **of_version) == {
        one["label"]: one["p"] for one in reference["labels"]
    }
    assert (
        value(client, "shiftwatch_confusion_min_singular_value", **of_version)
        == reference["sigma_min"]
    )
    assert (
        value(client, "shiftwatch_reference_accuracy_ratio", **of_version)
        == (reference["accuracy"])
    )
    assert value(client, "shiftwatch_model_info", **of_version, active="true", kind="hard") == 1.0
    assert set(samples(client, "shiftwatch_alarm_active", **of_version).values()) == {0.0}


def test_without_models_there_are_no_series_of_models(client: TestClient) -> None:
    assert value(client, "shiftwatch_models") == 0.0
    assert samples(client, "shiftwatch_model_info") == {}
    assert value(client, "shiftwatch_collector_success") == 1.0


def test_a_model_that_is_deleted_is_gone(client: TestClient, database: Database) -> None:
    register(client)
    send(client)
    evaluate(database)
    assert 'model="fraud"' in client.get("/metrics").text

    client.delete("/v1/models/fraud").raise_for_status()

    assert 'model="fraud"' not in client.get("/metrics").text


def test_a_version_is_shown_for_a_day_after_its_last_prediction(
    client: TestClient, database: Database
) -> None:
    register(client)
    send(client)
    evaluate(database)
    client.put("/v1/models/fraud/references/v2", json={"confusion": CONFUSION}).raise_for_status()

    both = samples(client, "shiftwatch_model_info", model="fraud")
    with database.begin() as conn:
        conn.execute(text("UPDATE detector SET arrived_at = arrived_at - interval '25 hours'"))
    later = samples(client, "shiftwatch_model_info", model="fraud")

    assert {(dict(key)["version"], dict(key)["active"]) for key in both} == {
        (VERSION, "false"),
        ("v2", "true"),
    }
    assert {dict(key)["version"] for key in later} == {"v2"}


def test_what_no_worker_has_looked_at_has_come_in_all_the_same(client: TestClient) -> None:
    register(client)
    send(client)

    arrived = value(
        client, "shiftwatch_last_arrival_timestamp_seconds", model="fraud", version=VERSION
    )

    assert arrived is not None
    assert time.time() - 60 < arrived <= time.time()


def test_the_newest_evaluation_counts(client: TestClient, database: Database) -> None:
    register(client)
    send(client)
    evaluate(database)
    send(client, (0, 200, 0))
    evaluate(database, after_seconds=2)

    found = samples(client, "shiftwatch_window_samples", window="1h")

    assert set(found.values()) == {1200.0}


def test_notices_that_wait_and_those_that_were_given_up_are_counted(
    client: TestClient, database: Database
) -> None:
    now = datetime.now(UTC)
    notice: dict[str, Any] = {"type": "alarm.firing"}
    with database.begin() as conn:
        events = [Event.FIRING, Event.REVISED]
        webhooks.create(conn, "http://127.0.0.1:9/", events, Shape.STANDARD, now)
        for seconds, event in ((0, Event.FIRING), (60, Event.REVISED)):
            deliveries.queue(conn, notice, event, 1, now + timedelta(seconds=seconds))
        # The first is put off; the second waits for it, not for us.
        conn.execute(
            text("UPDATE delivery SET due_at = due_at + interval '5 hours' WHERE event = :event"),
            {"event": Event.FIRING},
        )
    oldest = value(client, "shiftwatch_webhook_oldest_pending_timestamp_seconds")

    assert value(client, "shiftwatch_webhook_queue_depth") == 2.0
    assert oldest is not None
    assert oldest > (now + timedelta(hours=4)).timestamp()
    with database.begin() as conn:
        conn.execute(text("UPDATE webhook SET disabled_at = :now"), {"now": now})
    assert value(client, "shiftwatch_webhook_queue_depth") == 0.0
    with database.begin() as conn:
        conn.execute(text("UPDATE delivery SET state = 'dead'"))
    assert value(client, "shiftwatch_outbox_dead_letters") == 2.0


def test_what_waits_for_its_evaluation_is_seen(client: TestClient, database: Database) -> None:
    register(client)
    send(client)
    waiting = value(client, "shiftwatch_oldest_due_timestamp_seconds")

    evaluate(database)

    assert waiting is not None
    assert time.time() - 60 < waiting <= time.time()
    assert value(client, "shiftwatch_oldest_due_timestamp_seconds") is None


def test_predictions_are_counted_by_what_became_of_them(client: TestClient) -> None:
    register(client)
    before = {
        name: metrics.REGISTRY.get_sample_value(name, labels) or 0.0 for name, labels in COUNTERS
    }
    hour_ago = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    week_ago = (datetime.now(UTC) - timedelta(days=7)).isoformat()

    send(client, (3, 0, 0), batch_id="once")
    send(client, (3, 0, 0), batch_id="once")
    send(client, (0, 2, 0), timestamp=hour_ago)
    send(client, (0, 4, 0), timestamp=week_ago)
    batch = {"predicted": ["legit", "nonsense"]}
    client.post("/v1/models/fraud/predictions?on_error=skip", json=batch).raise_for_status()

    after = {name: metrics.REGISTRY.get_sample_value(name, labels) for name, labels in COUNTERS}
    grown = {name: (after[name] or 0.0) - before[name] for name in before}
    assert grown == {
        "shiftwatch_predictions_ingested_total": 6.0,
        "shiftwatch_predictions_duplicate_total": 3.0,
        "shiftwatch_predictions_rejected_total": 1.0,
    }
    assert late("accepted") >= 2.0
    assert late("dropped") >= 4.0


COUNTERS: list[tuple[str, dict[str, str]]] = [
    ("shiftwatch_predictions_ingested_total", {"model": "fraud"}),
    ("shiftwatch_predictions_duplicate_total", {}),
    ("shiftwatch_predictions_rejected_total", {"model": "fraud", "reason": "skipped"}),
]


def late(outcome: str) -> float:
    name = "shiftwatch_predictions_late_total"
    return metrics.REGISTRY.get_sample_value(name, {"outcome": outcome}) or 0.0


def test_refused_batches_are_counted_by_their_problem(client: TestClient) -> None:
    register(client)
    name = "shiftwatch_batches_refused_total"
    before = metrics.REGISTRY.get_sample_value(name, {"reason": "malformed"}) or 0.0

    client.post(
        "/v1/models/fraud/predictions", content=b"{", headers={"content-type": "application/json"}
    )

    assert metrics.REGISTRY.get_sample_value(name, {"reason": "malformed"}) == before + 1


def test_requests_are_counted_by_route_and_never_by_path(client: TestClient) -> None:
    register(client)
    send(client)
    client.get("/v1/models/fraud")
    client.get("/v1/models/who-is-that")
    client.get("/made/up/path")
    client.request("BREW", "/made/up/path")

    found = samples(client, "http_request_duration_seconds_count")

    seen = {(dict(key)["method"], dict(key)["route"], dict(key)["code"]) for key in found}
    assert {
        ("POST", "/v1/models/{model}/predictions", "202"),
        ("GET", "/v1/models/{model}", "200"),
        ("GET", "/v1/models/{model}", "404"),
        ("GET", "none", "404"),
        ("other", "none", "404"),
    } <= seen
    assert not any("who-is-that" in route or "made" in route for _, route, _ in seen)


def test_without_a_database_there_is_nothing_stale_and_no_error(tmp_path: Path) -> None:
    with ExitStack() as running, Embedded(tmp_path / "data") as embedded:
        own = Database(embedded.start().url)
        schema.upgrade(own)
        client = running.enter_context(TestClient(create_app(Settings(), own), "http://localhost"))
        register(client)
        before = client.get("/metrics").text
        embedded.stop()

        answer = client.get("/metrics")
        own.close()

    assert 'shiftwatch_model_info{model="fraud"' in before
    assert answer.status_code == 200
    assert "shiftwatch_collector_success 0.0" in answer.text
    assert "shiftwatch_model_info" not in answer.text
    assert "shiftwatch_build_info" in answer.text
    assert "process_cpu_seconds_total" in answer.text


def test_a_bug_in_reading_the_models_costs_only_the_models(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("never thought of that")

    monkeypatch.setattr(fleet, "read", broken)

    answer = client.get("/metrics")

    assert answer.status_code == 200
    assert "shiftwatch_collector_success 0.0" in answer.text
    assert "shiftwatch_build_info" in answer.text


def test_a_scrape_is_remembered_for_a_moment(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "REMEMBERED_SECONDS", 60.0)
    assert value(client, "shiftwatch_models") == 0.0

    register(client)

    assert value(client, "shiftwatch_models") == 0.0
    monkeypatch.setattr(gauges, "REMEMBERED_SECONDS", 0.0)
    assert value(client, "shiftwatch_models") == 1.0


def test_a_key_is_needed_once_there_are_keys(client: TestClient) -> None:
    made = client.post("/v1/keys", json={"name": "scrape", "scopes": ["read"]}).json()
    client.post("/v1/keys", json={"name": "in", "scopes": ["ingest"]})

    without = client.get("/metrics")
    with_key = client.get("/metrics", headers={"authorization": f"Bearer {made['secret']}"})

    assert (without.status_code, with_key.status_code) == (401, 200)


def test_without_a_wish_it_is_the_text_format(client: TestClient) -> None:
    answer = client.get("/metrics", headers={"accept": "*/*"})

    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "# EOF" not in answer.text


def test_openmetrics_is_given_to_whoever_asks_for_it(
    client: TestClient, database: Database
) -> None:
    register(client)
    send(client)
    evaluate(database)

    answer = client.get("/metrics", headers={"accept": OPENMETRICS})

    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.text.endswith("\n# EOF\n")
    parsed = openmetrics_families(answer.text)  # type: ignore[no-untyped-call]
    families = {family.name for family in parsed}
    assert {"shiftwatch_label_prevalence_ratio", "shiftwatch_predictions_ingested"} <= families


def test_what_is_sent_compressed_is_the_same(client: TestClient) -> None:
    register(client)

    with client.stream("GET", "/metrics", headers={"accept-encoding": "gzip"}) as answer:
        packed = b"".join(answer.iter_raw())

    assert answer.headers["content-encoding"] == "gzip"
    assert b'shiftwatch_model_info{model="fraud"' in gzip.decompress(packed)
    plain = client.get("/metrics", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers


def test_promtool_finds_nothing_to_complain_about(client: TestClient, database: Database) -> None:
    promtool = tool("promtool")
    register(client)
    send(client)
    evaluate(database)
    scraped = client.get("/metrics").text

    checked = subprocess.run(
        [promtool, "check", "metrics"], input=scraped, capture_output=True, text=True
    )
    control = subprocess.run(
        [promtool, "check", "metrics"],
        input=scraped.replace("# HELP shiftwatch_models ", "# HELP shiftwatch_modelsx "),
        capture_output=True,
        text=True,
    )

    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    assert control.returncode != 0


def test_a_thousand_labels_do_not_make_a_thousand_series(
    client: TestClient, database: Database
) -> None:
    labels = [f"label-{i}" for i in range(120)]
    client.put("/v1/models/wide", json={"labels": labels}).raise_for_status()
    confusion = np.diag(np.arange(120, 0, -1) + 10).tolist()
    client.put("/v1/models/wide/references/v1", json={"confusion": confusion}).raise_for_status()

    shown = by_label(client, "shiftwatch_reference_prevalence_ratio", model="wide", version="v1")

    assert list(shown) == labels[:50]
    assert value(client, "shiftwatch_truncated_labels", model="wide", version="v1") == 70.0
