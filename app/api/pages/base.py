"""What all pages have in common: who looks, what a browser may do with them, and how they fail."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qs, quote, urlsplit

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import AfterValidator, BaseModel, ValidationError
from starlette.responses import HTMLResponse, RedirectResponse

from app.api import bodies
from app.api.auth import SAFE
from app.api.deps import services
from app.api.errors import problem_of
from app.api.schemas import storable
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

# No form of ours is longer than a note and the names around it.
MOST_BYTES = 16 * 1024

Body = TypeVar("Body", bound=BaseModel)


class Failed(Exception):
    """A page about what went wrong. It is raised, not returned: what was begun must be undone."""

    def __init__(self, response: Response) -> None:
        self.response = response


def install(app: FastAPI) -> None:
    app.add_exception_handler(Failed, _failed)


def _failed(_: Request, error: Exception) -> Response:
    assert isinstance(error, Failed)
    return error.response


class PageRoute(APIRoute):
    """A route that fails as a page, and sends whom it does not know to sign in."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                response = await handle(request)
            except (AppError, RequestValidationError) as error:
                response = _response_to(request, error)
                response.headers.update(HEADERS)
                # Outside of here the transaction ends, and only an exception rolls it back.
                raise Failed(response) from error
            response.headers.update(HEADERS)
            return response

        return handled


def _response_to(request: Request, error: AppError | RequestValidationError) -> Response:
    if isinstance(error, Unauthenticated):
        return _to_sign_in(request, error)
    if isinstance(error, AppError):
        problem = problem_of(type(error))
        return failure(request, problem.status, problem.title, str(error))
    what = "; ".join(f"{flaw['loc'][-1]}: {flaw['msg']}" for flaw in error.errors())
    return failure(request, HTTPStatus.UNPROCESSABLE_ENTITY, "That makes no sense", what)


def failure(request: Request, status: HTTPStatus, title: str, detail: str) -> Response:
    back = None if request.method in SAFE else _page_before(request)
    return shown("failure.html", _visitor(request), status, title=title, detail=detail, back=back)


def _page_before(request: Request) -> str | None:
    """The page of ours that a form was on, if the browser says so."""
    try:
        said = urlsplit(request.headers.get("referer", ""))
    except ValueError:
        return None
    return own_path(said.path) if said.netloc == request.headers.get("host") else None


def own_path(path: str) -> str:
    r"""Where to go next: a page of ours, whatever the link said.

    >>> [own_path(path) for path in ("/models/fraud", "//elsewhere", "https://x", "/\\x", "x")]
    ['/models/fraud', '/', '/', '/', '/']
    """
    ours = path.startswith("/") and not path.startswith(("//", "/\\"))
    return path if ours and path.isprintable() else "/"


def _to_sign_in(request: Request, error: Unauthenticated) -> Response:
    if "hx-request" in request.headers:
        # A part of a page that renews itself cannot become the form: the whole page must.
        return Response(status_code=204, headers={"hx-redirect": _sign_in_path(request)})
    if request.method in SAFE:
        return RedirectResponse(_sign_in_path(request), HTTPStatus.SEE_OTHER)
    return failure(request, HTTPStatus.UNAUTHORIZED, "Sign in first", str(error))


def _sign_in_path(request: Request) -> str:
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return f"/sign-in?next={quote(wanted)}"


class Visitor:
    """Who looks at the page; without keys, anybody on this machine, who may do everything."""

    def __init__(self, key: ApiKey | None, *, signed_in: bool) -> None:
        self.name = None if key is None else key.name
        self.key_id = None if key is None else key.id
        self.may_change = key is None or key.allows(Scope.ADMIN)
        self.signed_in = signed_in

    @property
    def by(self) -> str:
        """Under which name to write down what is done here."""
        return self.name or "anonymous"


def _visitor(request: Request) -> Visitor:
    found: Visitor = getattr(request.state, "visitor", Visitor(None, signed_in=False))
    return found


def visiting(scope: Scope) -> Callable[[Request], Coroutine[Any, Any, Visitor]]:
    async def visit(request: Request) -> Visitor:
        if request.method not in SAFE:
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
        same = _host_of(headers.get("origin", "")) == headers.get("host", "-")
    if not same:
        raise Forbidden("this form was sent from somewhere else than a page of this service")


def _host_of(origin: str) -> str | None:
    """
    >>> [_host_of(origin) for origin in ("https://watch.example:8000", "null", "", "http://[bad")]
    ['watch.example:8000', None, None, None]
    """
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Form:
    """What somebody has typed in and chosen. A field that was left empty was not sent."""

    fields: Mapping[str, Sequence[str]]

    def one(self, name: str) -> str | None:
        return next(iter(self.fields.get(name, ())), None)

    def all(self, name: str) -> list[str]:
        return list(self.fields.get(name, ()))


async def read_form(request: Request) -> Form:
    content = await bodies.read(request, MOST_BYTES)
    return Form(parse_qs(content.decode(errors="replace")))


@dataclass(frozen=True, slots=True)
class Wrong:
    """What is wrong with a form, by field; under the empty name, with the whole of it."""

    by_field: Mapping[str, str]

    def of(self, name: str) -> str | None:
        return self.by_field.get(name)


NOTHING_WRONG, NOTHING_TYPED = Wrong({}), Form({})


def checked(kind: type[Body], values: Mapping[str, Any]) -> Body | Wrong:
    """The same body that the API would have read, or what is wrong with it."""
    try:
        return kind.model_validate({name: one for name, one in values.items() if one is not None})
    except ValidationError as error:
        flaws = error.errors(include_url=False, include_input=False, include_context=False)
        return Wrong(
            {
                str(next(iter(flaw["loc"]), "")): flaw["msg"].removeprefix("Value error, ")
                for flaw in reversed(flaws)
            }
        )


def shown(name: str, visitor: Visitor, status: int = 200, **context: Any) -> Response:
    return HTMLResponse(render.page(name, visitor=visitor, **context), status_code=status)


def back_to(path: str) -> Response:
    """After a form: reading the page again must not send it again."""
    return RedirectResponse(path, HTTPStatus.SEE_OTHER)


# A part of a name to look for.
Search = Annotated[str, AfterValidator(storable)]
Typed = Annotated[Form, Depends(read_form)]
Looking = Annotated[Visitor, Depends(visiting(Scope.READ))]
Admin = Depends(visiting(Scope.ADMIN))
Changing = Annotated[Visitor, Admin]
