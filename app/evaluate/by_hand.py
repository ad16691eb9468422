"""What people do to alarms: acknowledge them, call them over, accept the new mix as normal.

Each takes the model's lock, so that no evaluation steps the same alarm at the same time.
"""

from dataclasses import dataclass
from datetime import datetime

import numpy as np

from app.domain import alarm as domain
from app.domain import watch as watching
from app.domain.alarm import Alarm, AlarmKind, Change
from app.domain.model import Model
from app.domain.times import of_mark
from app.domain.verdict import Verdict
from app.domain.watch import Detectors, Watch
from app.errors import Conflict, NotFound
from app.evaluate.look import Evaluator, subject
from app.evaluate.tell import Alarms
from app.storage import alarms, detectors, models, rollups
from app.storage.alarms import Owned
from app.storage.db import Connection


@dataclass(frozen=True, slots=True)
class Answer:
    """What somebody says to an alarm: to which, who, when, and what there is to note about it."""

    alarm_id: int
    by: str
    at: datetime
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Choices:
    """What can be said to an alarm at the moment."""

    acknowledge: bool
    resolve: bool
    accept: bool


def choices(conn: Connection, owned: Owned) -> Choices:
    """What `Hands` would not refuse, unless the alarm changes in between."""
    alarm = owned.alarm
    watch = _watch_of(conn, owned.model_id, alarm) if alarm.is_open else None
    shifted = watch is not None and watch.shifted is not None
    return Choices(
        acknowledge=alarm.was_raised,
        resolve=watch is not None,
        accept=shifted and _is_about_the_mix(alarm),
    )


@dataclass(frozen=True, slots=True)
class Hands:
    """Does what is said to alarms, in the transaction that it is given."""

    conn: Connection
    evaluator: Evaluator
    public_url: str

    def acknowledge(self, answer: Answer) -> Owned:
        """Somebody looks after it: it is not told of again."""
        model, told, alarm = self._locked(answer)
        if not alarm.was_raised:
            raise Conflict(f"alarm {alarm.id} is pending: nobody has been told of it yet")
        changed = domain.acknowledge(alarm, answer.by, answer.at)
        return _applied(told, model, changed, answer)

    def resolve(self, answer: Answer) -> Owned:
        """Somebody says that it is over. If it is not, the detectors will say so again."""
        model, told, alarm = self._locked(answer)
        watch = self._watch(model, alarm)
        if alarm.kind is AlarmKind.SHIFT:
            watch = watching.without_shift(watch, self._detectors(model, alarm.version))
        # Also of a shift: what else has moved was told as a part of it.
        watch = watching.without_violation(watch)
        detectors.put(self.conn, model.id, alarm.version, watch)
        changed = domain.resolve(alarm, f"resolved by {answer.by}", answer.at)
        return _applied(told, model, changed, answer)

    def accept(self, answer: Answer) -> Owned:
        """Somebody says that the mix since the onset is the new normal."""
        model, told, alarm = self._locked(answer)
        watch = self._watch(model, alarm)
        raised = watch.shifted
        if raised is None or not _is_about_the_mix(alarm):
            raise Conflict(
                f"alarm {alarm.id} is about more than the mix of predictions: what the model makes "
                "of it now takes a new reference"
            )
        span = (of_mark(raised.onset), answer.at + model.settings.pane)
        stream = subject(self.conn, model, alarm.version).stream
        parts = rollups.total(self.conn, stream, *span).values()
        look = self.evaluator.span(self.conn, model, alarm.version, *span, answer.at)
        found = look.analysis.labels
        accepted = watching.accept(
            watch,
            self._detectors(model, alarm.version),
            sum((part.counts for part in parts), np.zeros(model.k, dtype=np.int64)),
            look.basis.nu if found is None else found.q,
        )
        detectors.put(self.conn, model.id, alarm.version, accepted)
        changed = domain.resolve(alarm, f"accepted as the new normal by {answer.by}", answer.at)
        return _applied(told, model, changed, answer)

    def _locked(self, answer: Answer) -> tuple[Model, Alarms, Alarm]:
        found = alarms.get(self.conn, answer.alarm_id)
        locked = models.lock(self.conn, found.model_id)
        if locked is None:
            raise NotFound(f"there is no alarm {answer.alarm_id}")
        model, _ = locked
        # Read again: it may have changed while we waited for the lock.
        alarm = alarms.get(self.conn, answer.alarm_id).alarm
        if not alarm.is_open:
            raise Conflict(f"alarm {alarm.id} is over since {alarm.resolved_at:%Y-%m-%d %H:%M} UTC")
        return model, Alarms.of(self.conn, model, self.public_url, answer.at), alarm

    def _watch(self, model: Model, alarm: Alarm) -> Watch:
        found = _watch_of(self.conn, model.id, alarm)
        if found is None:
            raise Conflict(
                f"alarm {alarm.id} ends by itself when predictions come in; "
                "acknowledge or silence it"
            )
        return found

    def _detectors(self, model: Model, version: str) -> Detectors:
        arl = model.settings.alarm.average_run_length(model.settings.pane)
        reference = self.evaluator.prepared(self.conn, model, version).reference
        return watching.detectors(reference, arl)


def _watch_of(conn: Connection, model_id: int, alarm: Alarm) -> Watch | None:
    """What the detectors remember of the alarm's cause; nothing where they are blind."""
    return None if alarm.kind in domain.BLIND else detectors.find(conn, model_id, alarm.version)


def _is_about_the_mix(alarm: Alarm) -> bool:
    return alarm.kind is AlarmKind.SHIFT and alarm.verdict is not Verdict.NOT_LABEL_SHIFT


def _applied(told: Alarms, model: Model, changed: tuple[Alarm, Change], answer: Answer) -> Owned:
    alarm, change = changed
    kept = told.apply(alarm, change, answer.at, lambda: None, by=answer.by, note=answer.note)
    return Owned(model.id, model.name, kept)
