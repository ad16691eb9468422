"""The rules for Prometheus: they pass their own unit tests, ask for what there is, and each alert
has a page that helps.

What guards the rules is tried on rules that are wrong.
"""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from tests.deploy.metrics_catalogue import documented, series_of
from tests.tools import tool

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy/prometheus"
RUNBOOKS = ROOT / "docs/runbooks"

Rule = dict[str, Any]


def rules(file: str, home: Path = PROMETHEUS) -> Iterator[Rule]:
    for group in yaml.safe_load((home / "rules" / file).read_text())["groups"]:
        yield from group["rules"]


ALERTS = {rule["alert"]: rule for rule in rules("alerts.yml")}
RECORDED = {rule["record"]: rule for rule in rules("recording.yml")}


# They hold.


def promtool(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [tool("promtool"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def unit_tested(home: Path, tests: str = "*.yml") -> "subprocess.CompletedProcess[str]":
    return promtool("test", "rules", *sorted((home / "tests").glob(tests)))


def test_prometheus_takes_the_rules() -> None:
    done = promtool("check", "rules", *sorted((PROMETHEUS / "rules").glob("*.yml")))

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_pass_their_unit_tests() -> None:
    done = unit_tested(PROMETHEUS)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Rules and their unit tests, to be spoilt."""
    for name in ("rules", "tests"):
        shutil.copytree(PROMETHEUS / name, tmp_path / name)
    return tmp_path


def spoil(home: Path, change: Callable[[Rule], Rule]) -> None:
    place = home / "rules/alerts.yml"
    content = yaml.safe_load(place.read_text())
    for group in content["groups"]:
        group["rules"] = [change(rule) for rule in group["rules"]]
    place.write_text(yaml.safe_dump(content))


def never(rule: Rule) -> Rule:
    return {**rule, "expr": f"({rule['expr']}) and on () (vector(1) == 0)"}


def eager(rule: Rule) -> Rule:
    """Without its threshold, and at once."""
    expr = re.sub(r"\s*(==|>|>=) [\d* ]+$", "", rule["expr"].strip())
    return {**rule, "expr": expr, "for": "0s"}


@pytest.mark.parametrize("change", [never, eager])
def test_the_unit_tests_notice_every_alert_that_never_fires_or_fires_too_soon(
    copy: Path, change: Callable[[Rule], Rule]
) -> None:
    spoil(copy, change)

    done = unit_tested(copy)

    noticed = set(re.findall(r"alertname: (\w+), time", done.stdout + done.stderr))
    assert noticed == set(ALERTS)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("max without (instance, pod) (", "("),
        ("max without (instance, pod) (", "sum without (instance, pod) ("),
        ("(last_over_time(shiftwatch_alarm_active[15m]))", "(shiftwatch_alarm_active)"),
        ("[15m]", "[10m]"),
        ("(shiftwatch_collector_success) == 1", "(shiftwatch_collector_success) == 2"),
        ("unless ignoring (model, version, alarm, severity)", "unless on ()"),
        ("sum without (instance, pod) (rate(", "max without (instance, pod) (rate("),
    ],
)
def test_the_unit_tests_notice_recording_rules_that_are_wrong(
    copy: Path, right: str, wrong: str
) -> None:
    place = copy / "rules/recording.yml"
    assert right in place.read_text()
    place.write_text(place.read_text().replace(right, wrong))

    assert unit_tested(copy, "recording_test.yml").returncode != 0


# They ask for what there is.


def test_every_gauge_of_the_models_is_recorded_once() -> None:
    expected = {f"model:{name}:max" for name in documented("model")}
    expected |= {f"service:{name}:max" for name in documented("service")}

    assert {name for name in RECORDED if name.endswith(":max")} == expected


@pytest.mark.parametrize("name", [*ALERTS, *RECORDED])
def test_rules_ask_for_metrics_that_there_are(name: str) -> None:
    known = documented("model") | documented("service") | documented("process")
    rule = ALERTS.get(name) or RECORDED[name]

    asked = series_of(promql_parser.parse(rule["expr"]))

    assert asked <= known | RECORDED.keys() | {"up"}


# Each alert helps.


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_how_bad_it_is_and_where_to_go_on(name: str) -> None:
    rule = ALERTS[name]
    notes = rule["annotations"]

    # That of an alarm comes from the alarm.
    assert ("severity" in rule["labels"]) != ("shiftwatch_alarm_active:max{" in rule["expr"])
    assert rule["labels"].get("severity", "info") in ("info", "warning", "critical")
    assert rule["labels"]["service"] == "shiftwatch"
    assert set(notes) == {"summary", "description", "runbook_url", "dashboard_url"}
    assert notes["runbook_url"] == f"docs/runbooks/{name}.md"
    uid = re.match(r"/d/([\w-]+)", notes["dashboard_url"])
    assert uid is not None
    assert (ROOT / f"deploy/grafana/dashboards/{uid[1].removeprefix('shiftwatch-')}.json").exists()


def test_there_is_a_runbook_for_each_alert_and_for_nothing_else() -> None:
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == {*ALERTS, "README"}
    listed = re.findall(r"^- \[(\w+)\]\(\1\.md\)$", (RUNBOOKS / "README.md").read_text(), re.M)
    assert listed == sorted(ALERTS)


@pytest.mark.parametrize("name", ALERTS)
def test_a_runbook_is_a_page_on_what_to_check_to_do_and_to_silence(name: str) -> None:
    text = (RUNBOOKS / f"{name}.md").read_text()

    assert re.findall(r"^# (.*)$|^## (.*)$", text, re.M) == [
        (name, ""),
        *(("", heading) for heading in ("Check", "Do", "Silence")),
    ]
    assert len(text.splitlines()) <= 45
    for page in re.findall(r"\]\((\w+\.md)\)", text):
        assert (RUNBOOKS / page).exists()


def calls(text: str) -> set[tuple[str, str]]:
    """Requests to the service that a page tells one to make.

    >>> sorted(calls('`POST /v1/x/{id}/test`, curl -s "$S/v1/y?limit=5"; curl -X PUT $S/v1/z'))
    [('GET', '/v1/y'), ('POST', '/v1/x/{id}/test'), ('PUT', '/v1/z')]
    """
    named = re.findall(r"(GET|POST|PUT|DELETE) (/v1/[\w/{}-]+)", text)
    typed = re.findall(r"curl ([^;\n`]*?)\"?\$S(/[\w/{}-]+)", text)
    methods = [(re.search(r"-X (\w+)", options), path) for options, path in typed]
    return {*named, *((method[1] if method else "GET", path) for method, path in methods)}


@pytest.mark.parametrize("name", ALERTS)
def test_what_a_runbook_tells_one_to_ask_for_exists(name: str) -> None:
    api = (ROOT / "docs/api.md").read_text()
    known = [
        (method, re.sub(r"\{\w+\}", "[^/]+", path))
        for method, path in re.findall(r"^\| `([A-Z]+) (/\S*)` ", api, re.M)
    ]

    for method, path in calls((RUNBOOKS / f"{name}.md").read_text()):
        assert any(method == other and re.fullmatch(where, path) for other, where in known), path


def test_the_line_that_makes_links_of_them_works(copy: Path) -> None:
    (line,) = re.findall(r"^sed -i .*alerts\.yml$", (ROOT / "docs/monitoring.md").read_text(), re.M)

    subprocess.run(line.replace("deploy/prometheus/", ""), shell=True, check=True, cwd=copy)

    notes = [rule["annotations"] for rule in rules("alerts.yml", copy)]
    assert all(re.match(r"https://\S+/docs/runbooks/\w+\.md", one["runbook_url"]) for one in notes)
    assert all(re.match(r"https://\S+/d/shiftwatch-", one["dashboard_url"]) for one in notes)


def test_the_table_of_alerts_is_complete() -> None:
    text = (ROOT / "docs/monitoring.md").read_text()
    rows = re.findall(r"^\| \[(\w+)\]\(runbooks/\1\.md\) \| ([\w ]+) \|", text, re.M)

    assert dict(rows) == {
        name: rule["labels"].get("severity", "of the alarm") for name, rule in ALERTS.items()
    }
