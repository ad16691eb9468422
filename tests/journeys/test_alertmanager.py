"""A real Alertmanager: an alarm shows there as an alert, and its end ends it."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from app.config import Settings
from app.deliver import Sender, deliver_next
from app.domain.notice import Event, Shape, default_events
from app.domain.times import rfc_3339
from app.storage import deliveries, webhooks
from app.storage.db import Database
from app.storage.deliveries import State
from tests.journeys import observers

CONFIG = {"route": {"receiver": "nobody"}, "receivers": [{"name": "nobody"}]}
SETTINGS = Settings()
SINCE = rfc_3339(datetime.now(UTC) - timedelta(hours=1))


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one that lives as long as these tests, and tells nobody."""
    with observers.alertmanager(tmp_path_factory.mktemp("alertmanager"), CONFIG) as url:
        yield url


def alerts(url: str, model: str) -> Any:
    """What Alertmanager takes for active."""
    query = {"filter": f'model="{model}"'}
    return httpx.get(f"{url}/api/v2/alerts", params=query).raise_for_status().json()


def told(event: Event, model: str, state: str, **changes: Any) -> dict[str, Any]:
    now = datetime.now(UTC)
    return {
        "type": event.value,
        "timestamp": rfc_3339(now),
        "data": {
            "alarm": {
                "id": 1,
                "model": model,
                "version": "2026-11-01",
                "kind": "shift",
                "state": state,
                "severity": "warning",
                "verdict": "label_shift",
                "since": SINCE,
                "onset": None,
                "acknowledged_by": None,
                "confirmed": False,
                "evidence": {},
                **changes,
            },
            "estimate": {"labels": [{"label": "fraud", "p": 0.012, "q": 0.048}]},
            "reason": "the mix of predictions changed",
            "links": {"page": f"https://watch.example/models/{model}"},
        },
    }


def deliver(database: Database, notice: dict[str, Any]) -> None:
    """Queue it and send it, for real."""
    with database.begin() as conn:
        assert deliveries.queue(conn, notice, notice["type"], 1, datetime.now(UTC)) == 1
    assert deliver_next(database, SETTINGS, Sender(), lambda: datetime.now(UTC))
    with database.begin() as conn:
        (hook,) = webhooks.page(conn, None, 10)
        newest = deliveries.page(conn, hook.id, None, None, 1)[0]
    assert newest.state is State.DELIVERED, newest.error


@pytest.fixture
def subscribed(database: Database, alertmanager: str) -> Database:
    place, shape = f"{alertmanager}/api/v2/alerts", Shape.ALERTMANAGER
    with database.begin() as conn:
        webhooks.create(conn, place, default_events(shape), shape, datetime.now(UTC))
    return database


def test_an_alarm_that_fires_is_an_active_alert(subscribed: Database, alertmanager: str) -> None:
    deliver(subscribed, told(Event.FIRING, "firing", "firing"))

    (found,) = alerts(alertmanager, "firing")

    assert found["status"]["state"] == "active"
    assert found["labels"] == {
        "alertname": "LabelShiftDetected",
        "model": "firing",
        "version": "2026-11-01",
        "service": "shiftwatch",
    }
    assert "'fraud' is about 4.8 % (was 1.2 %)." in found["annotations"]["summary"]
    assert found["generatorURL"] == "https://watch.example/models/firing"
    left = datetime.fromisoformat(found["endsAt"]) - datetime.now(UTC)
    assert left > timedelta(hours=7)


# An alarm that is younger than clocks may differ ends at its beginning.
@pytest.mark.parametrize("seconds", [0, 2, 3600])
def test_an_alarm_that_is_over_is_no_alert_any_more(
    subscribed: Database, alertmanager: str, seconds: int
) -> None:
    since = rfc_3339(datetime.now(UTC) - timedelta(seconds=seconds))
    deliver(subscribed, told(Event.FIRING, f"over-{seconds}", "firing", since=since))
    assert len(alerts(alertmanager, f"over-{seconds}")) == 1

    deliver(subscribed, told(Event.RESOLVED, f"over-{seconds}", "resolved", since=since))

    assert alerts(alertmanager, f"over-{seconds}") == []


def test_an_alarm_that_gets_worse_stays_one_alert(subscribed: Database, alertmanager: str) -> None:
    deliver(subscribed, told(Event.FIRING, "worse", "firing"))

    deliver(subscribed, told(Event.REVISED, "worse", "firing", severity="critical"))

    (found,) = alerts(alertmanager, "worse")
    assert found["annotations"]["severity"] == "critical"


def test_an_alarm_that_somebody_looks_after_stays_an_alert(
    subscribed: Database, alertmanager: str
) -> None:
    deliver(subscribed, told(Event.FIRING, "looked-after", "firing"))

    deliver(subscribed, told(Event.ACKNOWLEDGED, "looked-after", "acknowledged"))

    (found,) = alerts(alertmanager, "looked-after")
    left = datetime.fromisoformat(found["endsAt"]) - datetime.now(UTC)
    assert left > timedelta(days=29)


def test_a_test_shows_up(subscribed: Database, alertmanager: str) -> None:
    now = datetime.now(UTC)
    trial = {"type": "test", "timestamp": rfc_3339(now), "data": {"reason": "a test", "links": {}}}
    with subscribed.begin() as conn:
        (hook,) = webhooks.page(conn, None, 10)
        deliveries.queue_for(conn, hook.id, trial, Event.TEST, None, now)

    assert deliver_next(subscribed, SETTINGS, Sender(), lambda: datetime.now(UTC))

    found = httpx.get(f"{alertmanager}/api/v2/alerts").json()
    names = [one["labels"]["alertname"] for one in found]
    assert "ShiftwatchTest" in names
