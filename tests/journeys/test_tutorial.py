"""A data scientist follows the tutorial to the letter."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.journeys.processes import ROOT, Server, free_port
from tests.journeys.test_readme import rounded, shown_in

TUTORIAL = ROOT / "docs" / "tutorial.md"
AFTER_EACH = "=== that was block"


def blocks() -> list[tuple[str, str]]:
    """Each command with what is shown after it, or nothing."""
    found = re.findall(r"```(\w*)\n(.*?)```", TUTORIAL.read_text(), re.S)
    following = [*found[1:], ("", "")]
    return [
        (text, answer if kind != "sh" else "")
        for (language, text), (kind, answer) in zip(found, following, strict=True)
        if language == "sh"
    ]


def followed(commands: list[str], port: int, home: Path) -> list[str]:
    """What each of them prints, typed into one shell."""
    script = f"\necho '{AFTER_EACH}'\n".join(commands)
    script = script.replace("localhost:8000", f"127.0.0.1:{port}")
    done = subprocess.run(
        ["bash", "-e"],
        input=script.replace("9000", str(free_port())),
        cwd=home,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split(AFTER_EACH)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the tutorial needs curl")
def test_every_command_of_the_tutorial_gives_what_it_shows(tmp_path: Path) -> None:
    with Server("serve", SHIFTWATCH_DATA_DIR=str(tmp_path / "data")) as server:
        answers = followed([command for command, _ in blocks()], server.port, tmp_path)
        server.stop()

    for (command, shown), answer in zip(blocks(), answers, strict=True):
        if shown.startswith("{"):
            found = rounded(json.loads(answer.strip().splitlines()[-1]))
            assert shown_in(json.loads(shown), found), (command, found)
        elif shown:
            assert shown.strip() == answer.strip(), command
    heard = (tmp_path / "notices.txt").read_text().splitlines()
    assert (heard[0], heard[-1]) == ("genuine alarm.firing", "genuine alarm.resolved")
