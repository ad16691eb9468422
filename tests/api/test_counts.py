"""Sums of panes that sources have added up themselves."""

import gzip
import json
import re
import threading
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from fastapi.testclient import TestClient

from app.api.app import create_app
from app.config import Settings
from app.ingest import counts as bodies
from app.ingest.recorder import Recorder
from app.metrics import REGISTRY
from app.storage.db import Database
from tests.factories import CONFUSION, LABELS, VERSION, register

URL = "/v1/models/fraud/counts"
MINUTE = timedelta(minutes=1)
SEED = 20261118
PAGE = (Path(__file__).parents[2] / "docs/counts.md").read_text()


def ago(minutes: int) -> str:
    """When the pane began that was over so many minutes ago."""
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    return f"{now - minutes * MINUTE:%Y-%m-%dT%H:%M:%SZ}"


START = ago(30)


def pane(start: str = START, **counts: int) -> dict[str, Any]:
    return {"start": start, "counts": counts}


def say(client: TestClient, sequence: int, *panes: Any, source: str = "edge-7", **more: Any) -> Any:
    body = {"source": source, "sequence": sequence, "panes": panes, **more}
    return client.post(URL, json=body)


def fates(answer: Any) -> dict[str, int]:
    """What became of the panes, by what became of any."""
    answer.raise_for_status()
    return {name: n for name, n in answer.json()["panes"].items() if n}


def items(client: TestClient, name: str = "fraud") -> list[Any]:
    query = {"from": ago(24 * 60), "limit": "1000"}
    found: list[Any] = client.get(f"/v1/models/{name}/panes", params=query).json()["items"]
    return found


def counted(client: TestClient) -> list[list[int]]:
    return [[one["count"] for one in item["counts"]] for item in items(client)]


@pytest.fixture(scope="module")
def soft_sums() -> Callable[..., Any]:
    """The function that the page gives."""
    (code,) = (
        one for one in re.findall(r"```python\n(.*?)```", PAGE, re.S) if "def soft_sums" in one
    )
    names: dict[str, Any] = {}
    exec(code, names)
    found: Callable[..., Any] = names["soft_sums"]
    return found


def example(soft_sums: Callable[..., Any], size: int = 40, seed: int = SEED) -> dict[str, Any]:
    """A pane in which every prediction has a softmax row."""
    rows = np.random.default_rng(seed).dirichlet(np.ones(3), size)
    soft = soft_sums(LABELS, rows)
    return {"start": START, "counts": soft["counts"], "soft": soft}


@pytest.fixture
def fraud(client: TestClient) -> TestClient:
    register(client)
    return client


def test_a_pane_is_counted_before_it_is_acknowledged(fraud: TestClient) -> None:
    answer = say(fraud, 1, pane(legit=5, fraud=2))

    assert answer.status_code == 202
    assert answer.json() == {
        "accepted": 7,
        "late": 0,
        "panes": {"stored": 1, "replaced": 0, "duplicate": 0, "stale": 0, "late": 0},
        "version": VERSION,
    }
    (item,) = items(fraud)
    assert (item["start"], item["version"], item["n"], item["soft"]) == (START, VERSION, 7, None)
    assert counted(fraud) == [[5, 2, 0]]


def test_the_example_of_the_page_is_understood(fraud: TestClient) -> None:
    (text,) = re.findall(r'```json\n(\{"source": "edge-7".*?)```', PAGE, re.S)
    body = json.loads(text)
    for one, minutes in zip(body["panes"], (11, 10), strict=True):
        one["start"] = ago(minutes)

    answer = fraud.post(URL, json=body)

    assert answer.json()["accepted"] == 1633
    assert counted(fraud) == [[812, 31, 0], [790, 0, 0]]


