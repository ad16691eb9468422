"""From a stream of predictions to somebody who is told: with real requests to a real receiver.

Each story about a guard is told twice: as it should be, and with the guard taken away.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from standardwebhooks.webhooks import Webhook as Verifier

from app.api import deps
from app.config import Settings
from app.deliver import LEASE, Sender, deliver_next
from app.domain.evidence import recomputed
from app.domain.model import AlarmPolicy, ModelSettings
from app.domain.notice import MOST_BYTES, Event, Shape
from app.domain.window import pane_start
from app.evaluate.due import Worker
from app.stats.moments import Floats
from app.stats.reference import Reference, from_sample
from app.storage import deliveries, webhooks
from app.storage.db import Database
from app.storage.webhooks import Webhook
from tests import fashion, fashion_corrupted
from tests.evaluate.simulation import MINUTE, Life, life, quiet
from tests.factories import CONFUSION, LABELS
from tests.fashion import Outputs
from tests.journeys.processes import Server, free_port, until
from tests.journeys.sabotaged import NOTICES_TO_DIE_FOR, OBITUARIES
from tests.journeys.test_worker import deaths, workers

REFERENCE = Reference(np.array(CONFUSION))
OTHER_MIX = [0.6, 0.3, 0.1]
EVERY_CHANGE = tuple(event for event in Event if event not in (Event.TEST, Event.PENDING))
SETTINGS = Settings()


@dataclass(frozen=True)
class Request:
    """One that reached the receiver, and what it answered."""

    headers: dict[str, str]
    body: bytes
    answer: int

    @property
    def message_id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def content(self) -> Any:
        return json.loads(self.body)

    @property
    def event(self) -> str:
        return str(self.content["type"])

    @property
    def alarm_id(self) -> int:
        return int(self.content["data"]["alarm"]["id"])

    def is_signed_with(self, secret: str) -> bool:
        """By anybody's clock: `verify` would also ask whether it was sent just now."""
        at = datetime.fromtimestamp(int(self.headers["webhook-timestamp"]), UTC)
        expected = Verifier(secret).sign(self.message_id, at, self.body.decode())
        return self.headers["webhook-signature"] == expected


