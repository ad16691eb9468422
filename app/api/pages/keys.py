"""Keys: make, list, revoke. Whoever makes the first one is signed in with it."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from app.api.deps import Conn, Now, Services, services
from app.api.keys import KeyBody, KeyId, ended, made
from app.api.pages import sign_in
from app.api.pages.base import (
    NOTHING_TYPED,
    NOTHING_WRONG,
    Changing,
    Form,
    PageRoute,
    Typed,
    Visitor,
    Wrong,
    back_to,
    checked,
    shown,
)
from app.storage import keys
from app.storage.db import Connection
from app.storage.keys import Scope
from app.web import keys as web

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/keys")
def get_keys(
    visitor: Changing,
    conn: Conn,
    request: Request,
    done: Annotated[str, Query(max_length=40)] = "",
) -> Response:
    return _list(conn, visitor, services(request), done=done)


@router.post("/keys")
def make_key(visitor: Changing, form: Typed, now: Now, request: Request) -> Response:
    own = services(request)
    body = checked(KeyBody, {"name": form.one("name"), "scopes": form.all("scopes")})
    with own.database.begin() as conn:
        first = _is_first(conn, own)
        if isinstance(body, Wrong):
            return _list(conn, visitor, own, wrong=body, typed=form)
        if web.locks_out(first, body.scopes) and form.one("anyway") is None:
            return _list(conn, visitor, own, wrong=Wrong({"anyway": web.LOCKED_OUT}), typed=form)
    key, secret = made(own, body, now)
    signs_in = first and key.allows(Scope.READ)
    response = shown(
        "key_secret.html",
        Visitor(key, signed_in=True) if signs_in else visitor,
        201,
        key=key,
        scopes=sorted(key.scopes),
        secret=secret,
        first=first,
        signs_in=signs_in,
    )
    if signs_in:
        sign_in.begin(own, request, response, key, now)
    return response


@router.post("/keys/{key_id}/revoke")
def revoke_key(key_id: KeyId, visitor: Changing, now: Now, request: Request) -> Response:
    ended(services(request), key_id, now)
    return back_to("/sign-in" if key_id == visitor.key_id else "/keys?done=revoked")


def _is_first(conn: Connection, own: Services) -> bool:
    """Whether a key made now would close a door that is open to all of this machine."""
    return own.settings.auth == "on" and not keys.all_keys(conn)


def _list(
    conn: Connection,
    visitor: Visitor,
    own: Services,
    *,
    done: str = "",
    wrong: Wrong = NOTHING_WRONG,
    typed: Form = NOTHING_TYPED,
) -> Response:
    return shown(
        "keys.html",
        visitor,
        422 if wrong.by_field else 200,
        rows=web.rows(keys.all_keys(conn), visitor.key_id),
        first=_is_first(conn, own),
        open=own.settings.auth == "off",
        scopes=web.SCOPES,
        done=web.DONE.get(done),
        wrong=wrong,
        typed=typed,
    )
