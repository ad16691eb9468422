"""A collector of traces on this machine, which speaks OTLP over HTTP."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Span:
    name: str
    resource: dict[str, str]
    trace: str
    id: str
    parent: str
    links: tuple[str, ...]
    attributes: dict[str, str]
    error: str

    @property
    def role(self) -> str:
        return self.resource["shiftwatch.role"]


class Collector(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.spans: list[Span] = []

    def of(self, trace: str) -> dict[str, Span]:
        return {span.name: span for span in self.spans if span.trace == trace}

    def the(self, name: str) -> Span:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=[0.02], daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Collector)
        assert self.path == "/v1/traces"
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.spans += _spans(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def _spans(request: ExportTraceServiceRequest) -> Iterator[Span]:
    for resource in request.resource_spans:
        about = _texts(resource.resource.attributes)
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Span(
                    span.name,
                    about,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    tuple(link.trace_id.hex() for link in span.links),
                    _texts(span.attributes),
                    span.status.message,
                )


def _texts(attributes: Any) -> dict[str, str]:
    return {one.key: one.value.string_value for one in attributes}