@pytest.mark.parametrize(("k", "size"), [(2, 1), (3, 400), (10, 300), (70, 120)])
def test_rows_and_their_sums_give_the_same_panes_to_the_last_digit(
    client: TestClient, soft_sums: Callable[..., Any], k: int, size: int
) -> None:
    rng = np.random.default_rng([SEED, k])
    labels = [f"label-{i}" for i in range(k)]
    for name in ("rows", "sums"):
        client.put(f"/v1/models/{name}", json={"labels": labels}).raise_for_status()
        client.put(
            f"/v1/models/{name}/references/v1",
            json={"confusion": (np.eye(k, dtype=int) * 50 + 1).tolist()},
        ).raise_for_status()
    starts = [ago(minutes) for minutes in (50, 33, 7)]
    soft = rng.dirichlet(np.full(k, 0.3), size)
    # Somebody else's label than the argmax now and then, and ties.
    named = np.where(rng.random(size) < 0.2, rng.integers(k, size=size), soft.argmax(axis=1))
    soft[0] = 1 / k
    at, hard, hard_at = (rng.integers(3, size=size), rng.integers(k, size=size), rng.integers(3))
    for body in (
        {
            "probabilities": soft.tolist(),
            "predicted": named.tolist(),
            "timestamps": [starts[i] for i in at],
        },
        {"predicted": hard.tolist(), "timestamp": starts[hard_at]},
    ):
        client.post("/v1/models/rows/predictions", json=body).raise_for_status()
    panes = []
    for i, start in enumerate(starts):
        own, chosen = named[at == i], soft[at == i]
        everything = np.bincount(np.concatenate([own, hard if i == hard_at else []]).astype(int))
        one = {"start": start, "counts": dict(zip(labels, everything.tolist(), strict=False))}
        if len(own):
            one["soft"] = soft_sums(labels, chosen, own)
        if everything.sum():
            panes.append(one)

    answer = client.post(
        "/v1/models/sums/counts", json={"source": "a", "sequence": 1, "panes": panes}
    )

    assert answer.json()["accepted"] == 2 * size
    assert items(client, "sums") == items(client, "rows")


def test_what_is_shown_can_be_sent(fraud: TestClient, soft_sums: Callable[..., Any]) -> None:
    say(fraud, 1, example(soft_sums), pane(ago(3), fraud=2))
    before = items(fraud)

    again = say(fraud, 1, *before)
    elsewhere = say(fraud, 1, *before, source="copy")

    assert fates(again) == {"duplicate": 2}
    assert fates(elsewhere) == {"stored": 2}
    assert [item["n"] for item in items(fraud)] == [80, 4]


def test_a_higher_sequence_replaces_exactly(
    fraud: TestClient, soft_sums: Callable[..., Any]
) -> None:
    say(fraud, 1, example(soft_sums, 50, seed=1))
    # Whatever subtracting would leave of the first in the last digits is not there.
    last = example(soft_sums, 7, seed=2)

    assert fates(say(fraud, 2, last)) == {"replaced": 1}

    (item,) = items(fraud)
    assert item["soft"] == last["soft"]
    assert item["n"] == 7


def test_a_pane_may_lose_its_softmax_part_and_all_of_it(
    fraud: TestClient, soft_sums: Callable[..., Any]
) -> None:
    say(fraud, 1, example(soft_sums))
    say(fraud, 2, pane(legit=3))
    (item,) = items(fraud)

    say(fraud, 3, pane())

    assert (item["n"], item["soft"]) == (3, None)
    assert items(fraud) == []
    assert fates(say(fraud, 2, pane(legit=3))) == {"stale": 1}
    assert fates(say(fraud, 3, pane())) == {"duplicate": 1}
    assert fates(say(fraud, 4, pane(legit=1))) == {"replaced": 1}


def test_a_repeat_changes_nothing(fraud: TestClient) -> None:
    say(fraud, 4, pane(legit=5))

    answer = say(fraud, 4, {"start": START, "counts": [{"label": "legit", "count": 5}]})

    assert (fates(answer), answer.json()["accepted"]) == ({"duplicate": 1}, 0)
    assert counted(fraud) == [[5, 0, 0]]


def test_what_is_older_than_what_is_known_is_said_to_be_stale(fraud: TestClient) -> None:
    say(fraud, 4, pane(legit=5))

    assert fates(say(fraud, 3, pane(legit=9))) == {"stale": 1}

    assert counted(fraud) == [[5, 0, 0]]


def test_the_same_sequence_with_other_content_is_refused_with_all_else(fraud: TestClient) -> None:
    say(fraud, 4, pane(legit=5))

    answer = say(fraud, 4, pane(ago(29), legit=1), pane(legit=6), source="edge-7")

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "#/panes/1/sequence"
    assert counted(fraud) == [[5, 0, 0]]


def test_predictions_and_several_sources_add_up(fraud: TestClient) -> None:
    batch = {"predicted": ["abuse"] * 3, "timestamp": START}
    fraud.post("/v1/models/fraud/predictions", json=batch)
    say(fraud, 1, pane(legit=5), source="a")
    say(fraud, 1, pane(fraud=4), source="b")
    say(fraud, 2, pane(legit=2), source="a")

    fraud.post("/v1/models/fraud/predictions", json=batch)

    assert counted(fraud) == [[2, 4, 6]]


