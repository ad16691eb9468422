"""What dashboards are made of, in Grafana's own JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]

SOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24  # of a dashboard
OK, INFO, WARNING, CRITICAL, NOTHING = "green", "blue", "orange", "red", "text"


# What to ask.


def once(selector: str) -> str:
    """A gauge that every replica shows alike, once."""
    return f"max without (instance, pod) ({selector})"


def per_second(selector: str, by: str) -> str:
    """A counter, added up over replicas."""
    return f"sum by ({by}) (rate({selector}[$__rate_interval]))"


def quantile(share: float, buckets: str, by: str = "") -> str:
    """Of a histogram, over all replicas."""
    inside = f"sum by ({', '.join(filter(None, ['le', by]))}) (rate({buckets}[$__rate_interval]))"
    return f"histogram_quantile({share}, {inside})"


def coded(selector: str, label: str, codes: Mapping[str, int]) -> str:
    """A gauge with a series for each value of `label`, 1 for one of them, as that value's code."""
    parts = [
        selector.replace("{", f'{{{label}="{value}", ', 1) + f" * {code}"
        for value, code in codes.items()
    ]
    return f"max without (instance, pod, {label}) ({' or '.join(parts)})"


def query(expr: str, legend: str) -> Json:
    """For a panel that shows how something went."""
    return _target(expr, legendFormat=legend, range=True)


def column(expr: str) -> Json:
    """For a table: what is true now."""
    return _target(expr, format="table", instant=True)


def _target(expr: str, **more: Any) -> Json:
    return {"datasource": SOURCE, "editorMode": "code", "expr": expr, **more}


# How to show it.


def panel(
    kind: str,
    title: str,
    description: str,
    targets: Sequence[Json],
    *,
    unit: str = "short",
    options: Json | None = None,
    custom: Json | None = None,
    overrides: Sequence[Json] = (),
    transformations: Sequence[Json] = (),
    **defaults: Any,
) -> Json:
    """`defaults` are those of all fields: thresholds, mappings, min, max, links, ..."""
    found: Json = {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": SOURCE,
        "targets": [{"refId": chr(ord("A") + i), **one} for i, one in enumerate(targets)],
        "fieldConfig": {
            "defaults": {"unit": unit, "custom": custom or {}, **defaults},
            "overrides": list(overrides),
        },
        "options": options or {},
    }
    return {**found, "transformations": list(transformations)} if transformations else found


def graph(
    title: str,
    description: str,
    *targets: Json,
    logarithmic: bool = False,
    stacked: bool = False,
    **more: Any,
) -> Json:
    custom = {
        "drawStyle": "line",
        "lineWidth": 2,
        "fillOpacity": 30 if stacked else 0,
        "showPoints": "never",
        "stacking": {"mode": "normal" if stacked else "none"},
        "scaleDistribution": {"type": "log", "log": 10} if logarithmic else {"type": "linear"},
        "thresholdsStyle": {"mode": "dashed" if "thresholds" in more else "off"},
    }
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return panel("timeseries", title, description, targets, custom=custom, options=options, **more)


def stat(title: str, description: str, expr: str, **more: Any) -> Json:
    """One number, the last one."""
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "none",
        "textMode": "value",
        "justifyMode": "auto",
        "orientation": "auto",
    }
    more.setdefault("thresholds", steps(NOTHING))
    return panel("stat", title, description, [query(expr, "")], options=options, **more)


def timeline(title: str, description: str, *targets: Json, **more: Any) -> Json:
    """One line for each series, in the colour of the state that it is in."""
    options = {
        "mergeValues": True,
        "showValue": "never",
        "alignValue": "left",
        "rowHeight": 0.85,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "single", "sort": "none"},
    }
    custom = {"fillOpacity": 80, "lineWidth": 0}
    return panel(
        "state-timeline", title, description, targets, custom=custom, options=options, **more
    )


def table(
    title: str,
    description: str,
    columns: Mapping[str, Json],
    **more: Any,
) -> Json:
    """Rows of the labels that all columns have; `columns` by their headings, in their order."""
    values = {f"Value #{chr(ord('A') + i)}": name for i, name in enumerate(columns)}
    tidied = {"excludeByName": {"Time": True}, "renameByName": values}
    return panel(
        "table",
        title,
        description,
        list(columns.values()),
        options={"showHeader": True, "cellHeight": "sm"},
        transformations=[
            {"id": "merge", "options": {}},
            {"id": "organize", "options": tidied},
        ],
        **more,
    )


def steps(first: str, *more: tuple[float, str]) -> Json:
    """Thresholds: a colour, and the ones from certain values on."""
    later = [{"value": value, "color": color} for value, color in more]
    return {"mode": "absolute", "steps": [{"value": None, "color": first}, *later]}


