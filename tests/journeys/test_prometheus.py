"""A shift, as those see it who watch through Prometheus: two replicas and a worker are scraped by a
real one with the rules that are shipped, and a real Alertmanager tells a receiver.

The tests are one story and run in their order: a shift is seen, all replicas are started again, and
somebody says that it is over.
"""

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import yaml

from app.domain.window import pane_start
from app.stats.moments import Floats
from tests import fashion
from tests.conftest import admin, in_database
from tests.deploy.panels import ROOT, asked, dashboards, filled
from tests.evaluate.simulation import MINUTE
from tests.journeys.observers import alertmanager, prometheus
from tests.journeys.processes import Server, free_port, until
from tests.journeys.test_webhooks import Receiver
from tests.tools import tool

# Of the longer window nothing falls out while this story lasts.
MODEL, VERSION, WINDOW = "shop", "v1", "24h"
LABELS = [f"label-{i}" for i in range(fashion.LABELS)]
EVEN = np.full(fashion.LABELS, 0.1)
MANY_TROUSERS = np.where(np.arange(fashion.LABELS) == 1, 0.37, 0.07)
QUIET_PANES, SHIFTED_PANES, PER_PANE = 60, 40, 40
CHOSEN = {
    "model": MODEL,
    "version": VERSION,
    "window": WINDOW,
    "label": ".*",
    "job": "shiftwatch|shiftwatch-worker",
}

# A worker removes what is too old for the first time when it has run for a minute.
MAY_BE_EMPTY = {"Rows removed", "Since the last removal"}


@dataclass
class Scene:
    """Everybody there is."""

    replicas: list[Server]
    worker: Server
    vitals: str
    prometheus: str
    receiver: Receiver

    @property
    def api(self) -> str:
        return self.replicas[0].url

    def get(self, path: str, **query: Any) -> Any:
        return httpx.get(f"{self.api}{path}", params=query, timeout=30).raise_for_status().json()

    def post(self, path: str, body: Any = None, **query: Any) -> httpx.Response:
        return httpx.post(f"{self.api}{path}", json=body, params=query, timeout=60)

    def ask(self, expr: str) -> list[tuple[dict[str, str], float]]:
        """What Prometheus says now."""
        answer = httpx.get(f"{self.prometheus}/api/v1/query", params={"query": expr}, timeout=30)
        assert answer.status_code == 200, (expr, answer.text)
        return [(one["metric"], float(one["value"][1])) for one in answer.json()["data"]["result"]]

    def ask_range(self, expr: str, seconds: int = 30) -> list[Any]:
        """What a graph of the last moments shows."""
        now = time.time()
        query = httpx.QueryParams(query=expr, start=now - seconds, end=now, step=1)
        answer = httpx.get(f"{self.prometheus}/api/v1/query_range", params=query, timeout=30)
        assert answer.status_code == 200, (expr, answer.text)
        found: list[Any] = answer.json()["data"]["result"]
        return found

    def alerts(self, name: str) -> list[Any]:
        """What the receiver took from Alertmanager, one after the other."""
        return [
            one
            for request in self.receiver.requests
            for one in request.content["alerts"]
            if one["labels"]["alertname"] == name
        ]

    def told(self, name: str) -> list[str]:
        """What was said of an alert, one after the other."""
        return [one["status"] for one in self.alerts(name)]