class Receiver:
    """Somebody who wants to be told, and may be away: then nothing listens on the port."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/hook"
        self.answer = 204
        self.requests: list[Request] = []
        self._server: ThreadingHTTPServer | None = None

    def open(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler())
        threading.Thread(target=self._server.serve_forever, args=[0.02]).start()

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        self._server = None

    def heard(self) -> list[Request]:
        """What it took, each message once, in the order of the first time."""
        taken = [one for one in self.requests if one.answer == 204]
        return list({one.message_id: one for one in reversed(taken)}.values())[::-1]

    def events(self, alarm_id: int | None = None) -> list[str]:
        """What it was told, of one alarm or of all."""
        return [one.event for one in self.heard() if alarm_id in (None, one.alarm_id)]

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers["content-length"])
                body = self.rfile.read(size)
                if len(body) < size:
                    return  # whoever sent it was killed before the end
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.requests.append(Request(headers, body, receiver.answer))
                self.send_response(receiver.answer)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as found:
        yield found


# From end to end.

QUIET_PANES, SHIFTED_PANES, LAST_PANES = 260, 40, 90
PER_PANE = 40
EVEN = np.full(fashion.LABELS, 0.1)
MANY_TROUSERS = np.where(np.arange(fashion.LABELS) == 1, 0.37, 0.07)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """The whole service, as one starts it."""
    home = tmp_path_factory.mktemp("serve")
    with Server("serve", SHIFTWATCH_DATA_DIR=str(home / "data")) as found:
        with httpx.Client(base_url=found.url, timeout=60) as client:
            yield client
        found.stop()


@dataclass
class Shop:
    """A model with default settings, whose softmax rows come in from the past on."""

    client: httpx.Client
    name: str
    at: datetime
    rng: np.random.Generator

    def register(self) -> None:
        sample = fashion.outputs("good", "validation")
        labels = [f"label-{i}" for i in range(fashion.LABELS)]
        reference = {
            "probabilities": sample.rows[:5000].round(6).tolist(),
            "actual": sample.labels[:5000].tolist(),
        }
        place = f"/v1/models/{self.name}"
        self.client.put(place, json={"labels": labels}).raise_for_status()
        self.client.put(f"{place}/references/v1", json=reference).raise_for_status()

    def send(self, pool: Outputs, mix: Floats, panes: int) -> None:
        rows = [fashion.draw(pool, mix, PER_PANE, self.rng).rows for _ in range(panes)]
        times = [(self.at + i * MINUTE).isoformat() for i in range(panes)]
        body = {
            "probabilities": np.concatenate(rows).round(6).tolist(),
            "timestamps": list(chain.from_iterable([time] * PER_PANE for time in times)),
        }
        place = f"/v1/models/{self.name}/predictions"
        assert self.client.post(place, json=body).json()["accepted"] == PER_PANE * panes
        self.at += panes * MINUTE

    def alarms(self, state: str) -> list[Any]:
        query = {"model": self.name, "state": state}
        found: list[Any] = self.client.get("/v1/alarms", params=query).json()["items"]
        return found


def shop(client: httpx.Client, name: str, seed: int) -> Shop:
    """One that has been quiet for as long as its detectors need to learn what quiet means."""
    panes = QUIET_PANES + SHIFTED_PANES + LAST_PANES
    begin = pane_start(datetime.now(UTC), MINUTE) - panes * MINUTE
    found = Shop(client, name, begin, np.random.default_rng(seed))
    found.register()
    found.send(fashion.outputs("good", "test"), EVEN, QUIET_PANES)
    return found


def subscribe(client: httpx.Client, receiver: Receiver) -> str:
    body = {"url": receiver.url, "events": EVERY_CHANGE}
    return str(client.post("/v1/webhooks", json=body).raise_for_status().json()["secret"])


def test_a_label_shift_is_told_acknowledged_and_over(
    server: httpx.Client, receiver: Receiver
) -> None:
    secret = subscribe(server, receiver)
    own = shop(server, "shop", seed=1)
    pool = fashion.outputs("good", "test")

    own.send(pool, MANY_TROUSERS, SHIFTED_PANES)
    until(lambda: Event.FIRING in receiver.events())
    (firing,) = own.alarms("firing")
    body = {"by": "ann", "note": "a sale"}
    server.post(f"/v1/alarms/{firing['id']}/acknowledge", json=body).raise_for_status()
    until(lambda: Event.ACKNOWLEDGED in receiver.events())
    own.send(pool, EVEN, LAST_PANES)
    until(lambda: Event.RESOLVED in receiver.events())

    told = [one for one in receiver.heard() if one.event != Event.REVISED]
    assert [one.event for one in told] == [Event.FIRING, Event.ACKNOWLEDGED, Event.RESOLVED]
    assert {one.alarm_id for one in told} == {firing["id"]}
    for one in receiver.requests:
        assert Verifier(secret).verify(one.body, one.headers)["type"] == one.event
        assert_is_as_the_docs_say(one)
    said = told[0].content["data"]
    assert said["alarm"]["verdict"] == "label_shift"
    assert (said["alarm"]["state"], said["alarm"]["kind"]) == ("firing", "shift")
    assert own.alarms("firing") == []
    (over,) = own.alarms("resolved")
    assert (over["id"], over["acknowledged_by"]) == (firing["id"], "ann")


def assert_is_as_the_docs_say(one: Request) -> None:
    assert len(one.body) < MOST_BYTES
    assert one.headers["content-type"] == "application/json"
    assert list(one.content) == ["type", "timestamp", "data"]
    data = one.content["data"]
    assert {"alarm", "estimate", "reason", "links"} <= data.keys()
    assert {"id", "model", "kind", "state", "severity"} <= data["alarm"].keys()
    assert data["links"]["api"].endswith(f"/v1/alarms/{one.alarm_id}")
    if data["estimate"] is not None:
        assert {"label", "p", "q"} <= data["estimate"]["labels"][0].keys()


def test_what_is_not_label_shift_is_told_as_such(server: httpx.Client, receiver: Receiver) -> None:
    secret = subscribe(server, receiver)
    own = shop(server, "noisy-shop", seed=2)

    own.send(fashion_corrupted.corrupted("noisy"), EVEN, SHIFTED_PANES)
    until(lambda: Event.FIRING in receiver.events())

    one = receiver.heard()[0]
    assert Verifier(secret).verify(one.body, one.headers)["type"] == Event.FIRING
    assert one.content["data"]["alarm"]["verdict"] == "not_label_shift"
    assert_is_as_the_docs_say(one)
    assert [alarm["verdict"] for alarm in own.alarms("firing")] == ["not_label_shift"]


# A receiver that is away.


def armed(**changes: Any) -> AlarmPolicy:
    """Alarms of streams that come and go in minutes."""
    return AlarmPolicy(**{"overdispersion": 1.0, "clear_panes": 5, **changes})


def told_by(database: Database, receiver: Receiver, now: datetime) -> Webhook:
    with database.begin() as conn:
        return webhooks.create(conn, receiver.url, EVERY_CHANGE, Shape.STANDARD, now)


@cache
def sender() -> Sender:
    return Sender()


def deliver(one: Life) -> None:
    """All that is due by the clock of this life, for real."""
    for _ in range(50):
        if not deliver_next(one.database, SETTINGS, sender(), lambda: one.now):
            return
    raise AssertionError("there is no end of it")


def panes_of(mix: Any, panes: int, seed: int) -> Any:
    return np.random.default_rng(seed).multinomial(100, mix, size=panes)


def back_and_forth(one: Life, minutes: int) -> Iterator[None]:
    """A life of four minutes of another mix and eleven of the usual one, over and over."""
    usual = REFERENCE.predicted / REFERENCE.n
    for minute in range(minutes):
        one.live(panes_of(OTHER_MIX if minute % 15 < 4 else usual, 1, seed=100 + minute))
        yield


def transitions(database: Database) -> dict[int, list[str]]:
    """What happened to each alarm, by the book."""
    with database.begin() as conn:
        (hook,) = webhooks.page(conn, None, 10)
        queued = deliveries.page(conn, hook.id, None, None, 1000)[::-1]
    found: dict[int, list[str]] = {}
    for one in queued:
        found.setdefault(one.alarm_id or 0, []).append(one.event)
    return found


def die_after_taking_one(one: Life) -> bool:
    """A worker takes a delivery and is never heard of again."""
    with one.database.begin() as conn:
        return deliveries.claim(conn, one.now, LEASE) is not None


def ten_minutes_away(database: Database, receiver: Receiver, how: str) -> tuple[Webhook, int]:
    """While there are things to tell, and workers die; then it is back for good."""
    one = life(database, REFERENCE, alarm=armed())
    hook = told_by(database, receiver, one.now)
    one.live(quiet(REFERENCE, 100, 30, np.random.default_rng(3)))
    if how == "closed":
        receiver.close()
    receiver.answer = 503
    died = 0
    for minute, _ in enumerate(back_and_forth(one, 40)):
        if minute == 10:
            receiver.answer = 204
            if how == "closed":
                receiver.open()
        if minute < 10 and died < 2:
            died += die_after_taking_one(one)
        deliver(one)
    for _ in range(10):
        one.now += timedelta(minutes=30)
        deliver(one)
    return hook, died


@pytest.mark.parametrize("how", ["closed", "unable"])
def test_a_receiver_that_was_away_is_told_everything_in_order(
    database: Database, receiver: Receiver, how: str
) -> None:
    hook, died = ten_minutes_away(database, receiver, how)

    expected = transitions(database)
    assert len(expected) == 3
    assert died == 2
    assert all(events[:1] == [Event.FIRING] for events in expected.values())
    assert {alarm: receiver.events(alarm) for alarm in expected} == expected
    assert all(one.is_signed_with(hook.secret) for one in receiver.requests)


def test_every_attempt_to_tell_the_same_has_the_same_id(
    database: Database, receiver: Receiver
) -> None:
    ten_minutes_away(database, receiver, "unable")

    content: dict[str, set[bytes]] = {}
    for one in receiver.requests:
        content.setdefault(one.message_id, set()).add(one.body)
    assert len(receiver.requests) > len(content) == sum(map(len, transitions(database).values()))
    assert all(len(bodies) == 1 for bodies in content.values())


def test_without_the_order_an_alarm_would_end_before_it_began(
    database: Database, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimable = deliveries._claimable

    def unordered(now: datetime) -> Any:
        # The one condition that compares two deliveries of one alarm by their ids.
        return [one for one in claimable(now) if "other.alarm_id" not in str(one)]

    assert len(unordered(datetime.now(UTC))) == len(claimable(datetime.now(UTC))) - 1
    monkeypatch.setattr(deliveries, "_claimable", unordered)

    ten_minutes_away(database, receiver, "unable")

    first = min(transitions(database))
    assert receiver.events(first)[:1] == [Event.RESOLVED]


def test_a_worker_killed_after_sending_sends_again_under_the_same_id(
    clone: Callable[[], str], receiver: Receiver, tmp_path: Path
) -> None:
    obituaries = tmp_path / "obituaries"
    with opened(clone()) as database:
        settings = ModelSettings(LABELS, alarm=armed(no_data_after=None, ingest_stopped_after=None))
        begin = pane_start(datetime.now(UTC), MINUTE) - timedelta(hours=2)
        worker = Worker(database, "http://localhost")
        one = Life(database, worker, "m", REFERENCE, settings, begin)
        hook = told_by(database, receiver, one.now)
        one.live(quiet(REFERENCE, 100, 30, np.random.default_rng(3)))
        for _ in back_and_forth(one, 30):
            pass
        expected = transitions(database)

        with workers(database, 1, "leases,die-sent", **{OBITUARIES: str(obituaries)}):
            until(lambda: len(receiver.heard()) == sum(map(len, expected.values())))
            until(lambda: not unsettled(database))

    assert {alarm: receiver.events(alarm) for alarm in expected} == expected
    assert [Event.FIRING, Event.RESOLVED] in expected.values()
    assert len(receiver.requests) >= len(receiver.heard()) + len(deaths(obituaries))
    assert len(deaths(obituaries)) == NOTICES_TO_DIE_FOR
    for request in receiver.requests:
        Verifier(hook.secret).verify(request.body, request.headers)


@contextmanager
def opened(url: str) -> Iterator[Database]:
    database = Database(url)
    try:
        yield database
    finally:
        database.close()


def unsettled(database: Database) -> bool:
    with database.begin() as conn:
        (hook,) = webhooks.page(conn, None, 10)
        return bool(deliveries.page(conn, hook.id, deliveries.State.PENDING, None, 1))


# What people do.


@dataclass
class Desk:
    """Somebody at the API, by the clock of the one life there is."""

    client: TestClient
    one: Life
    receiver: Receiver

    def live(self, mix: Any, panes: int, seed: int) -> None:
        self.one.live(panes_of(mix, panes, seed))
        deliver(self.one)

    def quietly(self, panes: int, seed: int) -> None:
        self.live(REFERENCE.predicted / REFERENCE.n, panes, seed)

    def alarms(self, state: str | None = None) -> list[Any]:
        query = {"state": state} if state else {}
        found: list[Any] = self.client.get("/v1/alarms", params=query).json()["items"]
        return found

    def does(self, what: str, alarm_id: int, **body: Any) -> Any:
        answer = self.client.post(f"/v1/alarms/{alarm_id}/{what}", json=body)
        assert answer.status_code == 200, answer.text
        deliver(self.one)
        return answer.json()

    def silences(self, length: timedelta) -> None:
        until = (self.one.now + length).isoformat()
        body = {"matchers": {"model": "m"}, "until": until, "by": "bob"}
        assert self.client.post("/v1/silences", json=body).status_code == 201

    def history(self, alarm_id: int) -> list[tuple[str, str, str | None, str | None]]:
        found = self.client.get(f"/v1/alarms/{alarm_id}").json()["history"]
        return [(one["at"], one["event"], one["by"], one["note"]) for one in found]

    def moment(self) -> str:
        return self.one.now.isoformat().replace("+00:00", "Z")


@pytest.fixture
def desk(client: TestClient, database: Database, receiver: Receiver) -> Desk:
    one = life(database, REFERENCE, alarm=armed())
    app = client.app
    assert isinstance(app, FastAPI)
    app.dependency_overrides[deps.now] = lambda: one.now
    told_by(database, receiver, one.now)
    found = Desk(client, one, receiver)
    found.quietly(30, seed=4)
    return found


def test_who_looked_after_an_alarm_and_when_is_kept(desk: Desk) -> None:
    desk.live(OTHER_MIX, 4, seed=5)
    (firing,) = desk.alarms("firing")

    at = desk.moment()
    desk.does("acknowledge", firing["id"], by="ann", note="looking")
    desk.quietly(20, seed=6)

    events = [Event.FIRING, Event.ACKNOWLEDGED, Event.RESOLVED]
    assert [change for change in desk.receiver.events() if change != Event.REVISED] == events
    history = desk.history(firing["id"])
    assert (at, Event.ACKNOWLEDGED, "ann", "looking") in history
    assert [event for _, event, _, _ in history if event != Event.REVISED] == events
    # What the stream did was nobody's doing.
    assert [by for _, _, by, _ in history if by is not None] == ["ann"]


def test_nobody_is_told_of_a_silenced_alarm_until_the_silence_ends(desk: Desk) -> None:
    desk.silences(timedelta(minutes=10))

    desk.live(OTHER_MIX, 9, seed=7)
    (firing,) = desk.alarms("firing")
    before = desk.receiver.events()
    desk.live(OTHER_MIX, 2, seed=8)
    after = desk.receiver.events()
    desk.quietly(20, seed=9)

    assert before == []
    assert after == [Event.FIRING]
    assert desk.receiver.events() == [Event.FIRING, Event.RESOLVED]
    assert {one.alarm_id for one in desk.receiver.requests} == {firing["id"]}


def test_of_an_alarm_that_was_silenced_all_its_life_nobody_hears(desk: Desk) -> None:
    desk.silences(timedelta(hours=1))

    desk.live(OTHER_MIX, 4, seed=10)
    desk.quietly(20, seed=11)

    assert [alarm["state"] for alarm in desk.alarms()] == ["resolved"]
    assert desk.receiver.events() == []


def test_who_was_told_that_it_began_hears_that_it_is_over_whatever_is_silenced(
    desk: Desk,
) -> None:
    desk.live(OTHER_MIX, 4, seed=12)
    desk.silences(timedelta(hours=1))

    desk.quietly(20, seed=13)

    told = desk.receiver.events()
    assert (told[0], told[-1]) == (Event.FIRING, Event.RESOLVED)


def test_an_alarm_that_somebody_calls_over_comes_back_if_it_is_not(desk: Desk) -> None:
    desk.live(OTHER_MIX, 4, seed=14)
    (firing,) = desk.alarms("firing")

    at = desk.moment()
    desk.does("resolve", firing["id"], by="ann", note="fixed")
    resolved = desk.alarms()
    desk.live(OTHER_MIX, 10, seed=15)

    assert [alarm["state"] for alarm in resolved] == ["resolved"]
    assert desk.history(firing["id"])[-1] == (at, Event.RESOLVED, "ann", "fixed")
    assert [alarm["state"] for alarm in desk.alarms()] == ["firing", "resolved"]
    assert desk.alarms()[0]["id"] != firing["id"]


def test_an_accepted_mix_is_normal_and_the_old_one_is_news(desk: Desk) -> None:
    desk.live(OTHER_MIX, 30, seed=16)
    (firing,) = desk.alarms("firing")

    at = desk.moment()
    desk.does("accept", firing["id"], by="ann", note="the new normal")
    desk.live(OTHER_MIX, 200, seed=17)
    while_it_goes_on = desk.alarms()
    desk.quietly(10, seed=18)

    assert desk.history(firing["id"])[-1] == (at, Event.RESOLVED, "ann", "the new normal")
    assert [alarm["state"] for alarm in while_it_goes_on] == ["resolved"]
    assert [alarm["state"] for alarm in desk.alarms()] == ["firing", "resolved"]
    assert desk.receiver.events(desk.alarms()[0]["id"])[0] == Event.FIRING


def test_an_alarm_that_is_only_called_over_comes_back_with_a_mix_that_goes_on(desk: Desk) -> None:
    desk.live(OTHER_MIX, 30, seed=16)
    (firing,) = desk.alarms("firing")

    desk.does("resolve", firing["id"], by="ann")
    desk.live(OTHER_MIX, 200, seed=17)

    assert len(desk.alarms()) > 1


# On what evidence.


def numbers(value: Any, path: str = "") -> dict[str, Any]:
    """All that an evidence says, each by its place in it."""
    if isinstance(value, dict):
        inside = value.items()
    elif isinstance(value, list):
        inside = dict(enumerate(value)).items()
    else:
        return {path: value}
    found: dict[str, Any] = {}
    for name, one in inside:
        found |= numbers(one, f"{path}/{name}")
    return found


def assert_can_be_computed_again(client: TestClient, *names: str) -> None:
    (alarm,) = client.get("/v1/alarms", params={"state": "firing"}).json()["items"]
    evidence = client.get(f"/v1/alarms/{alarm['id']}").json()["evidence"]

    again = recomputed(evidence)

    assert set(again) == {"tests", "effect", "assumption", "statistic"}
    assert evidence["statistic"] >= evidence["threshold"]
    said, found = numbers({name: evidence[name] for name in again}), numbers(again)
    assert set(names) <= said.keys()
    assert found.keys() == said.keys()
    for place, one in said.items():
        is_number = isinstance(one, (int, float))
        assert found[place] == (pytest.approx(one, rel=1e-12) if is_number else one), place


def test_the_evidence_of_an_alarm_on_labels_can_be_computed_again(
    client: TestClient, database: Database
) -> None:
    one = life(database, REFERENCE, alarm=armed())
    one.live(quiet(REFERENCE, 100, 30, np.random.default_rng(19)))

    one.live(panes_of(OTHER_MIX, 5, seed=20))

    assert_can_be_computed_again(
        client, "/statistic", "/tests/0/p_value", "/effect/total_variation"
    )


@pytest.mark.parametrize("what", ["shifted", "noisy"])
def test_the_evidence_of_an_alarm_on_softmax_can_be_computed_again(
    client: TestClient, database: Database, what: str
) -> None:
    sample = fashion.outputs("good", "validation")
    reference = from_sample(
        fashion.LABELS, sample.predicted[:5000], sample.labels[:5000], sample.rows[:5000]
    )
    one = life(database, reference, alarm=armed())
    clean, noisy = fashion.outputs("good", "test"), fashion_corrupted.corrupted("noisy")
    pool, mix = (clean, MANY_TROUSERS) if what == "shifted" else (noisy, EVEN)
    draw = partial(fashion.draw, size=PER_PANE, rng=np.random.default_rng(21))
    one.live_soft([draw(clean, EVEN).rows for _ in range(40)])

    one.live_soft([draw(pool, mix).rows for _ in range(25)])

    assert_can_be_computed_again(
        client, "/statistic", "/tests/0/p_value", "/effect/total_variation", "/assumption/p_value"
    )
