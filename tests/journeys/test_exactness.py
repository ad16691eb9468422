"""What was acknowledged is stored, and nothing is stored twice: with processes killed for real.

Each story is told twice: as it should be, and with the guard that makes it so taken away, to know
that the story could end badly.
"""

import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.storage import schema
from app.storage.db import Database
from app.storage.embedded import Embedded
from tests.factories import CONFUSION, LABELS, VERSION
from tests.journeys.processes import Server, stored

MODELS = ("fraud", "abuse")
GIVE_UP_SECONDS = 90.0


@dataclass(frozen=True)
class Sent:
    model: str
    key: str
    body: dict[str, Any]
    counts: Counter[str]


def batch(number: int, chance: random.Random) -> Sent:
    """A batch of hard labels or softmax rows, and what it must add to the panes."""
    labels = chance.choices(LABELS, k=chance.choice([1, 3, 50]))
    body: dict[str, Any] = {"predicted": labels}
    if chance.random() < 0.3:
        rows = [[0.8 if label == one else 0.1 for one in LABELS] for label in labels]
        body = {"probabilities": rows}
    return Sent(chance.choice(MODELS), f"batch-{number}", body, Counter(labels))


def register(url: str) -> None:
    with httpx.Client(base_url=url) as client:
        for name in MODELS:
            client.put(f"/v1/models/{name}", json={"labels": LABELS}).raise_for_status()
            client.put(
                f"/v1/models/{name}/references/{VERSION}", json={"confusion": CONFUSION}
            ).raise_for_status()


class Senders:
    """Threads that send batches until told to stop, each until it is acknowledged.

    With `keys`, a batch that got no answer or a 5xx is sent again with its key, to any server;
    without, it is given up and forgotten, since nobody could know.
    """

    def __init__(self, urls: Sequence[str], threads: int = 6, keys: bool = True) -> None:
        self.urls, self.keys = urls, keys
        self.acknowledged: list[Sent] = []
        self.retries = 0
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=[i]) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def expected(self, model: str) -> Counter[str]:
        return sum((one.counts for one in self.acknowledged if one.model == model), Counter())

    def _send(self, seed: int) -> None:
        chance = random.Random(seed)
        with httpx.Client(timeout=30) as client:
            while not self._stop.is_set():
                self._deliver(client, batch(next(self._numbers), chance), chance)

    def _deliver(self, client: httpx.Client, one: Sent, chance: random.Random) -> None:
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while time.monotonic() < deadline:
            url = f"{chance.choice(self.urls)}/v1/models/{one.model}/predictions"
            headers = {"Idempotency-Key": one.key} if self.keys else {}
            try:
                answer = client.post(url, json=one.body, headers=headers)
            except httpx.TransportError:
                answer = None
            if answer is not None and answer.status_code == 202:
                self.acknowledged.append(one)
                return
            assert answer is None or answer.status_code in (500, 503), answer.text
            self.retries += 1
            if not self.keys:
                return
            time.sleep(0.02)
        raise TimeoutError(one.key)


def the_same_batch_50_times(servers: Sequence[Server]) -> tuple[int, int]:
    """Sent at once from 50 threads: how many said it was new, and how often it was counted."""
    register(servers[0].url)
    together = threading.Barrier(50)
    news: list[bool] = []

    def send(server: Server) -> None:
        together.wait()
        answer = httpx.post(
            f"{server.url}/v1/models/fraud/predictions",
            json={"predicted": ["fraud"] * 3},
            headers={"Idempotency-Key": "the-one"},
            timeout=60,
        )
        news.append(not answer.json()["duplicate"])

    turns = itertools.islice(itertools.cycle(servers), 50)
    threads = [threading.Thread(target=send, args=[server]) for server in turns]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(news), stored(servers[0].url, "fraud")["fraud"] // 3


@pytest.mark.parametrize("servers", [1, 3])
def test_the_same_batch_sent_50_times_at_once_counts_once(
    clone: Callable[[], str], servers: int
) -> None:
    with fleet(clone(), servers) as found:
        assert the_same_batch_50_times(found) == (1, 1)


def test_without_the_keys_it_would_count_again_and_again(clone: Callable[[], str]) -> None:
    with fleet(clone(), 3, sabotage="keys") as found:
        news, counted = the_same_batch_50_times(found)

    assert news == counted > 1


@contextmanager
def fleet(url: str, size: int, sabotage: str | None = None) -> Iterator[list[Server]]:
    """Several processes of the API on one database."""
    with ExitStack() as stack:
        servers = [
            Server("api", sabotage=sabotage, SHIFTWATCH_DATABASE_URL=url) for _ in range(size)
        ]
        for server in servers:
            stack.enter_context(server)
        yield servers


def a_server_killed_again_and_again(url: str, sabotage: str) -> list[Counter[str]]:
    """What was lost, and what was counted too often, while batches were sent with keys."""
    with fleet(url, 3, sabotage) as servers:
        register(servers[0].url)
        senders = Senders([server.url for server in servers])
        for _ in range(4):
            time.sleep(0.7)
            servers[2].kill()
            servers[2].start()
            servers[2].wait_until_ready()
        senders.finish()
        assert senders.retries > 0, "no request was ever cut off: the test shows nothing"
        return difference(senders, servers[0].url)


def difference(senders: Senders, url: str) -> list[Counter[str]]:
    lost, surplus = Counter[str](), Counter[str]()
    for model in MODELS:
        expected, found = senders.expected(model), Counter(stored(url, model))
        lost += expected - found
        surplus += found - expected
    return [lost, surplus]


def test_a_server_killed_again_and_again_loses_and_doubles_nothing(
    clone: Callable[[], str],
) -> None:
    lost, surplus = a_server_killed_again_and_again(clone(), sabotage="slow")

    assert (lost, surplus) == (Counter(), Counter())


def test_without_the_keys_retries_would_count_twice(clone: Callable[[], str]) -> None:
    lost, surplus = a_server_killed_again_and_again(clone(), sabotage="slow,keys")

    assert surplus.total() > 0
    assert not lost


def the_database_killed_under_load(home: Path, sabotage: str | None = None) -> list[Counter[str]]:
    """The same, with kill -9 of the postmaster, while batches are sent without keys."""
    with Embedded(home / "data") as embedded:
        url = embedded.start().url
        database = Database(url)
        schema.upgrade(database)
        database.close()
        with fleet(url, 1, sabotage) as servers:
            register(servers[0].url)
            senders = Senders([servers[0].url], keys=False)
            for _ in range(4):
                time.sleep(0.5)
                os.kill(embedded.start().pid, signal.SIGKILL)
                wait_until_dead(embedded)
                embedded.recover()
            time.sleep(0.5)
            before = len(senders.acknowledged)
            time.sleep(1.0)
            senders.finish()
            assert len(senders.acknowledged) > before, "the service did not heal"
            return difference(senders, servers[0].url)


def wait_until_dead(embedded: Embedded) -> None:
    deadline = time.monotonic() + 10
    while embedded.alive():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_killed_database_loses_nothing_acknowledged_and_the_service_heals(
    tmp_path: Path,
) -> None:
    lost, surplus = the_database_killed_under_load(tmp_path)

    # Without keys a batch that got no answer may have been stored: then it is surplus. There are
    # none, because the recorder asks the database what became of each commit.
    assert (lost, surplus) == (Counter(), Counter())


def test_answering_without_a_commit_would_lose_batches(tmp_path: Path) -> None:
    lost, _ = the_database_killed_under_load(tmp_path, sabotage="commit")

    assert lost.total() > 0
