"""What the documents say of the code is true."""

import re
from pathlib import Path

from app import metrics
from app.api import gauges
from app.config import PREFIX, Settings

ROOT = Path(__file__).parents[1]


def test_every_setting_is_documented_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", (ROOT / "docs/operations.md").read_text(), re.M)

    documented = {name: default.strip("`") for name, default in rows}

    assert documented == {
        PREFIX + name.upper(): "" if field.default is None else str(field.default)
        for name, field in Settings.model_fields.items()
    }


def test_the_map_in_the_readme_shows_all_of_app() -> None:
    readme = (ROOT / "README.md").read_text()
    shown = readme.partition("## The map")[2]

    for place in sorted((ROOT / "app").iterdir()):
        if place.is_dir() and any(place.glob("*.py")) and place.name not in ("__pycache__", "web"):
            assert f"{place.name}/" in shown


def test_every_metric_is_documented_and_no_other() -> None:
    rows = re.findall(
        r"^\| `((?:shiftwatch|http)_\w+)` ", (ROOT / "docs/metrics.md").read_text(), re.M
    )

    counted = {
        metric.name + ("_total" if metric.type == "counter" else "")
        for metric in metrics.REGISTRY.collect()
        if metric.name.startswith(("shiftwatch_", "http_"))
    }

    assert sorted(rows) == sorted({*counted, *gauges.HELP})
