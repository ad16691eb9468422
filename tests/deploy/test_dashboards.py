"""The dashboards: there is no Grafana here, so we look ourselves for what it would complain of, or
show nothing for; `tests/journeys/test_prometheus.py` asks a real Prometheus for every panel.

What looks for faults is tried on dashboards that have them.
"""

import copy
import re
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import promql_parser
import pytest
import yaml
from promql_parser import AggModifierType, Expr

from app.domain.alarm import AlarmState, Severity
from app.domain.verdict import Verdict
from deploy.grafana import build, meanings
from tests.deploy.metrics_catalogue import documented, series_of
from tests.deploy.panels import DASHBOARDS, ROOT, Json, asked, dashboards, filled, used_variables

ALL = dashboards()
NAMES = ["fleet", "model", "service"]
PANELS = {"timeseries", "stat", "table", "state-timeline", "row"}
UNITS = {"short", "none", "percentunit", "s", "bytes", "cps", "ops", "reqps"}
COLORS = {"green", "blue", "orange", "red", "yellow", "purple", "text", "transparent"}
VARIABLES = {"datasource", "query", "textbox"}
# What Grafana brings along.
BUILT_IN = {"__rate_interval", "__range", "__data", "__url_time_range", "__all"}
KNOWN = documented("model") | documented("service") | documented("process") | {"up"}


def faults(dashboard: Json) -> list[str]:
    """All that is wrong with a dashboard."""
    checks = (ids, panels, places, targets, expressions, variables, looks, overrides, links)
    return [fault for check in checks for fault in check(dashboard)]


def shown(dashboard: Json) -> list[Json]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def ids(dashboard: Json) -> Iterator[str]:
    numbers = [panel["id"] for panel in dashboard["panels"]]
    if len(set(numbers)) < len(numbers):
        yield "two panels have the same id"
    titles = [(panel["type"], panel["title"]) for panel in dashboard["panels"]]
    if len(set(titles)) < len(titles):
        yield "two panels have the same title"


def panels(dashboard: Json) -> Iterator[str]:
    for panel in dashboard["panels"]:
        if panel["type"] not in PANELS:
            yield f"no panel is called {panel['type']}"
    for panel in shown(dashboard):
        if not panel["description"].endswith("."):
            yield f"{panel['title']} is not described"


def places(dashboard: Json) -> Iterator[str]:
    found = [(panel["title"], panel["gridPos"]) for panel in dashboard["panels"]]
    for title, at in found:
        if at["x"] < 0 or at["w"] < 1 or at["h"] < 1 or at["x"] + at["w"] > 24:
            yield f"{title} is outside"
    for (title, one), (other, two) in combinations(found, 2):
        if _meet(one, two, "x", "w") and _meet(one, two, "y", "h"):
            yield f"{title} lies upon {other}"
    # Side by side they fill the width: nothing is wasted.
    lines: dict[int, int] = {}
    for _, at in found:
        lines[at["y"]] = lines.get(at["y"], 0) + at["w"]
    if set(lines.values()) != {24}:
        yield "there are holes"


def _meet(one: Json, two: Json, start: str, size: str) -> bool:
    return bool(one[start] < two[start] + two[size] and two[start] < one[start] + one[size])


def targets(dashboard: Json) -> Iterator[str]:
    for panel in shown(dashboard):
        references = [target["refId"] for target in panel["targets"]]
        if not references or len(set(references)) < len(references):
            yield f"{panel['title']} has no targets, or two of the same name"
        for one in [panel, *panel["targets"]]:
            if one["datasource"] != {"type": "prometheus", "uid": "${datasource}"}:
                yield f"{panel['title']} does not ask the chosen data source"
        kinds = {target.get("format") == "table" for target in panel["targets"]}
        if kinds != {panel["type"] == "table"}:
            yield f"{panel['title']} asks for the wrong format"


def expressions(dashboard: Json) -> Iterator[str]:
    for one in asked(dashboard):
        try:
            expr = promql_parser.parse(filled(one.expr, dict.fromkeys(used(dashboard), "x")))
        except ValueError as error:
            yield f"{one.panel}: {error}"
            continue
        for name in series_of(expr) - KNOWN:
            yield f"{one.panel} asks for {name}, which there is not"
        for name in counted_twice(expr):
            yield f"{one.panel} shows {name} once for each replica"


def used(dashboard: Json) -> set[str]:
    return used_variables(str(dashboard)) - BUILT_IN


def counted_twice(expr: Expr) -> set[str]:
    """Gauges that every replica shows alike, and that are not made one."""
    match expr:
        case promql_parser.AggregateExpr():
            return set() if _drops_replicas(expr) else counted_twice(expr.expr)
        case promql_parser.BinaryExpr() if str(expr.op) == "and":
            return counted_twice(expr.lhs)  # the right side is only looked at
        case promql_parser.BinaryExpr():
            return counted_twice(expr.lhs) | counted_twice(expr.rhs)
        case promql_parser.Call():
            return {name for argument in expr.args for name in counted_twice(argument)}
        case promql_parser.ParenExpr() | promql_parser.UnaryExpr() | promql_parser.SubqueryExpr():
            return counted_twice(expr.expr)
        case _:
            return series_of(expr) & (documented("model") | documented("service"))


