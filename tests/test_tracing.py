"""Traces: nothing at all when nobody wants them, and one chain over all processes when somebody
does."""

import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app import deliver, tracing
from app.api import server
from app.api.app import create_app
from app.config import BadSettings, Settings
from app.deliver import Answer
from app.domain.notice import Event, Shape
from app.evaluate.due import Worker
from app.ingest.record import Submission, needed_partitions, record
from app.ingest.reduce import Reduced
from app.logs import logger
from app.stats.moments import Sums
from app.stats.reference import Reference
from app.storage import arrivals, deliveries, partitions, webhooks
from app.storage.db import Connection, Database
from app.storage.panes import PaneKey
from app.storage.tables import arrival, delivery
from app.worker import Loops
from tests.collector import Collector
from tests.conftest import Written
from tests.evaluate.simulation import Life, life
from tests.factories import CONFUSION, NOW, register
from tests.journeys.processes import ROOT

log = logger(__name__)
REFERENCE = Reference(np.array(CONFUSION))
NOTICE = {"type": "test", "timestamp": "2026-11-17T10:00:30Z", "data": {"reason": "to try"}}


def traceparent(number: int, flags: str = "01") -> str:
    return f"00-{trace_id(number)}-{number:016x}-{flags}"


def trace_id(number: int) -> str:
    return f"{number:032x}"


@pytest.fixture
def collector() -> Iterator[Collector]:
    """This process is traced; what is sent is there once `tracing.stop()` was called."""
    with Collector() as found:
        tracing.start(Settings(otlp_endpoint=found.url), "worker")
        try:
            yield found
        finally:
            tracing.stop()


# When nobody wants them.


LOADED = """
import importlib, sys
from app import cli, tracing
from app.config import Settings
importlib.import_module(sys.argv[1])
tracing.start(Settings(otlp_endpoint=sys.argv[2] or None), "api")
print(*{name for name in sys.modules if name.startswith("opentelemetry")})
tracing.stop()
"""


def loaded(process: str, endpoint: str) -> set[str]:
    """What a process has of OpenTelemetry."""
    command = [sys.executable, "-c", LOADED, process, endpoint]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(found.stdout.split())


def test_a_worker_without_an_endpoint_does_not_load_opentelemetry() -> None:
    assert loaded("app.worker", "") == set()
    assert loaded("app.worker", "http://127.0.0.1:1")


def test_an_api_without_an_endpoint_loads_nothing_that_could_send() -> None:
    # FastAPI itself loads OpenTelemetry's interfaces.
    sending = {"opentelemetry.sdk", "opentelemetry.exporter"}

    assert not sending & loaded("app.api.server", "")
    assert sending <= loaded("app.api.server", "http://127.0.0.1:1")


def test_without_an_endpoint_there_is_no_trace_to_go_on_with() -> None:
    tracing.start(Settings(), "api")

    with tracing.span("evaluate", [traceparent(1)]) as span:
        assert span is tracing.NOTHING
        assert tracing.current() is None


def test_packages_that_are_missing_are_said_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "app.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)

    with pytest.raises(BadSettings, match=r"SHIFTWATCH_OTLP_ENDPOINT.*shiftwatch\[tracing\]"):
        tracing.start(Settings(otlp_endpoint="http://127.0.0.1:1"), "api")

    assert not tracing.is_on()


# Spans.


def test_a_span_says_which_service_release_and_role_it_is_of(collector: Collector) -> None:
    with tracing.span("evaluate"):
        pass

    tracing.stop()

    resource = collector.the("evaluate").resource
    assert (resource["service.name"], resource["shiftwatch.role"]) == ("shiftwatch", "worker")
    assert resource["service.version"]


def test_a_span_continues_the_first_trace_and_is_linked_to_the_others(
    collector: Collector,
) -> None:
    with tracing.span("evaluate", [traceparent(number) for number in range(1, 100)]):
        pass

    tracing.stop()

    span = collector.the("evaluate")
    assert (span.trace, span.parent) == (trace_id(1), f"{1:016x}")
    assert span.links == tuple(trace_id(number) for number in range(2, 34))


def test_a_trace_that_makes_no_sense_is_no_trace(collector: Collector) -> None:
    with tracing.span("evaluate", ["00-nonsense"]):
        pass

    tracing.stop()

    assert collector.the("evaluate").parent == ""


def test_of_no_trace_means_not_of_the_current_one_either(collector: Collector) -> None:
    with tracing.span("request", [traceparent(1)]), tracing.span("other", []):
        pass

    tracing.stop()

    assert collector.the("other").trace != trace_id(1)


def test_what_is_not_sampled_is_not_handed_on(collector: Collector) -> None:
    with tracing.span("request", [traceparent(1, flags="00")]):
        assert tracing.current() is None
    with tracing.span("sampled", [traceparent(2)]):
        assert tracing.current() is not None

    tracing.stop()

    assert [span.name for span in collector.spans] == ["sampled"]


