"""A stranger follows the README to the letter."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.processes import ROOT, Server

README = (ROOT / "README.md").read_text().partition("## The first ten minutes")[2]


def rounded(value: Any) -> Any:
    match value:
        case float():
            return round(value, 3)
        case dict():
            return {name: rounded(part) for name, part in value.items()}
        case list():
            return [rounded(part) for part in value]
    return value


def shown_in(shown: Any, found: Any) -> bool:
    """Whether everything that is shown is there; more may be."""
    match shown:
        case dict():
            return all(name in found and shown_in(shown[name], found[name]) for name in shown)
        case list():
            return all(shown_in(one, other) for one, other in zip(shown, found, strict=False))
    return bool(shown == found)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the README's example needs curl")
def test_the_worked_example_gives_what_the_readme_says(tmp_path: Path) -> None:
    text = re.sub(r"```json\n.*?```", "", README.partition("## In production")[0], flags=re.S)
    commands = re.findall(r"```\n(.*?)```", text, re.S)
    shown = re.search(r"```json\n(.*?)```", README, re.S)

    with Server("serve", SHIFTWATCH_DATA_DIR=str(tmp_path / "data")) as server:
        answers = [
            subprocess.run(
                ["bash", "-ec", command.replace("localhost:8000", f"127.0.0.1:{server.port}")],
                capture_output=True,
                check=True,
                timeout=60,
            ).stdout
            for command in commands
        ]
        server.stop()

    assert shown is not None
    *_, estimate, webhook = answers
    assert len(answers) == 5
    found = rounded(json.loads(estimate))
    assert shown_in(json.loads(shown[1]), found), found
    assert json.loads(webhook)["secret"].startswith("whsec_")
