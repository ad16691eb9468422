"""Programs that some tests need and no Python package brings: `make tools` does, on Debian."""

import shutil
from pathlib import Path

import pytest

UNPACKED = Path(__file__).parents[1] / ".tools/usr"


def tool(name: str) -> str:
    """The path of a program; the test is skipped where there is none."""
    found = shutil.which(name, path=str(UNPACKED / "bin")) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not here; on Debian, `make tools` brings it")
    return found


def tool_home() -> Path | None:
    """Where a program that `make tools` brought must be started."""
    return UNPACKED if UNPACKED.exists() else None