def words(meanings: Mapping[int | str, tuple[str, str]]) -> list[Json]:
    """Value mappings: what a value means, and its colour."""
    options = {
        str(value): {"index": i, "text": text, "color": color}
        for i, (value, (text, color)) in enumerate(meanings.items())
    }
    return [{"type": "value", "options": options}]


def override(name: str, **properties: Any) -> Json:
    """Of the field of that name; `custom__lineWidth` is `custom.lineWidth`."""
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [
            {"id": key.replace("__", "."), "value": value} for key, value in properties.items()
        ],
    }


def band(lower: str, upper: str) -> list[Json]:
    """Two series as the edges of an area."""
    edge = {"custom__lineWidth": 0, "color": {"mode": "fixed", "fixedColor": "blue"}}
    filled = {"custom__fillBelowTo": lower, "custom__fillOpacity": 15}
    return [override(lower, **edge), override(upper, **edge, **filled)]


def dashed(name: str, color: str) -> Json:
    line = {"fill": "dash", "dash": [8, 6]}
    fixed = {"mode": "fixed", "fixedColor": color}
    return override(name, custom__lineStyle=line, color=fixed)


def link(title: str, url: str) -> Json:
    return {"title": title, "url": url, "targetBlank": False}


# What to choose from.


def source_variable() -> Json:
    return {
        "type": "datasource",
        "name": "datasource",
        "label": "Data source",
        "query": "prometheus",
        "current": {},
        "refresh": 1,
    }


def page_variable() -> Json:
    default = "http://localhost:8000"
    return {
        "type": "textbox",
        "name": "page_url",
        "label": "Shiftwatch is at",
        "query": default,
        "current": {"text": default, "value": default},
        "options": [{"text": default, "value": default, "selected": True}],
    }


def variable(name: str, values: str, *, many: bool = False, anything: bool = False) -> Json:
    """One that Prometheus knows the values of; `many` allows more than one, and all.

    `anything` has all be `.*` instead of each value by name: shorter, but only for what nobody else
    has. There are other jobs than ours.
    """
    everything = {"selected": True, "text": ["All"], "value": ["$__all"]}
    return {
        "type": "query",
        "name": name,
        "label": name.capitalize(),
        "datasource": SOURCE,
        "definition": values,
        "query": {
            "qryType": 1,
            "query": values,
            "refId": "PrometheusVariableQueryEditor-VariableQuery",
        },
        "refresh": 2,
        "sort": 1,
        "multi": many,
        "includeAll": many,
        "allValue": ".*" if anything else None,
        "current": everything if many else {},
    }


# The whole.


def row(title: str) -> list[Json]:
    """A heading over what follows."""
    return [{"type": "row", "title": title, "collapsed": False, "panels": [], "height": 1}]


def line(height: int, *panels: Json, widths: Sequence[int] = ()) -> list[Json]:
    """Panels side by side, as wide as each other unless said otherwise."""
    shares = widths or [COLUMNS // len(panels)] * len(panels)
    return [
        {**one, "height": height, "width": width} for one, width in zip(panels, shares, strict=True)
    ]


def dashboard(
    uid: str, title: str, description: str, variables: Sequence[Json], lines: Sequence[list[Json]]
) -> Json:
    return {
        "id": None,
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["shiftwatch"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,  # one crosshair for all panels
        "refresh": "30s",
        "time": {"from": "now-24h", "to": "now"},
        "timezone": "",
        "templating": {"list": [source_variable(), *variables, page_variable()]},
        "annotations": {"list": []},
        "links": [
            {
                "type": "dashboards",
                "title": "Shiftwatch",
                "tags": ["shiftwatch"],
                "asDropdown": False,
                "includeVars": True,
                "keepTime": True,
            },
        ],
        "panels": _placed(lines),
    }


def annotated(found: Json, expr: str) -> Json:
    """With a mark over all graphs from where an alarm was raised to where it was over."""
    alarms = {
        "name": "Alarms",
        "datasource": SOURCE,
        "enable": True,
        "expr": expr,
        "step": "60s",
        "iconColor": "red",
        "titleFormat": "{{alarm}} ({{severity}})",
        "textFormat": "{{model}} {{version}}",
        "tagKeys": "alarm,severity",
    }
    return {**found, "annotations": {"list": [alarms]}}


def linked(found: Json, title: str, url: str) -> Json:
    """With a link at the top."""
    more = {"type": "link", "title": title, "url": url, "icon": "external link"}
    return {**found, "links": [*found["links"], {**more, "targetBlank": True}]}


def _placed(lines: Sequence[list[Json]]) -> list[Json]:
    """Give every panel its number and its place, from the top left."""
    found: list[Json] = []
    top = 0
    for panels in lines:
        left = 0
        for one in panels:
            size = {"h": one["height"], "w": one.get("width", COLUMNS)}
            own = {key: value for key, value in one.items() if key not in ("height", "width")}
            found.append({"id": len(found) + 1, "gridPos": {"x": left, "y": top, **size}, **own})
            left += size["w"]
        top += panels[0]["height"]
    return found
