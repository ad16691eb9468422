"""One test for each case that breaks other monitors, in the words of their bug reports."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from scipy.stats import chisquare
from sqlalchemy import insert, select

from app.domain.alarm import AlarmKind, AlarmState, Severity
from app.domain.evaluation import Evaluation, LabelColumns, Result
from app.domain.model import AlarmPolicy
from app.domain.notice import Event, Shape
from app.domain.verdict import Attention, Verdict
from app.domain.window import Window, WindowKind
from app.evaluate.due import Worker
from app.stats import bbsd
from app.stats.moments import Sums
from app.stats.reference import from_confusion
from app.storage import deliveries, detectors, evaluations, partitions, webhooks
from app.storage.db import Connection, Database
from app.storage.deliveries import Delivered, RetryAt
from app.storage.tables import alarm, detector, model, pane
from tests.evaluate.simulation import BEGIN, MINUTE, Life, life, quiet
from tests.factories import VERSION, register

URL = "/v1/models/fraud"
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
MANY = 5_200

REFERENCE = from_confusion(np.array([[900, 60], [100, 940]]))
SHIFTED = np.array([0.25, 0.75])
HOURLY = Window("1h", WindowKind.SLIDING, length=HOUR)
ARMED = AlarmPolicy(overdispersion=1.0, no_data_after=None, ingest_stopped_after=None)


@pytest.fixture
def fraud(client: TestClient) -> TestClient:
    register(client)
    return client


def send(client: TestClient, counts: dict[str, int], **more: Any) -> None:
    predicted = [label for label, count in counts.items() for _ in range(count)]
    body = {"predicted": predicted, **more}
    client.post(f"{URL}/predictions", json=body).raise_for_status()


def estimate(client: TestClient, url: str = URL) -> Any:
    """What the estimate says; JSON as strict as it should be."""
    answer = client.get(f"{url}/estimate")
    assert answer.status_code == 200, answer.text
    return json.loads(answer.content, parse_constant=lambda name: pytest.fail(f"it says {name}"))


def assert_sane(found: Any) -> None:
    """Shares are shares, in order with their intervals, and p-values are probabilities."""
    for label in found["labels"]:
        if label["q_lower"] is not None:
            assert 0.0 <= label["q_lower"] <= label["q"] <= label["q_upper"] <= 1.0
            assert 0.0 <= label["w_lower"] <= label["w"] <= label["w_upper"]
    for test in found["tests"]:
        assert 0.0 <= test["p_value"] <= 1.0
        assert math.isfinite(test["statistic"])


def evaluate(database: Database, later: timedelta = 2 * SECOND) -> None:
    worker = Worker(database, "http://localhost")
    while worker.evaluate_next(datetime.now(UTC) + later):
        pass


def watched(database: Database, own: Life) -> Any:
    with database.begin() as conn:
        state = select(detector.c.state).where(detector.c.model_id == own.model.id)
        return conn.execute(state).scalar_one()


def events(client: TestClient, kind: str = "shift") -> list[str]:
    """All that ever happened to alarms, the first thing first."""
    found = client.get("/v1/alarms", params={"kind": kind}).json()["items"]
    history = [client.get(f"/v1/alarms/{one['id']}").json()["history"] for one in found[::-1]]
    return [change["event"] for changes in history for change in changes]


# What comes in.


def test_unseen_class_at_serving_time(fraud: TestClient) -> None:
    send(fraud, {"legit": 60})
    answer = fraud.post(f"{URL}/predictions", json={"predicted": ["legit", "phishing"]})

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["detail"] == "model 'fraud' has no label 'phishing'"
    assert estimate(fraud)["n"] == 60


def test_a_class_that_the_reference_has_never_seen_predicted(client: TestClient) -> None:
    client.put(URL, json={"labels": ["a", "b", "c"]})
    matrix = {"confusion": [[500, 30, 0], [40, 430, 0], [0, 0, 0]]}
    client.put(f"{URL}/references/v1", json=matrix).raise_for_status()
    send(client, {"a": 100, "b": 90, "c": 10})

    found = estimate(client)

    assert "unseen_prediction" in found["status"]
    assert found["labels"][2]["q"] is None
    assert_sane(found)


def test_nan_or_empty_labels_becoming_classes(client: TestClient) -> None:
    models = ['["a", ""]', '["a", null]', '["a", NaN]', '["a", " "]', '["a", "a"]']
    batches = ['[""]', "[null]", "[NaN]", '["nan"]', '["None"]', "[0.0]", "[true]"]
    headers = {"content-type": "application/json"}

    refused = [
        client.put("/v1/models/bad", content=f'{{"labels": {labels}}}', headers=headers)
        for labels in models
    ]
    register(client)
    refused += [
        client.post(f"{URL}/predictions", content=f'{{"predicted": {some}}}', headers=headers)
        for some in batches
    ]

    assert {answer.status_code for answer in refused} <= {400, 422}
    assert client.get("/v1/models/bad").status_code == 404
    assert estimate(client)["n"] == 0


def test_string_labels_in_another_order_than_the_matrix(client: TestClient) -> None:
    actual = ["cat"] * 90 + ["ant"] * 60 + ["bee"] * 50
    predicted = ["cat"] * 80 + ["ant"] * 65 + ["bee"] * 55
    found = {}
    for name, labels in (("one", ["cat", "ant", "bee"]), ("two", ["bee", "cat", "ant"])):
        url = f"/v1/models/{name}"
        client.put(url, json={"labels": labels}).raise_for_status()
        body = {"predicted": predicted, "actual": actual}
        client.put(f"{url}/references/v1", json=body).raise_for_status()
        stream = ["bee"] * 120 + ["cat"] * 60 + ["ant"] * 20
        client.post(f"{url}/predictions", json={"predicted": stream}).raise_for_status()

        found[name] = {one["label"]: one for one in estimate(client, url)["labels"]}

    assert found["one"]["bee"]["predicted"] == 0.6
    for label in ("ant", "bee", "cat"):
        for column in ("p", "predicted", "q", "q_lower", "q_upper"):
            assert found["one"][label][column] == pytest.approx(found["two"][label][column])


def test_softmax_rows_that_sum_to_0_999_or_contain_a_tiny_negative(fraud: TestClient) -> None:
    rows = [[0.9, 0.05, 0.049], [0.9, 0.1 + 1e-9, -1e-9], [0.333, 0.333, 0.333]]
    good = fraud.post(f"{URL}/predictions", json={"probabilities": rows})
    bad = fraud.post(f"{URL}/predictions", json={"probabilities": [[0.9, 0.05, 0.04]]})

    (found,) = fraud.get(f"{URL}/panes").json()["items"]

    assert (good.status_code, bad.status_code) == (202, 422)
    sums = [label["probability"] for label in found["soft"]["labels"]]
    assert sum(sums) == pytest.approx(3.0, abs=1e-12)
    assert min(sums) >= 0.0


def test_double_upload(fraud: TestClient, database: Database) -> None:
    body = {"predicted": ["legit"] * 55 + ["fraud"] * 5}
    for _ in range(2):
        headers = {"Idempotency-Key": "batch-1"}
        fraud.post(f"{URL}/predictions", json=body, headers=headers).raise_for_status()
        evaluate(database)

    found = estimate(fraud)

    assert found["n"] == 60
    with database.begin() as conn:
        waiting = conn.execute(select(detector.c.state["waiting"])).scalar_one()
    assert sum(sum(part["counts"]) for part in waiting) == 60


def test_clock_skew_and_future_timestamps(fraud: TestClient, database: Database) -> None:
    now = datetime.now(UTC)
    send(fraud, {"legit": 60}, timestamp=(now + timedelta(minutes=4)).isoformat())
    too_far = fraud.post(
        f"{URL}/predictions",
        json={"predicted": ["legit"], "timestamp": (now + timedelta(minutes=6)).isoformat()},
    )
    send(fraud, {"legit": 50})
    evaluate(database)
    before = estimate(fraud)["n"]

    # A worker whose clock is behind does no harm, and one that is ahead sees the future arrive.
    evaluate(database, -30 * SECOND)
    evaluate(database, timedelta(minutes=5))

    assert too_far.status_code == 422
    newest, *_ = fraud.get(f"{URL}/evaluations").json()["items"]
    assert (before, newest["n"]) == (50, 110)


# What a window says.


def test_single_class_window(fraud: TestClient) -> None:
    send(fraud, {"legit": 200})

    found = estimate(fraud)

    assert_sane(found)
    assert found["labels"][0]["predicted"] == 1.0
    assert found["labels"][0]["q"] > 0.9


def test_single_class_window_that_chance_explains(fraud: TestClient) -> None:
    # Of 300 legit ones all are called so with probability (9000 / 9100) ** 300 = 0.036.
    send(fraud, {"legit": 300})

    found = estimate(fraud)

    assert found["verdict"] != "not_label_shift"


def test_window_with_one_prediction(fraud: TestClient) -> None:
    send(fraud, {"abuse": 1})

    found = estimate(fraud)

    assert found["verdict"] == "insufficient_data"
    assert_sane(found)


@pytest.mark.parametrize(
    ("matrix", "counts"),
    [
        ([[500, 30, 9], [40, 430, 6], [0, 0, 0]], {"a": 60, "b": 40, "c": 5}),
        ([[500, 30, 9], [40, 430, 6], [5, 6, 99]], {"a": 60, "b": 40}),
    ],
    ids=["in the reference", "in the window"],
)
def test_a_class_missing_on_one_side(
    client: TestClient, matrix: list[list[int]], counts: dict[str, int]
) -> None:
    client.put(URL, json={"labels": ["a", "b", "c"]})
    client.put(f"{URL}/references/v1", json={"confusion": matrix}).raise_for_status()
    send(client, counts)

    found = estimate(client)

    assert {test["test"] for test in found["tests"]} == {"chi2", "ks"}
    assert_sane(found)


def test_nan_p_value(client: TestClient) -> None:
    # Nothing but one label on both sides: a table with one row, and zero degrees of freedom.
    client.put(URL, json={"labels": ["a", "b"]})
    matrix = {"confusion": [[90, 10], [0, 0]], "activate": "force"}
    client.put(f"{URL}/references/v1", json=matrix).raise_for_status()
    send(client, {"a": 80})

    found = estimate(client)

    assert {test["p_value"] for test in found["tests"]} == {1.0}
    assert found["verdict"] == "no_shift"
    assert_sane(found)


def test_interval_below_0(fraud: TestClient) -> None:
    send(fraud, {"legit": 94, "fraud": 6})

    found = estimate(fraud)

    abuse = found["labels"][2]
    assert abuse["q_raw"] < 0.0
    assert abuse["q_lower"] == 0.0 < abuse["q"] < 0.01
    assert_sane(found)


def test_leftover_tiny_window(database: Database, client: TestClient) -> None:
    window = Window("10m", WindowKind.TUMBLING, length=10 * MINUTE)
    own = life(database, REFERENCE, windows=(window,), alarm=ARMED)
    for counts in (*quiet(REFERENCE, 20, 10, np.random.default_rng(3)), np.array([0, 3])):
        own.live([counts])

    found = client.get("/v1/models/m/evaluations").json()["items"]

    assert [(one["n"], one["verdict"]) for one in found] == [
        (3, "insufficient_data"),
        (200, "no_shift"),
    ]
    assert events(client) == []


@pytest.mark.parametrize(
    ("moved", "verdict"), [(0.01, "no_shift"), (0.1, "undetermined")], ids=["small", "large"]
)
def test_verdict_that_depends_on_data_size_alone(
    database: Database, client: TestClient, moved: float, verdict: str
) -> None:
    reference = from_confusion(np.array([[900_000, 60_000], [100_000, 940_000]]))
    own = life(database, reference, windows=(HOURLY,))
    mix = np.array([0.48 - moved, 0.52 + moved])

    own.live(np.rint([1e6 * mix]).astype(np.int64))

    (found,) = client.get("/v1/models/m/evaluations").json()["items"]
    assert found["tests"][0]["p_value"] < 1e-9
    assert found["verdict"] == verdict


def test_goodness_of_fit_instead_of_homogeneity() -> None:
    rng = np.random.default_rng(20261118)
    population, size = np.array([0.6, 0.3, 0.1]), 400
    references = rng.multinomial(200, population, size=size)
    windows = rng.multinomial(20_000, population, size=size)

    pairs = list(zip(references, windows, strict=True))
    ours = [bbsd.chi_square(old, new).p_value for old, new in pairs]
    theirs = [chisquare(new, 20_000 * old / 200).pvalue for old, new in pairs]

    assert np.mean(np.array(ours) < 0.05) < 0.08
    # The control: to take a small reference for the truth is to raise an alarm nearly always.
    assert np.mean(np.array(theirs) < 0.05) > 0.8


# What is remembered.


def live_in_parts(own: Life, counts: Any, parts: int, *, looks: bool) -> None:
    """A pane that comes as batches of the same size, with a look after each or at its end."""
    start = own.now
    for _ in range(parts):
        own.now += 2 * SECOND
        own.count([(start, Sums(counts // parts))])
        if looks:
            own.evaluate()
    own.now = start + MINUTE
    own.evaluate()


def test_detector_that_ignores_its_accumulated_batch(
    database: Database, client: TestClient
) -> None:
    lives = [life(database, REFERENCE, name, alarm=ARMED) for name in ("whole", "parts", "looks")]
    whole, parts, looks = lives
    before, after = np.array([240, 260]), np.array([190, 310])
    for counts in [before] * 3 + [after] * 4:
        whole.live([counts])
        live_in_parts(parts, counts, 10, looks=False)
        live_in_parts(looks, counts, 10, looks=True)

    fired = {one["model"]: one for one in client.get("/v1/alarms").json()["items"]}

    assert watched(database, parts) == watched(database, whole)
    assert {one["onset"] for one in fired.values()} == {"2026-11-01T00:03:00Z"}
    assert set(fired) == {"whole", "parts", "looks"}


def test_state_lost_or_reset_to_zero_on_restart(database: Database, client: TestClient) -> None:
    rng = np.random.default_rng(8)
    calm, shifted = quiet(REFERENCE, 20, 40, rng), rng.multinomial(20, SHIFTED, size=20)
    policy = replace(ARMED, overdispersion=None, calibration_panes=20)
    steady, restarted = (life(database, REFERENCE, name, alarm=policy) for name in ("a", "b"))

    for counts in (*calm, *shifted):
        steady.live([counts])
        restarted.worker = Worker(database, "http://localhost")
        restarted.live([counts])

    assert watched(database, steady) == watched(database, restarted)
    one, other = client.get("/v1/alarms").json()["items"]
    assert (one["state"], one["model"], other["model"]) == ("firing", "b", "a")
    assert (one["fired_at"], one["onset"]) == (other["fired_at"], other["onset"])


def test_memory_that_grows_with_history(database: Database) -> None:
    rng = np.random.default_rng(4)
    policy = replace(ARMED, overdispersion=None, calibration_panes=50)
    own = life(database, REFERENCE, alarm=policy)
    sizes = []
    for _ in range(4):
        own.live(quiet(REFERENCE, 20, 500, rng))
        sizes.append(len(json.dumps(watched(database, own))))

    first, *_, last = sizes

    assert watched(database, own)["waiting"] == []
    assert last < 1.05 * first


def test_gauges_of_dead_models_still_exported(database: Database, client: TestClient) -> None:
    own = life(database, REFERENCE, "dead", alarm=ARMED)
    own.live(np.array([[0, 60]] * 5))
    (firing,) = client.get("/v1/alarms").json()["items"]

    client.delete("/v1/models/dead").raise_for_status()
    own.now += HOUR
    own.evaluate()

    for path in ("", "/estimate", "/evaluations", "/panes"):
        assert client.get(f"/v1/models/dead{path}").status_code == 404
    assert client.get("/v1/alarms").json()["items"] == []
    assert client.get(f"/v1/alarms/{firing['id']}").status_code == 404
    with database.begin() as conn:
        assert detectors.seen(conn, own.model.id) == {}


def test_a_model_of_the_same_name_begins_anew(database: Database, client: TestClient) -> None:
    register(client)
    send(client, {"legit": 60})
    evaluate(database)
    client.delete(URL).raise_for_status()

    register(client)

    assert estimate(client)["n"] == 0
    assert client.get(f"{URL}/evaluations").json()["items"] == []


# What is listed.


def pages(client: TestClient, path: str, **query: str) -> Iterator[Any]:
    cursor: dict[str, str] = {}
    while True:
        page = client.get(path, params={"limit": "1000", **query, **cursor}).json()
        yield from page["items"]
        if page["next"] is None:
            return
        cursor = {"cursor": page["next"]}


@pytest.fixture
def crowded(client: TestClient, database: Database) -> TestClient:
    """A model with more panes, evaluations and alarms than fit on any page."""
    register(client, windows=[{"name": "1h", "kind": "sliding", "length": "PT1H"}])
    with database.begin() as conn:
        model_id = conn.execute(select(model.c.id)).scalar_one()
        times = [BEGIN + minute * MINUTE for minute in range(MANY)]
        for table in ("pane", "evaluation"):
            partitions.ensure(conn, partitions.covering(table, times))
        _crowd(conn, model_id, times)
    return client


def _crowd(conn: Connection, model_id: int, times: list[datetime]) -> None:
    own = {"model_id": model_id, "version": VERSION}
    rows = {"kind": "hard", "shard": 0, "counts": np.array([1, 0, 0]), "updated_at": BEGIN}
    conn.execute(insert(pane), [{**own, **rows, "start": at} for at in times])
    labels = LabelColumns(p=(0.9, 0.06, 0.04))
    nothing = Result(0, Verdict.NO_DATA, Attention.QUIET, (), "bbse-hard", labels)
    evaluations.put(
        conn,
        model_id,
        [Evaluation(VERSION, "1h", at - HOUR, at + MINUTE, at, nothing, slot=at) for at in times],
    )
    over = {
        "kind": AlarmKind.SHIFT,
        "state": AlarmState.RESOLVED,
        "severity": Severity.WARNING,
        "reason": "",
        "evidence": {},
    }
    conn.execute(insert(alarm), [{**own, **over, "since": at} for at in times])


def test_pages_that_die_at_5000_items(crowded: TestClient) -> None:
    span = {"from": "2026-10-01T00:00:00Z", "to": "2026-12-01T00:00:00Z"}
    found = {
        "panes": [one["start"] for one in pages(crowded, f"{URL}/panes", **span)],
        "evaluations": [one["to"] for one in pages(crowded, f"{URL}/evaluations", **span)],
        "alarms": [one["id"] for one in pages(crowded, "/v1/alarms", model="fraud")],
    }

    for name, places in found.items():
        assert len(set(places)) == len(places) == MANY, name
        assert places == sorted(places, reverse=name != "panes")


# What people are told.


def test_alarm_that_flaps(database: Database, client: TestClient) -> None:
    rng = np.random.default_rng(11)
    window = Window("20m", WindowKind.SLIDING, length=20 * MINUTE)
    large = from_confusion(10 * REFERENCE.counts)
    own = life(database, large, windows=(window,), alarm=replace(ARMED, min_effect=0.03))
    # As large as what just matters: one look finds more than that, and the next one less.
    shifted = rng.multinomial(100, [0.48 - 0.025, 0.52 + 0.025], size=600)
    for counts in np.split(np.vstack([shifted, quiet(large, 100, 400, rng)]), 100):
        own.live(counts)

    page = client.get("/v1/models/m/evaluations?limit=100").json()["items"]

    sizes = [one["effect"]["total_variation"] for one in page[::-1]]
    crossings = sum((one < 0.03) != (other < 0.03) for one, other in pairwise(sizes[:60]))
    assert crossings >= 10
    told = [event for event in events(client) if event in ("alarm.firing", "alarm.resolved")]
    assert told == ["alarm.firing", "alarm.resolved"]


def test_resolved_notice_overtaking_the_firing_one(database: Database) -> None:
    with database.begin() as conn:
        webhooks.create(conn, "https://receiver.example", tuple(Event), Shape.STANDARD, BEGIN)
    rng = np.random.default_rng(5)
    own = life(database, REFERENCE, windows=(HOURLY,), alarm=replace(ARMED, clear_panes=5))
    own.live(quiet(REFERENCE, 50, 60, rng))
    own.live(rng.multinomial(50, SHIFTED, size=10))
    own.live(quiet(REFERENCE, 50, 120, rng))
    told: list[str] = []
    now, lease = own.now + HOUR, timedelta(minutes=1)

    with database.begin() as conn:
        first = deliveries.claim(conn, now, lease)
        assert first is not None
        # The receiver is away: nothing may be told of this alarm until it was told that it began.
        deliveries.settle(conn, first, RetryAt(now + HOUR, "HTTP 503"), now)
        overtaking = deliveries.claim(conn, now, lease)
        while claimed := deliveries.claim(conn, now + 2 * HOUR, lease):
            told.append(claimed.event)
            deliveries.settle(conn, claimed, Delivered(200), now + 2 * HOUR)

    assert overtaking is None
    assert told[0] == "alarm.firing"
    assert told[-1] == "alarm.resolved"
    assert told.count("alarm.firing") == told.count("alarm.resolved") == 1