def _drops_replicas(expr: promql_parser.AggregateExpr) -> bool:
    """Whether it takes the largest over replicas; to add up, they must be one before."""
    if str(expr.op) != "max":
        return False
    if expr.modifier is None:
        return True
    labels = set(expr.modifier.labels)
    if expr.modifier.type == AggModifierType.Without:
        return {"instance", "pod"} <= labels
    return not {"instance", "pod"} & labels


def variables(dashboard: Json) -> Iterator[str]:
    defined = [one["name"] for one in dashboard["templating"]["list"]]
    for name in used(dashboard) - set(defined):
        yield f"${name} is not defined"
    for name in set(defined) - used(dashboard):
        yield f"${name} is not used"
    for one in dashboard["templating"]["list"]:
        if one["type"] not in VARIABLES:
            yield f"no variable is a {one['type']}"
        if one["type"] == "query":
            yield from _values(one)


def _values(one: Json) -> Iterator[str]:
    found = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", one["query"]["query"])
    if found is None or found[1] not in KNOWN or found[2] != one["name"]:
        yield f"${one['name']} has no values"


def looks(dashboard: Json) -> Iterator[str]:
    for panel in shown(dashboard):
        fields = panel["fieldConfig"]
        settings = [fields["defaults"], *map(_properties, fields["overrides"])]
        for one in settings:
            if one.get("unit", "short") not in UNITS:
                yield f"{panel['title']}: no unit is called {one['unit']}"
            steps = one.get("thresholds", {"steps": [{"value": None, "color": "text"}]})["steps"]
            values = [step["value"] for step in steps]
            if values[0] is not None or values[1:] != sorted(values[1:]):
                yield f"{panel['title']}: thresholds must ascend"
            mapped = [x for entry in one.get("mappings", []) for x in entry["options"].values()]
            for color in {x["color"] for x in [*steps, *mapped]} - COLORS:
                yield f"{panel['title']}: {color} is none of our colours"


def _properties(override: Json) -> Json:
    return {one["id"]: one["value"] for one in override["properties"]}


def overrides(dashboard: Json) -> Iterator[str]:
    for panel in shown(dashboard):
        names = {target.get("legendFormat") for target in panel["targets"]}
        for one in panel.get("transformations", []):
            names |= set(one["options"].get("renameByName", {}).values())
        for one in panel["fieldConfig"]["overrides"]:
            if one["matcher"]["options"] not in names | {"model", "label"}:
                yield f"{panel['title']} has no {one['matcher']['options']}"


def links(dashboard: Json) -> Iterator[str]:
    if not any("${page_url}" in one.get("url", "") for one in dashboard["links"]):
        yield "there is no link to the page"
    uids = {other["uid"] for other in ALL.values()}
    for uid in re.findall(r"/d/([\w-]+)", str(dashboard)):
        if uid not in uids:
            yield f"there is no dashboard {uid}"


# As they are shipped.


