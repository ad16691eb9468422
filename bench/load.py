"""Loads on loopback: the same request again and again, as fast as it goes or at a pace.

wrk where it is installed (Debian has it), otherwise a loader of our own in a process of its own,
which takes more of the machine it measures. Whatever is compared in one run is loaded by the same
one. wrk leaves without waiting for its last answers; ours waits.
"""

import asyncio
import functools
import itertools
import json
import multiprocessing
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

# Whoever gets no answer for so long never gets one.
PATIENCE_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Load:
    """What a load showed; times in milliseconds.

    Up to `unanswered` more requests may have reached the server, and nobody waited for the answer.
    """

    requests: int
    seconds: float
    p50: float
    p99: float
    failures: int
    unanswered: int = 0
    times: tuple[float, ...] = ()

    @property
    def requests_per_second(self) -> float:
        return self.requests / self.seconds

    @property
    def good(self) -> int:
        return self.requests - self.failures


@dataclass(frozen=True, slots=True)
class Shot:
    """One request, to be repeated; with `keyed`, each time under a new Idempotency-Key.

    Our own loader asks `numbered`, where it is given, for the body of each request by its number.
    """

    url: str
    body: bytes
    headers: dict[str, str]
    keyed: bool = False
    method: str = "POST"
    numbered: Callable[[int], bytes] | None = None


def fire(shot: Shot, connections: int, seconds: float, loader: str | None = None) -> Load:
    """As fast as the server answers, from so many connections."""
    if (loader or default_loader()) == "wrk" and shot.numbered is None:
        return _wrk(shot, connections, seconds)
    return start(shot, connections, seconds).result()


def default_loader() -> str:
    return "wrk" if shutil.which("wrk") else "own"


def start(
    shot: Shot,
    connections: int,
    seconds: float,
    *,
    rate: float | None = None,
    most: int | None = None,
) -> "Future[Load]":
    """Our own loader, in a process of its own, until so many seconds or requests are over.

    With a `rate`, requests are due at even intervals whether or not the ones before were answered,
    and are timed from when they were due.
    """
    return _processes().submit(_run, shot, connections, seconds, rate, most)


@functools.cache
def _processes() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(2, multiprocessing.get_context("spawn"))


# wrk's own latency summary is not exact to the percentile; `done` reads its histogram. Of answers
# wrk tells only how many were not 2xx or 3xx.
SCRIPT = """
wrk.method = %s
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
  local lost = summary.errors.connect + summary.errors.read + summary.errors.write
    + summary.errors.timeout
  io.write(string.format("RESULT %%d %%f %%f %%f %%d %%d\\n",
    summary.requests, summary.duration / 1e6,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, summary.errors.status, lost))
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
        given = (json.dumps(shot.method), json.dumps(str(body)), headers, keyed)
        script.write_text(SCRIPT % given)
        command = ["wrk", f"-c{connections}", f"-t{min(2, connections)}"]
        command += [f"-d{max(1, round(seconds))}s", f"--timeout={PATIENCE_SECONDS}s"]
        done = subprocess.run(
            [*command, "-s", str(script), shot.url], capture_output=True, text=True, check=True
        )
    return _said(done.stdout, connections)


def _said(output: str, connections: int) -> Load:
    """What wrk said, by our script."""
    found = re.search(r"RESULT (\d+) (\S+) (\S+) (\S+) (\d+) (\d+)", output)
    if found is None:
        raise RuntimeError(output)
    requests, refused, lost = (int(found[i]) for i in (1, 5, 6))
    took, p50, p99 = (float(found[i]) for i in (2, 3, 4))
    # An answer that never came is a request as well, which wrk does not count as one.
    return Load(requests + lost, took, p50, p99, refused + lost, connections + lost)


def _run(
    shot: Shot, connections: int, seconds: float, rate: float | None, most: int | None
) -> Load:
    return asyncio.run(_own(shot, connections, seconds, rate, most))


async def _own(
    shot: Shot, connections: int, seconds: float, rate: float | None, most: int | None
) -> Load:
    times: list[float] = []
    failures = 0
    requests = _requests(shot)
    began = time.perf_counter()
    turns = _turns(began, seconds, rate, most)
    where = urlsplit(shot.url)

    async def repeat() -> None:
        nonlocal failures
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        for due in turns:
            if due is not None:
                await asyncio.sleep(due - time.perf_counter())
            since = time.perf_counter() if due is None else due
            writer.write(next(requests))
            async with asyncio.timeout(PATIENCE_SECONDS):
                status = await _answer(reader)
            times.append(1e3 * (time.perf_counter() - since))
            failures += not 200 <= status < 300
        writer.close()

    await asyncio.gather(*(repeat() for _ in range(connections)))
    took = time.perf_counter() - began
    p50, p99 = np.percentile(times, [50, 99])
    return Load(len(times), took, float(p50), float(p99), failures, times=tuple(times))


def _turns(
    began: float, seconds: float, rate: float | None, most: int | None
) -> Iterator[float | None]:
    """When the next request is due, for whichever connection asks; None for at once."""
    for number in itertools.count():
        due = None if rate is None else began + number / rate
        now = time.perf_counter() if due is None else due
        if now >= began + seconds or number == most:
            return
        yield due


def _requests(shot: Shot) -> Iterator[bytes]:
    where = urlsplit(shot.url)
    lines = [f"{shot.method} {where.path} HTTP/1.1", f"host: {where.netloc}"]
    lines += [f"{name}: {value}" for name, value in shot.headers.items()]
    run = time.time_ns()
    for number in itertools.count():
        body = shot.body if shot.numbered is None else shot.numbered(number)
        own = [f"idempotency-key: {run}-{number}"] if shot.keyed else []
        own += [f"content-length: {len(body)}"]
        yield "\r\n".join([*lines, *own, "", ""]).encode() + body


async def _answer(reader: asyncio.StreamReader) -> int:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = re.search(rb"content-length: (\d+)", head)
    if length is None:
        raise RuntimeError(f"an answer without its length: {head!r}")
    await reader.readexactly(int(length[1]))
    return int(head.split(b" ", 2)[1])
