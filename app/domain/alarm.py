"""When does a worry become an alarm, when is it over, and what is there to tell of it?

What is true (the alarm) and what was told (notices, deliveries) are two things: a silence or a
receiver that is down changes nothing about an alarm.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from app.domain.model import AlarmPolicy
from app.domain.notice import Event
from app.domain.times import rfc_3339
from app.domain.verdict import Verdict

# Total variation of the label mix from which on a shift deserves a warning, or is critical: one
# prediction in twenty, or in ten, stands for another label than it used to.
WARNING_EFFECT, CRITICAL_EFFECT = 0.05, 0.1


class AlarmKind(StrEnum):
    SHIFT = "shift"
    ASSUMPTION = "assumption"
    NO_DATA = "no_data"
    INGEST_STOPPED = "ingest_stopped"


# While one of these is open, nothing is known of the stream: the others stay as they are.
BLIND = (AlarmKind.NO_DATA, AlarmKind.INGEST_STOPPED)


class AlarmState(StrEnum):
    PENDING = "pending"
    FIRING = "firing"
    ACKNOWLEDGED = "acknowledged"
    RESOLVED = "resolved"


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class Sign:
    """What the latest look says of one worry.

    `seen`: there is a cause. `grave`: it matters enough to be told. `over`: it has passed, by a
    condition of its own, so that a cause which comes and goes does not make an alarm flap.
    """

    seen: bool
    grave: bool = True
    over: bool = False
    severity: Severity = Severity.WARNING
    verdict: Verdict | None = None
    onset: datetime | None = None
    confirmed: bool = False
    reason: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)


NO_SIGN = Sign(seen=False, over=True)


@dataclass(frozen=True, slots=True)
class Alarm:
    """One worry from its first sign to its end. `id` is None until it is stored."""

    kind: AlarmKind
    version: str
    state: AlarmState
    severity: Severity
    verdict: Verdict | None
    reason: str
    since: datetime
    onset: datetime | None = None
    fired_at: datetime | None = None
    notified_at: datetime | None = None
    acknowledged_by: str | None = None
    acknowledged_at: datetime | None = None
    resolved_at: datetime | None = None
    confirmed: bool = False
    evidence: Mapping[str, Any] = field(default_factory=dict)
    id: int | None = None

    @property
    def is_open(self) -> bool:
        return self.state is not AlarmState.RESOLVED

    @property
    def was_raised(self) -> bool:
        """Whether it has fired and is not over."""
        return self.state in (AlarmState.FIRING, AlarmState.ACKNOWLEDGED)


@dataclass(frozen=True, slots=True)
class Change:
    """What to tell people of, and why. A mere `reminder` is told but is no change of the alarm."""

    event: Event
    reason: str
    reminder: bool = False


def severity(effect: float | None) -> Severity:
    """How bad a shift of this size is; one that cannot be measured is a warning."""
    if effect is not None and effect < WARNING_EFFECT:
        return Severity.INFO
    return (
        Severity.CRITICAL if effect is not None and effect >= CRITICAL_EFFECT else Severity.WARNING
    )


def step(
    alarm: Alarm | None,
    sign: Sign,
    policy: AlarmPolicy,
    now: datetime,
    *,
    kind: AlarmKind,
    version: str,
    resolved_before: datetime | None = None,
) -> tuple[Alarm | None, Change | None]:
    """The alarm after one more look, and what changed, if anything.

    `resolved_before` is when the last alarm of this kind and version ended.
    """
    if alarm is None:
        return _begin(sign, policy, now, kind, version, resolved_before) if sign.seen else _nothing
    if sign.over:
        return _resolve(alarm, now, sign.reason or "its cause has passed")
    if alarm.state is AlarmState.PENDING:
        return _pending(_updated(alarm, sign), sign, policy, now, resolved_before)
    return _raised(alarm, sign, policy, now)


_nothing: tuple[None, None] = (None, None)


def acknowledge(alarm: Alarm, by: str, now: datetime) -> tuple[Alarm, Change]:
    """Somebody looks after it: no more reminders. Of an acknowledged alarm, who did it last."""
    taken = replace(alarm, state=AlarmState.ACKNOWLEDGED, acknowledged_by=by, acknowledged_at=now)
    return taken, Change(Event.ACKNOWLEDGED, f"acknowledged by {by}")


def resolve(alarm: Alarm, reason: str, now: datetime) -> tuple[Alarm, Change]:
    """Somebody says that it is over."""
    return _resolve(alarm, now, reason)


def _begin(
    sign: Sign,
    policy: AlarmPolicy,
    now: datetime,
    kind: AlarmKind,
    version: str,
    resolved_before: datetime | None,
) -> tuple[Alarm, Change]:
    alarm = Alarm(
        kind=kind,
        version=version,
        state=AlarmState.PENDING,
        severity=sign.severity,
        verdict=sign.verdict,
        reason=sign.reason,
        since=now,
        onset=sign.onset,
        confirmed=sign.confirmed,
        evidence=sign.evidence,
    )
    waits_for = _waits_for(alarm, sign, policy, now, resolved_before)
    if waits_for is None:
        return _fire(alarm, now)
    return alarm, Change(Event.PENDING, f"{sign.reason}; {waits_for}")


def _pending(
    alarm: Alarm, sign: Sign, policy: AlarmPolicy, now: datetime, resolved_before: datetime | None
) -> tuple[Alarm, Change | None]:
    if _waits_for(alarm, sign, policy, now, resolved_before) is None:
        return _fire(alarm, now)
    return alarm, None


def _waits_for(
    alarm: Alarm, sign: Sign, policy: AlarmPolicy, now: datetime, resolved_before: datetime | None
) -> str | None:
    """Why the alarm does not fire yet."""
    if not sign.seen:
        return "there is no sign of it at the moment"
    if not sign.grave:
        return "too small to matter yet"
    if now - alarm.since < policy.min_duration:
        return "it has to last"
    if resolved_before is not None and now - resolved_before < policy.cooldown:
        return "the last one is not long over"
    return None


def _fire(alarm: Alarm, now: datetime) -> tuple[Alarm, Change]:
    fired = replace(alarm, state=AlarmState.FIRING, fired_at=now, notified_at=None)
    return fired, Change(Event.FIRING, alarm.reason)


def _raised(
    alarm: Alarm, sign: Sign, policy: AlarmPolicy, now: datetime
) -> tuple[Alarm, Change | None]:
    revision = _revision(alarm, sign)
    if revision is not None:
        return _updated(alarm, sign), Change(Event.REVISED, revision)
    if alarm.state is AlarmState.FIRING and _due_again(alarm, policy, now):
        return alarm, Change(Event.FIRING, f"still firing: {alarm.reason}", reminder=True)
    return alarm, None


_RANK = {severity: rank for rank, severity in enumerate(Severity)}
_NOW = {Severity.WARNING: "larger", Severity.CRITICAL: "critical"}


def _revision(alarm: Alarm, sign: Sign) -> str | None:
    """What is worse, or better known, than what was told. A lesser size alone is no news."""
    if not sign.seen:
        return None
    if sign.verdict is not alarm.verdict:
        return f"the verdict is {sign.verdict} now: {sign.reason}"
    if _RANK[sign.severity] > _RANK[alarm.severity]:
        return f"it has become {_NOW[sign.severity]}: {sign.reason}"
    if sign.confirmed and not alarm.confirmed:
        return f"confirmed to be beyond the reference's own error: {sign.reason}"
    return None


def _updated(alarm: Alarm, sign: Sign) -> Alarm:
    if not sign.seen:
        return alarm
    return replace(
        alarm,
        severity=sign.severity,
        verdict=sign.verdict,
        reason=sign.reason,
        onset=sign.onset,
        confirmed=sign.confirmed or alarm.confirmed,
        evidence=sign.evidence or alarm.evidence,
    )


def _due_again(alarm: Alarm, policy: AlarmPolicy, now: datetime) -> bool:
    # Never told: it was silenced when it fired.
    return alarm.notified_at is None or now - alarm.notified_at >= policy.renotify


def _resolve(alarm: Alarm, now: datetime, reason: str) -> tuple[Alarm, Change]:
    over = replace(alarm, state=AlarmState.RESOLVED, resolved_at=now)
    return over, Change(Event.RESOLVED, reason)


@dataclass(frozen=True, slots=True)
class Silence:
    """Nobody is told of alarms that match, until then. `matchers` name what must be equal."""

    matchers: Mapping[str, str]
    until: datetime
    by: str
    reason: str
    created_at: datetime
    ended_at: datetime | None = None
    ended_by: str | None = None
    id: int | None = None

    def covers(self, model: str, alarm: Alarm, now: datetime) -> bool:
        if not self.created_at <= now < min(self.until, self.ended_at or self.until):
            return False
        traits = {
            "model": model,
            "version": alarm.version,
            "kind": alarm.kind,
            "severity": alarm.severity,
        }
        return all(traits[name] == value for name, value in self.matchers.items())


def described(alarm: Alarm, model: str, *, slim: bool = False) -> dict[str, Any]:
    """An alarm as everybody is shown it; `slim` without the bulk that only a check needs."""
    evidence = alarm.evidence
    if slim:
        evidence = {name: value for name, value in evidence.items() if name != "check"}
    return {
        "id": alarm.id,
        "model": model,
        "version": alarm.version,
        "kind": alarm.kind,
        "state": alarm.state,
        "severity": alarm.severity,
        "verdict": alarm.verdict,
        "reason": alarm.reason,
        "since": rfc_3339(alarm.since),
        "onset": _known(alarm.onset),
        "fired_at": _known(alarm.fired_at),
        "acknowledged_by": alarm.acknowledged_by,
        "acknowledged_at": _known(alarm.acknowledged_at),
        "resolved_at": _known(alarm.resolved_at),
        "confirmed": alarm.confirmed,
        "evidence": evidence,
    }


def at_a_glance(alarm: Alarm) -> dict[str, Any]:
    """What an estimate says of the alarm of its version."""
    return {
        "id": alarm.id,
        "kind": alarm.kind,
        "state": alarm.state,
        "since": rfc_3339(alarm.since),
        "onset": _known(alarm.onset),
    }


def worst(alarms: Iterable[Alarm]) -> Alarm | None:
    """The open alarm that says most: one that fires before one that waits, the oldest first."""
    return min(alarms, key=lambda one: (not one.was_raised, one.since), default=None)


def _known(moment: datetime | None) -> str | None:
    return None if moment is None else rfc_3339(moment)