def test_there_are_three_each_known_by_a_name_that_stays() -> None:
    assert {name: one["uid"] for name, one in ALL.items()} == {
        name: f"shiftwatch-{name}" for name in NAMES
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_has_no_faults(name: str) -> None:
    assert faults(ALL[name]) == []


def test_the_files_are_what_make_dashboards_writes() -> None:
    assert build.dashboards() == {path.name: path.read_text() for path in DASHBOARDS.glob("*.json")}


def test_every_verdict_severity_and_state_has_a_word() -> None:
    assert set(meanings.VERDICTS) == set(Verdict)
    assert set(meanings.SEVERITIES) == set(Severity)
    assert set(meanings.STATES) == {"ok", *AlarmState} - {AlarmState.RESOLVED}
    for codes, words in (
        (meanings.VERDICTS, meanings.VERDICT_WORDS),
        (meanings.SEVERITIES | {"none": 0}, meanings.SEVERITY_WORDS),
        (meanings.STATES, meanings.STATE_WORDS),
    ):
        assert {str(code) for code in codes.values()} == words[0]["options"].keys()


def test_every_gauge_of_models_is_on_a_dashboard() -> None:
    shown = {
        name
        for one in ALL.values()
        for question in asked(one)
        for name in series_of(promql_parser.parse(filled(question.expr, AT_RANDOM)))
    }

    # A test's p-value says what its statistic does, the ends of a weight follow from q's, and what
    # an alarm says has moved is for alerts: a dashboard shows the verdict of the window.
    missing = (documented("model") | documented("service")) - shown
    assert missing == {
        "shiftwatch_alarm_verdict",
        "shiftwatch_bbsd_statistic",
        "shiftwatch_importance_weight_lower",
        "shiftwatch_importance_weight_upper",
    }


def test_all_jobs_are_all_of_ours() -> None:
    listed = [one for own in ALL.values() for one in own["templating"]["list"]]
    (job,) = [one for one in listed if one["name"] == "job"]

    assert job["allValue"] is None


AT_RANDOM = dict.fromkeys(["model", "version", "window", "label", "job"], "x")


def provisioned(path: str) -> Any:
    return yaml.safe_load((ROOT / "deploy/grafana/provisioning" / path).read_text())


def test_grafana_finds_prometheus_and_the_dashboards() -> None:
    (source,) = provisioned("datasources/prometheus.yml")["datasources"]
    (provider,) = provisioned("dashboards/shiftwatch.yml")["providers"]

    assert (source["uid"], source["type"], source["isDefault"]) == (
        "shiftwatch-prom",
        "prometheus",
        True,
    )
    assert source["url"] == "http://prometheus:9090"
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"


# With faults.

UNUSED = {"name": "job", "type": "textbox"}


def spoilt(change: Callable[[Json], None]) -> list[str]:
    found = copy.deepcopy(ALL["model"])
    change(found)
    return faults(found)


def panel_of(dashboard: Json, kind: str) -> Json:
    found: Json = next(one for one in dashboard["panels"] if one["type"] == kind)
    return found


def expr_of(dashboard: Json, expr: str) -> None:
    panel_of(dashboard, "stat")["targets"][0]["expr"] = expr


@pytest.mark.parametrize(
    ("fault", "change"),
    [
        ("two panels have the same id", lambda one: one["panels"][1].update(id=1)),
        ("two panels have the same title", lambda one: one["panels"][0].update(title="Alarm")),
        ("no panel is called graph", lambda one: one["panels"][0].update(type="graph")),
        ("Verdict is not described", lambda one: one["panels"][0].update(description="")),
        ("Verdict is outside", lambda one: one["panels"][0]["gridPos"].update(x=21)),
        ("Verdict lies upon Alarm", lambda one: one["panels"][0]["gridPos"].update(w=5)),
        ("there are holes", lambda one: one["panels"][0]["gridPos"].update(w=3)),
        ("two of the same name", lambda one: one["panels"][0].update(targets=[])),
        (
            "does not ask the chosen data source",
            lambda one: panel_of(one, "stat")["targets"][0].update(datasource={"uid": "own"}),
        ),
        (
            "asks for the wrong format",
            lambda one: panel_of(one, "table")["targets"][0].pop("format"),
        ),
        ("Verdict: ", lambda one: expr_of(one, "max by (")),
        ("asks for shiftwatch_moods", lambda one: expr_of(one, "shiftwatch_moods")),
        ("once for each replica", lambda one: expr_of(one, "shiftwatch_verdict")),
        ("once for each replica", lambda one: expr_of(one, "sum(shiftwatch_verdict)")),
        (
            "once for each replica",
            lambda one: expr_of(one, "max without (instance) (shiftwatch_verdict)"),
        ),
        (
            "once for each replica",
            lambda one: expr_of(one, "time() - max by (pod) (shiftwatch_models)"),
        ),
        ("$mood is not defined", lambda one: expr_of(one, 'max(shiftwatch_models{a="$mood"})')),
        ("$job is not used", lambda one: one["templating"]["list"].append(UNUSED)),
        (
            "$model has no values",
            lambda one: query_of(one, "model", "label_values(x, model)"),
        ),
        ("no unit is called parsecs", lambda one: defaults(one).update(unit="parsecs")),
        ("pink is none of our colours", lambda one: steps_of(one)[0].update(color="pink")),
        ("thresholds must ascend", lambda one: steps_of(one)[0].update(value=1)),
        (
            "has no nonsense",
            lambda one: panel_of(one, "table")["fieldConfig"]["overrides"][0]["matcher"].update(
                options="nonsense"
            ),
        ),
        ("there is no link to the page", lambda one: one["links"].pop()),
        ("there is no dashboard nowhere", lambda one: one["links"].append({"url": "/d/nowhere"})),
    ],
)
def test_a_fault_is_found(fault: str, change: Callable[[Json], None]) -> None:
    assert any(fault in one for one in spoilt(change)), spoilt(change)


def query_of(dashboard: Json, name: str, values: str) -> None:
    (found,) = [one for one in dashboard["templating"]["list"] if one["name"] == name]
    found["query"]["query"] = values


def defaults(dashboard: Json) -> Json:
    found: Json = panel_of(dashboard, "stat")["fieldConfig"]["defaults"]
    return found


def steps_of(dashboard: Json) -> list[Json]:
    found: list[Json] = defaults(dashboard)["thresholds"]["steps"]
    return found
