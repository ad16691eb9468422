"""Clients that do what the documentation tells them to, and note down what they were told."""

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import numpy as np

from app.stats import moments
from bench import statistics
from bench.soak.books import Answered, Ledger, Probe
from tests.factories import CONFUSION, LABELS, VERSION

# Shorter than a frozen database stays frozen: batches are sent again while they are under way.
PATIENCE_SECONDS = 5.0
PAUSE_SECONDS = 0.05
GIVE_UP_SECONDS = 120.0
TOO_LATE = "(too late)"
SWING_SECONDS = 30.0
USUAL_MIX = [sum(row) for row in CONFUSION]
OTHER_MIX = [6, 3, 1]


@dataclass(frozen=True, slots=True)
class Batch:
    """A request and what it must add: by label, or as too late for any pane."""

    model: str
    body: dict[str, Any]
    counts: Counter[str]
    keyed: bool


@dataclass(frozen=True, slots=True)
class Watched:
    """A model under load: what registers it, and predictions to draw from.

    With `rows`, softmax rows are sent as often as labels. `swings`: its mix goes back and forth.
    """

    name: str
    labels: Sequence[str]
    settings: dict[str, Any]
    reference: dict[str, Any]
    rows: moments.Floats | None = None
    swings: bool = False
    keyed_share: float = 1.0

    @property
    def always_keyed(self) -> bool:
        return self.keyed_share == 1.0

    def draw(self, chance: random.Random, size: int) -> tuple[list[str], list[list[float]] | None]:
        if self.rows is not None and chance.random() < 0.7:
            rows = self.rows[[chance.randrange(len(self.rows)) for _ in range(size)]]
            return [self.labels[one] for one in moments.argmax(rows)], rows.tolist()
        return chance.choices(self.labels, weights=self._mix(), k=size), None

    def _mix(self) -> list[int] | None:
        if self.rows is not None:
            return None
        other = self.swings and time.time() // SWING_SECONDS % 2
        return OTHER_MIX if other else USUAL_MIX


# Alarms that come and go within a soak: short panes, and nothing to calibrate.
ARMED = {"overdispersion": 1.0}


def models() -> list[Watched]:
    """Hard and soft, quiet and not, with keys and without."""
    hard = {"confusion": CONFUSION}
    swinging = {"pane": "PT1S", "alarm": {**ARMED, "clear_panes": 5}}
    return [
        Watched("fraud", LABELS, {"alarm": ARMED}, hard),
        Watched("seesaw", LABELS, swinging, hard, swings=True),
        Watched("unkeyed", LABELS, {}, hard, keyed_share=0.3),
        _soft("shop", 10),
        _soft("topics", 50),
    ]


def _soft(name: str, k: int) -> Watched:
    actual, rows = statistics.sample(k, 2000, np.random.default_rng(k))
    rows = rows.round(6)
    labels = [f"label-{i}" for i in range(k)]
    reference = {"probabilities": rows.tolist(), "actual": actual.tolist()}
    return Watched(name, labels, {"alarm": ARMED}, reference, rows)


def register(url: str, watched: Sequence[Watched]) -> None:
    with httpx.Client(base_url=url, timeout=60) as client:
        for one in watched:
            place = f"/v1/models/{one.name}"
            client.put(place, json={"labels": one.labels, **one.settings}).raise_for_status()
            client.put(f"{place}/references/{VERSION}", json=one.reference).raise_for_status()


def batch(of: Watched, chance: random.Random) -> Batch:
    labels, rows = of.draw(chance, chance.choice([1, 3, 50, 200]))
    body: dict[str, Any] = {"predicted": labels} if rows is None else {"probabilities": rows}
    counts = Counter(labels)
    age = _age(chance)
    if age is not None:
        body["timestamp"] = (datetime.now(UTC) - age).isoformat()
        if age > timedelta(days=1):
            counts = Counter({TOO_LATE: len(labels)})
    return Batch(of.name, body, counts, chance.random() < of.keyed_share)


def days_ago(days: int) -> datetime:
    return datetime.now(UTC) - timedelta(days=days)


def _age(chance: random.Random) -> timedelta | None:
    """Most predictions are of now, some come late, and a few too late."""
    luck = chance.random()
    if luck < 0.01:
        return timedelta(days=3)
    return timedelta(minutes=chance.uniform(2, 120)) if luck < 0.1 else None


@dataclass(slots=True)
class Notes:
    """All that clients and observers saw. Lists are appended to by many threads."""

    ledger: Ledger = field(default_factory=Ledger)
    answers: list[Answered] = field(default_factory=list)
    queries: list[Answered] = field(default_factory=list)
    ready: list[Probe] = field(default_factory=list)
    fresh: list[tuple[float, str, float]] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    surprises: Counter[str] = field(default_factory=Counter)
    counters: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def count(self, what: str, more: int = 1) -> None:
        with self._lock:
            self.counters[what] += more

    def surprise(self, what: str) -> None:
        with self._lock:
            self.surprises[what] += 1


