"""Signing in to the page: what the cookie is, what it opens, and what it does not."""

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select

from app.api import deps
from app.api.app import create_app
from app.api.auth import COOKIE, SESSIONS_AT_ONCE
from app.config import Settings
from app.storage import keys, sessions
from app.storage.db import Database
from app.storage.keys import Scope
from app.storage.tables import model, session
from tests.api.pages.browser import SAME_SITE, key, post, sign_in, signed_in
from tests.factories import LABELS


def sessions_in(database: Database) -> int:
    with database.begin() as conn:
        return conn.execute(select(func.count()).select_from(session)).scalar_one()


def cookie_of(answer: Any) -> list[str]:
    """The cookie's attributes, in lower case, without its value."""
    return [part.strip().lower() for part in answer.headers["set-cookie"].split(";")[1:]]


def test_without_keys_this_machine_needs_not_sign_in(client: TestClient) -> None:
    assert client.get("/").status_code == 200


def test_once_there_is_a_key_a_page_sends_to_the_form_and_back(
    client: TestClient, database: Database
) -> None:
    secret = key(database, Scope.READ)

    asked = client.get("/alarms?state=firing", follow_redirects=False)
    form = client.get(asked.headers["location"])
    answer = sign_in(client, secret, next="/alarms?state=firing")

    assert asked.status_code == 303
    assert 'value="/alarms?state=firing"' in form.text
    assert (answer.status_code, answer.headers["location"]) == (303, "/alarms?state=firing")
    assert client.get("/alarms").status_code == 200


def test_no_script_and_no_other_site_gets_at_the_cookie(
    client: TestClient, database: Database
) -> None:
    answer = sign_in(client, key(database, Scope.READ))

    found = cookie_of(answer)
    assert {"httponly", "samesite=lax", "path=/", "max-age=43200"} <= set(found)
    assert not any(part.startswith("domain") for part in found)
    assert "secure" not in found  # http on this machine: a browser would drop it


@pytest.mark.parametrize(
    ("public_url", "base_url"),
    [("https://watch.example", "http://localhost"), (None, "https://localhost")],
)
def test_over_https_the_cookie_goes_over_https_only(
    database: Database, public_url: str | None, base_url: str
) -> None:
    secret = key(database, Scope.READ)

    with TestClient(create_app(Settings(public_url=public_url), database), base_url) as client:
        answer = sign_in(client, secret)

    assert "secure" in cookie_of(answer)


