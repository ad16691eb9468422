"""What the detectors and the clock say, as signs that alarms go by."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from app.domain import evidence
from app.domain.alarm import NO_SIGN, Alarm, Severity, Sign, severity
from app.domain.evidence import Case
from app.domain.model import AlarmPolicy
from app.domain.times import of_mark
from app.domain.verdict import Verdict, effect
from app.domain.watch import Detectors, Raised, Watch
from app.evaluate.look import Evaluator, Look, Subject, seed
from app.stats.analysis import ENOUGH
from app.storage.db import Connection


@dataclass(frozen=True, slots=True)
class Scene:
    """All it takes to say what is wrong with a version: at the pane `at`, by its detectors."""

    conn: Connection
    evaluator: Evaluator
    subject: Subject
    own: Detectors
    arl: float
    now: datetime

    def at(self, watch: Watch) -> "Scene":
        return replace(self, subject=replace(self.subject, watch=watch))


def shift(scene: Scene, until: datetime, alarm: Alarm | None) -> Sign:
    """Has the mix changed, is it the label mix, and how much? On the panes since the onset."""
    watch = scene.subject.watch
    raised = watch.shifted
    if raised is None:
        return NO_SIGN
    look = _largest(scene, raised, until)
    moved = effect(look.analysis, watch.accepted)
    verdict = _verdict(look, watch, alarm)
    least = scene.subject.model.settings.alarm.min_effect
    violated = verdict is Verdict.NOT_LABEL_SHIFT
    return Sign(
        seen=True,
        grave=look.analysis.n >= ENOUGH and (violated or moved is None or moved >= least),
        severity=severity(moved),
        verdict=verdict,
        onset=of_mark(raised.onset),
        confirmed=watch.confirmed is not None,
        reason=_shift_reason(look, verdict, moved),
        evidence=evidence.of_shift(
            scene.subject.model, _case(scene, look), scene.own, watch, scene.arl
        ),
    )


def violation(scene: Scene, until: datetime) -> Sign:
    """Has something other than the label mix changed?"""
    raised = scene.subject.watch.violated
    if raised is None:
        return NO_SIGN
    look = _since(scene, raised.onset, until)
    return Sign(
        seen=True,
        severity=Severity.CRITICAL,
        verdict=Verdict.NOT_LABEL_SHIFT,
        onset=of_mark(raised.onset),
        reason="the model's confidence changed in a way that no label mix explains",
        evidence=evidence.of_violation(
            scene.subject.model, _case(scene, look), scene.own, scene.subject.watch, scene.arl
        ),
    )


def _largest(scene: Scene, raised: Raised, until: datetime) -> Look:
    """The panes since the onset, or since that of the last call where more has moved since then.

    A long time of little change must not dilute a large one that came on top of it.
    """
    whole = _since(scene, raised.onset, until)
    if raised.recent <= raised.onset:
        return whole
    recent = _since(scene, raised.recent, until)
    accepted = scene.subject.watch.accepted
    more = (effect(recent.analysis, accepted) or 0.0) > (effect(whole.analysis, accepted) or 0.0)
    return recent if more and recent.analysis.n >= ENOUGH else whole


def _since(scene: Scene, mark: int, until: datetime) -> Look:
    return scene.evaluator.between(scene.conn, scene.subject, of_mark(mark), until, scene.now)


def _case(scene: Scene, look: Look) -> Case:
    subject = scene.subject
    prepared = scene.evaluator.prepared(scene.conn, subject.model, subject.version)
    return Case(
        version=subject.version,
        reference=prepared.reference,
        sums=look.sums,
        analysis=look.analysis,
        phi=subject.phi,
        seed=seed(subject.model, look.start, look.end),
    )


def _verdict(look: Look, watch: Watch, alarm: Alarm | None) -> Verdict:
    """What has moved. What was told once stands, unless the monitor has found more since.

    The check is for one look; asked again with every pane, it would change its mind sooner or
    later.
    """
    if watch.violated is not None:
        return Verdict.NOT_LABEL_SHIFT
    told = alarm.verdict if alarm is not None and alarm.was_raised else None
    if told is not None and told is not Verdict.UNDETERMINED:
        return told
    checked = look.analysis.assumption
    if checked is not None and checked.verdict == "not_label_shift":
        return Verdict.NOT_LABEL_SHIFT
    if checked is None or checked.verdict == "untestable" or look.analysis.total_variation is None:
        return Verdict.UNDETERMINED
    return Verdict.LABEL_SHIFT


_WHAT = {
    Verdict.LABEL_SHIFT: "the label mix has changed",
    Verdict.NOT_LABEL_SHIFT: "predictions have changed, and not by the label mix alone",
    Verdict.UNDETERMINED: "the mix of predictions has changed",
}


def _shift_reason(look: Look, verdict: Verdict, moved: float | None) -> str:
    reason = _WHAT[verdict]
    if moved is not None and verdict is not Verdict.NOT_LABEL_SHIFT:
        least = "at least " if look.analysis.together else ""
        reason += f" by {least}{moved:.3f} in total variation"
    return f"{reason}, over {look.analysis.n} predictions"


def ingest_stopped(
    arrived: Mapping[str, datetime], policy: AlarmPolicy, now: datetime
) -> tuple[Sign, datetime | None]:
    """Has a model that was sent predictions stopped being so? And when it would have to be said.

    `arrived` says of each version when its last prediction came in.
    """
    if policy.ingest_stopped_after is None or not arrived:
        return NO_SIGN, None
    last = max(arrived.values())
    return _overdue(last, policy.ingest_stopped_after, now, "no prediction has arrived")


def no_data(
    arrived: datetime | None, live_since: datetime | None, policy: AlarmPolicy, now: datetime
) -> tuple[Sign, datetime | None]:
    """Has the active version had no prediction for long? And when it would have to be said."""
    last = max(filter(None, (arrived, live_since)), default=None)
    if policy.no_data_after is None or last is None:
        return NO_SIGN, None
    what = "the active version has had no prediction"
    return _overdue(last, policy.no_data_after, now, what)


def _overdue(
    last: datetime, after: timedelta, now: datetime, what: str
) -> tuple[Sign, datetime | None]:
    if now - last < after:
        return NO_SIGN, last + after
    reason = f"{what} since {last:%Y-%m-%d %H:%M} UTC"
    return Sign(seen=True, onset=last, reason=reason), None
