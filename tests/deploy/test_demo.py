"""The demo's sender, on a real service with a real key."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx

from deploy.demo import send
from tests.deploy.files import ROOT
from tests.journeys.processes import Server
from tests.test_cli import SECRET, create_key


def sent(server: Server, key_file: Path) -> subprocess.CompletedProcess[str]:
    rest = ["--minutes", "0.03", "--shift-after", "0.015", "--seconds", "0.05", "--batch", "20"]
    return subprocess.run(
        [sys.executable, send.__file__, "--url", server.url, "--key-file", key_file, *rest],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_it_registers_a_model_sends_and_shifts(clone: Callable[[], str], tmp_path: Path) -> None:
    url = clone()
    place = tmp_path / "key"
    place.write_text(SECRET)
    create_key(url, "admin", place)

    with Server("api", SHIFTWATCH_DATABASE_URL=url) as server:
        first, again = sent(server, place), sent(server, place)
        refused = sent(server, ROOT / "LICENSE")
        model = httpx.get(
            f"{server.url}/v1/models/{send.MODEL}", headers={"Authorization": f"Bearer {SECRET}"}
        ).json()

    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert "from now on the mix is" in first.stdout
    assert model["labels"] == send.LABELS
    assert refused.returncode == 1


def test_its_mixes_differ_as_it_says() -> None:
    before = Counter(send.predictions(send.BEFORE, 20_000))
    after = Counter(send.predictions(send.AFTER, 20_000))

    assert after["fraud"] > 2 * before["fraud"]
