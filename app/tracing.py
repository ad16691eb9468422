"""Traces, for those who want them: without an endpoint nothing here does anything.

One trace leads from the request that brings a batch to the webhook that is told of it. Between
processes it travels as a W3C `traceparent`: in a header, or in the row that the next process takes
up. OpenTelemetry is only loaded when there is somewhere to send traces to (`app.otlp`).
"""

from collections.abc import Awaitable, Mapping, Sequence
from typing import Literal, Protocol, Self, TypeVar

from app.config import BadSettings, Settings

T = TypeVar("T")
Role = Literal["api", "worker"]
Kind = Literal["internal", "server", "client", "producer", "consumer"]
Attributes = Mapping[str, str | int | float | bool]


class Span:
    """A piece of work, as a context manager. This one leaves no trace."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def rename(self, name: str) -> None:
        pass

    def note(self, attributes: Attributes) -> None:
        pass

    def fail(self, why: str) -> None:
        pass


class Tracer(Protocol):
    def span(
        self, name: str, of: Sequence[str] | None, kind: Kind, attributes: Attributes | None
    ) -> Span: ...

    def current(self) -> str | None: ...

    def stop(self) -> None: ...


NOTHING = Span()
_tracer: Tracer | None = None


def start(settings: Settings, role: Role) -> None:
    """Trace this process, if the settings say where to."""
    global _tracer
    if settings.otlp_endpoint is None:
        return
    try:
        from app.otlp import OpenTelemetry
    except ImportError as error:
        raise BadSettings(
            "SHIFTWATCH_OTLP_ENDPOINT: tracing needs packages that are not installed "
            f"({error.name}); pip install 'shiftwatch[tracing]' brings them"
        ) from None
    _tracer = OpenTelemetry(settings.otlp_endpoint, role)


def stop() -> None:
    """Send what was traced until now, within seconds, and trace no more."""
    global _tracer
    before, _tracer = _tracer, None
    if before is not None:
        before.stop()


def is_on() -> bool:
    return _tracer is not None


def span(
    name: str,
    of: Sequence[str] | None = None,
    kind: Kind = "internal",
    attributes: Attributes | None = None,
) -> Span:
    """A span of the current trace; or, with `of`, one that continues the first of those traces and
    is linked to the others. Of none of them, it begins a trace."""
    return NOTHING if _tracer is None else _tracer.span(name, of, kind, attributes)


def around(name: str, work: Awaitable[T]) -> Awaitable[T]:
    """`work` as a span of the current trace; for the hot path, which a `with` would slow down."""
    return work if _tracer is None else _spanned(name, work)


async def _spanned(name: str, work: Awaitable[T]) -> T:
    with span(name):
        return await work


def current() -> str | None:
    """The `traceparent` for whoever goes on with the current work; None if nobody traces it."""
    return None if _tracer is None else _tracer.current()