def test_versions_are_replaced_apart(fraud: TestClient) -> None:
    fraud.put(
        "/v1/models/fraud/references/v2", json={"confusion": CONFUSION, "activate": False}
    ).raise_for_status()
    own = {**pane(legit=9), "version": "v2", "sequence": 7}

    first = say(fraud, 1, pane(legit=1), own)
    say(fraud, 2, pane(legit=2), version=VERSION)

    assert (fates(first), first.json()["version"]) == ({"stored": 2}, VERSION)
    assert [(one["version"], one["n"]) for one in items(fraud)] == [(VERSION, 2), ("v2", 9)]


def test_what_is_too_late_is_only_counted_as_late(fraud: TestClient) -> None:
    long_ago = ago(2 * 24 * 60)

    answer = say(fraud, 1, pane(long_ago, legit=3), pane(legit=1))

    assert (answer.json()["accepted"], answer.json()["late"]) == (1, 3)
    assert fates(answer) == {"late": 1, "stored": 1}
    assert counted(fraud) == [[1, 0, 0]]


def test_a_repeat_of_what_was_in_time_is_never_late(fraud: TestClient) -> None:
    say(fraud, 2, pane(legit=3))
    shorter = {"labels": LABELS, "allowed_lateness": "PT1M"}
    fraud.put("/v1/models/fraud", json=shorter).raise_for_status()

    assert fates(say(fraud, 2, pane(legit=3))) == {"duplicate": 1}
    assert fates(say(fraud, 1, pane(legit=4))) == {"stale": 1}
    assert fates(say(fraud, 3, pane(legit=4))) == {"late": 1}
    assert counted(fraud) == [[3, 0, 0]]


def test_compressed_bodies_are_understood_and_bounded(fraud: TestClient) -> None:
    body = json.dumps({"source": "a", "sequence": 1, "panes": [pane(legit=1)]}).encode()
    headers = {"content-type": "application/json", "content-encoding": "gzip"}

    good = fraud.post(URL, content=gzip.compress(body), headers=headers)
    bomb = fraud.post(URL, content=gzip.compress(b" " * 40_000_000), headers=headers)
    other = fraud.post(URL, content=body, headers={"content-type": "text/csv"})

    assert (good.status_code, bomb.status_code, other.status_code) == (202, 413, 415)


def test_more_sources_than_a_model_may_have_are_refused(database: Database) -> None:
    settings = Settings(max_sources=2)
    with TestClient(create_app(settings, database), base_url="http://localhost") as client:
        register(client)
        for source in ("a", "b"):
            say(client, 1, pane(legit=1), source=source).raise_for_status()

        answer = say(client, 1, pane(legit=1), source="c")
        known = say(client, 2, pane(legit=2), source="b")

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "#/source"
    assert "SHIFTWATCH_MAX_SOURCES" in answer.json()["detail"]
    assert fates(known) == {"replaced": 1}


def test_a_full_queue_is_told_to_come_back(
    fraud: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recorder, "_is_full", lambda *_: True)

    answer = say(fraud, 1, pane(legit=1))

    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert counted(fraud) == []


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def test_metrics_count_what_panes_have_got_more(fraud: TestClient) -> None:
    watched = {
        "ingested": ("shiftwatch_predictions_ingested_total", {"model": "fraud"}),
        "accepted late": ("shiftwatch_predictions_late_total", {"outcome": "accepted"}),
        "dropped": ("shiftwatch_predictions_late_total", {"outcome": "dropped"}),
        "duplicate": ("shiftwatch_predictions_duplicate_total", {}),
        "refused": (
            "shiftwatch_predictions_rejected_total",
            {"model": "fraud", "reason": "refused"},
        ),
        "bodies": ("shiftwatch_batches_refused_total", {"reason": "invalid-input"}),
    }
    before = {what: sample(name, **labels) for what, (name, labels) in watched.items()}

    for sequence, n in ((1, 10), (2, 14), (3, 5), (3, 5), (3, 6)):
        say(fraud, sequence, pane(legit=n))
    say(fraud, 1, pane(ago(2 * 24 * 60), legit=3))

    after = {what: sample(name, **labels) for what, (name, labels) in watched.items()}
    assert {what: after[what] - before[what] for what in watched} == {
        "ingested": 14,
        "accepted late": 14,
        "dropped": 3,
        "duplicate": 5,
        "refused": 6,
        "bodies": 1,
    }


