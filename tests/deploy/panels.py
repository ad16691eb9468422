"""The dashboards as they are shipped, and what their panels ask Prometheus."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DASHBOARDS = ROOT / "deploy/grafana/dashboards"

Json = dict[str, Any]

# What Grafana itself fills in.
INTERVALS = {"__rate_interval": "1m", "__range": "5m"}


@dataclass(frozen=True, slots=True)
class Asked:
    """One question of a panel, or of the annotations."""

    panel: str
    expr: str
    is_range: bool


def dashboards() -> dict[str, Json]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(DASHBOARDS.glob("*.json"))}


def asked(dashboard: Json) -> Iterator[Asked]:
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield Asked(panel["title"], target["expr"], target.get("range", False))
    for annotation in dashboard["annotations"]["list"]:
        yield Asked(f"annotation {annotation['name']}", annotation["expr"], True)


def used_variables(text: str) -> set[str]:
    """
    >>> sorted(used_variables("x{a=~'$model', b='${window:regex}'}[$__rate_interval]"))
    ['__rate_interval', 'model', 'window']
    """
    return set(re.findall(r"\$\{?(\w+)", text))


def filled(expr: str, values: Mapping[str, str]) -> str:
    """With values instead of variables."""
    known = {**INTERVALS, **values}
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda found: known[found[1] or found[2]], expr)
