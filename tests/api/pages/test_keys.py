"""The page of keys: made, shown once, revoked; and who makes the first one is not locked out."""

import logging
import re
from collections.abc import Sequence

import pytest
from fastapi.testclient import TestClient

from app.api.app import create_app
from app.api.auth import COOKIE
from app.config import Settings
from app.storage import keys
from app.storage.db import Database
from app.storage.keys import ApiKey, Scope
from tests.api.pages.browser import EVIL, post, sign_in, signed_in


def all_keys(database: Database) -> Sequence[ApiKey]:
    with database.begin() as conn:
        return keys.all_keys(conn)


def secret_in(text: str) -> str:
    (found,) = re.findall(r'value="(sw_[^"]+)"', text)
    return str(found)


def test_without_keys_the_page_says_what_the_first_one_means(client: TestClient) -> None:
    page = client.get("/keys")

    assert page.status_code == 200
    assert "No keys yet" in page.text
    assert "everybody needs one" in page.text


def test_who_makes_the_first_key_is_signed_in_with_it(
    client: TestClient, database: Database
) -> None:
    answer = post(client, "/keys", {"name": "ada", "scopes": ["admin"]})

    page = client.get("/keys", follow_redirects=False)
    assert answer.status_code == 201
    assert "This browser is signed in" in answer.text
    assert "httponly" in answer.headers["set-cookie"].lower()
    assert secret_in(answer.text) not in answer.headers["set-cookie"]
    assert page.status_code == 200
    assert "(yours)" in page.text
    client.cookies.clear()
    assert client.get("/keys", follow_redirects=False).status_code == 303
    assert sign_in(client, secret_in(answer.text)).status_code == 303


@pytest.mark.parametrize("scopes", [["read"], ["ingest"], ["ingest", "read"]])
def test_a_first_key_that_locks_people_out_takes_a_second_word(
    client: TestClient, database: Database, scopes: list[str]
) -> None:
    form = {"name": "sender", "scopes": scopes}

    warned = post(client, "/keys", form)
    before = all_keys(database)
    answer = post(client, "/keys", {**form, "anyway": "yes"})

    assert warned.status_code == 422
    assert "only `shiftwatch key create` on the server" in warned.text
    assert 'value="sender"' in warned.text
    assert before == []
    assert answer.status_code == 201
    assert (COOKIE in client.cookies) is ("read" in scopes)
    assert ("does not open the page" in answer.text) is ("read" not in scopes)


def test_a_later_key_may_be_anything_and_signs_nobody_in(
    client: TestClient, database: Database
) -> None:
    signed_in(client, database, Scope.ADMIN)
    before = client.cookies[COOKIE]

    answer = post(client, "/keys", {"name": "sender", "scopes": "ingest"})

    assert answer.status_code == 201
    assert client.cookies[COOKIE] == before
    assert all_keys(database)[1].scopes == {Scope.INGEST}


def test_without_authentication_no_key_is_the_first(database: Database) -> None:
    with TestClient(create_app(Settings(auth="off"), database), "http://localhost") as client:
        page = client.get("/keys").text
        answer = post(client, "/keys", {"name": "sender", "scopes": "ingest"})

    assert "Authentication is off" in page
    assert answer.status_code == 201


def test_a_secret_is_shown_once_and_never_logged(
    client: TestClient, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        answer = post(client, "/keys", {"name": "ada", "scopes": "admin"})
        later = client.get("/keys").text
    secret = secret_in(answer.text)

    assert answer.text.count(secret) == 1
    assert "location" not in answer.headers
    assert secret not in later + caplog.text
    assert all_keys(database)[0].hint in later


@pytest.mark.parametrize(
    "form", [{}, {"name": "x"}, {"name": "x", "scopes": "odd"}, {"name": "\x07", "scopes": "read"}]
)
def test_a_key_that_makes_no_sense_is_not_made(
    client: TestClient, database: Database, form: dict[str, str]
) -> None:
    answer = post(client, "/keys", form)

    assert answer.status_code == 422
    assert 'class="problem"' in answer.text
    assert all_keys(database) == []


def test_a_revoked_key_is_over_and_stays_in_the_list(
    client: TestClient, database: Database
) -> None:
    signed_in(client, database, Scope.ADMIN)
    other = secret_in(post(client, "/keys", {"name": "old", "scopes": "read"}).text)
    (_, old) = all_keys(database)

    answer = post(client, f"/keys/{old.id}/revoke")

    assert answer.headers["location"] == "/keys?done=revoked"
    assert "revoked" in client.get("/keys").text
    assert sign_in(client, other).status_code == 401


def test_who_revokes_his_own_key_is_told_and_signed_out(
    client: TestClient, database: Database
) -> None:
    signed_in(client, database, Scope.ADMIN)
    page = client.get("/keys").text
    (own,) = all_keys(database)

    answer = post(client, f"/keys/{own.id}/revoke")

    assert "this signs you out" in page
    assert "It is the last key that may make others" in page
    assert answer.headers["location"] == "/sign-in"
    assert client.get("/keys", follow_redirects=False).status_code == 303


@pytest.mark.parametrize("path", ["/keys", "/keys/1/revoke"])
def test_who_may_only_read_is_refused(client: TestClient, database: Database, path: str) -> None:
    signed_in(client, database, Scope.READ)

    answer = post(client, path, {"name": "evil", "scopes": "admin"})

    assert client.get("/keys").status_code == 403
    assert (answer.status_code, len(all_keys(database))) == (403, 1)


def test_the_name_of_a_key_is_shown_as_it_is(client: TestClient, database: Database) -> None:
    signed_in(client, database, Scope.ADMIN, name=EVIL)

    answer = post(client, "/keys", {"name": EVIL, "scopes": "read"})
    page = client.get("/keys").text

    assert all(EVIL not in text for text in (answer.text, page))
    assert all("&lt;script&gt;" in text for text in (answer.text, page))
