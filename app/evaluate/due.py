"""Evaluate the model that has been due for longest: all of it in one transaction.

Arrivals are taken, detectors stepped, windows looked at, alarms stepped and notices queued, and all
of it becomes true together or not at all. So a worker that dies half-way has done nothing, and what
it took is there for the next.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from app.domain import alarm as alarms_domain
from app.domain import evaluation as evaluations_domain
from app.domain import watch as watching
from app.domain import window as windows
from app.domain.alarm import NO_SIGN, AlarmKind, Sign
from app.domain.evaluation import Evaluation
from app.domain.model import Model
from app.domain.times import of_mark
from app.domain.watch import CountsBetween, Detectors, Turn, Watch, advance
from app.domain.window import LONGEST_STRIDE, Window, WindowKind
from app.errors import Unavailable
from app.evaluate import signs
from app.evaluate.look import Evaluator, Subject, stream_of
from app.evaluate.remembered import Remembered
from app.evaluate.signs import Scene
from app.evaluate.tell import Alarms
from app.stats.moments import Counts
from app.storage import (
    arrivals,
    detectors,
    evaluations,
    models,
    panes,
    partitions,
    references,
    rollups,
)
from app.storage.arrivals import Arrivals
from app.storage.db import Connection, Database
from app.storage.detectors import Seen
from app.storage.models import AT_MOST_EVERY
from app.storage.partitions import Partition
from app.storage.rollups import Keep, Stream

log = logging.getLogger(__name__)

# A backlog is worked off in portions, so that other models get their turn in between.
MOST_ARRIVALS = 5000
MOST_REVISED = 40

# A block of panes is kept as a rollup when it has been over for this many panes: what comes a
# little late would have it dropped again at once.
SETTLED_PANES = 2

DAY = timedelta(days=1)

# Detectors are remembered as long as they hold no more numbers than this together.
MOST_DETECTORS = 5_000_000

OVER = Sign(seen=False, over=True, reason="the old mix is back")
CONFIDENT_AGAIN = Sign(seen=False, over=True, reason="the model's confidence is as it was")


@dataclass(slots=True)
class Step:
    """What one evaluation knows: the model, what came in for it, and the time."""

    conn: Connection
    model: Model
    evaluated_at: datetime | None
    taken: Mapping[str, Arrivals]
    seen: dict[str, Seen]
    alarms: Alarms
    keep: Keep
    now: datetime
    more_to_do: bool

    @property
    def pane(self) -> timedelta:
        return self.model.settings.pane

    @property
    def next_pane(self) -> datetime:
        return windows.pane_start(self.now, self.pane) + self.pane

    @property
    def clock_moved(self) -> bool:
        """Whether another pane has begun since the last evaluation, so that windows have moved."""
        before = self.evaluated_at
        return before is None or windows.pane_start(before, self.pane) + self.pane < self.next_pane

    @property
    def live(self) -> list[str]:
        """The versions that something has come in for, or that the clock still moves."""
        reach = windows.longest(self.model.settings.windows) + self.pane
        moving = {
            version
            for version, own in self.seen.items()
            if own.newest + reach >= self.now or not self._is_blind_or_calm(version)
        }
        # Where there is a watch or an arrival there is a reference: it is never forgotten alone.
        return sorted(moving | set(self.taken))

    def is_blind(self, version: str) -> bool:
        """Whether nothing is known of the stream, so that alarms about it stay as they are."""
        return any(
            kind is AlarmKind.INGEST_STOPPED or (kind is AlarmKind.NO_DATA and own == version)
            for own, kind in self.alarms.open
        )

    def _is_blind_or_calm(self, version: str) -> bool:
        return self.is_blind(version) or not self.alarms.of_version(version)


@dataclass(slots=True)
class Worker:
    """Evaluates models, one at a time; remembers what it prepared of their references."""

    database: Database
    public_url: str
    evaluator: Evaluator = field(default_factory=Evaluator)
    on_failure: Callable[[], None] = lambda: None
    _detectors: Remembered[tuple[int, str, float], Detectors] = field(
        default_factory=lambda: Remembered(MOST_DETECTORS, lambda own: own.size), init=False
    )
    _known_partitions: set[Partition] = field(default_factory=set, init=False)

    def evaluate_next(self, now: datetime) -> bool:
        """Evaluate one model, if one is due; says whether there was one.

        A model that cannot be evaluated is put off and must not keep us from the others.
        """
        with self.database.begin() as conn:
            model_id = models.lease(conn, now)
        if model_id is None:
            return False
        try:
            with self.database.begin() as conn:
                made = self.evaluate(conn, model_id, now)
            self._known_partitions |= made
        except Unavailable:
            raise
        except Exception:
            log.exception("evaluation failed model_id=%d", model_id)
            self._known_partitions.clear()
            self.on_failure()
            with self.database.begin() as conn:
                models.postpone(conn, model_id, now)
        return True

    def evaluate(self, conn: Connection, model_id: int, now: datetime) -> set[Partition]:
        """The work of one transaction; returns the partitions that it needed."""
        locked = models.lock(conn, model_id)
        if locked is None:
            return set()
        model, evaluated_at = locked
        keep = _keep(conn, model, now)
        made = self._ensure_partitions(conn, keep, now)
        taken, more = arrivals.take(conn, model.id, MOST_ARRIVALS)
        step = Step(
            conn,
            model,
            evaluated_at,
            taken,
            detectors.seen(conn, model.id),
            Alarms.of(conn, model, self.public_url, now),
            keep,
            now,
            more,
        )
        timer = self._step_blind_alarms(step)
        live = step.live
        for version in live:
            self._version(step, version, len(live))
        models.evaluated(conn, model.id, _due_at(step, timer), now)
        return made

    def _version(self, step: Step, version: str, live: int) -> None:
        """Feed the detectors, look at the windows, step the alarms of one version."""
        arl = step.model.settings.alarm.average_run_length(step.pane) * live
        own = self._own_detectors(step.conn, step.model, version, arl)
        stream = stream_of(step.conn, step.model, version)
        fresh = step.taken.get(version)
        watch, turns = self._advance(step, stream, own, fresh)
        subject = Subject(step.model, version, stream, watch, step.keep)
        if fresh is not None or step.clock_moved:
            first = self._look_at_windows(step, subject, fresh)[0]
            scene = Scene(step.conn, self.evaluator, subject, own, arl, step.now)
            self._step_alarms(step, scene, turns, first)
        self._revise(step, subject)

    def _advance(
        self, step: Step, stream: Stream, own: Detectors, fresh: Arrivals | None
    ) -> tuple[Watch, list[Turn]]:
        """Feed the detectors what came in, and write down what they make of it."""
        watch = detectors.find(step.conn, step.model.id, stream.version) or Watch()
        if fresh is None:
            return watch, []
        self._forget_what_changed(step, stream, fresh)
        between = _counts_between(step.conn, stream)
        watch, turns = advance(watch, own, fresh.parts, step.model.settings.alarm, between)
        newest, before = of_mark(fresh.parts[-1].mark), step.seen.get(stream.version)
        when = Seen(newest if before is None else max(newest, before.newest), fresh.arrived_at)
        detectors.put(step.conn, step.model.id, stream.version, watch, when)
        step.seen[stream.version] = when
        return watch, turns

    def _forget_what_changed(self, step: Step, stream: Stream, fresh: Arrivals) -> None:
        starts = [of_mark(part.mark) for part in fresh.parts]
        rollups.drop(step.conn, stream, starts)
        first_slots = {
            window.name: windows.slot(window, step.pane, starts[0] + step.pane)
            for window in step.model.settings.windows
        }
        evaluations.outdate(
            step.conn, step.model.id, stream.version, first_slots, starts[0], starts[-1]
        )

    def _look_at_windows(
        self, step: Step, subject: Subject, fresh: Arrivals | None
    ) -> list[Evaluation]:
        looked = []
        for window in step.model.settings.windows:
            look = self.evaluator.look(step.conn, subject, window, step.now)
            slot = windows.slot(window, step.pane, look.end)
            before = evaluations.latest(step.conn, step.model.id, subject.version, window.name)
            revision = _revision(before, slot, fresh, step.pane)
            looked.append(look.evaluation(window.name, slot, revision))
        evaluations.put(step.conn, step.model.id, looked)
        return looked

    def _revise(self, step: Step, subject: Subject) -> None:
        """Look again at windows of the past that have got more predictions since."""
        of_name = {window.name: window for window in step.model.settings.windows}
        old = evaluations.outdated(step.conn, step.model.id, subject.version, MOST_REVISED)
        step.more_to_do |= len(old) == MOST_REVISED
        again = [self._again(step, subject, one, of_name.get(one.window or "")) for one in old]
        evaluations.put(step.conn, step.model.id, again)

    def _again(
        self, step: Step, subject: Subject, old: Evaluation, window: Window | None
    ) -> Evaluation:
        attention = old.result.attention
        if window is None:  # the model has it no longer
            span = (old.start, old.end)
            look = self.evaluator.between(step.conn, subject, *span, step.now, attention)
        else:
            look = self.evaluator.look(step.conn, subject, window, step.now, old.end, attention)
        # Until it was over, a window's evaluation was not final, so completing it is no revision.
        was_final = old.evaluated_at >= old.end
        changed = was_final and look.analysis.n != old.result.n
        again = look.evaluation(old.window, old.slot, old.revision + changed)
        return replace(again, evaluated_at=old.evaluated_at) if was_final and not changed else again

    def _step_alarms(self, step: Step, scene: Scene, turns: list[Turn], looked: Evaluation) -> None:
        """Turn by turn as the stream took them, then as it stands now."""
        if step.is_blind(scene.subject.version):
            return
        for turn in turns:
            until = of_mark(turn.at) + step.pane
            at = min(step.now, max(until, step.evaluated_at or until))
            self._step_pair(step, scene.at(turn.watch), looked, until, at, turn)
        self._step_pair(step, scene, looked, step.next_pane, step.now, None)

    def _step_pair(
        self,
        step: Step,
        scene: Scene,
        looked: Evaluation,
        until: datetime,
        at: datetime,
        turn: Turn | None,
    ) -> None:
        """The two alarms about what has changed. One worry is told once: while one of them is open,
        the other does not begin."""
        version = scene.subject.version
        shift = step.alarms.open.get((version, AlarmKind.SHIFT))
        violation = step.alarms.open.get((version, AlarmKind.ASSUMPTION))
        if turn is not None and turn.shift_over:
            self._step_alarm(step, AlarmKind.SHIFT, OVER, at, looked)
        elif violation is None:
            self._step_alarm(step, AlarmKind.SHIFT, signs.shift(scene, until, shift), at, looked)
        if turn is not None and turn.violation_over:
            self._step_alarm(step, AlarmKind.ASSUMPTION, CONFIDENT_AGAIN, at, looked)
        elif (version, AlarmKind.SHIFT) not in step.alarms.open:
            sign = signs.violation(scene, until)
            self._step_alarm(step, AlarmKind.ASSUMPTION, sign, at, looked)

    def _step_alarm(
        self, step: Step, kind: AlarmKind, sign: Sign, at: datetime, looked: Evaluation
    ) -> None:
        def estimate() -> dict[str, Any]:
            alarm = alarms_domain.worst(step.alarms.of_version(looked.version))
            glance = None if alarm is None else alarms_domain.at_a_glance(alarm)
            return evaluations_domain.described(looked, step.model, glance)

        step.alarms.step(kind, looked.version, sign, at, estimate)

    def _step_blind_alarms(self, step: Step) -> datetime | None:
        """The alarms about predictions that do not come; returns when they need another look."""
        version = step.model.active_version
        if version is None:
            return None
        policy = step.model.settings.alarm
        arrived = {own: one.arrived_at for own, one in step.seen.items()}
        arrived |= {own: one.arrived_at for own, one in step.taken.items()}
        stopped, first = signs.ingest_stopped(arrived, policy, step.now)
        live_since = references.active_since(step.conn, step.model)
        missing, second = signs.no_data(arrived.get(version), live_since, policy, step.now)
        if stopped.seen:
            # Nothing comes for any version: that is said once.
            missing = NO_SIGN
        for kind, sign in ((AlarmKind.INGEST_STOPPED, stopped), (AlarmKind.NO_DATA, missing)):
            for own in {version, *step.alarms.versions_of(kind)}:
                step.alarms.step(kind, own, sign if own == version else NO_SIGN, step.now, _none)
        return min(filter(None, (first, second, step.alarms.next_reminder())), default=None)

    def _own_detectors(self, conn: Connection, model: Model, version: str, arl: float) -> Detectors:
        def prepare() -> Detectors:
            return watching.detectors(self.evaluator.prepared(conn, model, version).reference, arl)

        return self._detectors.get((model.id, version, arl), prepare)

    def _ensure_partitions(self, conn: Connection, keep: Keep, now: datetime) -> set[Partition]:
        """Make the partitions that may be written to and are not known to be there."""
        needed = rollups.needed_partitions(keep)
        needed |= partitions.covering("evaluation", [now - LONGEST_STRIDE, now + DAY])
        missing = needed - self._known_partitions
        if missing:
            partitions.ensure(conn, missing)
        return missing


def _none() -> None:
    return None


def _keep(conn: Connection, model: Model, now: datetime) -> Keep:
    """The blocks of panes that windows will want again, and that have settled."""
    pane = model.settings.pane
    after = now - windows.longest(model.settings.windows) - model.settings.allowed_lateness
    if any(window.kind is WindowKind.VERSION for window in model.settings.windows):
        after = min(after, references.oldest(conn, model) or after)
    return Keep(after, windows.pane_start(now, pane) - SETTLED_PANES * pane)


def _counts_between(conn: Connection, stream: Stream) -> CountsBetween:
    def between(first: int, last: int) -> Counts:
        found = panes.counts(
            conn, stream.model_id, stream.version, of_mark(first), of_mark(last) + stream.pane
        )
        return np.zeros(stream.k, dtype=np.int64) if found is None else found

    return between


def _revision(
    before: Evaluation | None, slot: datetime, fresh: Arrivals | None, pane: timedelta
) -> int:
    """One, and one more each time that predictions came in for a pane that had been over."""
    if before is None or before.slot != slot:
        return 1
    if fresh is None:
        return before.revision
    late = [of_mark(part.mark) for part in fresh.parts]
    was_over = (start + pane <= before.evaluated_at and start >= before.start for start in late)
    return before.revision + any(was_over)


def _due_at(step: Step, timer: datetime | None) -> datetime | None:
    """When to look again: at once, soon, when the next pane begins, or when an alarm wants it."""
    if step.more_to_do:
        return step.now
    if step.taken:
        return step.now + AT_MOST_EVERY
    candidates = [timer] if timer is not None else []
    if step.live:
        candidates.append(step.next_pane)
    return min(candidates, default=None)
