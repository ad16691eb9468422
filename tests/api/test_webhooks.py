"""Webhooks over HTTP: made, shown without their secrets, tried, turned off, forgotten."""

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.api.app import create_app
from app.config import Settings
from app.storage import deliveries, keys, webhooks
from app.storage.db import Database
from app.storage.deliveries import Claimed, Delivered, GaveUp
from app.storage.keys import Scope

URL = "/v1/webhooks"
PLACE = "https://receiver.example/hook"
ROUTING_KEY = "R0123456789abcdefR0123456789abcd"


def created(client: TestClient, url: str = PLACE, **body: Any) -> Any:
    answer = client.post(URL, json={"url": url, **body})
    assert answer.status_code == 201, answer.text
    return answer.json()


def tried(client: TestClient, webhook_id: int) -> Any:
    answer = client.post(f"{URL}/{webhook_id}/test")
    assert answer.status_code == 202, answer.text
    return answer.json()


def claim(database: Database) -> Claimed:
    with database.begin() as conn:
        found = deliveries.claim(conn, datetime.now(UTC), timedelta(seconds=60))
    assert found is not None
    return found


def settle(database: Database, outcome: deliveries.Outcome) -> None:
    with_lease = claim(database)
    with database.begin() as conn:
        deliveries.settle(conn, with_lease, outcome, datetime.now(UTC))


@pytest.fixture
def guarded(database: Database) -> Iterator[TestClient]:
    """The service as others reach it, with a key that may do everything."""
    with database.begin() as conn:
        _, secret = keys.create(conn, "k", [Scope.ADMIN], datetime.now(UTC))
    settings = Settings(host="0.0.0.0")
    with TestClient(create_app(settings, database), base_url="http://watch.example") as client:
        client.headers["authorization"] = f"Bearer {secret}"
        yield client


# Making one.


def test_a_new_webhook_comes_with_its_secret(client: TestClient) -> None:
    found = created(client, events=["alarm.resolved", "alarm.firing"], shape="cloudevents")

    assert found["secret"].startswith("whsec_")
    assert (found["url"], found["shape"]) == (PLACE, "cloudevents")
    assert found["events"] == ["alarm.firing", "alarm.resolved"]
    assert (found["disabled_at"], found["disabled_because"]) == (None, None)


def test_only_the_url_has_to_be_said(client: TestClient) -> None:
    found = created(client)

    assert found["shape"] == "standard"
    assert found["events"] == ["alarm.firing", "alarm.resolved", "alarm.revised"]


def test_alertmanager_is_told_of_acknowledgements_unless_it_chooses(client: TestClient) -> None:
    found = created(client, shape="alertmanager")
    chosen = created(client, shape="alertmanager", events=["alarm.firing"])

    assert "alarm.acknowledged" in found["events"]
    assert chosen["events"] == ["alarm.firing"]


def test_the_secret_is_shown_once(client: TestClient) -> None:
    found = created(client, shape="pagerduty", routing_key=ROUTING_KEY)
    tried(client, found["id"])

    shown = [
        client.get(path).text
        for path in (URL, f"{URL}/{found['id']}", f"{URL}/{found['id']}/deliveries")
    ]

    assert not [text for text in shown if found["secret"] in text or ROUTING_KEY in text]


