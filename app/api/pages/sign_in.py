"""Sign in with an API key; a cookie remembers it for a while, and never the key itself."""

from datetime import datetime, timedelta
from typing import Annotated, Literal, TypedDict

from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response

from app.api.auth import COOKIE
from app.api.deps import Now, Services, services
from app.api.pages.base import (
    PageRoute,
    Visitor,
    back_to,
    own_path,
    read_form,
    refuse_other_sites,
    shown,
)
from app.errors import Forbidden, Unauthenticated
from app.storage import sessions
from app.storage.db import Database
from app.storage.keys import ApiKey, Scope

router = APIRouter(route_class=PageRoute, include_in_schema=False)

# A working day: long enough not to annoy, short enough for a browser that somebody else uses next.
LASTS = timedelta(hours=12)

NOBODY = Visitor(None, signed_in=False)
Next = Annotated[str, Query(max_length=2000)]


@router.get("/sign-in")
def get_form(next: Next = "/") -> Response:
    return shown("sign_in.html", NOBODY, next=own_path(next), wrong=None)


@router.post("/sign-in")
async def sign_in(request: Request, now: Now) -> Response:
    refuse_other_sites(request)
    own = services(request)
    form = await read_form(request)
    wanted = own_path(form.one("next") or "/")
    try:
        key = await own.gate.key_of((form.one("key") or "").strip())
        if not key.allows(Scope.READ):
            raise Forbidden("this key can send predictions, but not look at the page")
    except (Unauthenticated, Forbidden) as error:
        return shown("sign_in.html", NOBODY, status=401, next=wanted, wrong=str(error))
    response = back_to(wanted)
    await to_thread.run_sync(begin, own, request, response, key, now)
    return response


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    refuse_other_sites(request)
    own, token = services(request), request.cookies.get(COOKIE)
    if token is not None:
        await to_thread.run_sync(_end, own.database, token)
    response = back_to("/sign-in")
    response.delete_cookie(COOKIE, **_kept(own, request))
    return response


def begin(own: Services, request: Request, response: Response, key: ApiKey, now: datetime) -> None:
    """Sign the browser that gets this response in, in place of whoever was before."""
    with own.database.begin() as conn:
        if before := request.cookies.get(COOKIE):
            sessions.end(conn, before)
        token = sessions.create(conn, key, now, now + LASTS)
    response.set_cookie(COOKIE, token, max_age=int(LASTS.total_seconds()), **_kept(own, request))


class Kept(TypedDict):
    httponly: bool
    samesite: Literal["lax"]
    secure: bool


def _kept(own: Services, request: Request) -> Kept:
    """How the browser keeps the cookie: from scripts, other sites' forms, and plain http."""
    secure = own.settings.root_url.startswith("https:") or request.url.scheme == "https"
    return {"httponly": True, "samesite": "lax", "secure": secure}


def _end(database: Database, token: str) -> None:
    with database.begin() as conn:
        sessions.end(conn, token)
