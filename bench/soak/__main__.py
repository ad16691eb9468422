"""Does the whole service keep its promises for minutes, while its parts are killed?

    python -m bench.soak                          ten minutes
    python -m bench.soak --minutes 4 --every 20   a short one
    python -m bench.soak --sabotage keys          a control: the guard taken away

Two API replicas and two workers on one PostgreSQL, fsync on, everything on this machine. Batches
with keys and without, hard and soft, late and too late, for five models; queries, scrapes and a
receiver of notices. A seed decides which fault comes when. Prints what was seen and a verdict for
each claim, writes bench/results/soak.json, and ends with 1 if a claim does not hold.

`--sabotage` takes the names of tests/journeys/sabotaged.py, or `rekeyed`: clients that send a
batch again under another key.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import text
from tqdm import tqdm

from bench.family import Running
from bench.soak import books, faults, traffic
from bench.soak.books import Gap, Kind, Recovery, Trend
from bench.soak.faults import Stage
from bench.soak.traffic import Crowd, Notes, Observer, Reader, Sender, Watched
from tests.journeys.processes import children, stored
from tests.journeys.test_webhooks import EVERY_CHANGE
from tests.journeys.test_worker import is_done, learned, looked_at

SENDERS, READERS = 6, 2
SAMPLE_SECONDS = 2.0
# Deliveries that failed twice wait for five minutes.
DRAIN_SECONDS = 400.0
# A minute for the lease of a killed worker, and as long again for a busy machine.
MOST_RECOVERY_SECONDS = 120.0
MOST_GROWTH = 0.01
CALM, WHOLE = "fraud", "unkeyed"


@dataclass(frozen=True, slots=True)
class Claim:
    """What is promised, whether it held, and what was seen."""

    promise: str
    holds: bool
    seen: str


@dataclass(slots=True)
class Soak:
    """A run and what it left behind."""

    stage: Stage
    watched: list[Watched]
    seconds: float
    warm: float
    notes: Notes = field(default_factory=Notes)
    happened: list[tuple[float, Kind]] = field(default_factory=list)
    memory: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    began: float = 0.0
    ended: float = 0.0

    @property
    def names(self) -> list[str]:
        return [one.name for one in self.watched]

    def run(self, seed: int, every: float, rekeyed: bool) -> None:
        plan = books.schedule(seed, self.seconds, every)
        self.began = time.time()
        with self._crowd(seed, rekeyed):
            self._live_through(plan)
            self.ended = time.time()

    @contextmanager
    def _crowd(self, seed: int, rekeyed: bool) -> Iterator[None]:
        """Senders first to end: whoever observes sees until the last of them has been answered."""
        senders, others = Crowd(), Crowd()
        replicas, notes, chance = self.stage.replicas, self.notes, random.Random(seed)
        for number in range(SENDERS):
            sender = Sender(seed + number, replicas, self.watched, notes, rekeyed)
            senders.add(sender.turn, lambda: chance.expovariate(20.0))
        for number in range(READERS):
            reader = Reader(seed + number, replicas, self.watched, notes)
            others.add(reader.turn, lambda: chance.expovariate(10.0))
        clerk = Reader(seed, replicas, self.watched, notes)
        others.add(clerk.acknowledge, lambda: 7.0)
        observer = Observer(replicas, self.names, notes)
        others.add(observer.look_ready, lambda: 0.2)
        others.add(observer.look_fresh, lambda: 0.5)
        others.add(observer.scrape, lambda: 5.0)
        try:
            yield
        finally:
            senders.finish()
            others.finish()

    def _live_through(self, plan: list[tuple[float, Kind]]) -> None:
        """In the main thread, which PostgreSQL must be started by."""
        with tqdm(total=round(self.seconds), unit="s", file=sys.stderr) as bar:
            while (elapsed := time.time() - self.began) < self.seconds:
                self._sample()
                if plan and plan[0][0] <= elapsed:
                    kind = plan.pop(0)[1]
                    bar.set_description(kind)
                    self.happened.append((time.time(), kind))
                    faults.happen(kind, self.stage)
                bar.set_postfix(_short(self.notes))
                bar.update(round(time.time() - self.began) - bar.n)
                time.sleep(SAMPLE_SECONDS / 2)

    def _sample(self) -> None:
        at = time.time() - self.began
        for name, pid in self.stage.lasting().items():
            megabytes = Running("", pid).rss_megabytes()
            self.memory.setdefault(name, []).append((at, megabytes))

    def recoveries(self) -> list[Recovery]:
        nexts = [*(at for at, _ in self.happened), time.time()][1:]
        return [
            self._recovery(at, kind, until)
            for (at, kind), until in zip(self.happened, nexts, strict=True)
        ]

    def _recovery(self, at: float, kind: Kind, until: float) -> Recovery:
        replica = self.stage.replicas[1] if kind is Kind.API_KILLED else None
        return Recovery(
            kind,
            at,
            books.longest_pause(self.notes.answers, at, min(until, self.ended), replica),
            books.well_again(self.notes.ready, at, until),
            books.fresh_again(self.notes.fresh, self.names, at),
        )

    def trends(self) -> dict[str, Trend | None]:
        return {name: books.trend(some, self.warm) for name, some in self.memory.items()}


def _short(notes: Notes) -> dict[str, int]:
    return {
        "batches": len(notes.answers),
        "again": notes.counters["attempts again"],
        "surprises": notes.surprises.total(),
    }


def main() -> int:
    options = _options()
    seconds = options.minutes * 60.0
    every = options.every or min(40.0, seconds / 8.0)
    rekeyed = options.sabotage == "rekeyed"
    with (
        tempfile.TemporaryDirectory(prefix=".bench-", dir=".") as home,
        faults.stage(Path(home).resolve(), None if rekeyed else options.sabotage) as stage,
    ):
        soak = Soak(stage, traffic.models(), seconds, warm=min(120.0, seconds / 3.0))
        traffic.register(stage.replicas[0], soak.watched)
        webhook = _subscribe(stage)
        soak.run(options.seed, every, rekeyed)
        drained = _drain(stage, webhook)
        recoveries = soak.recoveries()
        claims = _claims(soak, webhook, drained, recoveries)
        found = _found(soak, options, recoveries, claims)
    _print(found, recoveries, claims)
    place = Path("bench/results/soak.json")
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps(found, indent=1))
    return 0 if all(one.holds for one in claims) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--every", type=float, help="seconds from one fault to the next")
    parser.add_argument("--seed", type=int, default=20261118)
    parser.add_argument("--sabotage", help="a guard to take away")
    return parser.parse_args()


def _subscribe(stage: Stage) -> int:
    body = {"url": stage.receiver.url, "events": EVERY_CHANGE}
    answer = httpx.post(f"{stage.replicas[0]}/v1/webhooks", json=body)
    return int(answer.raise_for_status().json()["id"])


def _drain(stage: Stage, webhook: int) -> float | None:
    """How long it took until all was evaluated and told; None if it never was."""
    began = time.time()
    while time.time() < began + DRAIN_SECONDS:
        if is_done(stage.database) and not _deliveries(stage, webhook, state="pending"):
            return time.time() - began
        time.sleep(0.2)
    return None


def _deliveries(stage: Stage, webhook: int, **query: str) -> list[dict[str, Any]]:
    """Oldest first."""
    found: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        url = f"{stage.replicas[0]}/v1/webhooks/{webhook}/deliveries"
        page = httpx.get(url, params={"limit": "1000", **query, **cursor}, timeout=30).json()
        found += page["items"]
        if page["next"] is None:
            return found[::-1]
        cursor = {"cursor": page["next"]}


# What was promised.


def _claims(
    soak: Soak, webhook: int, drained: float | None, recoveries: list[Recovery]
) -> list[Claim]:
    return [
        _exact(soak),
        _bounded(soak),
        *_evaluated(soak),
        _told(soak, webhook, drained),
        _recovered(recoveries),
        *_flat(soak),
        _unsurprised(soak),
    ]


def _gaps(soak: Soak, *, keyed: bool) -> list[Gap]:
    return [
        gap
        for one in soak.watched
        if one.always_keyed is keyed
        for gap in books.gaps(soak.notes.ledger, one.name, _stored(soak.stage, one.name))
    ]


def _stored(stage: Stage, model: str) -> dict[str, int]:
    query = "SELECT coalesce(sum(predictions), 0) FROM late JOIN model ON model.id = model_id"
    with stage.database.begin() as conn:
        late = conn.execute(text(f"{query} WHERE name = :name"), {"name": model}).scalar_one()
    return {**_counted(stage, model), traffic.TOO_LATE: int(late)}


def _counted(stage: Stage, model: str) -> dict[str, int]:
    """From further back than anything that is counted into panes."""
    return stored(stage.replicas[0], model, **{"from": traffic.days_ago(2).isoformat()})


def _exact(soak: Soak) -> Claim:
    found = _gaps(soak, keyed=True)
    total = sum(
        soak.notes.ledger.acknowledged.get(one.name, Counter()).total()
        for one in soak.watched
        if one.always_keyed
    )
    again = soak.notes.counters["attempts again"]
    twice = soak.notes.counters["duplicates"]
    seen = f"{total:,} predictions, {again} attempts again of which {twice} had been counted"
    holds = not found and total > 0 and again > 0
    return Claim("keyed: acknowledged = stored, by model and label", holds, seen + _first(found))


def _bounded(soak: Soak) -> Claim:
    found = _gaps(soak, keyed=False)
    ledger = soak.notes.ledger
    sure, maybe = (
        book.get(WHOLE, Counter()).total() for book in (ledger.acknowledged, ledger.unknown)
    )
    there = sum(_stored(soak.stage, WHOLE).values())
    seen = f"{sure:,} acknowledged, {there:,} stored, {maybe:,} of unknown fate"
    holds = not found and sure > 0
    return Claim("unkeyed: acknowledged <= stored <= + unknown", holds, seen + _first(found))


def _first(found: list[Gap]) -> str:
    return "".join(
        f"; {gap.model}/{gap.label}: {gap.stored} stored, {gap.least} to {gap.most} expected"
        for gap in found[:3]
    )


def _evaluated(soak: Soak) -> list[Claim]:
    database, there = soak.stage.database, _counted(soak.stage, CALM)
    fed, looked, total = (
        sum(learned(database, CALM)),
        looked_at(database, CALM),
        sum(there.values()),
    )
    return [
        Claim("each prediction reaches the detectors once", fed == total, f"{fed:,} of {total:,}"),
        Claim("the newest evaluation has all of them", looked == total, f"{looked:,} of {total:,}"),
    ]


def _told(soak: Soak, webhook: int, drained: float | None) -> Claim:
    queued = _deliveries(soak.stage, webhook)
    wanted = [(one["alarm_id"], one["message_id"]) for one in queued]
    heard = [(one.alarm_id, one.message_id) for one in soak.stage.receiver.heard()]
    wrong = books.untold(wanted, heard)
    settled = all(one["state"] == "delivered" for one in queued)
    attempts = sum(one["attempts"] for one in queued)
    seen = f"{len(wanted)} notices of {len({one for one, _ in wanted})} alarms"
    seen += f", {attempts} attempts, drained in {drained or DRAIN_SECONDS:.0f} s"
    holds = bool(wanted) and settled and drained is not None and not wrong
    return Claim(
        "each notice is delivered, in the order of its alarm",
        holds,
        "; ".join([seen, *wrong[:3]]),
    )


def _recovered(recoveries: list[Recovery]) -> Claim:
    worst = max(
        (one.fresh or 0.0 for one in recoveries),
        default=0.0,
    )
    holds = bool(recoveries) and all(one.healed for one in recoveries)
    holds = holds and max(worst, *(one.end - one.at for one in recoveries)) < MOST_RECOVERY_SECONDS
    kinds = len({one.kind for one in recoveries})
    return Claim(
        "the service heals after every fault",
        holds,
        f"{len(recoveries)} faults of {kinds} kinds, everything fresh after {worst:.0f} s at most",
    )


def _flat(soak: Soak) -> list[Claim]:
    """Nothing is claimed of a soak that is too short to tell."""
    return [
        Claim(
            f"memory of the {name} that lived through it is flat",
            one.growth < MOST_GROWTH,
            f"{one.level:.0f} MB, {one.slope:+.2f} MB/min ({one.growth:+.2%} of it)",
        )
        for name, one in soak.trends().items()
        if one is not None
    ]


def _unsurprised(soak: Soak) -> Claim:
    failed, errors = _failed(soak.stage), _errors(soak.stage.logs)
    seen = [f"{failed:.0f} failed evaluations, {len(errors)} errors logged"]
    seen += [f"{count} x {what}" for what, count in soak.notes.surprises.most_common(5)]
    holds = not failed and not errors and not soak.notes.surprises
    return Claim("no answer but 202 and 503, no evaluation fails", holds, "; ".join(seen))


def _failed(stage: Stage) -> float:
    """Of workers as they are now: what a killed one counted died with it."""
    name = 'shiftwatch_evaluations_total{outcome="failed"}'
    return sum(traffic.metric(httpx.get(url).text, name) or 0.0 for url in stage.vitals)


def _errors(log: Path) -> list[str]:
    found = []
    for line in log.read_text(errors="replace").splitlines():
        try:
            level = json.loads(line).get("level")
        except ValueError:
            # Half a line of somebody who was killed, or a traceback that nobody caught.
            level = "error" if line.startswith("Traceback") else None
        if level in ("error", "critical"):
            found.append(line)
    return found


# What was seen.


def _found(
    soak: Soak,
    options: argparse.Namespace,
    recoveries: list[Recovery],
    claims: list[Claim],
) -> dict[str, Any]:
    periods = [(one.at, one.end) for one in recoveries]
    lags = sorted(soak.notes.lags)
    return {
        "options": vars(options),
        "latency": {
            what: {
                "quiet": books.percentiles(_took(some, periods, inside=False)),
                "faults": books.percentiles(_took(some, periods, inside=True)),
            }
            for what, some in (("batch", soak.notes.answers), ("query", soak.notes.queries))
        },
        "recoveries": [asdict(one) | {"at": one.at - soak.began} for one in recoveries],
        "memory": {
            name: None if one is None else asdict(one) | {"growth": one.growth}
            for name, one in soak.trends().items()
        },
        "memory_samples": soak.memory,
        "database_processes": len(children(soak.stage.embedded.start().pid)),
        "evaluations": _evaluations(soak.stage),
        "lag_seconds": {"median": lags[len(lags) // 2], "most": lags[-1]} if lags else None,
        "counters": dict(soak.notes.counters),
        "surprises": dict(soak.notes.surprises),
        "errors": _errors(soak.stage.logs)[:20],
        "claims": [asdict(one) for one in claims],
    }


def _took(
    some: list[books.Answered], periods: list[tuple[float, float]], *, inside: bool
) -> list[float]:
    within = books.during(some, periods)
    return [
        one.answered - one.sent for one, is_in in zip(some, within, strict=True) if is_in is inside
    ]


def _evaluations(stage: Stage) -> int:
    with stage.database.begin() as conn:
        return int(conn.execute(text("SELECT count(*) FROM evaluation")).scalar_one())


def _print(found: dict[str, Any], recoveries: list[Recovery], claims: list[Claim]) -> None:
    print(f"{'':8} {'':8} {'count':>8} {'p50 ms':>8} {'p99 ms':>8} {'most ms':>9}")
    for what, times in found["latency"].items():
        for when, one in times.items():
            if one:
                print(
                    f"{what:8} {when:8} {one['count']:8d} {one['p50_ms']:8.1f} "
                    f"{one['p99_ms']:8.0f} {one['most_ms']:9.0f}"
                )
    print(f"\n{'seconds after a fault':28} {'pause':>8} {'ready':>8} {'fresh':>8}")
    for one in recoveries:
        print(f"{one.kind:28} " + " ".join(map(_cell, (one.pause, one.ready, one.fresh))))
    print(f"\nevaluations {found['evaluations']}, lag {found['lag_seconds']}, {found['counters']}")
    print()
    for claim in claims:
        print(f"{'ok' if claim.holds else 'NOT ok':7} {claim.promise}: {claim.seen}")


def _cell(seconds: float | None) -> str:
    return f"{'never':>8}" if seconds is None else f"{seconds:8.1f}"


if __name__ == "__main__":
    sys.exit(main())
