"""Each contract between the layers is seen to break when somebody breaks it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

BREACHES = [
    ("Imports point downwards", "app/domain/model.py", "from app.storage import panes"),
    ("Statistics are pure", "app/stats/moments.py", "import sqlalchemy"),
    ("Decisions are pure", "app/domain/window.py", "import pydantic"),
    ("SQL is written in storage only", "app/ingest/record.py", "import sqlalchemy"),
    ("The demo is a client like any other", "app/demo/tell.py", "from app.storage import panes"),
    ("HTTP is served in api and web only", "app/storage/panes.py", "import starlette"),
]


@pytest.mark.parametrize(("contract", "place", "line"), BREACHES)
def test_a_breach_is_reported(tmp_path: Path, contract: str, place: str, line: str) -> None:
    shutil.copytree(ROOT / "app", tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / place).open("a") as module:
        module.write(f"\n{line}\n")

    report = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
    )

    assert report.returncode == 1, report.stderr
    assert f"{contract} BROKEN" in report.stdout


def test_every_contract_has_a_breach_here() -> None:
    contracts = (ROOT / "pyproject.toml").read_text().split("[[tool.importlinter.contracts]]")[1:]

    names = {contract.split('name = "')[1].split('"')[0] for contract in contracts}

    assert names == {contract for contract, _, _ in BREACHES}
