"""Traces by OpenTelemetry, sent by OTLP over HTTP; loaded only when there is an endpoint.

Nothing of ours waits for the collector: spans are sent by a thread, dropped when there are too
many, and lost when the collector is away.
"""

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any, Self
from uuid import uuid4

import structlog
from opentelemetry import context, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from app import __version__, logs, tracing
from app.tracing import Attributes, Kind, Role

log = logs.logger(__name__)

# What waits for the collector gets this long when we are told to stop.
STOP_SECONDS = 2.0
# A collector that is away is told of this often, not with every attempt.
TELL_EVERY_SECONDS = 300.0
# An evaluation may take thousands of arrivals.
MOST_LINKS = 32

_propagator = TraceContextTextMapPropagator()


class OpenTelemetry:
    def __init__(self, endpoint: str, role: Role) -> None:
        _tell_seldom()
        resource = Resource.create(
            {
                "service.name": "shiftwatch",
                "service.version": __version__,
                "service.instance.id": str(uuid4()),
                "shiftwatch.role": role,
            }
        )
        # How much is sampled is for OTEL_TRACES_SAMPLER to say; left out, whatever the caller
        # samples, and all that nobody has decided about.
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("shiftwatch", __version__)

    def span(
        self, name: str, of: Sequence[str] | None, kind: Kind, attributes: Attributes | None
    ) -> tracing.Span:
        if of is None:
            parent, links = context.get_current(), list[Link]()
        else:
            # Not the current one: a request's task may begin with what another left behind.
            parent, links = _context(of[0]) if of else context.Context(), _links(of[1:])
        span = self._tracer.start_span(
            name, parent, SpanKind[kind.upper()], attributes=attributes, links=links
        )
        return LiveSpan(span)

    def current(self) -> str | None:
        found = trace.get_current_span()
        return traceparent(found) if found.get_span_context().trace_flags.sampled else None

    def stop(self) -> None:
        # It would wait for half a minute, and try again as long. The threads end with us.
        thread = threading.Thread(target=self._provider.shutdown, daemon=True)
        thread.start()
        thread.join(STOP_SECONDS)


class LiveSpan(tracing.Span):
    """A span that is the current one while the block runs."""

    __slots__ = ("_bound", "_span", "_token")

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def __enter__(self) -> Self:
        self._token = context.attach(trace.set_span_in_context(self._span))
        id = trace.format_trace_id(self._span.get_span_context().trace_id)
        self._bound: Any = structlog.contextvars.bind_contextvars(trace_id=id)
        return self

    def __exit__(self, *raised: object) -> None:
        error = raised[1]
        if error is None:
            structlog.contextvars.reset_contextvars(**self._bound)
        else:
            # Whoever catches it writes the line about it, outside of the span: that line, too, is
            # of this trace. He begins what he does next without.
            self.fail(type(error).__name__)
        context.detach(self._token)
        self._span.end()

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def note(self, attributes: Attributes) -> None:
        self._span.set_attributes(dict(attributes))

    def fail(self, why: str) -> None:
        # No more than the kind of error: what it says is in the log, which has the trace's id.
        self._span.set_status(StatusCode.ERROR, why)


def traceparent(span: trace.Span) -> str | None:
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, trace.set_span_in_context(span, context.Context()))
    return carrier.get("traceparent")


def _context(traceparent: str) -> context.Context:
    return _propagator.extract({"traceparent": traceparent}, context.Context())


def _links(traceparents: Sequence[str]) -> list[Link]:
    spans = (trace.get_current_span(_context(one)) for one in traceparents[:MOST_LINKS])
    return [Link(span.get_span_context()) for span in spans]


class _Seldom(logging.Handler):
    """Tells of the first of the exporter's troubles, then for a while of none."""

    def __init__(self) -> None:
        super().__init__()
        self._told_at = float("-inf")

    def emit(self, record: logging.LogRecord) -> None:
        if time.monotonic() - self._told_at < TELL_EVERY_SECONDS:
            return
        self._told_at = time.monotonic()
        log.warning("traces are lost", reason=record.getMessage())


def _tell_seldom() -> None:
    """The library would tell of each attempt, several times each."""
    library = logging.getLogger("opentelemetry")
    library.handlers = [_Seldom()]
    library.propagate = False
    library.setLevel(logging.WARNING)
