"""From a request to the webhook that is told of it, as a collector and the log see it."""

import json
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.collector import Collector, Span
from tests.factories import CONFUSION, LABELS, VERSION
from tests.journeys.processes import Server, free_port, until
from tests.journeys.test_serve import shiftwatch
from tests.journeys.test_webhooks import Receiver, Request

BATCH = "4bf92f3577b34da6a3ce929d0e0e4736"
OTHER = "0af7651916cd43dd8448eb211c80319c"
ANSWER = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
CALLER = "00f067aa0ba902b7"
TOKEN = "T0KEN-of-a-chat"
# Two processes stop one after the other, and then PostgreSQL; without a bound it would be a minute.
STOP_SECONDS = 10.0


def parent(trace: str, flags: str = "01") -> dict[str, str]:
    return {"traceparent": f"00-{trace}-{CALLER}-{flags}"}


def trace_of(request: Request) -> str:
    return request.headers["traceparent"].split("-")[1]


@dataclass
class Story:
    """A service, somebody who is told, somebody who collects traces, and the log."""

    client: httpx.Client
    receiver: Receiver
    log: Path
    secrets: list[str] = field(default_factory=list)

    def register(self, name: str) -> None:
        settings = {"labels": LABELS, "alarm": {"overdispersion": 1}}
        self.client.put(f"/v1/models/{name}", json=settings).raise_for_status()
        place = f"/v1/models/{name}/references/{VERSION}"
        self.client.put(place, json={"confusion": CONFUSION}).raise_for_status()

    def subscribe(self) -> None:
        events = ["alarm.firing", "alarm.acknowledged"]
        body = {"url": f"{self.receiver.url}/{TOKEN}", "events": events}
        made = self.client.post("/v1/webhooks", json=body).raise_for_status().json()
        self.secrets += [made["secret"], TOKEN]

    def send(self, name: str, **headers: str) -> httpx.Response:
        """Ten minutes of nothing but fraud, at once."""
        now = datetime.now(UTC)
        times = [(now - timedelta(minutes=i)).isoformat() for i in range(10) for _ in range(50)]
        body = {"predicted": ["fraud"] * len(times), "timestamps": times}
        answer = self.client.post(f"/v1/models/{name}/predictions", json=body, headers=headers)
        assert answer.status_code == 202, answer.text
        return answer

    def firing(self, name: str) -> Request:
        """What it is told when the alarm of a model begins."""
        until(lambda: any(self._is_firing(one, name) for one in self.receiver.heard()))
        return next(one for one in self.receiver.heard() if self._is_firing(one, name))

    def _is_firing(self, one: Request, name: str) -> bool:
        return one.event == "alarm.firing" and one.content["data"]["alarm"]["model"] == name

    def lines(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.all_lines() if line["event"] == event]

    def all_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@dataclass