@pytest.mark.parametrize("shape", ["slack", "teams"])
def test_of_an_address_that_is_a_secret_only_the_host_is_shown(
    client: TestClient, shape: str, database: Database
) -> None:
    found = created(client, "https://hooks.example:8443/services/T0KEN?sig=x", shape=shape)

    shown = client.get(f"{URL}/{found['id']}").json()["url"]

    assert shown == found["url"] == "https://hooks.example:8443/…"
    with database.begin() as conn:
        assert webhooks.get(conn, found["id"]).url.endswith("/services/T0KEN?sig=x")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "#/url"),
        ({"url": ""}, "#/url"),
        ({"url": 7}, "#/url"),
        ({"url": "ftp://receiver.example"}, "#/url"),
        ({"url": "https://user:password@receiver.example"}, "#/url"),
        ({"url": "https://receiver.example/#part"}, "#/url"),
        ({"url": "https://receiver.example/\0"}, "#/url"),
        ({"url": "https://" + "x" * 2000}, "#/url"),
        ({"url": PLACE, "events": []}, "#/events"),
        ({"url": PLACE, "events": ["alarm.exploded"]}, "#/events/0"),
        ({"url": PLACE, "shape": "fax"}, "#/shape"),
        ({"url": PLACE, "colour": "red"}, "#/colour"),
        ({"url": PLACE, "secret": "mine"}, "#/secret"),
        ({"url": PLACE, "shape": "pagerduty"}, "#/routing_key"),
        ({"url": PLACE, "shape": "pagerduty", "routing_key": ""}, "#/routing_key"),
        ({"url": PLACE, "shape": "pagerduty", "routing_key": "a b"}, "#/routing_key"),
        ({"url": PLACE, "shape": "pagerduty", "routing_key": "x" * 101}, "#/routing_key"),
        ({"url": PLACE, "shape": "slack", "routing_key": "x"}, "#/routing_key"),
        ({"url": PLACE, "routing_key": "x"}, "#/routing_key"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_place(
    client: TestClient, body: Any, pointer: str
) -> None:
    answer = client.post(URL, json=body)

    assert answer.status_code == 422, answer.text
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    assert client.get(URL).json()["items"] == []


def test_a_shape_that_is_none_is_the_only_flaw(client: TestClient) -> None:
    answer = client.post(URL, json={"url": PLACE, "shape": "fax", "routing_key": "x"})

    assert [error["pointer"] for error in answer.json()["errors"]] == ["#/shape"]


# Where it may point.


@pytest.mark.parametrize("url", ["http://127.0.0.1:9000/hook", "http://localhost:9000", PLACE])
def test_on_a_machine_of_ones_own_webhooks_may_stay_on_it(client: TestClient, url: str) -> None:
    assert created(client, url)["url"] == url


@pytest.mark.parametrize("url", ["http://10.0.0.1/", "http://169.254.169.254/latest/meta-data"])
def test_even_there_they_may_not_go_to_its_neighbours(client: TestClient, url: str) -> None:
    answer = client.post(URL, json={"url": url})

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "#/url"


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1:9000/",
        "https://localhost/",
        "https://[::1]/",
        "https://192.168.0.1/",
        "http://receiver.example/",
    ],
)
def test_elsewhere_they_go_to_public_addresses_by_https_alone(
    guarded: TestClient, url: str
) -> None:
    answer = guarded.post(URL, json={"url": url})

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "#/url"
    assert created(guarded)["url"] == PLACE


def test_with_the_first_key_even_a_machine_of_ones_own_is_elsewhere(client: TestClient) -> None:
    secret = client.post("/v1/keys", json={"scopes": ["admin"]}).json()["secret"]

    answer = client.post(
        URL, json={"url": "http://127.0.0.1:9000/"}, headers={"authorization": f"Bearer {secret}"}
    )

    assert answer.status_code == 422


def test_whoever_allows_private_addresses_may_use_them(database: Database) -> None:
    settings = Settings(auth="off", host="0.0.0.0", webhook_allow_private=True)

    with TestClient(create_app(settings, database)) as client:
        assert created(client, "http://10.0.0.1/hook")["id"]


# Looking, changing, forgetting.


def test_webhooks_are_listed_page_by_page(client: TestClient) -> None:
    made = [created(client)["id"] for _ in range(3)]

    first = client.get(URL, params={"limit": 2}).json()
    rest = client.get(URL, params={"limit": 2, "cursor": first["next"]}).json()

    assert [item["id"] for item in first["items"] + rest["items"]] == made
    assert rest["next"] is None


