"""What docs/deployment.md tells people to type is there."""

import re
import shlex

import pytest

from tests.deploy.files import ROOT, load, parsed

GUIDE = (ROOT / "docs/deployment.md").read_text()
COMPOSE = load(ROOT / "docker-compose.yml")
# Made by `make secrets`, or brought with the rules.
NOT_KEPT = ("deploy/compose/secrets/", "deploy/prometheus/rules/")


@pytest.mark.parametrize(
    "line",
    re.findall(r"^docker run .* shiftwatch:local (.*)$", GUIDE, re.M)
    + re.findall(r"`shiftwatch (.+?)`", GUIDE),
)
def test_its_commands_are_commands(line: str) -> None:
    assert not isinstance(found := parsed(shlex.split(line)), str), found


def test_its_targets_are_in_the_makefile() -> None:
    targets = re.findall(r"^([\w-]+):.*## ", (ROOT / "Makefile").read_text(), re.M)

    wanted = set(re.findall(r"^ *make (\w+)$", GUIDE, re.M)) | set(
        re.findall(r"`make (\w+)`", GUIDE)
    )

    assert wanted
    assert wanted <= set(targets)


def test_its_files_are_there() -> None:
    named = set(re.findall(r"\bdeploy/[\w./-]*\w", GUIDE))

    assert len(named) > 5
    for place in named:
        assert (ROOT / place).exists() or f"{place}/".startswith(NOT_KEPT), place


def test_its_profiles_and_services_are_in_compose() -> None:
    profiles = {name for one in COMPOSE["services"].values() for name in one.get("profiles", [])}
    services = re.findall(r"--scale (\w+)=|compose exec -T (\w+)", GUIDE)

    assert set(re.findall(r"--profile (\w+)", GUIDE)) == profiles
    assert {name for pair in services for name in pair if name} == {"worker", "db"}
    assert {"worker", "db"} <= set(COMPOSE["services"])
