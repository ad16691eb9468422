"""Real Prometheus and Alertmanager processes, to be told things."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.journeys.processes import free_port, until
from tests.tools import tool, tool_home


@contextmanager
def alertmanager(home: Path, config: dict[str, Any]) -> Iterator[str]:
    """The address of one."""
    options = [f"--storage.path={home}/data", "--cluster.listen-address="]
    with _running("prometheus-alertmanager", home, config, options) as url:
        yield url


@contextmanager
def prometheus(home: Path, config: dict[str, Any]) -> Iterator[str]:
    """The address of one."""
    with _running("prometheus", home, config, [f"--storage.tsdb.path={home}/data"]) as url:
        yield url


@contextmanager
def _running(
    name: str, home: Path, config: dict[str, Any], options: Sequence[str]
) -> Iterator[str]:
    binary = tool(name)
    home.mkdir(exist_ok=True)
    (home / "config.yml").write_text(yaml.safe_dump(config))
    url = f"http://127.0.0.1:{free_port()}"
    address = f"--web.listen-address={url.removeprefix('http://')}"
    command = [binary, f"--config.file={home}/config.yml", address, *options]
    with (home / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=tool_home())
    try:
        until(lambda: _is_ready(url, process))
        yield url
    finally:
        process.kill()
        process.wait()


def _is_ready(url: str, process: "subprocess.Popen[bytes]") -> bool:
    assert process.poll() is None, f"ended with {process.returncode}"
    try:
        return httpx.get(f"{url}/-/ready").status_code == 200
    except httpx.TransportError:
        return False
