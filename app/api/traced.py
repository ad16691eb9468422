"""A span for each request, around the whole application; there only when traces go somewhere."""

from starlette.types import ASGIApp, Receive, Scope, Send

from app import tracing
from app.api.timing import route_of

# By machines; nobody wants to read a trace of it.
ASKED_ALL_THE_TIME = frozenset({"/livez", "/healthz", "/readyz", "/metrics"})


def traced(app: ASGIApp) -> ASGIApp:
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in ASKED_ALL_THE_TIME:
            await app(scope, receive, send)
            return
        with tracing.span(scope["method"], _of(scope), "server") as span:
            try:
                await app(scope, receive, send)
            finally:
                _note(span, scope)

    return serve


def _of(scope: Scope) -> list[str]:
    """The trace that the caller is in, if he says so."""
    return [str(value, "latin-1") for name, value in scope["headers"] if name == b"traceparent"][:1]


def _note(span: tracing.Span, scope: Scope) -> None:
    """What is known of a request once it was served."""
    status = scope.get("status")
    found = {
        "http.request.method": scope["method"],
        "http.route": route_of(scope),
        "http.response.status_code": status,
        "shiftwatch.request_id": scope.get("request_id"),
        "shiftwatch.model": scope.get("path_params", {}).get("model"),
    }
    span.note({name: value for name, value in found.items() if value is not None})
    span.rename(f"{scope['method']} {found['http.route']}")
    if status is not None and status >= 500:
        span.fail(f"HTTP {status}")
