"""What all pages have in common: who looks, what a browser may do with them, and how they fail."""

from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

from fastapi import Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.responses import HTMLResponse, RedirectResponse

from app.api.deps import services
from app.api.errors import problem_of
from app.errors import AppError, Forbidden, Unauthenticated
from app.storage.keys import ApiKey, Scope
from app.web import render

# Everything comes from here, nothing is inline, nobody frames us.
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    # What is shown is of this moment, and perhaps not for the next who uses the browser.
    "cache-control": "no-store",
}


class PageRoute(APIRoute):
    """A route that fails as a page, and sends whom it does not know to sign in."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                response = await handle(request)
            except Unauthenticated as error:
                response = _to_sign_in(request, error)
            except AppError as error:
                problem = problem_of(type(error))
                response = failure(request, problem.status, problem.title, str(error))
            except RequestValidationError as error:
                what = "; ".join(f"{flaw['loc'][-1]}: {flaw['msg']}" for flaw in error.errors())
                response = failure(
                    request, HTTPStatus.UNPROCESSABLE_ENTITY, "That makes no sense", what
                )
            response.headers.update(HEADERS)
            return response

        return handled


def failure(request: Request, status: HTTPStatus, title: str, detail: str) -> Response:
    text = render.page("failure.html", visitor=_nobody(request), title=title, detail=detail)
    return HTMLResponse(text, status_code=status)


def _to_sign_in(request: Request, error: Unauthenticated) -> Response:
    if "hx-request" in request.headers:
        # A part of a page that renews itself cannot become the form: the whole page must.
        return Response(status_code=204, headers={"hx-redirect": _sign_in_path(request)})
    if request.method in ("GET", "HEAD"):
        return RedirectResponse(_sign_in_path(request), HTTPStatus.SEE_OTHER)
    return failure(request, HTTPStatus.UNAUTHORIZED, "Sign in first", str(error))


def _sign_in_path(request: Request) -> str:
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return f"/sign-in?next={quote(wanted)}"


class Visitor:
    """Who looks at the page; without keys, anybody on this machine, who may do everything."""

    def __init__(self, key: ApiKey | None, *, signed_in: bool) -> None:
        self.name = None if key is None else key.name
        self.may_change = key is None or key.allows(Scope.ADMIN)
        self.signed_in = signed_in


def _nobody(request: Request) -> Visitor:
    found: Visitor = getattr(request.state, "visitor", Visitor(None, signed_in=False))
    return found


def visiting(scope: Scope) -> Callable[[Request], Coroutine[Any, Any, Visitor]]:
    async def visit(request: Request) -> Visitor:
        changes = request.method not in ("GET", "HEAD")
        if changes:
            refuse_other_sites(request)
        key = await services(request).gate.admit(request, scope, from_page=True)
        request.state.visitor = Visitor(key, signed_in=key is not None)
        found: Visitor = request.state.visitor
        return found

    return visit


def refuse_other_sites(request: Request) -> None:
    """What changes something must come from a page of ours: every browser says where it is from."""
    headers = request.headers
    said = headers.get("sec-fetch-site")
    if said is not None:
        same = said == "same-origin"
    else:
        same = urlsplit(headers.get("origin", "")).netloc == headers.get("host", "-")
    if not same:
        raise Forbidden("this form was sent from somewhere else than a page of this service")


def shown(name: str, visitor: Visitor, status: int = 200, **context: Any) -> Response:
    return HTMLResponse(render.page(name, visitor=visitor, **context), status_code=status)


def back_to(path: str) -> Response:
    """After a form: reading the page again must not send it again."""
    return RedirectResponse(path, HTTPStatus.SEE_OTHER)


Looking = Annotated[Visitor, Depends(visiting(Scope.READ))]
Changing = Annotated[Visitor, Depends(visiting(Scope.ADMIN))]
