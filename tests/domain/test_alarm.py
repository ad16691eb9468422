"""The life of an alarm, look by look."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from app.domain import alarm as domain
from app.domain.alarm import (
    NO_SIGN,
    Alarm,
    AlarmKind,
    AlarmState,
    Change,
    Severity,
    Sign,
    Silence,
    step,
)
from app.domain.model import AlarmPolicy
from app.domain.notice import Event
from app.domain.verdict import Verdict

NOW = datetime(2026, 11, 17, 10, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
POLICY = AlarmPolicy(renotify=60 * MINUTE)
SHIFTED = Sign(seen=True, verdict=Verdict.LABEL_SHIFT, reason="moved", onset=NOW - MINUTE)
SMALL = replace(SHIFTED, grave=False)
CRITICAL = replace(SHIFTED, severity=Severity.CRITICAL)
CONFIRMED = replace(SHIFTED, confirmed=True)
OTHERWISE = replace(SHIFTED, verdict=Verdict.NOT_LABEL_SHIFT)
# There is no sign of it any more, but it has not been gone for long enough.
GONE = replace(NO_SIGN, over=False)


def after(
    alarm: Alarm | None, sign: Sign, minutes: float = 0, policy: AlarmPolicy = POLICY
) -> tuple[Alarm | None, Change | None]:
    return step(alarm, sign, policy, NOW + minutes * MINUTE, kind=AlarmKind.SHIFT, version="v1")


def alarm(state: AlarmState, **changes: object) -> Alarm:
    """One that began at NOW, on the sign SHIFTED."""
    made = Alarm(
        kind=AlarmKind.SHIFT,
        version="v1",
        state=state,
        severity=Severity.WARNING,
        verdict=Verdict.LABEL_SHIFT,
        reason="moved",
        since=NOW,
        onset=NOW - MINUTE,
        fired_at=None if state is AlarmState.PENDING else NOW,
        notified_at=None if state is AlarmState.PENDING else NOW,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


PENDING, FIRING = AlarmState.PENDING, AlarmState.FIRING
ACKNOWLEDGED, RESOLVED = AlarmState.ACKNOWLEDGED, AlarmState.RESOLVED


@pytest.mark.parametrize(
    ("before", "sign", "minutes", "state", "event"),
    [
        # Nothing, then something.
        (None, NO_SIGN, 0, None, None),
        (None, GONE, 0, None, None),
        (None, SHIFTED, 0, FIRING, Event.FIRING),
        (None, SMALL, 0, PENDING, Event.PENDING),
        # Waiting for it to matter.
        (PENDING, SMALL, 1, PENDING, None),
        (PENDING, SHIFTED, 1, FIRING, Event.FIRING),
        (PENDING, GONE, 1, PENDING, None),
        (PENDING, NO_SIGN, 1, RESOLVED, Event.RESOLVED),
        # Firing: told once, again after the interval, and when it gets worse or better known.
        (FIRING, SHIFTED, 59, FIRING, None),
        (FIRING, SHIFTED, 60, FIRING, Event.FIRING),
        (FIRING, SMALL, 1, FIRING, None),
        (FIRING, GONE, 1, FIRING, None),
        (FIRING, CRITICAL, 1, FIRING, Event.REVISED),
        (FIRING, CONFIRMED, 1, FIRING, Event.REVISED),
        (FIRING, OTHERWISE, 1, FIRING, Event.REVISED),
        (FIRING, NO_SIGN, 1, RESOLVED, Event.RESOLVED),
        # Acknowledged: no reminders, but what is new is told, and its end.
        (ACKNOWLEDGED, SHIFTED, 600, ACKNOWLEDGED, None),
        (ACKNOWLEDGED, CRITICAL, 1, ACKNOWLEDGED, Event.REVISED),
        (ACKNOWLEDGED, NO_SIGN, 1, RESOLVED, Event.RESOLVED),
    ],
)
def test_the_life_of_an_alarm(
    before: AlarmState | None,
    sign: Sign,
    minutes: float,
    state: AlarmState | None,
    event: Event | None,
) -> None:
    found, change = after(None if before is None else alarm(before), sign, minutes)

    assert (found and found.state) == state
    assert (change and change.event) == event


def test_a_new_alarm_says_what_the_sign_said() -> None:
    found, change = after(None, replace(CRITICAL, evidence={"n": 5}))

    assert found is not None
    assert (found.since, found.onset, found.fired_at) == (NOW, NOW - MINUTE, NOW)
    assert (found.severity, found.verdict) == (Severity.CRITICAL, Verdict.LABEL_SHIFT)
    assert found.evidence == {"n": 5}
    assert found.notified_at is None
    assert change == Change(Event.FIRING, "moved")


def test_a_pending_alarm_says_what_it_waits_for() -> None:
    _, change = after(None, SMALL)

    assert change == Change(Event.PENDING, "moved; too small to matter yet")


def test_it_fires_only_after_it_has_lasted() -> None:
    patient = replace(POLICY, min_duration=5 * MINUTE)

    began, _ = after(None, SHIFTED, 0, patient)
    early, nothing = after(began, SHIFTED, 4.9, patient)
    late, change = after(early, SHIFTED, 5, patient)

    assert began is not None
    assert began.state is PENDING
    assert nothing is None
    assert late is not None
    assert (late.state, late.since, late.fired_at) == (FIRING, NOW, NOW + 5 * MINUTE)
    assert change is not None


@pytest.mark.parametrize(("minutes", "state"), [(29, PENDING), (30, FIRING)])
def test_soon_after_the_last_one_it_stays_pending(minutes: float, state: AlarmState) -> None:
    found, _ = step(
        None,
        SHIFTED,
        replace(POLICY, cooldown=30 * MINUTE),
        NOW + minutes * MINUTE,
        kind=AlarmKind.SHIFT,
        version="v1",
        resolved_before=NOW,
    )

    assert found is not None
    assert found.state is state


def test_a_pending_alarm_keeps_up_with_its_cause() -> None:
    found, _ = after(alarm(PENDING), replace(SMALL, severity=Severity.CRITICAL, reason="more"), 1)

    assert found is not None
    assert (found.severity, found.reason, found.since) == (Severity.CRITICAL, "more", NOW)


def test_an_alarm_that_was_never_told_is_told_as_soon_as_it_may_be() -> None:
    _, change = after(alarm(FIRING, notified_at=None), SHIFTED, 1)

    assert change == Change(Event.FIRING, "still firing: moved", reminder=True)


def test_a_smaller_shift_than_was_told_is_no_news() -> None:
    found, change = after(alarm(FIRING, severity=Severity.CRITICAL), SHIFTED, 1)

    assert found is not None
    assert found.severity is Severity.CRITICAL
    assert change is None


def test_a_revision_keeps_the_evidence_it_has_nothing_better_for() -> None:
    told = alarm(FIRING, evidence={"n": 5}, confirmed=True)

    found, _ = after(told, OTHERWISE, 1)

    assert found is not None
    assert found.evidence == {"n": 5}
    assert found.confirmed


def test_a_noisy_cause_makes_one_alarm_and_not_many() -> None:
    now: Alarm | None = None
    events = []
    for minute, sign in enumerate([SHIFTED, GONE, SMALL, GONE, SHIFTED, GONE, SHIFTED, NO_SIGN]):
        now, change = after(now, sign, minute)
        if change is not None:
            assert now is not None
            now = replace(now, notified_at=NOW + minute * MINUTE)
            events.append(change.event)

    assert events == [Event.FIRING, Event.RESOLVED]


def test_who_acknowledges_is_kept() -> None:
    found, change = domain.acknowledge(alarm(FIRING), "ada", NOW + MINUTE)

    assert (found.state, found.acknowledged_by) == (ACKNOWLEDGED, "ada")
    assert found.acknowledged_at == NOW + MINUTE
    assert change == Change(Event.ACKNOWLEDGED, "acknowledged by ada")


def test_somebody_may_call_it_over() -> None:
    found, change = domain.resolve(alarm(FIRING), "resolved by ada", NOW + MINUTE)

    assert (found.state, found.resolved_at) == (RESOLVED, NOW + MINUTE)
    assert change == Change(Event.RESOLVED, "resolved by ada")


@pytest.mark.parametrize(
    ("effect", "severity"),
    [(None, Severity.WARNING), (0.099, Severity.WARNING), (0.1, Severity.CRITICAL)],
)
def test_severity_goes_by_the_size_of_the_shift(effect: float | None, severity: Severity) -> None:
    assert domain.severity(effect) is severity


@pytest.mark.parametrize(
    ("matchers", "covers"),
    [
        ({"model": "fraud"}, True),
        ({"model": "other"}, False),
        ({"model": "fraud", "kind": "shift"}, True),
        ({"model": "fraud", "kind": "no_data"}, False),
        ({"severity": "warning", "version": "v1"}, True),
        ({"severity": "critical"}, False),
    ],
)
def test_a_silence_covers_what_all_its_matchers_name(
    matchers: dict[str, str], covers: bool
) -> None:
    silence = Silence(matchers, NOW + MINUTE, "ada", "release", NOW)

    assert silence.covers("fraud", alarm(FIRING), NOW) is covers


@pytest.mark.parametrize(
    ("minutes", "ended", "covers"),
    [(-1, None, False), (0, None, True), (9.9, None, True), (10, None, False), (5, 4, False)],
)
def test_a_silence_covers_its_time(minutes: float, ended: float | None, covers: bool) -> None:
    silence = Silence(
        {"model": "fraud"},
        NOW + 10 * MINUTE,
        "ada",
        "release",
        NOW,
        ended_at=None if ended is None else NOW + ended * MINUTE,
    )

    assert silence.covers("fraud", alarm(FIRING), NOW + minutes * MINUTE) is covers


def test_of_several_alarms_the_one_that_fires_is_shown() -> None:
    waiting = alarm(PENDING, since=NOW - 60 * MINUTE)
    firing = alarm(FIRING)

    assert domain.worst([waiting, firing]) is firing
    assert domain.worst([waiting]) is waiting
    assert domain.worst([]) is None


def test_an_alarm_is_described_with_its_evidence_or_without_the_bulk_of_it() -> None:
    found = alarm(FIRING, evidence={"n": 5, "check": {"counts": [1, 2]}})

    assert domain.described(found, "fraud")["evidence"] == {"n": 5, "check": {"counts": [1, 2]}}
    slim = domain.described(found, "fraud", slim=True)
    assert slim["evidence"] == {"n": 5}
    assert (slim["model"], slim["since"], slim["resolved_at"]) == (
        "fraud",
        "2026-11-17T10:00:00Z",
        None,
    )
    assert domain.at_a_glance(found)["onset"] == "2026-11-17T09:59:00Z"
