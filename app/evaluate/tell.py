"""Step alarms, write down what changed, and queue the notices that tell people of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from app import tracing
from app.domain import alarm as domain
from app.domain.alarm import Alarm, AlarmKind, AlarmState, Change, Sign, Silence
from app.domain.model import Model
from app.domain.notice import Event
from app.domain.times import rfc_3339
from app.storage import alarms, deliveries, silences
from app.storage.alarms import AlarmKey
from app.storage.db import Connection

# What an estimate says at the time, if there is anything to tell of.
Estimate = Callable[[], Mapping[str, Any] | None]


@dataclass(slots=True)
class Alarms:
    """The open alarms of a model during one evaluation."""

    conn: Connection
    model: Model
    public_url: str
    open: dict[AlarmKey, Alarm]
    resolved: dict[AlarmKey, datetime]
    silences: list[Silence] = field(default_factory=list)

    @classmethod
    def of(cls, conn: Connection, model: Model, public_url: str, now: datetime) -> "Alarms":
        return cls(
            conn,
            model,
            public_url,
            alarms.open_of(conn, model.id),
            alarms.last_resolved(conn, model.id),
            silences.current(conn, now),
        )

    def of_version(self, version: str) -> list[Alarm]:
        return [alarm for (own, _), alarm in self.open.items() if own == version]

    def versions_of(self, kind: AlarmKind) -> list[str]:
        return [version for version, own in self.open if own is kind]

    def next_reminder(
        self, now: datetime, is_held_back: Callable[[Alarm], bool]
    ) -> datetime | None:
        """When the first of the firing alarms is to be told of again, or at last."""
        times = (
            self._reminder(alarm, now)
            for alarm in self.open.values()
            if alarm.state is AlarmState.FIRING and not is_held_back(alarm)
        )
        return min((at for at in times if at is not None), default=None)

    def _reminder(self, alarm: Alarm, now: datetime) -> datetime | None:
        silenced = [one.until for one in self.silences if one.covers(self.model.name, alarm, now)]
        if silenced:
            return max(silenced)
        told = alarm.notified_at
        return now if told is None else told + self.model.settings.alarm.renotify

    def step(
        self,
        kind: AlarmKind,
        version: str,
        sign: Sign,
        at: datetime,
        estimate: Estimate,
    ) -> None:
        """Take one more look's word for a worry, and do what follows from it."""
        key = (version, kind)
        before = self.open.get(key)
        after, change = domain.step(
            before,
            sign,
            self.model.settings.alarm,
            at,
            kind=kind,
            version=version,
            resolved_before=self.resolved.get(key),
        )
        if after is None or (change is None and after == before):
            return
        if change is not None and change.reminder and self._silenced(after, at):
            return
        self.apply(after, change, at, estimate)

    def apply(
        self,
        changed: Alarm,
        change: Change | None,
        at: datetime,
        estimate: Estimate,
        *,
        by: str | None = None,
        note: str | None = None,
    ) -> Alarm:
        """Keep an alarm as it is now, and tell of what changed, if anything."""
        key = (changed.version, changed.kind)
        after = alarms.put(self.conn, self.model.id, changed)
        if change is not None:
            if not change.reminder:
                alarms.note(self.conn, self.model.id, after, change, at, by=by, comment=note)
            after = self._tell(after, change, at, estimate)
        if after.is_open:
            self.open[key] = after
        else:
            self.open.pop(key, None)
            self.resolved[key] = at
        return after

    def _tell(self, changed: Alarm, change: Change, at: datetime, estimate: Estimate) -> Alarm:
        # Whoever was told that it began must hear that it is over, silence or not: an incident that
        # was opened somewhere would otherwise stay open.
        if change.event is not Event.RESOLVED and self._silenced(changed, at):
            return changed
        notice = self._notice(changed, change, at, estimate())
        trace = tracing.current()
        deliveries.queue(self.conn, notice, change.event, changed.id, at, trace)
        if change.event is not Event.FIRING:
            return changed
        return alarms.put(self.conn, self.model.id, replace(changed, notified_at=at))

    def _notice(
        self, alarm: Alarm, change: Change, at: datetime, estimate: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        root = self.public_url
        renotify = self.model.settings.alarm.renotify.total_seconds()
        shown = domain.described(alarm, self.model.name, slim=True)
        return {
            "type": change.event,
            "timestamp": rfc_3339(at),
            "data": {
                "alarm": {**shown, "renotify_seconds": renotify},
                "estimate": estimate,
                "reason": change.reason,
                "links": {
                    "page": f"{root}/alarms/{alarm.id}",
                    "api": f"{root}/v1/alarms/{alarm.id}",
                },
            },
        }

    def _silenced(self, alarm: Alarm, at: datetime) -> bool:
        return any(one.covers(self.model.name, alarm, at) for one in self.silences)
