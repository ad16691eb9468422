"""Evaluate the model that has been due for longest: all of it in one transaction.

Arrivals are taken, detectors stepped, windows looked at, alarms stepped and notices queued, and all
of it becomes true together or not at all. So a worker that dies half-way has done nothing, and what
it took is there for the next.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from structlog.contextvars import bind_contextvars, unbind_contextvars

from app import metrics, tracing
from app.domain import alarm as alarms_domain
from app.domain import evaluation as evaluations_domain
from app.domain import watch as watching
from app.domain import window as windows
from app.domain.alarm import BLIND, NO_SIGN, AlarmKind, Sign
from app.domain.evaluation import Evaluation, Evidence
from app.domain.model import Model
from app.domain.times import of_mark
from app.domain.watch import Between, Detectors, Part, Turn, Watch, advance
from app.domain.window import Window, WindowKind
from app.evaluate import signs
from app.evaluate.look import NOTES, Evaluator, Subject, stream_of
from app.evaluate.remembered import Remembered
from app.evaluate.signs import Scene
from app.evaluate.step import Step
from app.evaluate.tell import Alarms
from app.logs import logger
from app.storage import (
    arrivals,
    detectors,
    evaluations,
    horizon,
    models,
    partitions,
    references,
    rollups,
)
from app.storage.arrivals import Arrivals, Taken
from app.storage.db import Connection, Database, Outage
from app.storage.detectors import Seen
from app.storage.evaluations import Touched
from app.storage.horizon import Horizon
from app.storage.partitions import Partition
from app.storage.rollups import Keep, Stream

log = logger(__name__)

# A backlog is worked off in portions, so that other models get their turn in between.
MOST_ARRIVALS = 5000
MOST_REVISED = 120

# A block of panes is kept as a rollup when it has been over for this many panes: what comes a
# little late would have it dropped again at once.
SETTLED_PANES = 2

# Detectors are remembered as long as they hold no more numbers than this together.
MOST_DETECTORS = 5_000_000

OVER = Sign(seen=False, over=True, reason="the old mix is back")
RETIRED = Sign(seen=False, over=True, reason="the version is not in use any more")
DELETED = Sign(seen=False, over=True, reason="the reference of the version was deleted")
CONFIDENT_AGAIN = Sign(seen=False, over=True, reason="the model's confidence is as it was")


@dataclass(slots=True)
class Worker:
    """Evaluates models, one at a time; remembers what it prepared of their references."""

    database: Database
    public_url: str
    evaluator: Evaluator = field(default_factory=Evaluator)
    _detectors: Remembered[Hashable, Detectors] = field(
        default_factory=lambda: Remembered(MOST_DETECTORS, lambda own: own.size), init=False
    )
    _known_partitions: set[Partition] = field(default_factory=set, init=False)
    _left_behind: int | None = field(default=None, init=False)

    def evaluate_next(self, now: datetime) -> bool:
        """Evaluate one model, if one is due; says whether there was one.

        A model that cannot be evaluated is put off and must not keep us from the others.
        """
        with self.database.begin() as conn:
            if self._left_behind is not None:
                models.release(conn, self._left_behind)
            model_id = models.lease(conn, now)
            if model_id is None:
                models.mark_overlooked(conn, now)
                model_id = models.lease(conn, now)
        self._left_behind = None
        if model_id is None:
            return False
        bind_contextvars(model_id=model_id)
        try:
            with metrics.EVALUATION_SECONDS.time(), self.database.begin() as conn:
                made = self.evaluate(conn, model_id, now)
            self._known_partitions |= made
            metrics.EVALUATIONS.labels("done").inc()
        except Outage:
            # The lease cannot be given back now, but need not run out either.
            self._left_behind = model_id
            raise
        except Exception:
            metrics.EVALUATIONS.labels("failed").inc()
            log.exception("evaluation failed")
            self._known_partitions.clear()
            with self.database.begin() as conn:
                models.postpone(conn, model_id, now)
        return True

    def evaluate(self, conn: Connection, model_id: int, now: datetime) -> set[Partition]:
        """The work of one transaction; returns the partitions that it needed."""
        locked = models.lock(conn, model_id)
        if locked is None:
            return set()
        model, evaluated_at = locked
        unbind_contextvars("model_id")
        bind_contextvars(model=model.name)
        known = horizon.get(conn)
        keep = _keep(conn, model, known, now)
        made = self._ensure_partitions(conn, model, keep, now)
        taken = arrivals.take(conn, model.id, MOST_ARRIVALS)
        step = Step(
            conn,
            model,
            evaluated_at,
            taken.by_version,
            detectors.seen(conn, model.id),
            evaluations.versions_outdated(conn, model.id),
            Alarms.of(conn, model, self.public_url, now),
            keep,
            known,
            now,
            taken.more,
        )
        with _span(model, taken):
            self._judge(step)
            log.debug("evaluated", versions=sorted(taken.by_version))
        return made

    def _judge(self, step: Step) -> None:
        """Look at all that is live of the model, and note when to look again."""
        # What is left of a backlog may be newer than what was taken of it.
        timer = None if step.more else self._step_blind_alarms(step)
        live = step.live()
        for version in live:
            self._version(step, version, len(live))
        models.evaluated(step.conn, step.model.id, step.due_at(timer, bool(live)), step.now)

    def _version(self, step: Step, version: str, live: int) -> None:
        """Feed the detectors, look at the windows, step the alarms of one version."""
        arl = step.model.settings.alarm.average_run_length(step.pane) * live
        own = self._own_detectors(step.conn, step.model, version, arl)
        stream = stream_of(step.conn, step.model, version, step.horizon)
        fresh = step.taken.get(version)
        watch, turns = self._advance(step, stream, own, fresh)
        subject = Subject(step.model, version, stream, watch, step.keep)
        if fresh is not None or step.wants_a_look:
            evidence = watching.evidence(watch, own)
            first = self._look_at_windows(step, subject, fresh, evidence)[0]
            scene = Scene(step.conn, self.evaluator, subject, own, arl, step.now)
            self._step_alarms(step, scene, turns, first)
        if step.may_revise(version):
            self._revise(step, subject)

    def _advance(
        self, step: Step, stream: Stream, own: Detectors, fresh: Arrivals | None
    ) -> tuple[Watch, list[Turn]]:
        """Feed the detectors what came in, and write down what they make of it."""
        watch = detectors.find(step.conn, step.model.id, stream.version) or Watch()
        if fresh is None:
            return watch, []
        self._forget_what_changed(step, stream, fresh)
        between = _between(step.conn, stream)
        watch, turns = advance(watch, own, fresh.parts, step.model.settings.alarm, between)
        when = Seen(of_mark(fresh.parts[-1].mark), fresh.arrived_at)
        before = step.seen.get(stream.version, when)
        when = Seen(max(when.newest, before.newest), max(when.arrived_at, before.arrived_at))
        detectors.put(step.conn, step.model.id, stream.version, watch, when)
        step.seen[stream.version] = when
        return watch, turns

    def _forget_what_changed(self, step: Step, stream: Stream, fresh: Arrivals) -> None:
        starts = [of_mark(part.mark) for part in fresh.parts]
        rollups.drop(step.conn, stream, starts)
        touched = [
            Touched(
                window.name,
                windows.slot(window, step.pane, starts[0] + step.pane),
                window.kind in (WindowKind.LAST, WindowKind.ADAPTIVE),
            )
            for window in step.model.settings.windows
        ]
        evaluations.outdate(
            step.conn, step.model.id, stream.version, touched, starts[0], starts[-1]
        )
        step.outdated.add(stream.version)

    def _look_at_windows(
        self,
        step: Step,
        subject: Subject,
        fresh: Arrivals | None,
        evidence: Evidence | None,
    ) -> list[Evaluation]:
        looked = []
        for window in step.model.settings.windows:
            look = self.evaluator.look(step.conn, subject, window, step.now)
            slot = windows.slot(window, step.pane, look.end)
            before = evaluations.latest(step.conn, step.model.id, subject.version, window.name)
            revision = _revision(before, slot, fresh, step.pane)
            looked.append(look.evaluation(window.name, slot, revision, evidence))
        evaluations.put(step.conn, step.model.id, looked)
        return looked

    def _revise(self, step: Step, subject: Subject) -> None:
        """Look again at windows of the past that have got more predictions since."""
        of_name = {window.name: window for window in step.model.settings.windows}
        old = evaluations.outdated(step.conn, step.model.id, subject.version, MOST_REVISED)
        again = [self._again(step, subject, one, of_name.get(one.window or "")) for one in old]
        evaluations.put(step.conn, step.model.id, again)
        if len(old) == MOST_REVISED:
            step.more = True
        else:
            step.outdated.discard(subject.version)

    def _again(
        self, step: Step, subject: Subject, old: Evaluation, window: Window | None
    ) -> Evaluation:
        attention = old.result.attention
        if old.end <= step.horizon.coarse:
            # Its panes are gone, and blocks would make another window of it.
            return old
        # Since when a version has been live may have changed; a window may be there no longer.
        if window is None or window.kind is WindowKind.VERSION:
            span = (old.start, old.end)
            look = self.evaluator.between(step.conn, subject, *span, step.now, attention)
        else:
            look = self.evaluator.look(step.conn, subject, window, step.now, old.end, attention)
        # What the detectors say today need not have been true then.
        noted = tuple(word for word in old.result.status if word in NOTES)
        look = replace(look, notes=noted)
        again = look.evaluation(old.window, old.slot, old.revision, old.result.evidence)
        if again.content == old.content:
            return old
        # Until we were past its end, an evaluation was not final: to complete it is no revision.
        was_final = step.evaluated_at is not None and step.evaluated_at >= old.end
        return replace(again, revision=old.revision + was_final)

    def _step_alarms(self, step: Step, scene: Scene, turns: list[Turn], looked: Evaluation) -> None:
        """Turn by turn as the stream took them, then as it stands now."""
        version = scene.subject.version
        if step.is_retired(version):
            for kind in (AlarmKind.SHIFT, AlarmKind.ASSUMPTION):
                self._step_alarm(step, kind, RETIRED, step.now, looked)
            return
        if step.is_blind(version):
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
            self._resolve_blind_alarms(step)
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
        step.alarms.step(
            AlarmKind.INGEST_STOPPED,
            next(iter(step.alarms.versions_of(AlarmKind.INGEST_STOPPED)), version),
            stopped,
            step.now,
            _none,
        )
        for own in {version, *step.alarms.versions_of(AlarmKind.NO_DATA)}:
            sign = missing if own == version else NO_SIGN
            step.alarms.step(AlarmKind.NO_DATA, own, sign, step.now, _none)
        return min(filter(None, (first, second)), default=None)

    def _resolve_blind_alarms(self, step: Step) -> None:
        """Without an active version, no predictions are waited for."""
        for version, kind in list(step.alarms.open):
            if kind in BLIND:
                step.alarms.step(kind, version, DELETED, step.now, _none)

    def _own_detectors(self, conn: Connection, model: Model, version: str, arl: float) -> Detectors:
        def prepare() -> Detectors:
            prepared = self.evaluator.prepared(conn, model, version)
            return watching.detectors(prepared.reference, arl, prepared.basis.check)

        return self._detectors.get((model.reference_key(version), arl), prepare)

    def _ensure_partitions(
        self, conn: Connection, model: Model, keep: Keep, now: datetime
    ) -> set[Partition]:
        """Make the partitions that may be written to and are not known to be there."""
        pane = model.settings.pane
        needed = rollups.needed_partitions(keep)
        for window in model.settings.windows:
            _, end = windows.span(window, pane, now)
            needed.add(partitions.containing("evaluation", windows.slot(window, pane, end)))
        missing = needed - self._known_partitions
        if missing:
            partitions.ensure(conn, missing)
        return missing


def _span(model: Model, taken: Taken) -> tracing.Span:
    """Of the trace of what came last; what came before it is linked."""
    return tracing.span("evaluate", taken.traces, "consumer", {"shiftwatch.model": model.name})


def _none() -> None:
    return None


def _keep(conn: Connection, model: Model, known: Horizon, now: datetime) -> Keep:
    """The blocks of panes that windows will want again, and that have settled."""
    pane = model.settings.pane
    after = now - windows.longest(model.settings.windows) - model.settings.allowed_lateness
    if any(window.kind is WindowKind.VERSION for window in model.settings.windows):
        after = min(after, references.oldest(conn, model) or after)
    after = max(after, known.forgotten)
    return Keep(after, windows.pane_start(now, pane) - SETTLED_PANES * pane)


def _between(conn: Connection, stream: Stream) -> Between:
    def between(first: int, last: int) -> Part:
        found = rollups.total(conn, stream, of_mark(first), of_mark(last) + stream.pane)
        none = np.zeros(stream.k, dtype=np.int64)
        counts = sum((part.counts for part in found.values()), none)
        soft = found.get("soft")
        if soft is None or soft.soft is None:
            return Part(last, counts, none, 0.0)
        return Part(last, counts, soft.counts, soft.soft.score)

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
