"""What the documents say of the code is true."""

import re
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from app import metrics
from app.api import gauges, predictions
from app.api.app import ROUTERS
from app.api.deps import Admin, Ingest, Reader
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


def scope_of(route: APIRoute) -> str:
    if route.endpoint is predictions.post_predictions:
        return "ingest"
    scopes = {(Ingest,): "ingest", (Reader,): "read", (Admin,): "admin", (): ""}
    return scopes[tuple(route.dependencies)]


def test_every_call_is_documented_with_its_scope() -> None:
    rows = re.findall(r"^\| `([A-Z]+ /\S*)` \| (\w*) ?\|", (ROOT / "docs/api.md").read_text(), re.M)

    assert sorted(rows) == sorted(
        (f"{method} {route.path}", scope_of(route))
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute) and route.include_in_schema
        for method in route.methods or ()
    )


DOCUMENTS = sorted(
    place
    for folder in (ROOT, ROOT / "docs", ROOT / "docs/adr", ROOT / "docs/runbooks")
    for place in folder.glob("*.md")
)


@pytest.mark.parametrize("place", DOCUMENTS, ids=lambda place: str(place.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(place: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", place.read_text())
    named = re.findall(r"`((?:docs|deploy|bench|tests|migrations)/[\w./-]+)`", place.read_text())

    assert [link for link in links if not (place.parent / link).exists()] == []
    assert [name for name in named if not (ROOT / name).exists()] == []