def test_the_key_is_in_no_cookie_no_log_and_no_page(
    client: TestClient, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    secret = key(database, Scope.READ)
    wrong = "sw_" + "x" * 43

    with caplog.at_level(logging.DEBUG):
        answer = sign_in(client, secret)
        refused = sign_in(client, wrong)
        page = client.get("/")

    assert secret not in answer.headers["set-cookie"]
    assert keys.digest(secret).hex() not in answer.headers["set-cookie"]
    assert all(secret not in said and wrong not in said for said in (caplog.text, page.text))
    assert wrong not in refused.text


@pytest.mark.parametrize("given", ["", "sw_unknown", "\x00", "é", "x" * 5000])
def test_what_is_no_key_signs_nobody_in(client: TestClient, database: Database, given: str) -> None:
    key(database, Scope.READ)

    answer = sign_in(client, given)

    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert sessions_in(database) == 0


def test_a_form_without_end_is_not_read(client: TestClient, database: Database) -> None:
    key(database, Scope.READ)

    assert sign_in(client, "x" * 20_000).status_code == 413


def test_a_key_that_only_sends_predictions_does_not_open_the_page(
    client: TestClient, database: Database
) -> None:
    answer = sign_in(client, key(database, Scope.INGEST))

    assert answer.status_code == 401
    assert "not look at the page" in answer.text


@pytest.mark.parametrize(
    "wanted",
    [
        "//elsewhere.example",
        "https://elsewhere.example",
        "/\\elsewhere.example",
        "\\\\elsewhere.example",
        "/\t/elsewhere.example",
        "javascript:alert(1)",
        "",
    ],
)
def test_signing_in_leads_to_no_other_site(
    client: TestClient, database: Database, wanted: str
) -> None:
    answer = sign_in(client, key(database, Scope.READ), next=wanted)

    assert answer.headers["location"] == "/"


# How long it lasts.


def test_a_session_lasts_twelve_hours(client: TestClient, database: Database) -> None:
    secret = key(database, Scope.READ)
    ago = datetime.now(UTC) - timedelta(hours=12)
    client.app.dependency_overrides[deps.now] = lambda: ago + timedelta(minutes=1)  # type: ignore[attr-defined]
    sign_in(client, secret)
    while_it_lasts = client.get("/", follow_redirects=False).status_code

    client.app.dependency_overrides[deps.now] = lambda: ago  # type: ignore[attr-defined]
    sign_in(client, secret)

    assert while_it_lasts == 200
    assert client.get("/", follow_redirects=False).status_code == 303


def test_a_session_ends_with_its_key(client: TestClient, database: Database) -> None:
    signed_in(client, database, Scope.ADMIN)
    before = client.get("/", follow_redirects=False).status_code
    with database.begin() as conn:
        (own,) = keys.all_keys(conn)
        keys.revoke(conn, own.id, datetime.now(UTC))

    after = client.get("/", follow_redirects=False)

    assert (before, after.status_code) == (200, 303)


def test_signing_out_ends_the_session_in_the_database_too(
    client: TestClient, database: Database
) -> None:
    signed_in(client, database, Scope.READ)
    token = client.cookies[COOKIE]

    answer = post(client, "/sign-out")

    assert (answer.status_code, sessions_in(database)) == (303, 0)
    assert COOKIE not in client.cookies
    client.cookies.set(COOKIE, token)
    assert client.get("/", follow_redirects=False).status_code == 303


def test_signing_in_again_ends_the_session_before(client: TestClient, database: Database) -> None:
    secret = signed_in(client, database, Scope.READ)
    first = client.cookies[COOKIE]

    sign_in(client, secret)

    assert client.cookies[COOKIE] != first
    assert sessions_in(database) == 1


@pytest.mark.parametrize("token", ["", "made-up", "x" * 4000])
def test_a_made_up_cookie_opens_nothing(client: TestClient, database: Database, token: str) -> None:
    key(database, Scope.READ)

    page = client.get("/", headers={"cookie": f"{COOKIE}={token}"}, follow_redirects=False)
    answer = client.get("/v1/models", headers={"cookie": f"{COOKIE}={token}"})

    assert (page.status_code, answer.status_code) == (303, 401)


def test_made_up_cookies_do_not_keep_the_database_busy(
    client: TestClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    key(database, Scope.READ)
    lock, together, most = threading.Lock(), 0, 0

    def slow(*_: object) -> None:
        nonlocal together, most
        with lock:
            together += 1
            most = max(most, together)
        time.sleep(0.02)
        with lock:
            together -= 1

    monkeypatch.setattr(sessions, "find", slow)
    client.get("/livez")
    with ThreadPoolExecutor(12) as guessers:
        answers = list(
            guessers.map(
                lambda i: client.get("/v1/models", headers={"cookie": f"{COOKIE}=guess-{i}"}),
                range(24),
            )
        )

    assert {answer.status_code for answer in answers} == {401}
    assert 1 <= most <= SESSIONS_AT_ONCE


# What it opens.


def test_the_cookie_reads_through_the_api_for_downloads(
    client: TestClient, database: Database
) -> None:
    signed_in(client, database, Scope.READ)

    assert client.get("/v1/alarms").status_code == 200
    assert client.get("/v1/keys").status_code == 403


def test_the_cookie_changes_nothing_through_the_api(client: TestClient, database: Database) -> None:
    secret = signed_in(client, database, Scope.ADMIN)
    body = {"labels": LABELS}

    by_cookie = client.put("/v1/models/fraud", json=body, headers=SAME_SITE)
    posted = client.post("/v1/webhooks", json={"url": "https://x.example"}, headers=SAME_SITE)
    sent = client.post("/v1/models/fraud/predictions", json={"predicted": [0]}, headers=SAME_SITE)
    there = models_in(database)
    by_key = client.put(
        "/v1/models/fraud", json=body, headers={"authorization": f"Bearer {secret}"}
    )

    assert [one.status_code for one in (by_cookie, posted, sent)] == [401] * 3
    assert (there, by_key.status_code) == (0, 201)


def models_in(database: Database) -> int:
    with database.begin() as conn:
        return conn.execute(select(func.count()).select_from(model)).scalar_one()


ELSEWHERE: list[dict[str, str]] = [
    {},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "none"},
    {"sec-fetch-site": "cross-site", "origin": "http://localhost"},
    {"origin": "https://elsewhere.example"},
    {"origin": "http://localhost.elsewhere.example"},
    {"origin": "http://localhost:9999"},
    {"origin": "null"},
    {"origin": "http://[bad"},
    {"origin": "", "host": ""},
]


@pytest.mark.parametrize("headers", ELSEWHERE)
def test_a_form_from_elsewhere_changes_nothing(
    client: TestClient, database: Database, headers: dict[str, str]
) -> None:
    signed_in(client, database, Scope.ADMIN)

    answer = client.post("/keys", data={"name": "evil", "scopes": "admin"}, headers=headers)

    assert answer.status_code == 403, answer.text
    with database.begin() as conn:
        assert len(keys.all_keys(conn)) == 1


@pytest.mark.parametrize("headers", [SAME_SITE, {"origin": "http://localhost"}])
def test_the_same_form_from_a_page_of_ours_does(
    client: TestClient, database: Database, headers: dict[str, str]
) -> None:
    signed_in(client, database, Scope.ADMIN)

    answer = client.post("/keys", data={"name": "own", "scopes": "admin"}, headers=headers)

    assert answer.status_code == 201
    with database.begin() as conn:
        assert len(keys.all_keys(conn)) == 2


@pytest.mark.parametrize("path", ["/sign-in", "/sign-out"])
def test_nobody_is_signed_in_or_out_from_elsewhere(
    client: TestClient, database: Database, path: str
) -> None:
    secret = signed_in(client, database, Scope.READ)

    answer = client.post(path, data={"key": secret}, headers={"sec-fetch-site": "cross-site"})

    assert answer.status_code == 403
    assert sessions_in(database) == 1


def test_without_keys_forms_from_elsewhere_are_refused_as_well(
    client: TestClient, database: Database
) -> None:
    answers = [
        client.post("/keys", data={"name": "evil", "scopes": "admin"}, headers=headers)
        for headers in ELSEWHERE
    ]

    assert [one.status_code for one in answers] == [403] * len(ELSEWHERE)
    with database.begin() as conn:
        assert keys.all_keys(conn) == []


def test_pages_are_framed_by_nobody_kept_by_nobody_and_run_no_script_of_others(
    client: TestClient,
) -> None:
    for path in ("/", "/sign-in", "/alarms", "/alarms/0", "/webhooks", "/keys"):
        headers = client.get(path).headers

        assert "script-src 'self'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["cache-control"] == "no-store"
