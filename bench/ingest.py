"""How fast predictions are counted, durably, beside what limits it, measured in the same run.

    python -m bench.ingest              every format, batch and number of connections: 15 minutes
    python -m bench.ingest --quick      a few of them: 2 minutes
    python -m bench.ingest --targets    the cells that have a target, each for five rounds

It prints a table and writes bench/results/ingest.json (or ingest-targets.json), each cell as soon
as it was measured. Everything, the load included, is on this machine. In each round the service and
its limits take turns, because machines are noisy, and shares of a limit are those of a round:

    echo          no framework: an ASGI application that sends the same body back
    read          a FastAPI route that reads the body
    fastapi-echo  a FastAPI route that sends it back (only where a target needs it)
    direct        the service with a transaction per request (only with --direct)
    copy          COPY of the same rows into a table, one commit per batch, in predictions
    commit        transactions of one row, one after the other

`others` is how many cores somebody else took meanwhile: the figures of a busy machine mean little.
After each cell, what the panes hold must be what was accepted, or the benchmark ends.
"""

import argparse
import json
import platform
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import psycopg
from tqdm import tqdm

from app.serve import stopping_on_signals
from bench import cells, family, limits, load
from bench.cells import Cell, HttpLimit, Limit, Lost, Result, Round, Target
from bench.family import MODEL
from bench.formats import FORMATS
from bench.load import Load, Shot

BATCHES = (1, 100, 1_000, 10_000)
CONNECTIONS = (1, 16, 64, 256)
HTTP: tuple[HttpLimit, ...] = ("echo", "read")
# What counts predictions, too, counts them into a model of its own: ours must add up.
DIRECT = "direct"
# Which process plays a limit, and at what path of it.
PLAYED_BY: dict[HttpLimit, tuple[str, str]] = {
    "echo": ("asgi", f"{MODEL}/predictions"),
    "read": ("fastapi", f"{MODEL}/predictions"),
    "fastapi-echo": ("fastapi", f"{MODEL}/echo"),
    "direct": ("direct", f"{DIRECT}/predictions"),
}
TARGETS = (
    Target(Cell("json", 1_000, 64), "read", 0.55),
    Target(Cell("arrow-softmax", 10_000, 16), "echo", 0.35),
    Target(Cell("arrow-softmax", 10_000, 64), "echo", 0.35),
    Target(Cell("json", 1, 256), "fastapi-echo", 0.45),
)
DATABASE_SECONDS = 0.3
# Large bodies are parsed for so long, whatever they share, that a short turn would end before the
# first answers: it lasts until each connection has had so many, as far as one request tells.
LARGE_BYTES = 256 * 1024
ANSWERS_EACH = 3
LONGEST_TURN_SECONDS = 15.0
SETTLE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Stage:
    """All that takes part in a run."""

    api: family.Running
    postgres: int
    others: Mapping[str, family.Running]
    conn: "psycopg.Connection[Any]"
    seconds: float
    loader: str


