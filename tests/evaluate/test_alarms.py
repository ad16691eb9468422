"""Alarms through the worker, by a simulated clock: when they come, when they go, who is told."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from app.domain.alarm import Alarm, AlarmKind, AlarmState, Severity, Silence
from app.domain.model import AlarmPolicy, ModelSettings
from app.domain.notice import Event, Shape
from app.domain.reference import diagnosed
from app.domain.verdict import Verdict
from app.domain.window import Window, WindowKind
from app.errors import Conflict
from app.evaluate.by_hand import Answer, Hands
from app.evaluate.look import Evaluator
from app.stats.moments import Counts, Floats, Sums
from app.stats.reference import Reference, from_confusion
from app.storage import alarms, evaluations, models, references, silences, tables, webhooks
from app.storage.db import Connection, Database
from tests.calibration.streams import grown
from tests.evaluate.simulation import Life, life

SEED = 20261118
REFERENCE = from_confusion(np.array([[900, 60, 40], [60, 900, 40], [40, 40, 920]]))
A = REFERENCE.conditional()
ARMED = AlarmPolicy(overdispersion=1.0)
HOUR = timedelta(hours=1)


def mix(by: float = 0.0, label: int = 0) -> Floats:
    """Predictions when a label has grown by so much."""
    return np.asarray(A @ grown(REFERENCE.nu, label, by))


def panes(count: int, by: float = 0.0, per_pane: int = 30, seed: int = SEED) -> Counts:
    return np.random.default_rng(seed).multinomial(per_pane, mix(by), size=count)


def watched(database: Database, reference: Reference = REFERENCE, **settings: Any) -> Life:
    return life(database, reference, **{"alarm": ARMED, **settings})


def all_alarms(database: Database) -> list[Alarm]:
    """The oldest first."""
    with database.begin() as conn:
        return [one.alarm for one in alarms.page(conn)][::-1]


def told(database: Database) -> list[str]:
    """The events that were queued for delivery, in order."""
    with database.begin() as conn:
        query = select(tables.delivery.c.event).order_by(tables.delivery.c.id)
        return list(conn.execute(query).scalars())


def hands(conn: Connection) -> Hands:
    return Hands(conn, Evaluator(), "http://localhost")


def listen(database: Database, now: datetime) -> None:
    with database.begin() as conn:
        events = [event for event in Event if event is not Event.TEST]
        webhooks.create(conn, "https://example.com", events, Shape.STANDARD, now)


def test_a_shift_fires_with_its_onset_and_is_over_when_it_is(database: Database) -> None:
    model = watched(database)
    listen(database, model.now)
    model.live(panes(60))
    began = model.now

    model.live(panes(60, 0.2))
    model.live(panes(80, seed=2))

    (alarm,) = all_alarms(database)
    assert (alarm.kind, alarm.state) == (AlarmKind.SHIFT, AlarmState.RESOLVED)
    assert (alarm.severity, alarm.verdict) == (Severity.CRITICAL, Verdict.UNDETERMINED)
    assert alarm.onset is not None
    assert abs(alarm.onset - began) <= timedelta(minutes=3)
    assert alarm.fired_at is not None
    assert alarm.fired_at < began + timedelta(minutes=15)
    assert told(database)[0] == "alarm.firing"
    assert told(database)[-1] == "alarm.resolved"


def test_a_shift_that_lasts_is_one_alarm(database: Database) -> None:
    model = watched(database)
    model.live(panes(60))

    model.live(panes(600, 0.06))

    (alarm,) = all_alarms(database)
    assert alarm.state is AlarmState.FIRING


def test_a_shift_too_small_to_matter_waits(database: Database) -> None:
    model = watched(database, alarm=replace(ARMED, min_effect=0.5))
    listen(database, model.now)
    model.live(panes(60))

    model.live(panes(100, 0.2))

    (alarm,) = all_alarms(database)
    assert alarm.state is AlarmState.PENDING
    assert told(database) == ["alarm.pending"]


def test_a_large_shift_on_top_of_a_small_one_is_not_diluted(database: Database) -> None:
    model = watched(database, alarm=replace(ARMED, min_effect=0.1))
    model.live(panes(60, per_pane=300))
    model.live(panes(600, 0.04, per_pane=300))
    began = model.now
    assert [alarm.state for alarm in all_alarms(database)] == [AlarmState.PENDING]

    for one in panes(20, 0.3, per_pane=300):
        model.live([one])

    (alarm,) = all_alarms(database)
    assert alarm.fired_at is not None
    assert alarm.fired_at - began < timedelta(minutes=10)


@pytest.mark.parametrize("pane", [timedelta(minutes=1), HOUR])
def test_a_reminder_that_is_due_in_a_pane_is_sent_and_does_not_spin(
    database: Database, pane: timedelta
) -> None:
    model = watched(database, pane=pane)
    listen(database, model.now)
    model.live(panes(60))
    model.live(panes(60, 0.2))
    before = told(database).count("alarm.firing")
    end = model.now

    turns = 0
    while model.now < end + 5 * HOUR and turns < 5000:
        model.now += timedelta(minutes=7)
        model.count([])
        while model.worker.evaluate_next(model.now) and turns < 5000:
            turns += 1

    # A few per step: nothing is evaluated twice at one instant.
    assert turns < 5000
    with database.begin() as conn:
        due_at = conn.execute(select(tables.model.c.due_at)).scalar_one()
    assert due_at > model.now
    assert told(database).count("alarm.firing") >= before


def test_a_silenced_reminder_does_not_keep_the_worker_busy(database: Database) -> None:
    model = watched(database, alarm=replace(ARMED, renotify=timedelta(minutes=10)))
    listen(database, model.now)
    model.live(panes(60))
    model.live(panes(20, 0.2))
    fired = told(database).count("alarm.firing")
    assert fired == 1
    with database.begin() as conn:
        silence = Silence({"model": "m"}, model.now + HOUR, "ada", "known", model.now)
        silences.create(conn, silence)

    evaluations_made = 0
    for _ in range(50):
        model.now += timedelta(minutes=1)
        model.count([(model.now - model.pane, Sums(panes(1, 0.2)[0]))])
        while model.worker.evaluate_next(model.now):
            evaluations_made += 1
            assert evaluations_made < 500
    model.now += timedelta(minutes=20)
    model.evaluate()

    assert told(database).count("alarm.firing") == fired + 1


def test_when_predictions_stop_that_is_said_and_nothing_else(database: Database) -> None:
    model = watched(database)
    listen(database, model.now)
    model.live(panes(60))
    model.live(panes(30, 0.2))
    assert told(database)[0] == "alarm.firing"

    for _ in range(60):
        model.now += timedelta(minutes=10)
        model.evaluate()
    while_away = {alarm.kind: alarm.state for alarm in all_alarms(database)}
    model.live(panes(80, seed=3))

    assert while_away == {
        AlarmKind.SHIFT: AlarmState.FIRING,
        AlarmKind.INGEST_STOPPED: AlarmState.FIRING,
    }
    assert {alarm.state for alarm in all_alarms(database)} == {AlarmState.RESOLVED}


def test_a_model_that_never_gets_predictions_is_told_of(database: Database) -> None:
    model = watched(database)

    model.now += 2 * HOUR
    model.evaluate()

    (alarm,) = all_alarms(database)
    assert (alarm.kind, alarm.state) == (AlarmKind.NO_DATA, AlarmState.FIRING)


def test_the_alarm_about_a_version_ends_when_its_reference_is_deleted(database: Database) -> None:
    model = watched(database)
    listen(database, model.now)
    model.now += 2 * HOUR
    model.evaluate()

    with database.begin() as conn:
        own = models.get(conn, model.name, lock=True)
        references.forget(conn, own, model.version)
        models.drop_version(conn, own, model.version, model.now)
    model.evaluate()

    (alarm,) = all_alarms(database)
    assert (alarm.kind, alarm.state) == (AlarmKind.NO_DATA, AlarmState.RESOLVED)
    assert told(database) == [Event.FIRING, Event.RESOLVED]


def test_nobody_hears_of_missing_predictions_who_does_not_want_to(database: Database) -> None:
    quiet = replace(ARMED, no_data_after=None, ingest_stopped_after=None)
    model = watched(database, alarm=quiet)
    model.live(panes(10))

    model.now += 100 * HOUR
    model.evaluate()

    assert all_alarms(database) == []


def test_a_backlog_is_no_sign_that_predictions_have_stopped(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.evaluate.due.MOST_ARRIVALS", 20)
    model = watched(database)
    start = model.now
    for number, one in enumerate(panes(240)):
        model.now = start + (number + 1) * model.pane
        model.count([(model.now - model.pane, Sums(one))])

    model.evaluate()

    assert all_alarms(database) == []


def test_the_alarm_of_a_version_that_gave_way_to_another_ends(database: Database) -> None:
    model = watched(database)
    model.live(panes(60))
    model.live(panes(30, 0.2))
    assert all_alarms(database)[0].state is AlarmState.FIRING

    switch_to(model, "v2")
    for one in panes(90, seed=4):
        model.live([one])

    found = {(alarm.version, alarm.kind): alarm.state for alarm in all_alarms(database)}
    assert found == {("v1", AlarmKind.SHIFT): AlarmState.RESOLVED}


def switch_to(model: Life, version: str) -> None:
    with model.database.begin() as conn:
        own = models.get(conn, model.name)
        stored = diagnosed(version, model.reference, model.now)
        references.put(conn, own, references.packed(stored, None))
        models.activate(conn, models.get(conn, model.name), version, model.now)
        model.model = models.get(conn, model.name)
    model.version = version


def test_who_acknowledges_gets_no_reminders_but_its_end(database: Database) -> None:
    model = watched(database)
    listen(database, model.now)
    model.live(panes(60))
    model.live(panes(30, 0.2))
    (alarm,) = all_alarms(database)
    assert alarm.id is not None

    with database.begin() as conn:
        hands(conn).acknowledge(Answer(alarm.id, "ada", model.now, "looking"))
        history = alarms.history(conn, alarms.get(conn, alarm.id))
    model.live(panes(600, 0.2, seed=5))
    model.live(panes(80, seed=6))

    assert (history[-1].by, history[-1].note, history[-1].at) == ("ada", "looking", history[-1].at)
    assert told(database).count("alarm.firing") == 1
    assert told(database)[-1] == "alarm.resolved"


def test_a_pending_alarm_cannot_be_acknowledged(database: Database) -> None:
    model = watched(database, alarm=replace(ARMED, min_effect=0.5))
    model.live(panes(60))
    model.live(panes(60, 0.2))
    (alarm,) = all_alarms(database)
    assert alarm.id is not None

    with database.begin() as conn, pytest.raises(Conflict, match="pending"):
        hands(conn).acknowledge(Answer(alarm.id, "ada", model.now))


def test_an_accepted_mix_is_normal_also_where_a_label_is_absent(database: Database) -> None:
    counts = np.array([[900, 60, 0], [60, 900, 0], [40, 40, 0]])
    reference = from_confusion(counts)
    model = watched(database, reference)
    rng = np.random.default_rng(SEED)
    usual = reference.predicted / reference.n
    other = np.array([0.7, 0.25, 0.05])
    model.live(rng.multinomial(30, usual, size=60))
    model.live(rng.multinomial(30, other, size=40))
    (alarm,) = all_alarms(database)
    assert alarm.id is not None

    with database.begin() as conn:
        hands(conn).accept(Answer(alarm.id, "ada", model.now))
    model.live(rng.multinomial(30, other, size=200))

    assert [one.state for one in all_alarms(database)] == [AlarmState.RESOLVED]
    with database.begin() as conn:
        assert alarms.shift_firing(conn, model.model.id, "v1") is True


def test_what_somebody_called_over_is_called_again_if_it_is_not(database: Database) -> None:
    model = watched(database)
    model.live(panes(60))
    model.live(panes(30, 0.2))
    (alarm,) = all_alarms(database)
    assert alarm.id is not None

    with database.begin() as conn:
        hands(conn).resolve(Answer(alarm.id, "ada", model.now))
    model.live(panes(60, 0.2, seed=7))

    assert [one.state for one in all_alarms(database)] == [AlarmState.RESOLVED, AlarmState.FIRING]


def test_a_long_tumbling_window_can_be_evaluated(database: Database) -> None:
    quarter = Window("quarter", WindowKind.TUMBLING, length=timedelta(days=90))
    model = watched(database, windows=(quarter,))

    model.live(panes(5))

    with database.begin() as conn:
        found = evaluations.latest(conn, model.model.id, "v1", "quarter")
        failures = conn.execute(select(tables.model.c.failures)).scalar_one()
    assert found is not None
    assert (found.result.n, failures) == (150, 0)


def test_what_comes_in_while_the_worker_looks_is_not_forgotten(database: Database) -> None:
    model = watched(database, pane=HOUR)
    model.live(panes(3))
    # As it is when the evaluation saw nothing and the batch saw the model due.
    model.count([(model.now, Sums(panes(1)[0]))])
    with database.begin() as conn:
        models.evaluated(conn, model.model.id, model.now + HOUR, model.now)

    model.now += timedelta(seconds=3)
    model.evaluate()

    with database.begin() as conn:
        assert not list(conn.execute(select(tables.arrival.c.id)))


def test_a_poisoned_model_is_put_off_even_while_predictions_keep_coming(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = watched(database)
    tries = 0

    def fails(*_: object) -> None:
        nonlocal tries
        tries += 1
        raise RuntimeError("poisoned")

    monkeypatch.setattr("app.evaluate.due.Worker.evaluate", fails)
    for _ in range(60):
        model.now += timedelta(seconds=1)
        model.count([(model.now.replace(second=0), Sums(panes(1)[0]))])
        model.worker.evaluate_next(model.now)

    # After 5, 10 and 20 seconds, and not once a second.
    assert tries <= 4


def test_settings_that_change_are_followed(database: Database) -> None:
    model = watched(database)
    model.live(panes(60))

    own = ModelSettings(labels=model.settings.labels, alarm=replace(ARMED, overdispersion=4.0))
    with database.begin() as conn:
        models.put(conn, model.name, own, model.now)
        model.model = models.get(conn, model.name)
    model.live(panes(1, seed=8))

    with database.begin() as conn:
        state = conn.execute(select(tables.detector.c.state)).scalar_one()
    assert state["phi_upper"] == 4.0