class Crowd:
    """Threads that each do one thing again and again until told to stop."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def add(self, turn: Callable[[], None], pause: Callable[[], float]) -> None:
        def again() -> None:
            while not self._stop.is_set():
                turn()
                self._stop.wait(pause())

        self._threads.append(threading.Thread(target=again))
        self._threads[-1].start()

    def finish(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


class Sender:
    """Sends batches, keyed ones until they are acknowledged.

    `rekeyed` is the mistake that keys are there to prevent: every attempt under a new one.
    """

    def __init__(
        self,
        seed: int,
        replicas: Sequence[str],
        watched: Sequence[Watched],
        notes: Notes,
        rekeyed: bool = False,
    ) -> None:
        self._chance = random.Random(seed)
        self._replicas, self._watched, self._notes = replicas, watched, notes
        self._rekeyed = rekeyed
        self._client = httpx.Client(timeout=PATIENCE_SECONDS)

    def turn(self) -> None:
        one = batch(self._chance.choice(self._watched), self._chance)
        began = time.time()
        key = str(uuid.UUID(int=self._chance.getrandbits(128), version=4))
        while not self._attempt(one, key, began):
            self._notes.count("attempts again")
            if time.time() > began + GIVE_UP_SECONDS:
                self._notes.surprise("a keyed batch was never answered")
                return
            if self._rekeyed:
                key = str(uuid.UUID(int=self._chance.getrandbits(128), version=4))

    def _attempt(self, one: Batch, key: str, began: float) -> bool:
        """Whether there is nothing more to do about the batch."""
        replica = self._chance.choice(self._replicas)
        headers = {"Idempotency-Key": key} if one.keyed else {}
        url = f"{replica}/v1/models/{one.model}/predictions"
        try:
            answer = self._client.post(url, json=one.body, headers=headers)
        except httpx.TransportError as error:
            time.sleep(PAUSE_SECONDS)
            # Without a connection nothing was sent, so nothing can have been stored.
            sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            return self._give_up(one, known=not sent)
        if answer.status_code == 202:
            self._notes.ledger.acknowledge(one.model, one.counts)
            self._notes.answers.append(Answered(began, time.time(), replica))
            self._notes.count("duplicates", answer.json()["duplicate"])
            return True
        if answer.status_code != 503:
            self._notes.surprise(f"{answer.status_code}: {answer.text[:200]}")
        if answer.status_code < 500:
            return True
        self._notes.count(f"answers of {answer.status_code}")
        time.sleep(float(answer.headers.get("retry-after", PAUSE_SECONDS)))
        return self._give_up(one, known="may or may not" not in answer.text)

    def _give_up(self, one: Batch, *, known: bool) -> bool:
        """Nobody sends a batch again that has no key; a batch with one is never given up."""
        if one.keyed:
            return False
        if not known:
            self._notes.ledger.lose_sight(one.model, one.counts)
            self._notes.count("unkeyed batches of unknown fate")
        return True


class Reader:
    """Asks what people and dashboards ask."""

    def __init__(
        self, seed: int, replicas: Sequence[str], watched: Sequence[Watched], notes: Notes
    ) -> None:
        self._chance = random.Random(seed)
        self._replicas, self._notes = replicas, notes
        self._places = [
            f"/v1/models/{one.name}/{what}"
            for one in watched
            for what in ("estimate", "evaluations?limit=20", "panes?limit=50")
        ] + ["/v1/alarms", "/v1/models"]
        self._client = httpx.Client(timeout=PATIENCE_SECONDS)

    def turn(self) -> None:
        replica, place = self._chance.choice(self._replicas), self._chance.choice(self._places)
        began = time.time()
        answer = asked(self._client, replica + place)
        if answer is None or answer.status_code == 503:
            self._notes.count("queries unanswered")
        elif answer.status_code != 200:
            self._notes.surprise(f"{answer.status_code} of {place}")
        else:
            self._notes.queries.append(Answered(began, time.time(), replica))

    def acknowledge(self) -> None:
        """Somebody looks after an alarm that fires, which is one more thing to tell."""
        url = f"{self._chance.choice(self._replicas)}/v1/alarms"
        answer = asked(self._client, f"{url}?state=firing")
        for alarm in [] if answer is None or answer.status_code != 200 else answer.json()["items"]:
            try:
                self._client.post(f"{url}/{alarm['id']}/acknowledge", json={"by": "ann"})
            except httpx.TransportError:
                return


class Observer:
    """Looks whether replicas are ready, evaluations fresh and the worker behind."""

    def __init__(self, replicas: Sequence[str], names: Sequence[str], notes: Notes) -> None:
        self._replicas, self._names, self._notes = replicas, names, notes
        self._ready, self._fresh, self._metrics = (httpx.Client(timeout=2.0) for _ in range(3))

    def look_ready(self) -> None:
        for replica in self._replicas:
            answer = asked(self._ready, f"{replica}/readyz")
            well = answer is not None and answer.status_code == 200
            self._notes.ready.append(Probe(time.time(), replica, well))

    def look_fresh(self) -> None:
        for name in self._names:
            for replica in self._replicas:
                answer = asked(self._fresh, f"{replica}/v1/models/{name}/evaluations?limit=1")
                if answer is None or answer.status_code != 200 or not answer.json()["items"]:
                    continue
                made = datetime.fromisoformat(answer.json()["items"][0]["evaluated_at"])
                self._notes.fresh.append((time.time(), name, made.timestamp()))
                break

    def scrape(self) -> None:
        for replica in self._replicas:
            answer = asked(self._metrics, f"{replica}/metrics")
            if answer is None or "shiftwatch_collector_success 1" not in answer.text:
                self._notes.count("scrapes without models")
                continue
            self._notes.count("scrapes")
            since = metric(answer.text, "shiftwatch_oldest_due_timestamp_seconds")
            self._notes.lags.append(0.0 if since is None else max(0.0, time.time() - since))


def metric(text: str, name: str) -> float | None:
    """The value of a series of that very name.

    >>> metric("# HELP a b\\na 3.5\\nab 4", "a")
    3.5
    """
    lines = (line.split() for line in text.splitlines())
    return next((float(line[1]) for line in lines if len(line) == 2 and line[0] == name), None)


def asked(client: httpx.Client, url: str) -> httpx.Response | None:
    try:
        return client.get(url)
    except httpx.TransportError:
        return None