@pytest.mark.parametrize(
    "cursor",
    ["!", "WyJhIl0", "WyItMSJd", "WyIxIiwgIjIiXQ", "WyLCsiJd", "WyI5OTk5OTk5OTk5OTk5OTk5OTk5OSJd"],
)
def test_a_cursor_of_another_list_is_the_callers_mistake(client: TestClient, cursor: str) -> None:
    made = created(client)["id"]

    for path in (URL, f"{URL}/{made}/deliveries"):
        answer = client.get(path, params={"cursor": cursor})
        assert answer.status_code == 422, answer.text
        assert answer.json()["errors"][0]["parameter"] == "cursor"


def test_a_forgotten_webhook_is_not_there_any_more(client: TestClient) -> None:
    made = created(client)["id"]
    tried(client, made)

    answer = client.delete(f"{URL}/{made}")

    assert (answer.status_code, answer.text) == (204, "")
    assert client.get(f"{URL}/{made}").status_code == 404
    assert client.get(f"{URL}/{made}/deliveries").status_code == 404


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize("webhook_id", ["7", "0", "-1", "99999999999999999999", "x"])
def test_an_unknown_webhook_is_not_found(client: TestClient, method: str, webhook_id: str) -> None:
    assert client.request(method, f"{URL}/{webhook_id}").status_code in (404, 422)


@pytest.mark.parametrize("action", ["test", "rotate", "disable", "enable"])
def test_nothing_can_be_done_with_an_unknown_webhook(client: TestClient, action: str) -> None:
    assert client.post(f"{URL}/7/{action}").status_code == 404


def test_a_rotated_secret_is_new_and_shown_once(client: TestClient) -> None:
    made = created(client)

    rotated = client.post(f"{URL}/{made['id']}/rotate").json()

    shown = client.get(f"{URL}/{made['id']}")
    left = datetime.fromisoformat(rotated["old_secret_until"]) - datetime.now(UTC)
    assert rotated["secret"] != made["secret"]
    assert rotated["secret"] not in shown.text
    assert timedelta(hours=23, minutes=59) < left <= timedelta(hours=24)


def test_a_webhook_can_be_turned_off_and_on(client: TestClient) -> None:
    made = created(client)["id"]

    off = client.post(f"{URL}/{made}/disable").json()
    refused = client.post(f"{URL}/{made}/test")
    on = client.post(f"{URL}/{made}/enable").json()

    assert off["disabled_because"] == "disabled through the API"
    assert off["disabled_at"] is not None
    assert refused.status_code == 409
    assert (on["disabled_at"], on["disabled_because"]) == (None, None)
    assert tried(client, made)["state"] == "pending"


# Deliveries.


def test_a_test_is_queued_for_a_webhook_that_asked_for_something_else(
    client: TestClient, database: Database
) -> None:
    made = created(client, events=["alarm.resolved"])["id"]

    found = tried(client, made)

    assert (found["event"], found["state"], found["attempts"]) == ("test", "pending", 0)
    assert (found["webhook_id"], found["alarm_id"]) == (made, None)
    taken = claim(database)
    assert taken.id == found["id"]
    assert taken.notice["type"] == "test"
    assert taken.notice["data"]["links"] == {
        "page": f"http://127.0.0.1:8000/webhooks/{made}",
        "api": f"http://127.0.0.1:8000/v1/webhooks/{made}",
    }
    assert taken.notice["timestamp"].endswith("Z")


def test_deliveries_are_listed_newest_first_page_by_page(client: TestClient) -> None:
    made = created(client)["id"]
    queued = [tried(client, made)["id"] for _ in range(3)]

    first = client.get(f"{URL}/{made}/deliveries", params={"limit": 2}).json()
    rest = client.get(
        f"{URL}/{made}/deliveries", params={"limit": 2, "cursor": first["next"]}
    ).json()

    assert [item["id"] for item in first["items"] + rest["items"]] == queued[::-1]
    assert rest["next"] is None


