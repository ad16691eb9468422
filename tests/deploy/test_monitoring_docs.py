"""What docs/monitoring.md configures is taken by those it is for, and does what the page says."""

import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.journeys import observers
from tests.tools import tool

TEXT = (Path(__file__).parents[2] / "docs/monitoring.md").read_text()
PROMETHEUS, ALERTMANAGER, CHANGE_OVER = re.findall(r"```yaml\n(.*?)```", TEXT, re.S)


def test_prometheus_takes_its_part(tmp_path: Path) -> None:
    (tmp_path / "prometheus.yml").write_text(PROMETHEUS)

    command = [tool("promtool"), "check", "config", "--syntax-only", "prometheus.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30)

    assert done.returncode == 0, done.stderr


def routed(config: str, *labels: str) -> str:
    command = [tool("amtool"), "config", "routes", "test", f"--config.file={config}", *labels]
    return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip()


@pytest.mark.parametrize(
    ("severity", "receiver"), [("critical", "pager"), ("warning", "chat"), ("info", "log")]
)
def test_alerts_go_by_their_severity(tmp_path: Path, severity: str, receiver: str) -> None:
    config = tmp_path / "alertmanager.yml"
    config.write_text(ALERTMANAGER)

    assert routed(str(config), "service=shiftwatch", f"severity={severity}") == receiver
    assert routed(str(config), "service=another", f"severity={severity}") == "chat"


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One with all that the page says, that of a change-over included."""
    config = yaml.safe_load(ALERTMANAGER)
    config["inhibit_rules"] += yaml.safe_load(CHANGE_OVER)["inhibit_rules"]
    with observers.alertmanager(tmp_path_factory.mktemp("alertmanager"), config) as url:
        yield url


def states(url: str, *alerts: dict[str, str]) -> list[str]:
    """What becomes of alerts that are there together."""
    now = datetime.now(UTC)
    over = (now + timedelta(minutes=5)).isoformat()
    body: list[dict[str, Any]] = [
        {"labels": {"service": "shiftwatch", **one}, "endsAt": over} for one in alerts
    ]
    httpx.post(f"{url}/api/v2/alerts", json=body).raise_for_status()
    found: list[Any] = httpx.get(f"{url}/api/v2/alerts").raise_for_status().json()
    state = {frozenset(one["labels"].items()): one["status"]["state"] for one in found}
    return [state[frozenset(one["labels"].items())] for one in body]


def shift(model: str, **labels: str) -> dict[str, str]:
    return {"alertname": "LabelShiftDetected", "model": model, "version": "v1", **labels}


def test_the_worse_alert_of_a_model_is_enough(alertmanager: str) -> None:
    found = states(
        alertmanager,
        shift("one", severity="warning", alarm="shift"),
        shift("one", severity="critical", alarm="shift"),
        shift("two", severity="warning", alarm="shift"),
    )

    assert found == ["suppressed", "active", "active"]


def test_what_both_tell_of_rings_once(alertmanager: str) -> None:
    found = states(
        alertmanager,
        shift("three", severity="warning", alarm="shift"),
        shift("three"),
        shift("four"),
    )

    assert found == ["active", "suppressed", "active"]


def test_with_the_service_away_its_parts_are_quiet(alertmanager: str) -> None:
    found = states(
        alertmanager,
        {"alertname": "ShiftwatchDown", "severity": "critical"},
        {"alertname": "ShiftwatchTargetDown", "severity": "warning", "instance": "a:8000"},
        {"alertname": "ShiftwatchSlowCommits", "severity": "warning"},
        shift("five", severity="warning", alarm="shift"),
    )

    assert found == ["active", "suppressed", "active", "suppressed"]
