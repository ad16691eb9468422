"""A browser, as far as the page can tell: it says where a form comes from, and keeps cookies."""

from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient
from httpx2 import Response

from app.storage import keys
from app.storage.db import Database
from app.storage.keys import Scope

SAME_SITE = {"sec-fetch-site": "same-origin"}
EVIL = "<script>alert(1)</script>"


def key(database: Database, *scopes: Scope, name: str = "ada") -> str:
    with database.begin() as conn:
        return keys.create(conn, name, scopes, datetime.now(UTC))[1]


def post(client: TestClient, path: str, data: Any = None, **headers: str) -> Response:
    """A form of the page, sent; the answer itself, not where it leads."""
    answer: Response = client.post(
        path, data=data or {}, headers={**SAME_SITE, **headers}, follow_redirects=False
    )
    return answer


def sign_in(client: TestClient, secret: str, **fields: str) -> Response:
    return post(client, "/sign-in", {"key": secret, **fields})


def signed_in(client: TestClient, database: Database, *scopes: Scope, name: str = "ada") -> str:
    secret = key(database, *scopes, name=name)
    app = client.app
    assert isinstance(app, FastAPI)
    app.state.services.gate.forget()
    # Sessions go by the real clock, whatever time the test plays in.
    played, app.dependency_overrides = app.dependency_overrides, {}
    assert sign_in(client, secret).status_code == 303
    app.dependency_overrides = played
    return secret
