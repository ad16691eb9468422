"""API keys over HTTP: made, listed, revoked."""

import hashlib
import logging
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.storage.db import Database
from app.storage.tables import api_key

URL = "/v1/keys"


def created(client: TestClient, *scopes: str, by: str | None = None, name: str = "k") -> Any:
    headers = {} if by is None else bearer(by)
    answer = client.post(URL, json={"scopes": scopes, "name": name}, headers=headers)
    answer.raise_for_status()
    return answer.json()


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def test_a_new_key_comes_with_its_secret(client: TestClient) -> None:
    answer = client.post(URL, json={"scopes": ["read", "ingest"], "name": "grafana"})

    assert answer.status_code == 201
    found = answer.json()
    assert (found["name"], found["scopes"], found["revoked_at"]) == (
        "grafana",
        ["ingest", "read"],
        None,
    )
    assert found["secret"].startswith(found["hint"])


def test_no_two_secrets_are_alike(client: TestClient) -> None:
    admin = created(client, "admin")["secret"]

    secrets = {created(client, "read", by=admin)["secret"] for _ in range(5)}

    assert len(secrets) == 5
    assert all(len(secret) >= 40 for secret in secrets)


def test_the_secret_is_shown_once(client: TestClient) -> None:
    secret = created(client, "admin")["secret"]

    listed = client.get(URL, headers=bearer(secret))

    assert listed.json()["items"][0].keys() == {
        "id",
        "name",
        "scopes",
        "hint",
        "created_at",
        "revoked_at",
    }
    assert secret not in listed.text


def test_the_hint_is_too_little_to_guess_the_rest(client: TestClient) -> None:
    found = created(client, "admin")

    assert len(found["secret"]) - len(found["hint"]) >= 32


def test_the_secret_is_stored_as_its_hash_alone(client: TestClient, database: Database) -> None:
    secret = created(client, "admin")["secret"]

    with database.begin() as conn:
        (row,) = conn.execute(select(api_key)).mappings()

    assert row["digest"] == hashlib.sha256(secret.encode()).digest()
    assert not any(secret in str(value) for value in row.values())
    assert secret.encode() not in row["digest"]


def test_keys_are_listed_in_the_order_they_were_made(client: TestClient) -> None:
    admin = created(client, "admin", name="first")["secret"]
    created(client, "read", by=admin, name="second")

    listed = client.get(URL, headers=bearer(admin)).json()

    assert [item["name"] for item in listed["items"]] == ["first", "second"]


def test_a_revoked_key_is_refused_at_once(client: TestClient) -> None:
    admin = created(client, "admin")["secret"]
    reader = created(client, "read", by=admin)
    before = client.get("/v1/models", headers=bearer(reader["secret"])).status_code

    revoked = client.delete(f"{URL}/{reader['id']}", headers=bearer(admin))

    after = client.get("/v1/models", headers=bearer(reader["secret"])).status_code
    assert revoked.json()["revoked_at"] is not None
    assert (before, after) == (200, 401)


def test_a_revoked_key_is_still_listed(client: TestClient) -> None:
    admin = created(client, "admin")["secret"]
    reader = created(client, "read", by=admin)
    client.delete(f"{URL}/{reader['id']}", headers=bearer(admin))

    listed = client.get(URL, headers=bearer(admin)).json()["items"]

    assert [item["revoked_at"] is not None for item in listed] == [False, True]


def test_a_key_that_revokes_itself_leaves_the_door_shut(client: TestClient) -> None:
    admin = created(client, "admin")
    client.delete(f"{URL}/{admin['id']}", headers=bearer(admin["secret"]))

    answers = [client.get(URL), client.get(URL, headers=bearer(admin["secret"]))]

    assert [answer.status_code for answer in answers] == [401, 401]


@pytest.mark.parametrize("key_id", ["7", "0", "-1", "99999999999999999999"])
def test_an_unknown_key_cannot_be_revoked(client: TestClient, key_id: str) -> None:
    assert client.delete(f"{URL}/{key_id}").status_code in (404, 422)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "#/scopes"),
        ({"scopes": []}, "#/scopes"),
        ({"scopes": ["write"]}, "#/scopes/0"),
        ({"scopes": "admin"}, "#/scopes"),
        ({"scopes": ["read"], "name": ""}, "#/name"),
        ({"scopes": ["read"], "name": "x" * 101}, "#/name"),
        ({"scopes": ["read"], "name": "a\0b"}, "#/name"),
        ({"scopes": ["read"], "name": "a\nkey 1 is revoked"}, "#/name"),
        ({"scopes": ["read"], "secret": "mine"}, "#/secret"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_place(
    client: TestClient, body: Any, pointer: str
) -> None:
    answer = client.post(URL, json=body)

    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["pointer"] == pointer


def test_secrets_are_never_logged(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    admin = created(client, "admin")["secret"]
    reader = created(client, "read", by=admin)
    client.get("/v1/models", headers=bearer(reader["secret"]))
    client.delete(f"{URL}/{reader['id']}", headers=bearer(admin))
    client.get("/v1/models", headers=bearer(reader["secret"]))
    client.get("/v1/models", headers=bearer("sw_wrong"))

    assert caplog.text, "nothing was logged at all: the test shows nothing"
    assert not [secret for secret in (admin, reader["secret"], "sw_wrong") if secret in caplog.text]
