"""Late predictions: which of the past they change, and that none is forgotten."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from app.domain.model import AlarmPolicy
from app.domain.window import Window, WindowKind
from app.evaluate import due
from app.evaluate.due import Worker
from app.ingest.record import Submission, needed_partitions, record
from app.ingest.reduce import Reduced
from app.stats.moments import Sums
from app.stats.reference import from_confusion
from app.storage import arrivals, detectors, evaluations, partitions
from app.storage.db import Database
from app.storage.panes import PaneKey
from tests.evaluate.simulation import BEGIN, MINUTE, Life, life
from tests.factories import register

REFERENCE = from_confusion(np.array([[900, 60], [100, 940]]))
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
SLIDING = Window("10m", WindowKind.SLIDING, length=10 * MINUTE)
TUMBLING = Window("each-10m", WindowKind.TUMBLING, length=10 * MINUTE)
# Nobody is told that predictions are missing: in these lives they often are.
PATIENT = AlarmPolicy(no_data_after=None, ingest_stopped_after=None)
ARMED = replace(PATIENT, overdispersion=1.0)


def own_life(database: Database, *windows: Window, alarm: AlarmPolicy = PATIENT) -> Life:
    return life(database, REFERENCE, windows=windows or (SLIDING,), alarm=alarm)


def count(own: Life, minute: int, size: int = 10) -> None:
    """Predictions of the pane that begins `minute` minutes after the beginning."""
    own.count([(BEGIN + minute * MINUTE, Sums(np.array([size // 2, size - size // 2])))])


def live(own: Life, minutes: int) -> None:
    """Minutes with 20 predictions each, of which the worker sees half when the minute is over."""
    for _ in range(minutes):
        minute = (own.now - BEGIN) // MINUTE
        own.now = BEGIN + minute * MINUTE + 30 * SECOND
        count(own, minute)
        own.evaluate()
        count(own, minute)
        own.now = BEGIN + (minute + 1) * MINUTE
        own.evaluate()


def settle(own: Life) -> None:
    """Let the worker take what has come in, and then redo what that has changed."""
    for _ in range(2):
        own.now += 2 * SECOND
        own.evaluate()


def history(client: TestClient, window: str = "10m", revisions: str = "last") -> list[Any]:
    """The evaluations of a window, oldest first."""
    query = {"window": window, "revisions": revisions, "limit": "1000"}
    page = client.get("/v1/models/m/evaluations", params=query).json()
    assert page["next"] is None
    found: list[Any] = page["items"][::-1]
    return found


def minute_of(evaluation: Any) -> int:
    """The last minute that an evaluation looked at."""
    return (datetime.fromisoformat(evaluation["to"]) - BEGIN) // MINUTE - 1


def revisions(some: list[Any]) -> dict[int, int]:
    return {minute_of(one): one["revision"] for one in some}


def test_late_predictions_revise_the_evaluations_they_fall_into_and_no_others(
    database: Database, client: TestClient
) -> None:
    own = own_life(database)
    live(own, 30)
    # The last is of the present, which is looked at again whenever something comes in.
    *before, _ = history(client)
    count(own, 12, size=5)

    settle(own)

    *after, _ = history(client)
    assert {minute for minute, number in revisions(after).items() if number == 2} == {
        *range(12, 22)
    }
    for old, new in zip(before, after, strict=True):
        if new["revision"] == 1:
            assert new == old
        else:
            assert new["n"] == old["n"] + 5
            assert new["labels"] != old["labels"]
            assert new["evaluated_at"] == "2026-11-01T00:30:04Z"


def test_the_history_of_all_revisions_has_what_was_found_before(
    database: Database, client: TestClient
) -> None:
    own = own_life(database)
    live(own, 15)
    before = history(client)
    for size in (5, 7):
        count(own, 3, size)
        settle(own)

    found = [one for one in history(client, revisions="all") if minute_of(one) == 5]

    assert [(one["revision"], one["n"]) for one in found] == [(1, 120), (2, 125), (3, 132)]
    assert found[0] == before[5]
    assert found[-1] == history(client)[5]


def test_completing_a_window_that_was_looked_at_before_it_was_over_is_no_revision(
    database: Database, client: TestClient
) -> None:
    own = own_life(database, SLIDING, TUMBLING)
    own.now += 30 * SECOND
    count(own, 0)
    own.evaluate()
    count(own, 0)
    own.now += HOUR

    own.evaluate()

    for window in ("10m", "each-10m"):
        found = history(client, window, "all")[0]
        assert (minute_of(found) <= 9, found["n"], found["revision"]) == (True, 20, 1)


def test_more_of_a_pane_that_is_still_open_is_no_revision(
    database: Database, client: TestClient
) -> None:
    own = own_life(database)
    for _ in range(3):
        own.now += 2 * SECOND
        count(own, 0)
        own.evaluate()

    found = history(client, revisions="all")

    assert [(one["n"], one["revision"]) for one in found] == [(30, 1)]


def test_late_predictions_revise_the_present_window_too(
    database: Database, client: TestClient
) -> None:
    own = own_life(database, TUMBLING)
    live(own, 5)
    count(own, 2, size=3)

    settle(own)

    found = history(client, "each-10m", "all")
    assert [(one["n"], one["revision"]) for one in found] == [(100, 1), (103, 2)]


def test_late_predictions_revise_windows_of_every_kind(
    database: Database, client: TestClient
) -> None:
    windows = [
        SLIDING,
        TUMBLING,
        Window("last", WindowKind.LAST, count=95),
        Window("live", WindowKind.VERSION),
        Window("newest", WindowKind.ADAPTIVE),
    ]
    own = own_life(database, *windows)
    live(own, 25)
    before = {window.name: history(client, window.name) for window in windows}
    count(own, 18, size=4)

    settle(own)

    for name, old in before.items():
        new = history(client, name)
        changed = [one for one in new if one["revision"] == 2]
        touched = [one for one in old if _looked_at(one, 18)]
        assert len(changed) >= len(touched) > 0, name
        assert [minute_of(one) for one in old] == [minute_of(one) for one in new]


def _looked_at(evaluation: Any, minute: int) -> bool:
    at = BEGIN + minute * MINUTE
    return (
        datetime.fromisoformat(evaluation["from"]) <= at < datetime.fromisoformat(evaluation["to"])
    )


@pytest.mark.parametrize("late", [True, False], ids=["too late", "not too late"])
def test_what_is_later_than_allowed_changes_nothing(
    database: Database, client: TestClient, late: bool
) -> None:
    windows = [
        {"name": "live", "kind": "version"},
        {"name": "1d", "kind": "sliding", "length": "P1D"},
    ]
    register(client, "m", windows=windows, allowed_lateness="PT1H")
    worker = Worker(database, "http://localhost")
    now = datetime.now(UTC)
    url = "/v1/models/m/predictions"
    client.post(url, json={"predicted": [0] * 60}).raise_for_status()
    while worker.evaluate_next(now + 2 * SECOND):
        pass
    at = now - (2 * HOUR if late else HOUR / 2)

    answer = client.post(url, json={"predicted": [1] * 9, "timestamp": at.isoformat()}).json()
    while worker.evaluate_next(now + 4 * SECOND):
        pass

    sizes = {found["n"] for found in history(client, "1d", "all")}
    assert (answer["late"], answer["accepted"]) == ((9, 0) if late else (0, 9))
    assert sizes == ({60} if late else {60, 69})


@pytest.mark.parametrize(("taken", "revised"), [(1, 1), (3, 2), (7, 5)])
def test_a_backlog_of_many_portions_is_worked_off_to_the_same_end(
    database: Database,
    client: TestClient,
    monkeypatch: pytest.MonkeyPatch,
    taken: int,
    revised: int,
) -> None:
    own = own_life(database, SLIDING, TUMBLING, alarm=ARMED)
    live(own, 12)
    monkeypatch.setattr(due, "MOST_ARRIVALS", taken)
    monkeypatch.setattr(due, "MOST_REVISED", revised)
    for minute in range(10):
        count(own, minute, size=minute + 1)

    settle(own)

    found = history(client)
    assert [one["n"] for one in found[:10]] == [
        20 * (minute + 1) + sum(range(1, minute + 2)) for minute in range(10)
    ]
    assert history(client, "each-10m")[0]["n"] == 200 + 55
    with database.begin() as conn:
        watch = detectors.find(conn, own.model.id, own.version)
        assert not arrivals.pending(conn, own.model.id, own.version)
        assert not evaluations.outdated(conn, own.model.id, own.version, 10)
    # Exactly once: what the detector has learned is what came, and the reference.
    assert watch is not None
    assert watch.shift is not None
    assert watch.shift.baseline.sum() == pytest.approx(REFERENCE.n + 1 + 12 * 20 + 55)


def test_between_two_portions_other_models_get_their_turn(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = own_life(database)
    other = life(database, REFERENCE, "other", windows=(SLIDING,), alarm=PATIENT)
    for one in (own, other):
        one.evaluate()
    monkeypatch.setattr(due, "MOST_ARRIVALS", 2)
    own.now = other.now = BEGIN + HOUR
    for minute in range(10):
        count(own, minute)
    other.now += SECOND
    count(other, 60)

    for second in (0, 1, 2):
        own.worker.evaluate_next(other.now + second * SECOND)

    with database.begin() as conn:
        assert arrivals.pending(conn, own.model.id, "v1")
        assert not arrivals.pending(conn, other.model.id, "v1")


def test_predictions_for_a_pane_that_was_over_at_the_last_look_are_a_revision(
    database: Database, client: TestClient
) -> None:
    own = own_life(database)
    for minute in range(20):
        own.now = BEGIN + minute * MINUTE + 30 * SECOND
        count(own, minute)
        own.evaluate()
    before = history(client)[10]
    count(own, 5, size=100)

    settle(own)

    after = history(client)[10]
    assert after["n"] == before["n"] + 100
    assert after["revision"] == 2


def test_evaluations_between_two_panes_that_got_more_stay_as_they_were(
    database: Database, client: TestClient
) -> None:
    window = Window("5m", WindowKind.SLIDING, length=5 * MINUTE)
    own = own_life(database, window, alarm=replace(PATIENT, calibration_panes=20))
    live(own, 30)  # the first twenty are said to be calibrating
    before = history(client, "5m")[7:20]
    count(own, 2)
    own.now = BEGIN + 31 * MINUTE
    count(own, 31)

    own.evaluate()

    assert history(client, "5m")[7:20] == before


def test_the_last_n_that_were_fewer_than_n_are_looked_at_again_for_older_predictions(
    database: Database, client: TestClient
) -> None:
    own = own_life(database, Window("last", WindowKind.LAST, count=1000))
    own.now = BEGIN + 10 * MINUTE
    live(own, 5)
    before = history(client, "last")
    count(own, 3, size=100)

    settle(own)

    after = history(client, "last")
    assert [one["n"] for one in after] == [one["n"] + 100 for one in before]


def test_other_predictions_are_a_revision_even_if_they_are_as_many(
    database: Database, client: TestClient
) -> None:
    own = own_life(database, Window("last", WindowKind.LAST, count=40))
    live(own, 5)
    before = history(client, "last")[0]
    count(own, 4, size=20)  # with these, minute 4 has 40 by itself

    settle(own)

    after = history(client, "last")[0]
    assert (before["from"], after["from"]) == ("2026-11-01T00:03:00Z", "2026-11-01T00:04:00Z")
    assert (before["n"], after["n"], after["revision"]) == (40, 40, 2)


def test_a_long_tumbling_window_can_be_stored_however_long_ago_it_began(
    database: Database, client: TestClient
) -> None:
    quarter = Window("quarter", WindowKind.TUMBLING, length=timedelta(days=90))
    own = own_life(database, SLIDING, quarter)
    # Far from what other tests made partitions for; the quarter began on the 5th of May 2032.
    own.now = datetime(2032, 7, 25, tzinfo=UTC)
    own.count([(own.now, Sums(np.array([5, 5])))])

    own.evaluate()

    assert [one["n"] for one in history(client, "quarter")] == [10]


def test_a_batch_that_commits_while_nothing_was_found_to_do_is_not_forgotten(
    database: Database,
) -> None:
    own = own_life(database)
    key = PaneKey(own.model.id, own.version, BEGIN, "hard")
    submission = Submission(Reduced(own.model, own.version, {key: Sums(np.array([5, 5]))}, 10))
    with database.begin() as conn:
        partitions.ensure(conn, needed_partitions([submission], own.now))
    with database.begin() as conn:
        record(conn, [submission], 0, own.now)
        own.evaluate()  # in a transaction of its own, before the batch commits

    own.now += HOUR
    own.evaluate()

    with database.begin() as conn:
        assert not arrivals.pending(conn, own.model.id, own.version)


def test_a_firing_alarm_of_a_stream_that_stopped_does_not_keep_the_worker_busy(
    database: Database,
) -> None:
    own = own_life(database, alarm=replace(ARMED, ingest_stopped_after=HOUR))
    own.live(np.array([[40, 0]] * 30))
    own.now += 5 * HOUR  # longer than `renotify`

    rounds = [own.worker.evaluate_next(own.now) for _ in range(20)]

    assert not rounds[-1]


def test_a_revision_does_not_know_what_the_detectors_found_later(
    database: Database, client: TestClient
) -> None:
    own = own_life(database, alarm=replace(PATIENT, calibration_panes=20))
    live(own, 25)
    before = {minute_of(one): one["status"] for one in history(client)}

    count(own, 12)
    settle(own)

    revised = next(one for one in history(client) if minute_of(one) == 15)
    assert revised["revision"] == 2
    assert revised["status"] == before[15]
    assert "calibrating" in before[15]
    assert "calibrating" not in before[24]
