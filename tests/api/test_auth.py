"""Who may do what."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.api.app import create_app
from app.api.server import Exposed, refuse_exposure
from app.config import Settings
from app.storage import keys
from app.storage.db import Database
from app.storage.keys import Scope
from tests.factories import CONFUSION, LABELS, VERSION, register

MODEL = "/v1/models/fraud"
REFERENCES = f"{MODEL}/references"

# Method, path, body, the answer to a key that covers it, and the scopes that do.
SILENCE = {
    "matchers": {"model": "fraud"},
    "until": (datetime.now(UTC) + timedelta(hours=1)).isoformat(),
}

COUNTS = {
    "source": "edge-7",
    "sequence": 1,
    "panes": [{"start": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:00Z}", "counts": {"legit": 1}}],
}

ROUTES: list[tuple[str, str, Any, int, set[str]]] = [
    ("GET", "/v1/models", None, 200, {"read", "admin"}),
    ("GET", MODEL, None, 200, {"read", "admin"}),
    ("GET", f"{MODEL}/panes", None, 200, {"read", "admin"}),
    ("GET", f"{MODEL}/estimate", None, 200, {"read", "admin"}),
    ("GET", f"{MODEL}/evaluations", None, 200, {"read", "admin"}),
    ("GET", f"{MODEL}/weights", None, 200, {"read", "admin"}),
    ("GET", f"{MODEL}/plan", None, 200, {"read", "admin"}),
    ("POST", f"{MODEL}/correct", {"probabilities": []}, 200, {"read", "admin"}),
    ("GET", REFERENCES, None, 200, {"read", "admin"}),
    ("GET", f"{REFERENCES}/{VERSION}", None, 200, {"read", "admin"}),
    ("POST", f"{MODEL}/predictions", {"predicted": [0]}, 202, {"ingest", "admin"}),
    ("POST", f"{MODEL}/counts", COUNTS, 202, {"ingest", "admin"}),
    ("PUT", MODEL, {"labels": LABELS}, 200, {"admin"}),
    ("DELETE", MODEL, None, 204, {"admin"}),
    ("PUT", f"{REFERENCES}/v2", {"confusion": CONFUSION}, 201, {"admin"}),
    ("POST", f"{REFERENCES}/{VERSION}/activate", None, 200, {"admin"}),
    ("DELETE", f"{REFERENCES}/{VERSION}", None, 204, {"admin"}),
    ("GET", "/v1/keys", None, 200, {"admin"}),
    ("POST", "/v1/keys", {"scopes": ["read"]}, 201, {"admin"}),
    ("DELETE", "/v1/keys/0", None, 404, {"admin"}),
    ("GET", "/v1/alarms", None, 200, {"read", "admin"}),
    ("GET", "/v1/alarms/0", None, 404, {"read", "admin"}),
    ("POST", "/v1/alarms/0/acknowledge", {}, 404, {"admin"}),
    ("POST", "/v1/alarms/0/resolve", {}, 404, {"admin"}),
    ("POST", "/v1/alarms/0/accept", {}, 404, {"admin"}),
    ("GET", "/v1/silences", None, 200, {"read", "admin"}),
    ("POST", "/v1/silences", SILENCE, 201, {"admin"}),
    ("DELETE", "/v1/silences/0", None, 404, {"admin"}),
    ("GET", "/v1/webhooks", None, 200, {"read", "admin"}),
    ("POST", "/v1/webhooks", {"url": "https://example.com/hook"}, 201, {"admin"}),
    ("GET", "/v1/webhooks/0", None, 404, {"read", "admin"}),
    ("DELETE", "/v1/webhooks/0", None, 404, {"admin"}),
    ("POST", "/v1/webhooks/0/test", None, 404, {"admin"}),
    ("POST", "/v1/webhooks/0/rotate", None, 404, {"admin"}),
    ("POST", "/v1/webhooks/0/disable", None, 404, {"admin"}),
    ("POST", "/v1/webhooks/0/enable", None, 404, {"admin"}),
    ("GET", "/v1/webhooks/0/deliveries", None, 404, {"read", "admin"}),
    ("POST", "/v1/deliveries/0/replay", None, 404, {"admin"}),
]


def secret(database: Database, *scopes: Scope) -> str:
    with database.begin() as conn:
        return keys.create(conn, "test", scopes, datetime.now(UTC))[1]


def bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


@contextmanager
def serving(database: Database, **settings: Any) -> Iterator[TestClient]:
    app = create_app(Settings(**settings), database)
    with TestClient(app, "http://localhost", raise_server_exceptions=False) as client:
        yield client


@pytest.mark.parametrize("scope", list(Scope))
@pytest.mark.parametrize(("method", "path", "body", "status", "allowed"), ROUTES)
def test_a_key_opens_what_its_scope_covers(
    client: TestClient,
    database: Database,
    method: str,
    path: str,
    body: Any,
    status: int,
    allowed: set[str],
    scope: Scope,
) -> None:
    register(client)
    key = secret(database, scope)
    client.app.state.services.gate.forget()  # type: ignore[attr-defined]

    answer = client.request(method, path, json=body, headers=bearer(key))

    assert answer.status_code == (status if scope in allowed else 403), answer.text


def operations(client: TestClient) -> list[tuple[str, str]]:
    """Every route under /v1, as the service itself tells."""
    return [
        (method.upper(), re.sub(r"{\w+}", "1", path))
        for path, item in client.get("/openapi.json").json()["paths"].items()
        for method in item
        if path.startswith("/v1/")
    ]


def test_the_table_of_routes_is_complete(client: TestClient) -> None:
    def shape(path: str) -> str:
        return path.replace("/fraud", "/1").replace(f"/{VERSION}", "/1").replace("/v2", "/1")

    tried = {(method, re.sub(r"/0\b", "/1", shape(path))) for method, path, *_ in ROUTES}
    assert tried == set(operations(client))


def test_once_there_is_a_key_nothing_is_open_without_one(
    client: TestClient, database: Database
) -> None:
    secret(database, Scope.READ)

    answers = {
        (method, path): client.request(method, path, json={}).status_code
        for method, path in operations(client)
    }

    assert answers == dict.fromkeys(answers, 401)


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", "Bearer sw_unknown", "Basic c3c6c3c=", "sw_unknown", "Bearer é"],
)
def test_what_is_not_a_known_key_is_refused(
    client: TestClient, database: Database, authorization: str
) -> None:
    secret(database, Scope.ADMIN)

    answer = client.get("/v1/models", headers=[(b"authorization", authorization.encode("latin-1"))])

    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.json()["type"] == "/problems/unauthenticated"


def test_the_word_bearer_may_be_written_in_any_case(client: TestClient, database: Database) -> None:
    key = secret(database, Scope.READ)

    answer = client.get("/v1/models", headers={"authorization": f"bearer  {key}"})

    assert answer.status_code == 200


def test_the_hash_of_a_key_is_not_the_key(client: TestClient, database: Database) -> None:
    key = secret(database, Scope.READ)

    answer = client.get("/v1/models", headers=bearer(keys.digest(key).hex()))

    assert answer.status_code == 401


def test_a_key_made_elsewhere_works_as_soon_as_it_is_tried(
    client: TestClient, database: Database
) -> None:
    first = secret(database, Scope.READ)
    client.get("/v1/models", headers=bearer(first))
    # By another replica, while this one remembers its keys but has not looked this very moment.
    client.app.state.services.gate._read_at -= 0.2  # type: ignore[attr-defined]
    second = secret(database, Scope.READ)

    assert client.get("/v1/models", headers=bearer(second)).status_code == 200


def test_health_and_explanations_need_no_key(client: TestClient, database: Database) -> None:
    secret(database, Scope.ADMIN)

    paths = ("/livez", "/readyz", "/problems/conflict", "/openapi.json")

    assert [client.get(path).status_code for path in paths] == [200] * 4


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "localhost:8000"},
        {"host": "127.0.0.1:8000"},
        {"host": "[::1]:8000"},
        {"origin": "http://localhost:8000"},
    ],
)
def test_without_keys_this_machine_is_let_in(client: TestClient, headers: Any) -> None:
    assert client.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "example.org"},
        {"host": "localhost.example.org"},
        {"host": "192.168.1.5:8000"},
        {"host": "[::1"},
        {"host": ""},
        {"origin": "https://example.org"},
        {"origin": "http://localhost.example.org"},
        {"origin": "null"},
        {"origin": "http://[bad"},
        {"x-forwarded-for": "203.0.113.7"},
        {"x-forwarded-for": "127.0.0.1"},
        {"forwarded": "for=203.0.113.7"},
    ],
)
def test_without_keys_strangers_are_refused(client: TestClient, headers: Any) -> None:
    answer = client.get("/v1/models", headers=headers)

    assert answer.status_code == 403, answer.text


def test_strangers_are_refused_on_the_ingest_route_too(client: TestClient) -> None:
    register(client)

    answer = client.post(
        f"{MODEL}/predictions", json={"predicted": [0]}, headers={"host": "example.org"}
    )

    assert answer.status_code == 403


def test_with_a_key_any_name_and_proxy_will_do(client: TestClient, database: Database) -> None:
    key = secret(database, Scope.READ)
    headers = {"host": "example.org", "x-forwarded-for": "203.0.113.7", **bearer(key)}

    assert client.get("/v1/models", headers=headers).status_code == 200


def test_beyond_this_machine_nobody_is_let_in_without_a_key(database: Database) -> None:
    with serving(database, host="0.0.0.0") as client:
        assert client.get("/v1/models").status_code == 401


def test_authentication_can_be_turned_off(database: Database) -> None:
    secret(database, Scope.ADMIN)

    with serving(database, host="0.0.0.0", auth="off") as client:
        answer = client.get("/v1/models", headers={"host": "example.org"})

    assert answer.status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_an_exposed_service_does_not_start_without_a_key(database: Database, host: str) -> None:
    with pytest.raises(Exposed, match="key create"):
        refuse_exposure(Settings(host=host), database)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.5", "::1", "localhost"])
def test_on_this_machine_no_key_is_needed_to_start(database: Database, host: str) -> None:
    refuse_exposure(Settings(host=host), database)


def test_an_exposed_service_starts_with_a_key(database: Database) -> None:
    secret(database, Scope.ADMIN)

    refuse_exposure(Settings(host="0.0.0.0"), database)


def test_an_exposed_service_starts_if_told_to_do_without(database: Database) -> None:
    refuse_exposure(Settings(host="0.0.0.0", auth="off"), database)


def test_on_another_loopback_address_this_machine_is_let_in(database: Database) -> None:
    with serving(database, host="127.0.0.5") as client:
        answer = client.get("/v1/models", headers={"host": "127.0.0.5:8000"})

    assert answer.status_code == 200