def test_an_unknown_model_is_not_found(client: TestClient) -> None:
    assert say(client, 1, pane(legit=1)).status_code == 404


def test_a_model_without_a_reference_is_a_conflict(client: TestClient) -> None:
    client.put("/v1/models/fraud", json={"labels": LABELS}).raise_for_status()

    assert say(client, 1, pane(legit=1)).status_code == 409


Change = Callable[[dict[str, Any]], Any]

# What is done to a good body, and where it is then wrong. `pane` has softmax sums.
BAD: list[tuple[str, Change]] = [
    ("#/source", lambda body: body.update(source="a b")),
    ("#/source", lambda body: body.update(source="")),
    ("#/source", lambda body: body.update(source=7)),
    ("#/colour", lambda body: body.update(colour="red")),
    ("#/version", lambda body: body.update(version="v9")),
    ("#/panes", lambda body: body.update(panes=[])),
    ("#/panes", lambda body: body.update(panes=[pane(legit=1)] * (bodies.MOST_PANES + 1))),
    ("#/sequence", lambda body: body.update(sequence=-1)),
    ("#/sequence", lambda body: body.update(sequence=2**63)),
    ("#/panes/0/sequence", lambda body: body.pop("sequence")),
    ("#/panes/1/start", lambda body: body["panes"].append(pane(legit=1))),
]
BAD_PANES: list[tuple[str, Change]] = [
    ("#/panes/0/start", lambda pane: pane.update(start="2026-11-17T10:00:30Z")),
    ("#/panes/0/start", lambda pane: pane.update(start="2026-11-17T10:00:00")),
    ("#/panes/0/start", lambda pane: pane.update(start="0001-01-01T00:00:30Z")),
    ("#/panes/0/start", lambda pane: pane.update(start=ago(-10))),
    ("#/panes/0/length", lambda pane: pane.update(length="PT1H")),
    ("#/panes/0/version", lambda pane: pane.update(version="v9")),
    ("#/panes/0/n", lambda pane: pane.update(n=1)),
    ("#/panes/0/counts", lambda pane: pane.update(counts={"legit": -1})),
    ("#/panes/0/counts", lambda pane: pane.update(counts={"legit": 1.5})),
    ("#/panes/0/counts", lambda pane: pane.update(counts={"legit": True})),
    ("#/panes/0/counts", lambda pane: pane.update(counts={"legit": 10**10 + 1})),
    ("#/panes/0/counts", lambda pane: pane.update(counts={"legit": 10**10, "fraud": 1})),
    ("#/panes/0/counts/0", lambda pane: pane.update(counts=[3, 4, 5])),
    ("#/panes/0/counts/legit~1not", lambda pane: pane.update(counts={"legit/not": 1})),
    ("#/panes/0/counts/3/label", lambda pane: pane["counts"].append(pane["counts"][0])),
    ("#/panes/0/soft/counts", lambda pane: pane.update(counts={"legit": 1})),
    ("#/panes/0/soft/n", lambda pane: pane["soft"].update(n=1)),
    ("#/panes/0/soft/outer", lambda pane: pane["soft"]["outer"].pop()),
    ("#/panes/0/soft/outer", lambda pane: pane["soft"]["outer"].reverse()),
    ("#/panes/0/soft/labels", lambda pane: pane["soft"]["labels"].pop()),
    ("#/panes/0/soft/labels", lambda pane: pane["soft"]["labels"][0].update(probability=1.0)),
    ("#/panes/0/soft/labels/0/cells", lambda pane: pane["soft"]["labels"][0]["cells"].pop()),
    ("#/panes/0/soft/labels/1/label", lambda pane: pane["soft"]["labels"][1].update(label="x")),
    ("#/panes/0/soft/codes", lambda pane: pane["soft"]["codes"].pop()),
    ("#/panes/0/soft/codes/0/bin", lambda pane: pane["soft"]["codes"][0].update(bin=4)),
    ("#/panes/0/soft/codes/0/first", lambda pane: pane["soft"]["codes"][0].update(first="x")),
    ("#/panes/0/soft/codes/0/second", lambda pane: pane["soft"]["codes"][0].update(second="legit")),
    (
        "#/panes/0/soft/codes/1",
        lambda pane: pane["soft"].update(codes=pane["soft"]["codes"][:1] * 2),
    ),
    ("#/panes/0/soft/score", lambda pane: pane["soft"].update(score=1.0)),
    ("#/panes/0/soft/score_squared", lambda pane: pane["soft"].update(score_squared=1.0)),
]