def test_how_much_is_sampled_is_for_the_environment_to_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")

    with Collector() as found:
        tracing.start(Settings(otlp_endpoint=found.url), "worker")
        with tracing.span("ours", []), tracing.span("the caller's", [traceparent(1)]):
            pass
        tracing.stop()

    assert [span.name for span in found.spans] == ["the caller's"]


def test_of_an_error_only_its_kind_is_sent(collector: Collector) -> None:
    with pytest.raises(ValueError, match="secret"), tracing.span("evaluate"):
        raise ValueError("a secret")

    tracing.stop()

    assert collector.the("evaluate").error == "ValueError"
    assert "secret" not in repr(collector.spans)


# Lines.


def test_a_line_has_the_id_of_its_trace(collector: Collector, written: Written) -> None:
    with tracing.span("evaluate", [traceparent(1)]):
        log.info("inside")
    log.info("outside")

    inside, outside = written.lines
    assert inside["trace_id"] == trace_id(1)
    assert "trace_id" not in outside


def test_the_line_about_a_failure_has_it_too_and_the_next_step_has_not(
    collector: Collector, written: Written, database: Database
) -> None:
    loops = Loops(Settings(), database)
    steps = iter([True, False])
    done = threading.Event()

    def step() -> bool:
        if next(steps):
            with tracing.span("evaluate", [traceparent(1)]):
                raise RuntimeError("no")
        log.info("next")
        loops.ask_to_stop()
        done.set()
        return False

    thread = threading.Thread(target=loops._loop, args=[step, done], name="evaluate")
    thread.start()
    thread.join(20)

    (failed,) = written.of("step failed")
    assert (failed["trace_id"], failed["thread"]) == (trace_id(1), "evaluate")
    assert "RuntimeError" in failed["exception"]
    assert "trace_id" not in written.of("next")[0]


def test_trouble_with_the_collector_is_told_once_in_a_while(
    collector: Collector, written: Written
) -> None:
    for _ in range(100):
        logging.getLogger("opentelemetry.exporter").warning("Failed to export %s", "a batch")

    (line,) = written.lines
    assert (line["event"], line["reason"]) == ("traces are lost", "Failed to export a batch")


def test_a_collector_that_never_answers_does_not_keep_us_from_stopping() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        tracing.start(Settings(otlp_endpoint=f"http://127.0.0.1:{port}"), "worker")
        with tracing.span("evaluate"):
            pass
        began = time.monotonic()

        tracing.stop()

        assert 1 < time.monotonic() - began < 5


# From a request to the row that is taken up.


def asking(database: Database) -> TestClient:
    settings = Settings(access_log=True)
    return TestClient(server._watched(create_app(settings, database), settings), "http://localhost")


def post_traced(client: TestClient, **headers: str) -> None:
    register(client)
    client.post(
        "/v1/models/fraud/predictions", json={"predicted": ["fraud"]}, headers=headers
    ).raise_for_status()


def noted(database: Database) -> list[str | None]:
    with database.begin() as conn:
        return list(conn.execute(select(arrival.c.trace)).scalars())


def test_an_arrival_has_the_trace_of_its_batch(database: Database, collector: Collector) -> None:
    with asking(database) as client:
        post_traced(client, traceparent=traceparent(1))

    (found,) = noted(database)
    request = collector.of(trace_id(1))["POST /v1/models/{model}/predictions"]
    assert found == f"00-{trace_id(1)}-{request.id}-01"


def test_without_tracing_it_has_none(database: Database) -> None:
    with asking(database) as client:
        post_traced(client, traceparent=traceparent(1))

    assert noted(database) == [None]


def test_what_the_caller_does_not_sample_is_not_noted(
    database: Database, collector: Collector
) -> None:
    with asking(database) as client:
        post_traced(client, traceparent=traceparent(1, flags="00"))

    assert noted(database) == [None]


def test_a_request_is_never_of_the_trace_of_the_one_before(
    database: Database, collector: Collector
) -> None:
    with asking(database) as client:
        client.get("/v1/models", headers={"traceparent": traceparent(1)})
        client.get("/v1/alarms")

    assert list(collector.of(trace_id(1))) == ["GET /v1/models"]
    assert collector.the("GET /v1/alarms").parent == ""


def test_probes_are_not_traced(database: Database, collector: Collector) -> None:
    with asking(database) as client:
        client.get("/livez")
        client.get("/readyz")
        client.get("/v1/models")

    assert [span.name for span in collector.spans] == ["GET /v1/models"]


