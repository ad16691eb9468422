"""Prometheus and Alertmanager take our files, with the options that Compose gives them."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.deploy.files import ROOT, load
from tests.journeys.processes import free_port
from tests.tools import tool, tool_home

SERVICES = load(ROOT / "docker-compose.yml")["services"]
START_SECONDS = 20.0


def options(name: str, home: Path) -> list[str]:
    """Those of Compose, with this machine's places: files copied, volumes made."""
    found = list(SERVICES[name]["command"])
    for volume in SERVICES[name]["volumes"]:
        source, target, *_ = volume.split(":")
        place = home / target.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_file():
            shutil.copy(ROOT / source, place)
        elif (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, place)
        found = [option.replace(f"={target}", f"={place}") for option in found]
    return found


@contextmanager
def running(program: str, name: str, home: Path) -> Iterator[str]:
    """The address of a server that was started as Compose starts it."""
    url = f"http://127.0.0.1:{free_port()}"
    command = [tool(program), *options(name, home)]
    with (home / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, f"--web.listen-address={url.removeprefix('http://')}"],
            stdout=log,
            stderr=log,
            cwd=tool_home(),
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _ready(url) and time.monotonic() < deadline:
            assert process.poll() is None, (home / "log").read_text()
            time.sleep(0.05)
        yield url
    finally:
        process.kill()
        process.wait()


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready").status_code == 200
    except httpx.TransportError:
        return False


def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    options("prometheus", tmp_path)
    place = tmp_path / "etc/prometheus/prometheus.yml"
    key = tmp_path / "key"
    key.write_text("sw_")
    place.write_text(place.read_text().replace("/run/secrets/scrape_key", str(key)))

    done = subprocess.run(
        [tool("promtool"), "check", "config", place], capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr


def test_alertmanager_takes_its_configuration() -> None:
    done = subprocess.run(
        [tool("amtool"), "check-config", ROOT / "deploy/alertmanager/alertmanager.yml"],
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr


def test_prometheus_starts_as_compose_starts_it(tmp_path: Path) -> None:
    with running("prometheus", "prometheus", tmp_path) as url:
        jobs = httpx.get(f"{url}/api/v1/status/config").json()["data"]["yaml"]

    assert "job_name: shiftwatch-api" in jobs
    assert "job_name: shiftwatch-worker" in jobs


def test_alertmanager_starts_and_is_healthy_as_compose_has_it(tmp_path: Path) -> None:
    kind, program, *rest = SERVICES["alertmanager"]["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "amtool")

    def asked(url: str) -> int:
        command = [part.replace("http://127.0.0.1:9093", url) for part in rest]
        return subprocess.run([tool("amtool"), *command], capture_output=True).returncode

    with running("prometheus-alertmanager", "alertmanager", tmp_path) as url:
        while_it_runs = asked(url)

    assert while_it_runs == 0
    assert asked(url) != 0


@pytest.mark.parametrize("name", ["prometheus", "alertmanager"])
def test_a_file_that_compose_does_not_mount_is_missed(name: str, tmp_path: Path) -> None:
    """The control: with the file gone, neither starts."""
    program = {"prometheus": "prometheus", "alertmanager": "prometheus-alertmanager"}[name]
    command = options(name, tmp_path)
    (tmp_path / f"etc/{name}/{name}.yml").unlink()

    done = subprocess.run(
        [tool(program), *command, "--web.listen-address=127.0.0.1:0"],
        cwd=tool_home(),
        capture_output=True,
        timeout=START_SECONDS,
    )

    assert done.returncode != 0