def main() -> None:
    options = _options()
    # Whoever is told to end leaves no server and no database behind.
    with stopping_on_signals(once=True):
        (_hit_targets if options.targets else _fill_matrix)(options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    parser.add_argument("--connections", nargs="+", type=int, default=CONNECTIONS)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn of the service")
    parser.add_argument("--rounds", type=int, help="1, or 5 with --targets")
    parser.add_argument("--quick", action="store_true", help="few cells, short turns")
    parser.add_argument("--targets", action="store_true", help="only cells with a target")
    parser.add_argument("--direct", action="store_true", help="a transaction per request, beside")
    parser.add_argument("--loader", choices=("wrk", "own"), default=load.default_loader())
    return parser.parse_args()


def _fill_matrix(options: argparse.Namespace) -> None:
    if options.quick:
        options.batches, options.connections, options.seconds = (1, 1_000), (16, 64), 1.0
    http: tuple[HttpLimit, ...] = (*HTTP, "direct") if options.direct else HTTP
    shown: tuple[Limit, ...] = (*http, "copy", "commit")
    chosen = [Cell(*some) for some in _product(options)]
    print(cells.heading(shown))
    with ExitStack() as stack:
        stage = _stage(stack, http, options)
        results = []
        for result in _results(stage, chosen, options.rounds or 1, http):
            results.append(result)
            tqdm.write(cells.line(result, shown))
            _write("ingest.json", [one.as_json() for one in results], options)


def _product(options: argparse.Namespace) -> Iterable[tuple[str, int, int]]:
    return product(options.formats, options.batches, options.connections)


def _hit_targets(options: argparse.Namespace) -> None:
    print(cells.target_heading())
    with ExitStack() as stack:
        stage = _stage(stack, ("echo", "read", "fastapi-echo"), options)
        results = []
        for target in TARGETS:
            for result in _results(stage, [target.cell], options.rounds or 5, [target.limit]):
                results.append({**result.as_json(), "limit": target.limit, "target": target.share})
                print(cells.target_line(target, result), flush=True)
                _write("ingest-targets.json", results, options)


def _stage(stack: ExitStack, http: Iterable[HttpLimit], options: argparse.Namespace) -> Stage:
    cluster = stack.enter_context(family.cluster())
    api = stack.enter_context(family.process(cluster.url))
    names = dict.fromkeys(PLAYED_BY[limit][0] for limit in http)
    others = {name: stack.enter_context(family.process(cluster.url, name)) for name in names}
    conn = stack.enter_context(limits.connection(cluster.url))
    for name in (MODEL, DIRECT):
        family.register(api, name)
    return Stage(api, cluster.pid, others, conn, options.seconds, options.loader)


def _write(name: str, results: list[dict[str, Any]], options: argparse.Namespace) -> None:
    place = Path("bench/results") / name
    place.parent.mkdir(exist_ok=True)
    about = {"machine": platform.platform(), **family.machine(), **vars(options)}
    place.write_text(json.dumps({"about": about, "cells": results}, indent=1))


def _results(
    stage: Stage, chosen: Sequence[Cell], rounds: int, http: Sequence[HttpLimit]
) -> Iterator[Result]:
    for cell in tqdm(chosen, unit="cell", leave=False, disable=len(chosen) == 1):
        yield _result(stage, cell, rounds, http)


def _result(stage: Stage, cell: Cell, rounds: int, http: Sequence[HttpLimit]) -> Result:
    shot = _shot(stage.api, cell)
    status, took = _tried(shot, cell.batch)
    if status != 202:
        return Result(cell, refused=status)
    if len(shot.body) > LARGE_BYTES:
        wanted = min(took * cell.connections * ANSWERS_EACH, LONGEST_TURN_SECONDS)
        stage = replace(stage, seconds=max(wanted, stage.seconds))
    before = _settled(stage)
    found: list[Round] = []
    accepted = unanswered = 0
    for _ in range(rounds):
        with family.others() as others:
            one, fired = _round(stage, cell, shot, http)
        found.append(replace(one, others_cores=others.cores))
        accepted += fired.good * cell.batch
        unanswered += fired.unanswered * cell.batch
    stored = _settled(stage) - before
    cells.refuse_loss(cell, accepted, stored, unanswered)
    return Result(cell, found, accepted=accepted, stored=stored)


def _shot(server: family.Running, cell: Cell, path: str = f"{MODEL}/predictions") -> Shot:
    format = FORMATS[cell.format]
    url = f"{server.url}/v1/models/{path}"
    return Shot(url, format.write(cell.batch), format.headers, format.keyed)


def _tried(shot: Shot, size: int) -> tuple[int, float]:
    """What the service answers to one request, and when; if it takes it, it must take all of it."""
    began = time.perf_counter()
    answer = httpx.post(shot.url, content=shot.body, headers=shot.headers, timeout=60)
    if answer.status_code == 202 and answer.json()["accepted"] != size:
        raise Lost(f"{size} sent, answered {answer.text}")
    return answer.status_code, time.perf_counter() - began


def _round(stage: Stage, cell: Cell, shot: Shot, http: Sequence[HttpLimit]) -> tuple[Round, Load]:
    postgres = family.cpu_seconds(stage.postgres)
    fired, api_cpu = _fired(stage, stage.api, shot, cell.connections, stage.seconds)
    postgres = family.cpu_seconds(stage.postgres) - postgres
    reached: dict[Limit, float] = {}
    cpu: dict[Limit, float] = {}
    for limit in http:
        # Whoever left without waiting for answers has left the service with work to do.
        _settled(stage)
        reached[limit], cpu[limit] = _played(stage, limit, cell)
    block = limits.block(FORMATS[cell.format], cell.batch)
    reached["copy"] = limits.copied_per_second(stage.conn, block, cell.batch, DATABASE_SECONDS)
    reached["commit"] = limits.commits_per_second(stage.conn, DATABASE_SECONDS)
    return (
        Round(
            requests=fired.requests,
            failures=fired.failures,
            requests_per_second=fired.good / fired.seconds,
            p50_ms=fired.p50,
            p99_ms=fired.p99,
            api_cpu_ms=api_cpu,
            postgres_cpu_ms=1e3 * postgres / max(1, fired.requests),
            limits=reached,
            limits_cpu_ms=cpu,
        ),
        fired,
    )


def _played(stage: Stage, limit: HttpLimit, cell: Cell) -> tuple[float, float]:
    variant, path = PLAYED_BY[limit]
    server = stage.others[variant]
    shot = _shot(server, cell, path)
    fired, cpu = _fired(stage, server, shot, cell.connections, stage.seconds / 2)
    if fired.failures:
        raise RuntimeError(f"{fired.failures} failures of {limit}, which cannot be a limit then")
    return fired.requests_per_second, cpu


def _fired(
    stage: Stage, server: family.Running, shot: Shot, connections: int, seconds: float
) -> tuple[Load, float]:
    """A load, and the milliseconds of processor time that each of its requests took."""
    before = server.cpu_seconds()
    fired = load.fire(shot, connections, seconds, stage.loader)
    return fired, 1e3 * (server.cpu_seconds() - before) / max(1, fired.requests)


def _settled(stage: Stage) -> int:
    """How many predictions the panes hold, once nothing is under way any more.

    That is what the service says it has accepted, those included whose sender has left.
    """
    deadline = time.monotonic() + SETTLE_SECONDS
    before = -1
    while True:
        accepted, stored = _accepted(stage), _stored(stage)
        if accepted == stored == before:
            return stored
        if time.monotonic() > deadline:
            raise Lost(f"the service has accepted {accepted}, and stored {stored}")
        before = stored
        time.sleep(0.05)


def _accepted(stage: Stage) -> int:
    exposition = httpx.get(f"{stage.api.url}/metrics", timeout=60).text
    series = f'shiftwatch_predictions_ingested_total{{model="{MODEL}"}}'
    found = re.search(rf"^{re.escape(series)} (\S+)$", exposition, re.M)
    return 0 if found is None else int(float(found[1]))


def _stored(stage: Stage) -> int:
    row = stage.conn.execute(
        "SELECT coalesce(sum(n), 0)::bigint FROM pane JOIN model ON model.id = model_id,"
        " unnest(counts) AS n WHERE name = %s",
        (MODEL,),
    ).fetchone()
    stage.conn.commit()
    return 0 if row is None else int(row[0])


if __name__ == "__main__":
    main()
