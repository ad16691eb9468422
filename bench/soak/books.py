"""What a soak notes down, and what follows from it: nothing here waits, sends or kills."""

import random
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

import numpy as np

from app.storage.models import LEASE

SHORTEST_TREND_SECONDS = 120.0


class Kind(StrEnum):
    """The faults. What is killed is started again at once."""

    WORKER_KILLED = "worker killed"
    API_KILLED = "API replica killed"
    DATABASE_KILLED = "database killed"
    DATABASE_RESTARTED = "database restarted"
    DATABASE_FROZEN = "database frozen"
    RECEIVER_AWAY = "receiver away"


# A worker that is killed in the middle of an evaluation keeps its model from the others until its
# lease runs out: whoever is to see that must look on for so long after the last fault.
QUIET_END_SECONDS = LEASE.total_seconds() + 15.0


def schedule(seed: int, seconds: float, every: float) -> list[tuple[float, Kind]]:
    """When to do what: each kind in turn, in an order of the seed's, with a quiet time around."""
    chance, deck = random.Random(seed), list[Kind]()
    found, at = [], every
    # Of a short one, half: it may end before everything is well again.
    last = max(seconds - max(every, QUIET_END_SECONDS), seconds / 2)
    while at + every / 4.0 <= last:
        if not deck:
            deck = chance.sample(list(Kind), k=len(Kind))
        found.append((at + chance.uniform(0.0, every / 4.0), deck.pop()))
        at += every
    return found


# What was sent, and what is there.


@dataclass(slots=True)
class Ledger:
    """Predictions by model and label: those acknowledged, and those of whose fate nothing is known.

    Many threads write into it.
    """

    acknowledged: dict[str, Counter[str]] = field(default_factory=dict)
    unknown: dict[str, Counter[str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def acknowledge(self, model: str, counts: Mapping[str, int]) -> None:
        self._add(self.acknowledged, model, counts)

    def lose_sight(self, model: str, counts: Mapping[str, int]) -> None:
        self._add(self.unknown, model, counts)

    def _add(self, book: dict[str, Counter[str]], model: str, counts: Mapping[str, int]) -> None:
        with self._lock:
            book.setdefault(model, Counter()).update(counts)


@dataclass(frozen=True, slots=True)
class Gap:
    """A label of which less or more is stored than can be explained."""

    model: str
    label: str
    least: int
    most: int
    stored: int


def gaps(ledger: Ledger, model: str, stored: Mapping[str, int]) -> list[Gap]:
    """Stored must be what was acknowledged, and at most all that is unknown on top of it."""
    sure, maybe = (book.get(model, Counter()) for book in (ledger.acknowledged, ledger.unknown))
    labels = sorted({*sure, *maybe, *stored})
    found = (
        Gap(model, label, sure[label], sure[label] + maybe[label], stored.get(label, 0))
        for label in labels
    )
    return [one for one in found if not one.least <= one.stored <= one.most]


def untold(
    queued: Sequence[tuple[int | None, str]], heard: Sequence[tuple[int | None, str]]
) -> list[str]:
    """Messages (alarm, id) that never arrived, and alarms that were told in another order."""
    missing = [f"{message} never came" for _, message in queued if (_, message) not in heard]
    told, wanted = _by_alarm(heard), _by_alarm(queued)
    mixed = [
        f"alarm {alarm} came in another order"
        for alarm, messages in wanted.items()
        if told.get(alarm, []) != messages and set(messages) <= set(told.get(alarm, []))
    ]
    return missing + mixed


def _by_alarm(some: Sequence[tuple[int | None, str]]) -> dict[int | None, list[str]]:
    found: dict[int | None, list[str]] = {}
    for alarm, message in some:
        found.setdefault(alarm, []).append(message)
    return found


# How long things took.


@dataclass(frozen=True, slots=True)
class Answered:
    """A batch that was acknowledged: when it was first sent, and when the 202 of which replica
    came."""

    sent: float
    answered: float
    replica: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether something was well at a moment, for those who asked then."""

    at: float
    what: str
    well: bool


@dataclass(frozen=True, slots=True)
class Recovery:
    """Seconds from a fault until things were well again; None if they never were.

    `pause` is the longest time that nobody got a 202.
    """

    kind: Kind
    at: float
    pause: float | None
    ready: float | None
    fresh: float | None

    @property
    def healed(self) -> bool:
        return None not in (self.pause, self.ready, self.fresh)

    @property
    def end(self) -> float:
        """Until when clients could feel it."""
        return self.at + max(self.pause or 0.0, self.ready or 0.0)


def longest_pause(
    answers: Iterable[Answered], at: float, until: float, replica: str | None = None
) -> float | None:
    """The longest time without a 202, by that replica or by any, from the fault to the next one.

    What was under way when the fault came may still be answered, so the first 202 says little.
    """
    mine = (one.answered for one in answers if replica in (None, one.replica))
    times = sorted(one for one in mine if at <= one <= until)
    if not times:
        return None
    return max(after - before for before, after in pairwise([at, *times]))


def well_again(probes: Sequence[Probe], at: float, until: float) -> float | None:
    """Until everything that was unwell between the fault and `until` was well again for good.

    Zero if nobody saw any of it unwell.
    """
    unwell: dict[str, float] = {}
    well: dict[str, float] = {}
    for probe in probes:
        if not at <= probe.at < until:
            continue
        if not probe.well:
            unwell[probe.what] = probe.at
            well.pop(probe.what, None)
        else:
            well.setdefault(probe.what, probe.at)
    if not unwell.keys() <= well.keys():
        return None
    return max((well[what] - at for what in unwell), default=0.0)


def fresh_again(
    seen: Iterable[tuple[float, str, float]], models: Sequence[str], at: float
) -> float | None:
    """Until each model had an evaluation that was made after the fault.

    `seen` are the moments that somebody looked, at which model, and when its newest was made.
    """
    first: dict[str, float] = {}
    for looked, model, made in seen:
        if made > at and looked >= at:
            first.setdefault(model, looked - at)
    return max(first.values()) if first.keys() >= set(models) else None


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Milliseconds; none of nothing."""
    if not seconds:
        return {}
    p50, p99, most = (1e3 * float(one) for one in np.percentile(seconds, [50, 99, 100]))
    return {"p50_ms": p50, "p99_ms": p99, "most_ms": most, "count": len(seconds)}


def during(answers: Iterable[Answered], periods: Sequence[tuple[float, float]]) -> list[bool]:
    """Of each answer, whether a part of its time was in one of the periods."""
    return [any(one.sent <= end and one.answered >= at for at, end in periods) for one in answers]


@dataclass(frozen=True, slots=True)
class Trend:
    """A process's memory over time: its mean in MB, and by how much it grows in a minute."""

    level: float
    slope: float

    @property
    def growth(self) -> float:
        """The part of itself by which it grows in a minute."""
        return self.slope / self.level


def trend(samples: Sequence[tuple[float, float]], since: float) -> Trend | None:
    """The line through (seconds, MB) from `since` on; None if that is too short to tell."""
    some = np.array([one for one in samples if one[0] >= since])
    if len(some) < 3 or some[-1, 0] - some[0, 0] < SHORTEST_TREND_SECONDS:
        return None
    slope, _ = np.polyfit(some[:, 0] / 60.0, some[:, 1], 1)
    return Trend(float(some[:, 1].mean()), float(slope))
