"""Sign in with an API key; a cookie remembers it for a while, and never the key itself."""

from datetime import datetime, timedelta
from typing import Annotated
from urllib.parse import parse_qs

from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response

from app.api import bodies
from app.api.auth import COOKIE
from app.api.deps import Now, services
from app.api.pages.base import PageRoute, Visitor, back_to, refuse_other_sites, shown
from app.errors import Forbidden, Unauthenticated
from app.storage import sessions
from app.storage.db import Database
from app.storage.keys import ApiKey, Scope

router = APIRouter(route_class=PageRoute, include_in_schema=False)

# A working day: long enough not to annoy, short enough for a browser that somebody else uses next.
LASTS = timedelta(hours=12)
MOST_BYTES = 16 * 1024

NOBODY = Visitor(None, signed_in=False)
Next = Annotated[str, Query(max_length=2000)]


@router.get("/sign-in")
def get_form(next: Next = "/") -> Response:
    return shown("sign_in.html", NOBODY, next=_own_path(next), wrong=None)


@router.post("/sign-in")
async def sign_in(request: Request, now: Now) -> Response:
    refuse_other_sites(request)
    own = services(request)
    content = (await bodies.read(request, MOST_BYTES)).decode(errors="replace")
    form = {name: values[0] for name, values in parse_qs(content).items()}
    wanted = _own_path(form.get("next", "/"))
    try:
        key = await own.gate.key_of(form.get("key", "").strip())
        if not key.allows(Scope.READ):
            raise Forbidden("this key can send predictions, but not look at the page")
    except (Unauthenticated, Forbidden) as error:
        return shown("sign_in.html", NOBODY, status=401, next=wanted, wrong=str(error))
    token = await to_thread.run_sync(_begin, own.database, key, now)
    response = back_to(wanted)
    secure = own.settings.root_url.startswith("https:") or request.url.scheme == "https"
    response.set_cookie(
        COOKIE,
        token,
        max_age=int(LASTS.total_seconds()),
        httponly=True,
        samesite="lax",
        secure=secure,
    )
    return response


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    refuse_other_sites(request)
    token = request.cookies.get(COOKIE)
    if token is not None:
        await to_thread.run_sync(_end, services(request).database, token)
    response = back_to("/sign-in")
    response.delete_cookie(COOKIE)
    return response


def _begin(database: Database, key: ApiKey, now: datetime) -> str:
    with database.begin() as conn:
        return sessions.create(conn, key, now, now + LASTS)


def _end(database: Database, token: str) -> None:
    with database.begin() as conn:
        sessions.end(conn, token)


def _own_path(path: str) -> str:
    r"""Where to go after signing in: a page of ours, whatever the link said.

    >>> [_own_path(path) for path in ("/models/fraud", "//elsewhere", "https://x", "/\\x", "x")]
    ['/models/fraud', '/', '/', '/', '/']
    """
    ours = path.startswith("/") and not path.startswith(("//", "/\\"))
    return path if ours and path.isprintable() else "/"