@pytest.mark.parametrize(("pointer", "spoil"), BAD)
def test_a_bad_request_is_refused_with_the_place(
    fraud: TestClient, pointer: str, spoil: Change
) -> None:
    body = {"source": "edge-7", "sequence": 1, "panes": [pane(legit=1)]}
    spoil(body)

    answer = fraud.post(URL, json=body)

    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)
    assert counted(fraud) == []


@pytest.mark.parametrize(("pointer", "spoil"), BAD_PANES)
def test_a_bad_pane_refuses_everything(
    fraud: TestClient, soft_sums: Callable[..., Any], pointer: str, spoil: Change
) -> None:
    bad = example(soft_sums)
    spoil(bad)

    answer = say(fraud, 1, bad, pane(ago(29), legit=1))

    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)
    assert answer.headers["content-type"] == "application/problem+json"
    assert counted(fraud) == []


@pytest.mark.parametrize("text", ["{", "[]", '{"source": NaN}'])
def test_what_is_no_such_body_is_refused(fraud: TestClient, text: str) -> None:
    answer = fraud.post(URL, content=text, headers={"content-type": "application/json"})

    assert answer.status_code in (400, 422)


def test_a_model_that_changes_under_a_request_is_looked_at_again(
    fraud: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, calls = bodies.contributions, []

    def slow(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 1:
            register(fraud, windows=[{"name": "2h", "kind": "sliding", "length": "PT2H"}])
        return check(*given)

    monkeypatch.setattr(bodies, "contributions", slow)

    assert fates(say(fraud, 1, pane(legit=1))) == {"stored": 1}
    assert len(calls) == 2


def test_replicas_agree_on_the_highest_sequence(database: Database) -> None:
    last = 12
    starts = [ago(minutes) for minutes in (9, 8)]
    errors: list[Any] = []

    def send(client: TestClient, sequence: int) -> None:
        panes = [pane(start, legit=10 * sequence % 7, fraud=sequence) for start in starts]
        answer = say(client, sequence, *panes)
        if answer.status_code != 202 or sum(fates(answer).values()) != len(starts):
            errors.append(answer.json())

    def live(client: TestClient, seed: int) -> None:
        for sequence in np.random.default_rng([SEED, seed]).permutation(last + 1).tolist():
            send(client, sequence)

    with ExitStack() as stack:
        replicas = [
            stack.enter_context(TestClient(create_app(Settings(), database), "http://localhost"))
            for _ in range(3)
        ]
        register(replicas[0])
        # One after the other: with its first request FastAPI still silences warnings, which is not
        # made for threads.
        for client in replicas:
            send(client, 0)
        threads = [
            threading.Thread(target=live, args=one) for one in zip(replicas, range(3), strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert errors == []
        assert counted(replicas[0]) == [[10 * last % 7, last, 0]] * 2


def test_the_query_of_the_page_for_duckdb_says_what_the_same_predictions_say(
    client: TestClient,
) -> None:
    begin = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=3)
    rng = np.random.default_rng(SEED)
    for name in ("rows", "sums"):
        register(client, name)
    # Of the hour before and of the hour after, too, which are not asked for.
    times = [begin + timedelta(seconds=int(at)) for at in rng.integers(-600, 4_200, size=500)]
    labels = [LABELS[one] for one in rng.integers(len(LABELS), size=500)]
    own = [i for i, at in enumerate(times) if begin <= at < begin + timedelta(hours=1)]
    client.post(
        "/v1/models/rows/predictions",
        json={
            "predicted": [labels[i] for i in own],
            "timestamps": [times[i].isoformat() for i in own],
        },
    ).raise_for_status()
    table = duckdb.connect()
    table.execute("CREATE TABLE predictions (version TEXT, predicted_at TIMESTAMP, predicted TEXT)")
    table.executemany(
        "INSERT INTO predictions VALUES (?, ?, ?)",
        [(VERSION, at.replace(tzinfo=None), one) for at, one in zip(times, labels, strict=True)],
    )
    (query,) = re.findall(r"```sql\n(.*?)```", PAGE, re.S)
    for hour, ours in (("10", begin), ("11", begin + timedelta(hours=1))):
        query = query.replace(f"2026-11-17 {hour}:00:00", f"{ours:%Y-%m-%d %H:%M:%S}")

    ((body,),) = table.execute(query).fetchall()
    client.post("/v1/models/sums/counts", json=json.loads(body)).raise_for_status()

    assert items(client, "sums") == items(client, "rows")
    assert len(items(client, "sums")) > 50
