"""How long a question takes, idle and while predictions come in at half of what ingest can take.

`python -m bench.query [--requests 1000] [--rounds 4]` prints a table and writes
bench/results/query.json. The service, its worker and the load are on this machine, the load in
processes of its own. First the most that ingest takes is measured, with hard JSON batches of 1,000
from 64 connections; then a load comes at half that pace, in turns with none, and one client asks
for an estimate, and for the metrics, again and again. The limit: under load, 99 of 100 estimates
take at most three times as long as idle.
"""

import argparse
import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from app.serve import stopping_on_signals
from bench import family, load
from bench.family import MODEL, Running
from bench.formats import FORMATS
from bench.load import Shot

Condition = Literal["idle", "loaded"]
PATHS = {"estimate": f"/v1/models/{MODEL}/estimate", "metrics": "/metrics"}
BATCH, CONNECTIONS = 1_000, 64
MOST_SECONDS = 4.0
# What came in last is evaluated a second later; a question before that is not an idle one.
SETTLE_SECONDS = 3.0
TARGET = 3.0


@dataclass(slots=True)
class Asked:
    """What the answers to one question took, in milliseconds, in one condition."""

    times: list[float] = field(default_factory=list)
    failures: int = 0

    def percentile(self, share: float) -> float:
        return float(np.percentile(self.times, share))


@dataclass(slots=True)
class Phases:
    """All phases of a condition: the questions, and the processor time of each process."""

    asked: dict[str, Asked] = field(default_factory=lambda: {name: Asked() for name in PATHS})
    seconds: float = 0.0
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    sent: int = 0
    refused: int = 0

    def cores(self) -> dict[str, float]:
        return {name: took / self.seconds for name, took in self.cpu_seconds.items()}


def main() -> None:
    options = _options()
    # Whoever is told to end leaves no server and no database behind.
    with stopping_on_signals(once=True):
        _measure(options)


def _measure(options: argparse.Namespace) -> None:
    with ExitStack() as stack:
        cluster = stack.enter_context(family.cluster())
        api = stack.enter_context(family.process(cluster.url))
        family.register(api)
        worker = stack.enter_context(family.process(cluster.url, "worker"))
        shot = _shot(api)
        most = load.fire(shot, CONNECTIONS, MOST_SECONDS).requests_per_second
        print(f"ingest takes {most:.0f} batches of {BATCH} a second; half of it is the load")
        pids = {"api": api.pid, "worker": worker.pid, "postgres": cluster.pid}
        with family.others() as others:
            found = measured(api, pids, shot, most / 2, options)
    print(table(found))
    print(f"cores that others took meanwhile: {others.cores:.2f}")
    place = Path("bench/results/query.json")
    place.parent.mkdir(exist_ok=True)
    told = {**as_json(found, most, options), "others_cores": others.cores}
    place.write_text(json.dumps(told, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=1000, help="of each kind and condition")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20.0, help="of a phase, at the most")
    return parser.parse_args()


def _shot(api: Running) -> Shot:
    format = FORMATS["json"]
    return Shot(api.predictions, format.write(BATCH), format.headers)


def measured(
    api: Running, pids: Mapping[str, int], shot: Shot, rate: float, options: argparse.Namespace
) -> dict[Condition, Phases]:
    found: dict[Condition, Phases] = {"idle": Phases(), "loaded": Phases()}
    each = -(-options.requests // options.rounds)
    for _ in range(options.rounds):
        time.sleep(SETTLE_SECONDS)
        _ask(found["idle"], api, pids, each, options.seconds)
        under_way = load.start(shot, CONNECTIONS, options.seconds, rate=rate)
        # The worker must have noticed that there is something to do.
        time.sleep(1.0)
        _ask(found["loaded"], api, pids, each, options.seconds - 1.0)
        sent = under_way.result()
        found["loaded"].sent += sent.requests
        found["loaded"].refused += sent.failures
    return found


def _ask(
    phases: Phases, api: Running, pids: Mapping[str, int], requests: int, seconds: float
) -> None:
    before = {name: family.cpu_seconds(pid) for name, pid in pids.items()}
    began = time.monotonic()
    for name, path in PATHS.items():
        shot = Shot(api.url + path, b"", {}, method="GET")
        answers = load.start(shot, 1, seconds / len(PATHS), most=requests).result()
        phases.asked[name].times += answers.times
        phases.asked[name].failures += answers.failures
    phases.seconds += time.monotonic() - began
    for name, pid in pids.items():
        took = family.cpu_seconds(pid) - before[name]
        phases.cpu_seconds[name] = phases.cpu_seconds.get(name, 0.0) + took


def ratio(found: Mapping[Condition, Phases], name: str, share: float) -> float:
    """How much longer a question takes under load."""
    idle, loaded = (found[condition].asked[name] for condition in ("idle", "loaded"))
    return loaded.percentile(share) / idle.percentile(share)


def table(found: Mapping[Condition, Phases]) -> str:
    lines = [f"{'question':<10} {'condition':<9} {'answers':>7} {'p50 ms':>8} {'p99 ms':>8}"]
    for name in PATHS:
        for condition, phases in found.items():
            asked = phases.asked[name]
            lines.append(
                f"{name:<10} {condition:<9} {len(asked.times):>7} "
                f"{asked.percentile(50):>8.1f} {asked.percentile(99):>8.1f}"
                + (f"  {asked.failures} failed" if asked.failures else "")
            )
        ratios = (ratio(found, name, share) for share in (50, 99))
        lines.append(
            f"{name:<10} {'ratio':<9} {'':>7} " + " ".join(f"{one:>8.2f}" for one in ratios)
        )
    for condition, phases in found.items():
        cores = ", ".join(f"{name} {used:.2f}" for name, used in phases.cores().items())
        lines.append(f"cores in use, {condition}: {cores}")
    loaded = found["loaded"]
    lines.append(f"batches sent under load: {loaded.sent}, of which failed: {loaded.refused}")
    reached = ratio(found, "estimate", 99)
    met = "yes" if reached <= TARGET else "no"
    lines.append(f"p99 of estimate, loaded to idle: at most {TARGET}, reached {reached:.2f}: {met}")
    return "\n".join(lines)


def as_json(
    found: Mapping[Condition, Phases], most: float, options: argparse.Namespace
) -> dict[str, Any]:
    return {
        "about": {**family.machine(), **vars(options)},
        "most_batches_per_second": most,
        "conditions": {
            condition: {
                "cores_in_use": phases.cores(),
                "batches_sent": phases.sent,
                "batches_failed": phases.refused,
                "questions": {
                    name: {
                        "answers": len(asked.times),
                        "failures": asked.failures,
                        "p50_ms": asked.percentile(50),
                        "p99_ms": asked.percentile(99),
                    }
                    for name, asked in phases.asked.items()
                },
            }
            for condition, phases in found.items()
        },
        "p99_ratio": {name: ratio(found, name, 99) for name in PATHS},
    }


if __name__ == "__main__":
    main()
