"""A span for each request, around the whole application; there only when traces go somewhere."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import tracing
from app.api.access import route

# By machines; nobody wants to read a trace of it.
ASKED_ALL_THE_TIME = frozenset({"/livez", "/healthz", "/readyz", "/metrics"})


def traced(app: ASGIApp) -> ASGIApp:
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in ASKED_ALL_THE_TIME:
            await app(scope, receive, send)
            return
        with tracing.span(scope["method"], _of(scope), "server") as span:

            async def noting(message: Message) -> None:
                if message["type"] == "http.response.start":
                    _note(span, scope, message["status"])
                await send(message)

            await app(scope, receive, noting)

    return serve


def _of(scope: Scope) -> list[str]:
    """The trace that the caller is in, if he says so."""
    return [str(value, "latin-1") for name, value in scope["headers"] if name == b"traceparent"][:1]


def _note(span: tracing.Span, scope: Scope, status: int) -> None:
    found = {
        "http.request.method": scope["method"],
        "http.route": route(scope),
        "http.response.status_code": status,
        "shiftwatch.request_id": scope.get("request_id"),
        "shiftwatch.model": scope.get("path_params", {}).get("model"),
    }
    span.note({name: value for name, value in found.items() if value is not None})
    if found["http.route"] is not None:
        span.rename(f"{scope['method']} {found['http.route']}")
    if status >= 500:
        span.fail(f"HTTP {status}")