@pytest.fixture(scope="module")
def scene(
    server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    tool("prometheus")
    admin(server_url, f"CREATE DATABASE watched TEMPLATE {template} STRATEGY file_copy")
    home = tmp_path_factory.mktemp("observers")
    with ExitStack() as stack:
        stack.callback(admin, server_url, "DROP DATABASE watched WITH (FORCE)")
        yield played(stack, in_database(server_url, "watched"), home)


def played(stack: ExitStack, database: str, home: Path) -> Scene:
    """Everybody at work, and a shift that has just been seen."""
    own = {"SHIFTWATCH_DATABASE_URL": database}
    vitals = free_port()
    replicas = [Server("api", **own), Server("api", **own)]
    worker = Server("worker", **own, SHIFTWATCH_WORKER_PORT=str(vitals))
    for one in (*replicas, worker):
        stack.callback(one.kill)
    for one in replicas:
        one.wait_until_ready()
    receiver = stack.enter_context(Receiver())
    manager = stack.enter_context(alertmanager(home / "alertmanager", telling(receiver)))
    targets = {"shiftwatch": [one.port for one in replicas], "shiftwatch-worker": [vitals]}
    found = stack.enter_context(prometheus(home / "prometheus", scraping(targets, manager)))
    scene = Scene(replicas, worker, f"http://127.0.0.1:{vitals}", found, receiver)
    gone = stack.enter_context(Receiver())
    gone.answer = 410
    live(scene, gone)
    return scene


def telling(receiver: Receiver) -> dict[str, Any]:
    route = {
        "receiver": "somebody",
        "group_by": ["alertname", "model"],
        "group_wait": "0s",
        "group_interval": "1s",
    }
    return {
        "route": route,
        "receivers": [{"name": "somebody", "webhook_configs": [{"url": receiver.url}]}],
    }


def scraping(targets: dict[str, list[int]], manager: str) -> dict[str, Any]:
    def at(*ports: int) -> list[dict[str, Any]]:
        return [{"targets": [f"127.0.0.1:{port}" for port in ports]}]

    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(ROOT / "deploy/prometheus/rules/*.yml")],
        "scrape_configs": [
            {"job_name": name, "static_configs": at(*ports)} for name, ports in targets.items()
        ],
        "alerting": {
            "alertmanagers": [{"static_configs": at(int(manager.rpartition(":")[2]))}],
        },
    }


def live(scene: Scene, gone: Receiver) -> None:
    """A model that has shifted; and everything that goes wrong now and then."""
    # Whoever is gone is not told again: of the alarm there will be a dead letter, the first one.
    until(lambda: scene.ask("service:shiftwatch_outbox_dead_letters:max") != [])
    hook = scene.post("/v1/webhooks", {"url": gone.url}).raise_for_status().json()
    register(scene.api)
    begin = pane_start(datetime.now(UTC), MINUTE) - (QUIET_PANES + SHIFTED_PANES) * MINUTE
    rng = np.random.default_rng(1)
    send(scene, begin, QUIET_PANES, EVEN, rng)
    send(scene, begin + QUIET_PANES * MINUTE, SHIFTED_PANES, MANY_TROUSERS, rng)
    place = f"/v1/models/{MODEL}/predictions"
    assert scene.post(place, {"predicted": ["no such label"]}).status_code == 422
    until(lambda: bool(firing(scene)))
    until(lambda: scene.get(f"/v1/webhooks/{hook['id']}/deliveries", state="dead")["items"] != [])


def register(api: str) -> None:
    sample = fashion.outputs("good", "validation")
    reference = {
        "probabilities": sample.rows[:2000].round(6).tolist(),
        "actual": sample.labels[:2000].tolist(),
    }
    place = f"{api}/v1/models/{MODEL}"
    body = {"labels": LABELS, "alarm": {"overdispersion": 1}}
    httpx.put(place, json=body).raise_for_status()
    httpx.put(f"{place}/references/{VERSION}", json=reference, timeout=60).raise_for_status()


def send(scene: Scene, begin: datetime, panes: int, mix: Floats, rng: np.random.Generator) -> None:
    pool = fashion.outputs("good", "test")
    rows = [fashion.draw(pool, mix, PER_PANE, rng).rows for _ in range(panes)]
    times = [(begin + i * MINUTE).isoformat() for i in range(panes)]
    body = {
        "probabilities": np.concatenate(rows).round(6).tolist(),
        "timestamps": list(chain.from_iterable([one] * PER_PANE for one in times)),
    }
    scene.post(f"/v1/models/{MODEL}/predictions", body).raise_for_status()


def firing(scene: Scene) -> list[Any]:
    found: list[Any] = scene.get("/v1/alarms", state="firing", kind="shift")["items"]
    return found


# What it sees.


def test_the_rules_say_what_the_api_says(scene: Scene) -> None:
    # For up to five seconds a replica remembers what it read before, and each its own.
    until(lambda: differences(scene) == [])
    replicas = f'shiftwatch_label_prevalence_ratio{{window="{WINDOW}", label="{LABELS[0]}"}}'
    until(lambda: len(scene.ask(replicas)) == 2)

    assert len(by_the_api(scene)) > len(COLUMNS) * len(LABELS)


