"""A load on loopback: the same request again and again from many connections, for a while.

wrk where it is installed (Debian has it), otherwise a loader of our own, which takes more of the
machine it measures. Whatever is compared in one run is loaded by the same one.
"""

import asyncio
import itertools
import json
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Load:
    """What a load showed; times in milliseconds."""

    requests_per_second: float
    p50: float
    p99: float
    failures: int


@dataclass(frozen=True, slots=True)
class Shot:
    """One request, to be repeated; with `keyed`, each time under a new Idempotency-Key."""

    url: str
    body: bytes
    headers: dict[str, str]
    keyed: bool = False


def fire(shot: Shot, connections: int, seconds: float) -> Load:
    if shutil.which("wrk"):
        return _wrk(shot, connections, seconds)
    return asyncio.run(_own(shot, connections, seconds))


# wrk's own latency summary is not exact to the percentile; `done` reads its histogram.
SCRIPT = """
wrk.method = "POST"
wrk.body = io.open(%s, "rb"):read("*a")
%s
local keyed, run, count = %s, tostring({}):sub(8) .. os.time(), 0
if keyed then
  function request()
    count = count + 1
    wrk.headers["Idempotency-Key"] = run .. "-" .. count
    return wrk.format()
  end
end
function done(summary, latency, requests)
  local failures = summary.errors.connect + summary.errors.read + summary.errors.write
    + summary.errors.status + summary.errors.timeout
  io.write(string.format("RESULT %%f %%f %%f %%d\\n",
    summary.requests / (summary.duration / 1e6),
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, failures))
end
"""


def _wrk(shot: Shot, connections: int, seconds: float) -> Load:
    with tempfile.TemporaryDirectory() as folder:
        body, script = Path(folder) / "body", Path(folder) / "post.lua"
        body.write_bytes(shot.body)
        headers = "\n".join(
            f"wrk.headers[{json.dumps(name)}] = {json.dumps(value)}"
            for name, value in shot.headers.items()
        )
        keyed = "true" if shot.keyed else "false"
        script.write_text(SCRIPT % (json.dumps(str(body)), headers, keyed))
        threads = min(2, connections)
        command = ["wrk", f"-c{connections}", f"-t{threads}", f"-d{seconds:.0f}s", "--timeout=20s"]
        done = subprocess.run(
            [*command, "-s", str(script), shot.url], capture_output=True, text=True, check=True
        )
    found = re.search(r"RESULT (\S+) (\S+) (\S+) (\d+)", done.stdout)
    if found is None:
        raise RuntimeError(done.stdout + done.stderr)
    rate, p50, p99 = (float(part) for part in found.groups()[:3])
    return Load(rate, p50, p99, int(found[4]))


async def _own(shot: Shot, connections: int, seconds: float) -> Load:
    times: list[float] = []
    failures = 0
    where = urlsplit(shot.url)
    head = "".join(f"{name}: {value}\r\n" for name, value in shot.headers.items())
    keys = itertools.count(time.time_ns())

    def request() -> bytes:
        key = f"idempotency-key: {next(keys)}\r\n" if shot.keyed else ""
        return (
            f"POST {where.path} HTTP/1.1\r\nhost: {where.netloc}\r\n{head}{key}"
            f"content-length: {len(shot.body)}\r\n\r\n"
        ).encode() + shot.body

    end = time.perf_counter() + seconds

    async def repeat() -> None:
        nonlocal failures
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        while time.perf_counter() < end:
            began = time.perf_counter()
            writer.write(request())
            answer = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", answer.lower())
            await reader.readexactly(int(length[1]) if length else 0)
            times.append(time.perf_counter() - began)
            failures += not answer.startswith(b"HTTP/1.1 2")
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(repeat() for _ in range(connections)))
    took = time.perf_counter() - began
    times.sort()
    p50, p99 = (times[int(len(times) * part)] * 1e3 for part in (0.5, 0.99))
    return Load(len(times) / took, p50, p99, failures)
