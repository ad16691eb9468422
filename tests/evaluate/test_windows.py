"""Every window result equals a recomputation, by brute force, from the raw stream."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise
from typing import Any, Literal

import numpy as np
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from app.api import batches as incoming
from app.api import deps, predictions
from app.api.pace import Answers, Pace
from app.domain.window import pane_start
from app.evaluate.due import Worker
from app.evaluate.look import ADAPTIVE_REACH
from app.stats import adaptive, analysis, moments
from app.stats import reference as references
from app.stats.analysis import Analysis, Basis
from app.stats.moments import Counts, Floats, Sums
from app.stats.ranking import ranks
from app.stats.reference import Reference
from app.storage import arrivals
from app.storage.db import Database
from tests.factories import LABELS, VERSION

BEGIN = datetime(2026, 11, 17, 10, 0, 3, tzinfo=UTC)
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
# Sixty panes are ten minutes and 1,440 are four hours, so hours are enough for both rollups.
PANE = timedelta(seconds=10)
LATENESS = timedelta(hours=8)
LENGTHS = {"10m": timedelta(minutes=10), "9h": timedelta(hours=9), "each-hour": HOUR}
LAST = 90
WINDOWS: list[dict[str, Any]] = [
    {"name": "10m", "kind": "sliding", "length": "PT10M"},
    {"name": "9h", "kind": "sliding", "length": "PT9H"},
    {"name": "each-hour", "kind": "tumbling", "length": "PT1H"},
    {"name": "last-90", "kind": "last", "count": LAST},
    {"name": "live", "kind": "version"},
    {"name": "newest", "kind": "adaptive"},
]
NAMES: list[str] = [window["name"] for window in WINDOWS]
MIX = np.array([0.6, 0.3, 0.1])
OTHER_MIX = np.array([0.2, 0.3, 0.5])

Kind = Literal["hard", "soft", "mixed"]


@dataclass(frozen=True, slots=True)
class Prediction:
    at: datetime
    label: int
    row: Floats | None

    @property
    def pane(self) -> datetime:
        return pane_start(self.at, PANE)

    def as_json(self) -> dict[str, Any]:
        own = {"predicted": self.label} if self.row is None else {"probabilities": list(self.row)}
        return {"timestamp": self.at.isoformat(), **own}


@dataclass(frozen=True, slots=True)
class Batch:
    """Some predictions in a burst that began `age` ago and was `spread` long."""

    kind: Kind
    size: int
    age: timedelta
    spread: timedelta
    seed: int

    def predictions(self, now: datetime) -> list[Prediction]:
        rng = np.random.default_rng(self.seed)
        rows = outputs(self.size, MIX if self.seed % 2 else OTHER_MIX, rng)[1]
        seconds = rng.uniform(0.0, self.spread.total_seconds(), self.size)
        has_row = rng.random(self.size) < {"hard": 0.0, "soft": 1.0, "mixed": 0.5}[self.kind]
        return [
            Prediction(
                now - self.age + timedelta(seconds=round(second, 3)),
                int(row.argmax()),
                row if soft else None,
            )
            for second, row, soft in zip(seconds.tolist(), rows, has_row, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Step:
    """Time passes, batches come in, and perhaps the worker looks at them."""

    pause: timedelta
    batches: list[Batch]
    evaluate: bool


def outputs(size: int, mix: Floats, rng: np.random.Generator) -> tuple[Counts, Floats]:
    """True labels of this mix, and the softmax rows that a fair classifier makes of them."""
    actual = rng.choice(len(mix), size, p=mix)
    logits = 2.5 * np.eye(len(mix))[actual] + rng.normal(size=(size, len(mix)))
    rows = np.exp(logits)
    return actual, rows / rows.sum(axis=1, keepdims=True)


def labelled_sample(*, soft: bool) -> tuple[dict[str, Any], Reference]:
    """A reference as it is sent, and as statistics know it."""
    actual, rows = outputs(900, MIX, np.random.default_rng(20261118))
    found = ranks(rows)
    body: dict[str, Any] = {"actual": actual.tolist()}
    if not soft:
        predicted = {"predicted": found.first.tolist()}
        return body | predicted, references.from_sample(3, found.first, actual)
    singles = rows.astype(np.float32)
    known = references.from_sample(3, found.first, actual, singles, found)
    return body | {"probabilities": rows.tolist()}, known


@dataclass(slots=True)
class Story:
    """One model's stream, through the real API and worker and beside them as a plain list."""

    client: TestClient
    worker: Worker
    clock: "Clock"
    url: str
    basis: Basis
    raw: list[Prediction] = field(default_factory=list)

    def play(self, step: Step) -> None:
        self.clock.now += step.pause
        for batch in step.batches:
            self.send(batch.predictions(self.clock.now))
        self.assert_estimates()
        if step.evaluate:
            self.evaluate()
            self.assert_estimates()

    def send(self, some: Sequence[Prediction]) -> None:
        rows = [one.as_json() for one in some]
        answer = self.client.post(f"{self.url}/predictions", json={"rows": rows})
        counted = [one for one in some if one.at >= self.clock.now - LATENESS]
        self.raw += counted
        assert answer.status_code == 202, answer.text
        found = answer.json()
        assert (found["accepted"], found["late"]) == (len(counted), len(some) - len(counted))

    def evaluate(self) -> None:
        """Until nothing is due any more."""
        for _ in range(100):
            if not self.worker.evaluate_next(self.clock.now):
                return
        pytest.fail("the worker never gets done")

    def settle(self) -> None:
        """Let the worker take what has come in, and then redo what that has changed."""
        for _ in range(2):
            self.clock.now += 2 * SECOND
            self.evaluate()

    def get(self, path: str, **query: str) -> Any:
        answer = self.client.get(f"{self.url}/{path}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def within(self, start: datetime, end: datetime) -> list[Prediction]:
        return [one for one in self.raw if start <= one.pane < end]

    def assert_estimates(self) -> None:
        """Each window as it is now: whether it was stored or is looked at on the spot."""
        for name in NAMES:
            found = self.get("estimate", window=name)
            assert span_of(found) == self.span(name, self.clock.now), name
            self.assert_same(found)

    def assert_spans(self, *spans: tuple[datetime, datetime]) -> None:
        for start, end in spans:
            found = self.get("estimate", **{"from": start.isoformat(), "to": end.isoformat()})
            assert span_of(found) == (start, end)
            self.assert_same(found)

    def assert_history(self) -> None:
        """Everything that was ever found, as late predictions have made it since."""
        for name in NAMES:
            page = self.get("evaluations", window=name, limit="1000")
            assert page["next"] is None
            for found in page["items"]:
                assert span_of(found) == self.span(name, span_of(found)[1] - PANE), name
                self.assert_same(found)

    def assert_same(self, found: dict[str, Any]) -> None:
        start, end = span_of(found)
        some = self.within(start, end)
        reach = self.reach(end) if found["effective_window"] else some
        wanted = self.analysed(some, as_soft=self.counts_as_soft(reach))
        assert found["n"] == wanted.n
        assert found["method"] == wanted.method
        unknown = [None] * len(LABELS)
        if wanted.labels is None:
            assert column(found, "predicted") == column(found, "q") == unknown
            return
        assert column(found, "predicted") == about(wanted.labels.predicted)
        assert column(found, "q_raw") == about(wanted.labels.raw)
        trusted = found["verdict"] != "not_label_shift"
        assert column(found, "q") == (about(wanted.labels.q) if trusted else unknown)

    def analysed(self, some: Sequence[Prediction], *, as_soft: bool) -> Analysis:
        chosen = [one for one in some if one.row is not None or not as_soft]
        return analysis.analyse(self.basis, sums_of(chosen, as_soft=as_soft))

    def counts_as_soft(self, some: Sequence[Prediction]) -> bool:
        """Softmax rows count alone if the reference has them and at least half of these do."""
        rows = sum(one.row is not None for one in some)
        return self.basis.soft is not None and 2 * rows >= len(some) > 0

    def reach(self, end: datetime) -> list[Prediction]:
        """What an adaptive window chooses from."""
        starts = sorted({one.pane for one in self.raw if one.pane < end})[-ADAPTIVE_REACH:]
        return self.within(starts[0], end) if starts else []

    def span(self, name: str, now: datetime) -> tuple[datetime, datetime]:
        end = pane_start(now, PANE) + PANE
        match name:
            case "each-hour":
                return pane_start(now, HOUR), pane_start(now, HOUR) + HOUR
            case "last-90":
                return self.start_of_last(end), end
            case "live":
                return pane_start(BEGIN, PANE), end
            case "newest":
                return self.start_of_adaptive(end), end
            case _:
                return end - LENGTHS[name], end

    def start_of_last(self, end: datetime) -> datetime:
        """Of the smallest set of newest panes that hold enough, or of all there are."""
        starts = sorted({one.pane for one in self.raw if one.pane < end}, reverse=True)
        enough = (start for start in starts if len(self.within(start, end)) >= LAST)
        return next(enough, starts[-1] if starts else end)

    def start_of_adaptive(self, end: datetime) -> datetime:
        reach = self.reach(end)
        if not reach:
            return end
        as_soft = self.counts_as_soft(reach)
        starts = sorted({one.pane for one in reach}, reverse=True)
        chosen = [one for one in reach if one.row is not None or not as_soft]
        parts = [
            sums_of([one for one in chosen if one.pane == start], as_soft=as_soft)
            for start in starts
        ]
        operator = self.basis.for_window(parts[0]).operator
        assert operator is not None
        found = adaptive.choose(operator, parts)
        return starts[-1] if found is None else starts[found.panes - 1]


def sums_of(some: Sequence[Prediction], *, as_soft: bool) -> Sums:
    labels = np.array([one.label for one in some], dtype=np.int64)
    if not as_soft:
        return moments.sums(len(LABELS), labels)
    rows = [one.row for one in some if one.row is not None]
    return moments.sums(len(LABELS), labels, np.array(rows).reshape(-1, len(LABELS)))


def span_of(found: dict[str, Any]) -> tuple[datetime, datetime]:
    return datetime.fromisoformat(found["from"]), datetime.fromisoformat(found["to"])


def column(found: dict[str, Any], name: str) -> list[float | None]:
    return [label[name] for label in found["labels"]]


def about(wanted: Floats) -> Any:
    return pytest.approx(wanted.tolist(), abs=1e-9)


@dataclass(slots=True)
class Clock:
    now: datetime = BEGIN

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock(client: TestClient) -> Iterator[Clock]:
    """What time it is for all of the API."""
    clock = Clock()
    app = client.app
    assert isinstance(app, FastAPI)
    app.dependency_overrides[deps.now] = clock
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(incoming, "now", clock)
        patch.setattr(predictions, "now", clock)
        patch.setattr(app.state.services.recorder, "_clock", clock)
        yield clock


_numbers = count(1)


@contextmanager
def story(
    client: TestClient, database: Database, clock: Clock, *, soft: bool = True
) -> Iterator[Story]:
    clock.now = BEGIN
    body, reference = labelled_sample(soft=soft)
    url = f"/v1/models/m{next(_numbers)}"
    model = {
        "labels": LABELS,
        "pane": "PT10S",
        "windows": WINDOWS,
        "allowed_lateness": "PT8H",
        # Detectors that are armed from the start, and predictions that come when they come.
        "alarm": {"overdispersion": 1.0, "no_data_after": None, "ingest_stopped_after": None},
    }
    client.put(url, json=model).raise_for_status()
    client.put(f"{url}/references/{VERSION}", json=body).raise_for_status()
    worker = Worker(database, "http://localhost")
    try:
        yield Story(client, worker, clock, url, analysis.basis(reference))
    finally:
        client.delete(url)


kinds: st.SearchStrategy[Kind] = st.sampled_from(("hard", "soft", "mixed"))
# From a little in the future, which clocks that differ explain, to more than what is allowed.
ages = st.one_of(st.integers(-240, 60), st.integers(0, 7200), st.integers(0, 32_000))
batches = st.builds(
    Batch,
    kind=kinds,
    size=st.integers(1, 120),
    age=ages.map(lambda seconds: seconds * SECOND),
    spread=st.sampled_from((0, 5, 60, 1800)).map(lambda seconds: seconds * SECOND),
    seed=st.integers(0, 99),
).filter(lambda one: one.age - one.spread > timedelta(minutes=-5))
steps = st.builds(
    Step,
    pause=st.sampled_from((2, 11, 601, 3600, 16_000)).map(lambda seconds: seconds * SECOND),
    batches=st.lists(batches, max_size=3),
    evaluate=st.booleans(),
)


@settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    # Every example is seconds of work: making a failing one smaller would take minutes.
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    soft=st.booleans(),
    played=st.lists(steps, min_size=2, max_size=6),
    cuts=st.lists(st.integers(0, 2880), max_size=4),
)
def test_every_window_result_equals_a_recomputation_from_the_raw_stream(
    client: TestClient,
    database: Database,
    clock: Clock,
    soft: bool,
    played: list[Step],
    cuts: list[int],
) -> None:
    with story(client, database, clock, soft=soft) as own:
        for step in played:
            own.play(step)
        own.settle()

        own.assert_history()
        own.assert_estimates()
        now = pane_start(clock.now, PANE)
        edges = [now - cut * PANE for cut in sorted({0, *cuts}, reverse=True)]
        own.assert_spans(*pairwise(edges))