# The estimates of a label that the API shows, and the names of their gauges.
COLUMNS = {
    "p": "reference_prevalence_ratio",
    "predicted": "predicted_prevalence_ratio",
    "q": "label_prevalence_ratio",
    "q_lower": "label_prevalence_lower_ratio",
    "q_upper": "label_prevalence_upper_ratio",
    "w": "importance_weight",
    "w_lower": "importance_weight_lower",
    "w_upper": "importance_weight_upper",
}

# A gauge, and whose it is: a label, a test, a verdict, or nobody's.
Series = tuple[str, str]


def by_the_api(scene: Scene) -> dict[Series, float]:
    said = scene.get(f"/v1/models/{MODEL}/estimate", version=VERSION, window=WINDOW)
    found: dict[Series, float] = {
        (metric, one["label"]): one[column]
        for one in said["labels"]
        for column, metric in COLUMNS.items()
    }
    found |= {("bbsd_p_value", one["test"]): one["p_value"] for one in said["tests"]}
    return found | {
        ("assumption_p_value", "label_shift"): said["assumption"]["p_value"],
        ("estimated_accuracy_ratio", ""): said["accuracy"]["estimate"],
        ("estimated_accuracy_lower_ratio", ""): said["accuracy"]["lower"],
        ("estimated_accuracy_upper_ratio", ""): said["accuracy"]["upper"],
        ("reference_accuracy_ratio", ""): said["accuracy"]["reference"],
        ("shift_distance_ratio", "tv"): said["effect"]["total_variation"],
        ("window_samples", ""): said["n"],
        ("verdict", said["verdict"]): 1,
    }


def by_the_rules(scene: Scene) -> dict[Series, list[float]]:
    """All that is recorded of the model: more than one value is one too many."""
    found: dict[Series, list[float]] = {}
    chosen = f'model="{MODEL}", version="{VERSION}", window=~"|{WINDOW}"'
    for labels, value in scene.ask(f'{{__name__=~"model:shiftwatch_.*:max", {chosen}}}'):
        metric = labels["__name__"].removeprefix("model:shiftwatch_").removesuffix(":max")
        whose = [labels[name] for name in WHOSE if name in labels]
        found.setdefault((metric, "".join(whose)), []).append(value)
    return found


WHOSE = ("label", "test", "check", "metric", "verdict")


def differences(scene: Scene) -> list[Series]:
    recorded = by_the_rules(scene)
    return [
        series
        for series, expected in by_the_api(scene).items()
        if len(values := recorded.get(series, [])) != 1 or abs(values[0] - expected) > 1e-9
    ]


@pytest.mark.parametrize("name", ["fleet", "model", "service"])
def test_every_panel_has_something_to_show(scene: Scene, name: str) -> None:
    def empty() -> list[tuple[str, str]]:
        found = []
        for one in asked(dashboards()[name]):
            expr = filled(one.expr, CHOSEN)
            if not (scene.ask_range(expr) if one.is_range else scene.ask(expr)):
                found.append((one.panel, expr))
        return [one for one in found if one[0] not in MAY_BE_EMPTY]

    until(lambda: empty() == [])


# Who is told of it.

SHIFT_ALERT = 'ALERTS{alertname="LabelShiftDetected", alertstate="firing"}'


def test_the_receiver_is_told_of_the_shift(scene: Scene) -> None:
    until(lambda: scene.told("LabelShiftDetected") == ["firing"])

    (alarm,) = firing(scene)
    ((labels, _),) = scene.ask(SHIFT_ALERT)
    assert (labels["model"], labels["version"]) == (MODEL, VERSION)
    assert (labels["severity"], labels["service"]) == (alarm["severity"], "shiftwatch")
    (alert,) = scene.alerts("LabelShiftDetected")
    assert "% away from it" in alert["annotations"]["description"]
    assert (ROOT / alert["annotations"]["runbook_url"]).exists()


def test_the_receiver_is_told_of_notices_that_were_given_up(scene: Scene) -> None:
    until(lambda: scene.told("ShiftwatchWebhookDeadLetters") == ["firing"])


