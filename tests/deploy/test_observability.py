"""Prometheus and Alertmanager take our files, with the options that Compose gives them."""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from tests.deploy.files import ROOT, load, made_secrets
from tests.journeys.processes import Server, free_port
from tests.test_cli import create_key
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
def running(program: str, command: list[str], home: Path) -> Iterator[str]:
    """The address of a server that was started as Compose starts it."""
    url = f"http://127.0.0.1:{free_port()}"
    with (home / "log").open("w") as log:
        process = subprocess.Popen(
            [tool(program), *command, f"--web.listen-address={url.removeprefix('http://')}"],
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


def configure(home: Path, key: Path, unknown: Path, targets: dict[str, int]) -> None:
    """Prometheus with this machine's key and targets, and a job whose key nobody made."""
    place = home / "etc/prometheus/prometheus.yml"
    config = load(place)
    for job in config["scrape_configs"]:
        job["scrape_interval"] = "1s"
        if "authorization" in job:
            job["authorization"]["credentials_file"] = str(key)
        for discovery in job.pop("dns_sd_configs", []):
            (name,) = discovery["names"]
            job["static_configs"] = [{"targets": [f"127.0.0.1:{targets[name]}"]}]
    control = {"job_name": "control", "authorization": {"credentials_file": str(unknown)}}
    config["scrape_configs"].append(config["scrape_configs"][0] | control)
    place.write_text(yaml.safe_dump(config))


def up(prometheus: str) -> dict[str, str]:
    """By job, whether its target answered well."""
    found = httpx.get(f"{prometheus}/api/v1/query", params={"query": "up"}).json()
    return {one["metric"]["job"]: one["value"][1] for one in found["data"]["result"]}


def test_the_key_of_the_secret_lets_prometheus_in(clone: Callable[[], str], tmp_path: Path) -> None:
    secrets, url = made_secrets(tmp_path), clone()
    create_key(url, "read", secrets["scrape_key"])
    environ = {"SHIFTWATCH_DATABASE_URL": url, "SHIFTWATCH_WORKER_PORT": str(free_port())}
    command = options("prometheus", tmp_path)
    worker = Server("worker", **environ)
    try:
        with Server("api", **environ) as api:
            targets = {"api": api.port, "worker": int(environ["SHIFTWATCH_WORKER_PORT"])}
            configure(tmp_path, secrets["scrape_key"], secrets["admin_key"], targets)
            with running("prometheus", command, tmp_path) as prometheus:
                found = until_up(prometheus, {"shiftwatch-api", "shiftwatch-worker", "control"})
    finally:
        worker.kill()

    assert (found["shiftwatch-api"], found["shiftwatch-worker"]) == ("1", "1")
    assert found["control"] == "0"


def until_up(prometheus: str, jobs: set[str]) -> dict[str, str]:
    """What is known when all of these were asked."""
    deadline = time.monotonic() + START_SECONDS
    while not jobs <= set(found := up(prometheus)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


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
    with running("prometheus", options("prometheus", tmp_path), tmp_path) as url:
        jobs = httpx.get(f"{url}/api/v1/status/config").json()["data"]["yaml"]

    assert "job_name: shiftwatch-api" in jobs
    assert "job_name: shiftwatch-worker" in jobs


def test_alertmanager_starts_and_is_healthy_as_compose_has_it(tmp_path: Path) -> None:
    kind, program, *rest = SERVICES["alertmanager"]["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "amtool")

    def asked(url: str) -> int:
        command = [part.replace("http://127.0.0.1:9093", url) for part in rest]
        return subprocess.run([tool("amtool"), *command], capture_output=True).returncode

    command = options("alertmanager", tmp_path)
    with running("prometheus-alertmanager", command, tmp_path) as url:
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