def test_deliveries_are_listed_by_state(client: TestClient, database: Database) -> None:
    made = created(client)["id"]
    done, waiting = tried(client, made)["id"], tried(client, made)["id"]
    settle(database, GaveUp("HTTP 500: oh no", 500))

    found = {
        state: client.get(f"{URL}/{made}/deliveries", params={"state": state}).json()["items"]
        for state in ("pending", "delivered", "dead")
    }

    assert [item["id"] for item in found["pending"]] == [waiting]
    assert found["delivered"] == []
    (dead,) = found["dead"]
    assert (dead["id"], dead["status_code"], dead["error"]) == (done, 500, "HTTP 500: oh no")
    assert client.get(f"{URL}/{made}/deliveries?state=lost").status_code == 422


def test_a_notice_is_sent_again_under_its_id(client: TestClient, database: Database) -> None:
    made = created(client)["id"]
    before = tried(client, made)
    settle(database, Delivered(200))

    answer = client.post(f"/v1/deliveries/{before['id']}/replay")

    found = answer.json()
    assert answer.status_code == 202
    assert (found["state"], found["attempts"], found["status_code"]) == ("pending", 0, None)
    assert found["message_id"] == before["message_id"] == claim(database).message_id


def test_what_is_still_pending_is_not_sent_again(client: TestClient) -> None:
    queued = tried(client, created(client)["id"])["id"]

    answer = client.post(f"/v1/deliveries/{queued}/replay")

    assert answer.status_code == 409
    assert "still pending" in answer.json()["detail"]


@pytest.mark.parametrize("delivery_id", ["7", "99999999999999999999", "x"])
def test_an_unknown_delivery_is_not_sent_again(client: TestClient, delivery_id: str) -> None:
    assert client.post(f"/v1/deliveries/{delivery_id}/replay").status_code in (404, 422)


# Who may.

CHANGES = [
    ("POST", URL),
    ("DELETE", f"{URL}/1"),
    ("POST", f"{URL}/1/test"),
    ("POST", f"{URL}/1/rotate"),
    ("POST", f"{URL}/1/disable"),
    ("POST", f"{URL}/1/enable"),
    ("POST", "/v1/deliveries/1/replay"),
]
LOOKS = [("GET", URL), ("GET", f"{URL}/1"), ("GET", f"{URL}/1/deliveries")]


@pytest.mark.parametrize(
    ("scope", "requests", "refused"),
    [
        (Scope.READ, CHANGES, True),
        (Scope.INGEST, CHANGES, True),
        (Scope.INGEST, LOOKS, True),
        (Scope.READ, LOOKS, False),
        (Scope.ADMIN, CHANGES + LOOKS, False),
    ],
)
def test_looking_takes_read_and_changing_takes_admin(
    client: TestClient,
    database: Database,
    scope: Scope,
    requests: list[tuple[str, str]],
    refused: bool,
) -> None:
    with database.begin() as conn:
        _, secret = keys.create(conn, "k", [scope], datetime.now(UTC))
    headers = {"authorization": f"Bearer {secret}"}

    found = {
        client.request(method, path, headers=headers).status_code == 403
        for method, path in requests
    }

    assert found == {refused}


def test_secrets_are_never_logged(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    place = "https://hooks.example/services/T0KEN"
    made = created(client, place, shape="pagerduty", routing_key=ROUTING_KEY)
    rotated = client.post(f"{URL}/{made['id']}/rotate").json()
    client.post(URL, json={"url": place, "routing_key": ROUTING_KEY})
    tried(client, made["id"])

    hidden = [made["secret"], rotated["secret"], ROUTING_KEY, "T0KEN"]
    assert caplog.text, "nothing was logged at all: the test shows nothing"
    assert not [secret for secret in hidden if secret in caplog.text]


def test_a_refusal_does_not_repeat_a_secret(client: TestClient) -> None:
    answer = client.post(URL, json={"url": PLACE, "routing_key": ROUTING_KEY})

    assert answer.status_code == 422
    assert ROUTING_KEY not in answer.text
