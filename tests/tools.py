"""Programs that some tests need and no Python package brings: `make tools` does, on Debian."""

import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def tool(name: str) -> str:
    """The path of a program; the test is skipped where there is none."""
    found = shutil.which(name, path=str(ROOT / ".tools/usr/bin")) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not here; on Debian, `make tools` brings it")
    return found