def test_nothing_else_is_wrong(scene: Scene) -> None:
    names = {labels["alertname"] for labels, _ in scene.ask('ALERTS{alertstate="firing"}')}

    assert names <= {"LabelShiftDetected", "ShiftwatchWebhookDeadLetters"}


def test_nobody_sees_that_all_replicas_are_started_again(scene: Scene) -> None:
    until(lambda: scene.told("LabelShiftDetected") == ["firing"])
    before, began = by_the_rules(scene), time.monotonic()

    for one in scene.replicas:
        one.stop()
    until(lambda: scene.ask("shiftwatch_alarm_active") == [])
    while_they_are_away = scene.ask(SHIFT_ALERT)
    for one in scene.replicas:
        one.start()
    for one in scene.replicas:
        one.wait_until_ready()
    until(lambda: len(scene.ask("shiftwatch_models")) == 2)
    until(lambda: set(before) == set(by_the_rules(scene)))

    assert len(while_they_are_away) == 1
    seconds = int(time.monotonic() - began)
    shares = f'model:shiftwatch_label_prevalence_ratio:max{{window="{WINDOW}"}}'
    assert {value for _, value in scene.ask(f"changes({shares}[{seconds}s])")} == {0}
    assert len(scene.ask_range(SHIFT_ALERT, seconds)[0]["values"]) == seconds + 1
    assert scene.told("LabelShiftDetected") == ["firing"]


def test_the_receiver_is_told_that_the_shift_is_over(scene: Scene) -> None:
    until(lambda: scene.told("LabelShiftDetected") == ["firing"])
    (alarm,) = firing(scene)

    scene.post(f"/v1/alarms/{alarm['id']}/resolve", {"by": "ann"}).raise_for_status()

    until(lambda: scene.told("LabelShiftDetected") == ["firing", "resolved"])


# Who looks into it.

RUNBOOKS = sorted((ROOT / "docs/runbooks").glob("[LS]*.md"))


def commands(scene: Scene, page: Path) -> list[str]:
    """What a page says to type, each up to what is made of its answer."""
    (block,) = re.findall(r"```sh\n(.*?)```", page.read_text(), re.S)
    here = {
        "http://localhost:8000": scene.api,
        "http://localhost:9090": scene.prometheus,
        "http://localhost:9464": scene.vitals,
        "/fraud": f"/{MODEL}",
        "=fraud": f"={MODEL}",
        "legit": LABELS[0],
        "webhooks/3": f"webhooks/{scene.get('/v1/webhooks')['items'][0]['id']}",
    }
    for example, real in here.items():
        block = block.replace(example, real)
    setting, *typed = block.splitlines()
    curls = [one for line in typed for one in re.findall(r"curl [^|#;]+", line)]
    return [f"{setting}\n{one.replace('curl', 'curl --fail', 1)}" for one in curls]


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
@pytest.mark.parametrize("page", RUNBOOKS, ids=lambda page: page.stem)
def test_what_a_runbook_says_to_type_works(scene: Scene, page: Path) -> None:
    typed = commands(scene, page)

    assert typed
    for one in typed:
        done = subprocess.run(["bash", "-c", one], capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, (one, done.stdout, done.stderr)


# Who is not told any more.


def impatient(alert: str) -> str:
    """The rule of an alert, with seconds for minutes."""
    content = yaml.safe_load((ROOT / "deploy/prometheus/rules/alerts.yml").read_text())
    (expr,) = [
        str(rule["expr"])
        for group in content["groups"]
        for rule in group["rules"]
        if rule["alert"] == alert
    ]
    assert expr.count("> 300") == 1
    return expr.replace("> 300", "> 5")


def test_a_worker_that_is_gone_is_seen_by_what_waits_for_it(scene: Scene) -> None:
    stale, behind = impatient("LabelShiftWindowStale"), impatient("ShiftwatchEvaluationsBehind")
    rng = np.random.default_rng(2)

    def comes_in() -> None:
        send(scene, pane_start(datetime.now(UTC), MINUTE), 1, MANY_TROUSERS, rng)

    def is_seen() -> bool:
        comes_in()
        time.sleep(0.5)
        return bool(scene.ask(stale)) and bool(scene.ask(behind))

    comes_in()
    until(lambda: differences(scene) == [])
    assert scene.ask(behind) == []
    scene.worker.kill()

    until(is_seen)