@pytest.fixture
def own(client: TestClient, database: Database, clock: Clock) -> Iterator[Story]:
    with story(client, database, clock) as found:
        yield found


def hard(size: int, at: datetime, label: int = 0) -> list[Prediction]:
    return [Prediction(at, label, None)] * size


def n_of(own: Story, window: str) -> int:
    found: int = own.get("estimate", window=window)["n"]
    return found


def test_an_estimate_is_as_fresh_as_the_last_batch(own: Story) -> None:
    own.send(hard(60, own.clock.now))
    own.evaluate()
    own.send(hard(40, own.clock.now))

    sizes = {name: n_of(own, name) for name in NAMES}

    assert sizes == dict.fromkeys(NAMES, 100)


def test_the_estimate_of_a_fast_stream_is_what_the_worker_saw_in_the_last_two_seconds(
    own: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.send(hard(60, own.clock.now))
    own.evaluate()
    own.send(hard(40, own.clock.now))
    monkeypatch.setattr(Pace, "is_fast", lambda *_: True)

    monkeypatch.setattr(Answers, "get", lambda *_: None)

    own.clock.now += 2 * SECOND
    soon = n_of(own, NAMES[0])
    own.clock.now += SECOND

    assert (soon, n_of(own, NAMES[0])) == (60, 100)


def test_the_estimate_of_a_fast_stream_is_found_once_a_second(
    own: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.send(hard(60, own.clock.now))
    monkeypatch.setattr(Pace, "is_fast", lambda *_: True)
    first = own.get("estimate")
    own.send(hard(40, own.clock.now))

    again = own.get("estimate")
    other = own.get("estimate", window=NAMES[1])
    monkeypatch.setattr("app.api.pace.REMEMBERED_SECONDS", -1)

    assert again == first
    assert (other["n"], own.get("estimate")["n"]) == (100, 100)


def test_an_estimate_that_nothing_was_added_to_is_the_stored_one(own: Story) -> None:
    own.send(hard(60, own.clock.now))
    own.evaluate()
    evaluated_at = own.clock.now
    own.clock.now += 2 * SECOND

    found = own.get("estimate")

    assert datetime.fromisoformat(found["evaluated_at"]) == evaluated_at
    assert found == {**own.get("evaluations")["items"][0], "alarm": found["alarm"]}


def test_an_estimate_of_an_earlier_release_is_made_anew(own: Story) -> None:
    own.send(hard(60, own.clock.now))
    own.evaluate()
    # What it stored had nothing of the paper's, and labels that were merged.
    old = text("UPDATE evaluation SET result = (result - 'paper') || '{\"status\": [\"merged\"]}'")
    with own.worker.database.begin() as conn:
        conn.execute(old)
    own.clock.now += 2 * SECOND

    found, history = own.get("estimate"), own.get("evaluations")["items"]

    assert "merged" not in found["status"]
    assert found["bbse"] is not None
    assert all(one["status"] == ["merged"] for one in history)


def test_late_predictions_are_seen_through_a_rollup_that_lacks_them(
    own: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = own.clock.now
    own.send(hard(60, begin))
    own.clock.now += 8 * HOUR - SECOND
    own.send(hard(30, own.clock.now))
    own.evaluate()
    own.send(hard(10, begin, label=1))

    fresh = n_of(own, "9h")

    assert fresh == 100
    own.assert_estimates()
    # The control: a reader that does not ask for arrivals is given the old sums.
    monkeypatch.setattr(arrivals, "pending", lambda *_: frozenset())
    stale = own.get("estimate", **{"from": begin.isoformat(), "to": own.clock.now.isoformat()})
    assert stale["n"] == 90


def test_rollups_hold_late_predictions_once_a_worker_has_seen_them(own: Story) -> None:
    begin = own.clock.now
    own.send(hard(60, begin))
    own.clock.now += 8 * HOUR - SECOND
    own.evaluate()
    own.send(hard(10, begin, label=1))

    own.settle()

    assert n_of(own, "9h") == 70
    own.assert_estimates()
    own.assert_history()


def test_the_last_n_are_the_fewest_newest_panes_that_hold_them(own: Story) -> None:
    for seconds, size in ((50, 40), (40, 30), (20, 20), (10, 40)):
        own.send(hard(size, own.clock.now - seconds * SECOND))

    found = own.get("estimate", window="last-90")

    assert found["n"] == 90
    assert span_of(found)[0] == pane_start(own.clock.now - 40 * SECOND, PANE)


def test_a_window_that_was_changed_under_its_name_is_looked_at_anew(own: Story) -> None:
    for seconds in (40, 30, 20):
        own.send(hard(90, own.clock.now - seconds * SECOND))
    own.evaluate()
    body = own.client.get(own.url).json()
    (last,) = (window for window in body["windows"] if window["kind"] == "last")
    last["count"] = 200
    wanted = ("labels", "pane", "windows", "alarm", "allowed_lateness")
    own.clock.now += SECOND

    own.client.put(own.url, json={name: body[name] for name in wanted}).raise_for_status()

    assert n_of(own, "last-90") == 270
    # And the worker does not wait for the next pane with it.
    own.clock.now += SECOND
    own.evaluate()
    assert own.get("evaluations", window="last-90")["items"][0]["n"] == 270
