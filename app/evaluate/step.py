"""What one evaluation of a model knows, and what follows from it for what is to be done."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from app.domain import window as windows
from app.domain.alarm import BLIND, Alarm, AlarmKind
from app.domain.model import Model
from app.evaluate.tell import Alarms
from app.storage.arrivals import Arrivals
from app.storage.db import Connection
from app.storage.detectors import Seen
from app.storage.horizon import Horizon
from app.storage.models import AT_MOST_EVERY
from app.storage.rollups import Keep

# How often windows of the past are looked at again while late predictions keep coming in.
REVISE_EVERY = timedelta(minutes=1)
# A version beside the active one that has had nothing for this long is not in use any more, where
# the model's policy does not say how long that may be.
RETIRED_AFTER = timedelta(hours=1)


@dataclass(slots=True)
class Step:
    """The model, what came in for it, how things stand, and the time.

    `outdated` are the versions with evaluations that got more predictions since they were made.
    `more` says that not everything has been taken, or not everything done.
    """

    conn: Connection
    model: Model
    evaluated_at: datetime | None
    taken: Mapping[str, Arrivals]
    seen: dict[str, Seen]
    outdated: set[str]
    alarms: Alarms
    keep: Keep
    horizon: Horizon
    now: datetime
    more: bool

    @property
    def pane(self) -> timedelta:
        return self.model.settings.pane

    @property
    def next_pane(self) -> datetime:
        return windows.pane_start(self.now, self.pane) + self.pane

    @property
    def clock_moved(self) -> bool:
        """Whether another pane has begun since the last evaluation, so that windows have moved."""
        return self._has_passed(self.pane)

    @property
    def wants_a_look(self) -> bool:
        """Whether windows or alarms may be different although nothing has come in."""
        return self.clock_moved or self._settings_changed or self._reminder_is_due

    @property
    def _settings_changed(self) -> bool:
        changed, before = self.model.updated_at, self.evaluated_at
        return before is None or (changed is not None and changed > before)

    @property
    def _reminder_is_due(self) -> bool:
        at = self.next_reminder
        return at is not None and at <= self.now

    @property
    def next_reminder(self) -> datetime | None:
        """When an alarm is to be told of again, those that are held back aside."""
        return self.alarms.next_reminder(self.now, self._is_held_back)

    def may_revise(self, version: str) -> bool:
        """Not with every batch: what comes late often comes for the same windows again."""
        return version not in self.taken or self._has_passed(REVISE_EVERY)

    def live(self) -> list[str]:
        """The versions that something has come in for, or that the clock still moves."""
        reach = windows.longest(self.model.settings.windows) + self.pane
        moving = {
            version
            for version, own in self.seen.items()
            if own.newest + reach >= self.now or self._has_open_worry(version)
        }
        # Where there is a watch or an arrival there is a reference: it can only be deleted before.
        return sorted(moving | set(self.taken) | self.outdated)

    def is_blind(self, version: str) -> bool:
        """Whether nothing is known of the stream, so that alarms about it stay as they are."""
        return any(
            kind is AlarmKind.INGEST_STOPPED or (kind is AlarmKind.NO_DATA and own == version)
            for own, kind in self.alarms.open
        )

    def is_retired(self, version: str) -> bool:
        """Whether a version has given way to another and gets no predictions any more."""
        if version == self.model.active_version or version not in self.seen:
            return False
        patience = self.model.settings.alarm.no_data_after or RETIRED_AFTER
        return self.now - self.seen[version].arrived_at >= patience

    def due_at(self, timer: datetime | None, live: bool) -> datetime | None:
        """When to look again: at once, soon, when the next pane begins, or for an alarm."""
        if self.more:
            return self.now
        soon = self.now + AT_MOST_EVERY
        if self.taken or self.outdated:
            return soon
        candidates = [timer, self.next_reminder, self.next_pane if live else None]
        found = min((at for at in candidates if at is not None), default=None)
        # Never at once: whatever could not be done now cannot be done in the same moment either.
        return None if found is None else max(found, soon)

    def _has_passed(self, length: timedelta) -> bool:
        before = self.evaluated_at
        if before is None:
            return True
        return windows.pane_start(before, length) < windows.pane_start(self.now, length)

    def _has_open_worry(self, version: str) -> bool:
        return not self.is_blind(version) and bool(self.alarms.of_version(version))

    def _is_held_back(self, alarm: Alarm) -> bool:
        return alarm.kind not in BLIND and self.is_blind(alarm.version)