def test_an_answer_that_is_our_fault_is_an_error_of_the_span(
    database: Database, collector: Collector
) -> None:
    app = create_app(Settings(), database)

    @app.get("/broken")
    def broken() -> None:
        raise RuntimeError("a secret")

    with TestClient(server._watched(app, Settings()), "http://localhost") as client:
        client.get("/broken")
        client.get("/nowhere")

    assert collector.the("GET /broken").error == "HTTP 500"
    assert collector.the("GET none").error == ""


# From row to row.


def batch(one: Life, minute: int, trace: str | None) -> Submission:
    start = one.now + timedelta(minutes=minute)
    place = PaneKey(one.model.id, one.version, start, "hard")
    sums = Sums(np.array([1, 0, 0]))
    return Submission(Reduced(one.model, one.version, {place: sums}, 1), trace=trace)


def count(one: Life, *submissions: Submission) -> None:
    with one.database.begin() as conn:
        partitions.ensure(conn, needed_partitions(submissions, one.now))
        record(conn, submissions, 0, one.now)


def test_a_pane_that_batches_share_has_the_trace_of_the_last_that_has_one(
    database: Database,
) -> None:
    one = life(database, REFERENCE)

    count(one, *(batch(one, 0, trace) for trace in (traceparent(1), traceparent(2), None)))

    assert noted(database) == [traceparent(2)]


def test_what_is_taken_has_its_traces_newest_first(database: Database) -> None:
    one = life(database, REFERENCE)
    for minute, number in [(3, 1), (2, 2), (1, 1), (0, None)]:
        count(one, batch(one, minute, None if number is None else traceparent(number)))

    with database.begin() as conn:
        taken = arrivals.take(conn, one.model.id, 100)

    assert taken.traces == (traceparent(1), traceparent(2))


def test_an_evaluation_goes_on_with_what_came_last_and_is_linked_to_the_rest(
    database: Database, collector: Collector
) -> None:
    one = life(database, REFERENCE)
    for number in (1, 2, 3):
        count(one, batch(one, number, traceparent(number)))

    one.worker.evaluate_next(one.now + timedelta(minutes=5))
    tracing.stop()

    span = collector.the("evaluate")
    assert (span.trace, span.parent) == (trace_id(3), f"{3:016x}")
    assert span.links == (trace_id(2), trace_id(1))
    assert span.attributes["shiftwatch.model"] == "m"


def test_an_evaluation_that_nothing_came_in_for_begins_a_trace(
    database: Database, collector: Collector
) -> None:
    one = life(database, REFERENCE)
    count(one, batch(one, 0, None))

    one.worker.evaluate_next(one.now + timedelta(minutes=5))
    tracing.stop()

    assert (collector.the("evaluate").parent, collector.the("evaluate").links) == ("", ())


def queue(conn: Connection, trace: str | None) -> int:
    hook = webhooks.create(conn, "https://receiver.example/", list(Event), Shape.STANDARD, NOW)
    return deliveries.queue_for(conn, hook.id, NOTICE, Event.TEST, None, NOW, trace).id


@pytest.mark.parametrize("trace", [traceparent(1), None])
def test_a_delivery_goes_on_with_the_trace_of_what_it_tells_of(
    database: Database, collector: Collector, trace: str | None
) -> None:
    sent: list[str | None] = []

    def send(*_: Any) -> Answer:
        sent.append(tracing.current())
        return Answer(200)

    with database.begin() as conn:
        queue(conn, trace)

    deliver.deliver_next(database, Settings(), send, lambda: NOW)
    tracing.stop()

    span = collector.the("deliver")
    assert span.parent == (f"{1:016x}" if trace else "")
    assert [one.rpartition("-")[0] for one in sent if one] == [f"00-{span.trace}-{span.id}"]


def test_what_is_sent_again_is_of_the_trace_of_who_wants_it_again(conn: Connection) -> None:
    id = queue(conn, traceparent(1))
    claimed = deliveries.claim(conn, NOW, timedelta(minutes=1))
    assert claimed is not None
    deliveries.settle(conn, claimed, deliveries.Delivered(200), NOW)

    deliveries.replay(conn, id, NOW, traceparent(2))

    assert conn.execute(select(delivery.c.trace)).scalar_one() == traceparent(2)


def test_an_evaluation_that_fails_is_told_of_with_model_and_trace(
    database: Database, collector: Collector, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = life(database, REFERENCE)
    count(one, batch(one, 0, traceparent(1)))

    def broken(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Worker, "_judge", broken)
    one.worker.evaluate_next(one.now + timedelta(minutes=5))
    tracing.stop()

    (line,) = written.of("evaluation failed")
    assert (line["model"], line["trace_id"]) == ("m", trace_id(1))
    assert "model_id" not in line
    assert line["exception"].endswith("RuntimeError: a bug")
    assert collector.the("evaluate").error == "RuntimeError"