class Told(Story):
    """One that was told to its end."""

    collector: Collector = field(default_factory=Collector)
    answers: dict[str, httpx.Response] = field(default_factory=dict)

    @cached_property
    def chain(self) -> dict[str, Span]:
        return self.collector.of(BATCH)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Batches with and without traces, an alarm that is acknowledged; then everything is stopped.

    All of it runs as one would run it to see as much as possible.
    """
    home = tmp_path_factory.mktemp("told")
    watched = {
        "SHIFTWATCH_DATA_DIR": str(home / "data"),
        "SHIFTWATCH_ACCESS_LOG": "true",
        "SHIFTWATCH_LOG_LEVEL": "debug",
        "SHIFTWATCH_WEBHOOK_ALLOW_PRIVATE": "true",
    }
    with (
        Collector() as collector,
        Receiver() as receiver,
        Server(
            "serve", log=str(home / "log"), SHIFTWATCH_OTLP_ENDPOINT=collector.url, **watched
        ) as server,
    ):
        key = shiftwatch(home, "key", "create", "--scope", "admin")
        bearer = {"authorization": f"Bearer {key}"}
        with httpx.Client(base_url=server.url, timeout=60, headers=bearer) as client:
            story = Told(client, receiver, home / "log", [key], collector)
            tell(story)
        assert server.stop() == 0
    return story


def tell(story: Told) -> None:
    for name in ("traced", "unsampled", "untraced"):
        story.register(name)
    story.subscribe()
    story.answers["traced"] = story.send("traced", **parent(BATCH))
    story.answers["unsampled"] = story.send("unsampled", **parent(OTHER, flags="00"))
    story.answers["untraced"] = story.send("untraced")
    for name in story.answers:
        story.firing(name)
    alarm = story.firing("traced").alarm_id
    place = f"/v1/alarms/{alarm}/acknowledge"
    story.client.post(place, headers=parent(ANSWER)).raise_for_status()
    until(lambda: "alarm.acknowledged" in story.receiver.events())
    story.client.get(f"/v1/models?cursor={TOKEN}")


# Traces.


def test_the_webhook_is_in_the_trace_of_the_batch(told: Told) -> None:
    assert trace_of(told.firing("traced")) == BATCH


def test_each_step_from_the_request_to_the_webhook_follows_from_the_one_before(told: Told) -> None:
    request = told.chain["POST /v1/models/{model}/predictions"]
    evaluate, deliver = told.chain["evaluate"], told.chain["deliver"]

    assert request.parent == CALLER
    within = ("reduce", "record", "commit", "evaluate")
    assert {told.chain[name].parent for name in within} == {request.id}
    assert deliver.parent == evaluate.id
    sent = told.firing("traced").headers["traceparent"]
    assert sent == f"00-{BATCH}-{deliver.id}-01"


def test_both_processes_have_a_part_in_it(told: Told) -> None:
    roles = {name: span.role for name, span in told.chain.items()}

    assert roles["record"] == roles["commit"] == "api"
    assert roles["evaluate"] == roles["deliver"] == "worker"


def test_what_somebody_does_to_an_alarm_is_told_in_the_trace_of_his_request(told: Told) -> None:
    (notice,) = [one for one in told.receiver.heard() if one.event == "alarm.acknowledged"]

    request = told.collector.of(ANSWER)["POST /v1/alarms/{alarm_id}/acknowledge"]

    assert trace_of(notice) == ANSWER
    assert told.collector.of(ANSWER)["deliver"].parent == request.id


def test_what_the_caller_does_not_sample_leaves_no_trace(told: Told) -> None:
    assert told.collector.of(OTHER) == {}
    assert trace_of(told.firing("unsampled")) not in (OTHER, BATCH)


def test_without_a_callers_trace_the_request_begins_one(told: Told) -> None:
    chain = told.collector.of(trace_of(told.firing("untraced")))

    assert chain["POST /v1/models/{model}/predictions"].parent == ""
    assert {"record", "evaluate", "deliver"} <= chain.keys()


def test_no_attribute_has_a_secret(told: Told) -> None:
    everything = repr(told.collector.spans)

    assert told.collector.spans
    assert not [secret for secret in told.secrets if secret in everything]


# The log.


def test_every_line_is_a_json_object_with_the_same_beginning(told: Told) -> None:
    assert {tuple(line)[:4] for line in told.all_lines()} == {
        ("timestamp", "level", "logger", "event")
    }


def test_libraries_write_the_same_lines(told: Told) -> None:
    assert {"uvicorn.error", "app.deliver", "httpcore.connection"} <= {
        line["logger"] for line in told.all_lines()
    }


@pytest.mark.parametrize("name", ["traced", "unsampled", "untraced"])
def test_a_request_has_a_line_with_its_id_and_model(told: Told, name: str) -> None:
    id = told.answers[name].headers["x-request-id"]

    (line,) = [line for line in told.lines("request") if line["request_id"] == id]

    assert line["model"] == name
    assert (line["method"], line["status"]) == ("POST", 202)
    assert line["route"] == "/v1/models/{model}/predictions"
    assert line["duration_ms"] > 0


def test_the_line_of_an_evaluation_has_the_model_and_the_trace(told: Told) -> None:
    assert ("traced", BATCH) in {
        (line["model"], line["trace_id"]) for line in told.lines("evaluated")
    }


def test_the_line_of_a_delivery_has_webhook_model_and_trace(told: Told) -> None:
    found = [line for line in told.lines("delivery") if line["trace_id"] == BATCH]

    assert [(line["model"], line["webhook"], line["outcome"]) for line in found] == [
        ("traced", 1, "Delivered")
    ]


def test_no_secret_is_in_the_log_not_even_with_everything_on(told: Told) -> None:
    text = told.log.read_text()

    assert len(told.secrets) == 3
    assert not [secret for secret in told.secrets if secret in text]


# Without a collector.


def a_short_story(home: Path, **environ: str) -> tuple[Story, float]:
    """A batch, and the notice of it; and how long it took to stop."""
    place = {"SHIFTWATCH_DATA_DIR": str(home / "data"), **environ}
    with Receiver() as receiver, Server("serve", log=str(home / "log"), **place) as server:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            story = Story(client, receiver, home / "log")
            story.register("m")
            story.subscribe()
            story.send("m", **parent(BATCH))
            story.firing("m")
        began = time.monotonic()
        assert server.stop() == 0
        return story, time.monotonic() - began


def test_a_collector_that_is_away_hurts_nobody(tmp_path: Path) -> None:
    nobody = {"SHIFTWATCH_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}"}
    often = {"OTEL_BSP_SCHEDULE_DELAY": "100"}

    story, seconds = a_short_story(tmp_path, **nobody, **often)

    assert trace_of(story.firing("m")) == BATCH
    assert seconds < STOP_SECONDS
    # One of the api and one of the worker.
    assert 1 <= len(story.lines("traces are lost")) <= 2


def test_without_an_endpoint_nobody_is_told_of_any_trace(tmp_path: Path) -> None:
    story, _ = a_short_story(tmp_path)

    assert "traceparent" not in story.firing("m").headers
    assert "trace_id" not in story.log.read_text()
