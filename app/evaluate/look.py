"""Look at a window of a version's panes: add them up, analyse, judge."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import compress
from typing import NamedTuple

from app.domain import evaluation as evaluations
from app.domain import window as windows
from app.domain.evaluation import EffectiveWindow, Evaluation, Evidence
from app.domain.model import Model
from app.domain.verdict import Attention, Verdict, judge
from app.domain.watch import Watch
from app.domain.window import Window, WindowKind
from app.errors import Conflict, NotFound
from app.evaluate.remembered import Remembered
from app.stats import adaptive, analysis, moments
from app.stats.analysis import Analysis, Basis, Estimator
from app.stats.calibration import Calibration
from app.stats.moments import Sums
from app.stats.reference import Reference
from app.storage import arrivals, detectors, horizon, panes, references, rollups
from app.storage.db import Connection
from app.storage.horizon import Horizon
from app.storage.panes import Kind
from app.storage.rollups import Keep, Stream

# Preparing a reference takes milliseconds for ten labels, and seconds for a thousand. As many are
# remembered as have this many numbers together: thousands of the former, one of the latter.
MOST_PREPARED = 20_000_000
# What the watch of a stream has to say of a look at it.
NOTES = ("calibrating", "baseline_accepted", "beyond_reference_error")
# How far back an adaptive window looks, in panes that hold predictions.
ADAPTIVE_REACH = 512


@dataclass(frozen=True, slots=True)
class Look:
    """One look at one span of panes of one version."""

    version: str
    start: datetime
    end: datetime
    evaluated_at: datetime
    basis: Basis
    sums: Sums
    analysis: Analysis
    verdict: Verdict
    attention: Attention
    notes: tuple[str, ...] = ()
    effective: EffectiveWindow | None = None

    def evaluation(
        self,
        window: str | None,
        slot: datetime | None = None,
        revision: int = 1,
        evidence: Evidence | None = None,
    ) -> Evaluation:
        """What was found, in plain numbers, beside the detector's evidence at that time."""
        found = evaluations.result(
            self.analysis,
            self.basis.nu,
            self.verdict,
            self.attention,
            more_status=self.notes,
            effective=self.effective,
            evidence=evidence,
        )
        return Evaluation(
            self.version,
            window,
            self.start,
            self.end,
            self.evaluated_at,
            found,
            slot,
            revision,
        )


class Method(NamedTuple):
    """What a label mix is estimated by; `delta` is the paper's threshold on `sigma_min`."""

    estimator: Estimator
    delta: float = 0.0


@dataclass(frozen=True, slots=True)
class Subject:
    """A version of a model, and what the detectors make of its stream.

    `keep` says which blocks of panes are to be kept as rollups, if any. Without a `method` the
    model's own is taken.
    """

    model: Model
    version: str
    stream: Stream
    watch: Watch
    keep: Keep | None = None
    method: Method | None = None

    @property
    def wanted(self) -> Method:
        """What `q` is to be: what was asked for, or as the model is set."""
        return self.method or Method(self.model.settings.estimator)

    @property
    def phi(self) -> float:
        return self.watch.phi or 1.0

    @property
    def notes(self) -> tuple[str, ...]:
        """What the watch adds to the status of every look."""
        holds = (
            not self.watch.armed,
            self.watch.accepted is not None,
            self.watch.confirmed is not None,
        )
        return tuple(compress(NOTES, holds))


@dataclass(frozen=True, slots=True)
class Prepared:
    """A reference, and what depends on nothing else."""

    reference: Reference
    basis: Basis

    @property
    def calibration(self) -> Calibration | None:
        """Of its softmax rows, if it came with any."""
        return None if self.reference.table is None else self.reference.table.calibration

    @property
    def size(self) -> int:
        """About how many numbers it holds."""
        soft, table = self.reference.soft, self.reference.table
        held = 0 if soft is None else soft.outer.size + soft.cells.size
        cells = 0 if table is None else table.counts.size
        return 4 * self.reference.counts.size + 3 * held + 4 * cells


@dataclass(slots=True)
class Evaluator:
    """Looks at spans of panes; remembers what it prepared of references."""

    _prepared: Remembered[Hashable, Prepared] = field(
        default_factory=lambda: Remembered(MOST_PREPARED, lambda one: one.size), init=False
    )

    def window(
        self,
        conn: Connection,
        model: Model,
        version: str | None,
        window: Window,
        now: datetime,
        method: Method | None = None,
    ) -> Look:
        """The window as it is now, the pane that is still open included."""
        return self.look(conn, subject(conn, model, version, method), window, now)

    def span(
        self,
        conn: Connection,
        model: Model,
        version: str | None,
        start: datetime,
        end: datetime,
        now: datetime,
        method: Method | None = None,
    ) -> Look:
        """All panes that begin at `start` or later and before `end`, judged by themselves.

        What the detectors say now need not be true of the past.
        """
        own = subject(conn, model, version, method)
        return self.between(conn, own, start, end, now, Attention.CALIBRATING)

    def look(
        self,
        conn: Connection,
        of: Subject,
        window: Window,
        now: datetime,
        end: datetime | None = None,
        attention: Attention | None = None,
    ) -> Look:
        """A look at a window as it is now or, with `end`, as it was when it ended there."""
        if window.kind is WindowKind.ADAPTIVE:
            return self._adaptive(conn, of, end or _end(of, now), now, attention)
        start, end = _span(conn, of, window, now, end)
        return self.between(conn, of, start, end, now, attention)

    def between(
        self,
        conn: Connection,
        of: Subject,
        start: datetime,
        end: datetime,
        now: datetime,
        attention: Attention | None = None,
    ) -> Look:
        """A look at a span; `attention` is the detectors' at the time, if it is not now."""
        start, end = rollups.covering(of.stream, start, end)
        found = rollups.total(conn, of.stream, start, end, keep=of.keep)
        basis = self.prepared(conn, of.model, of.version).basis
        sums = comparable(found, of.model.k, basis)
        seen = _analysed(of, basis, sums, start, end)
        return _look(of, start, end, now, basis, sums, seen, attention)

    def _adaptive(
        self,
        conn: Connection,
        of: Subject,
        end: datetime,
        now: datetime,
        attention: Attention | None,
    ) -> Look:
        newest = rollups.newest(conn, of.stream, end, ADAPTIVE_REACH)
        if not newest:
            return self.between(conn, of, end, end, now, attention)
        basis = self.prepared(conn, of.model, of.version).basis
        parts = alike([found for _, found in newest], of.model.k, basis)
        # Of all parts together: one without softmax rows does not show whether codes are missing.
        operator = basis.for_window(moments.total(parts)).operator
        chosen = None if operator is None else adaptive.choose(operator, parts, phi=of.phi)
        if chosen is None:
            return self.between(conn, of, newest[-1][0], end, now, attention)
        start = newest[chosen.panes - 1][0]
        whole, recent = (
            _analysed(of, basis, sums, start, end) for sums in (chosen.sums, chosen.recent)
        )
        seen = analysis.widened(whole, recent)
        look = _look(of, start, end, now, basis, chosen.sums, seen, attention)
        seconds = (end - start).total_seconds()
        return replace(look, effective=EffectiveWindow(chosen.panes, seconds, chosen.stopped_by))

    def prepared(self, conn: Connection, model: Model, version: str) -> Prepared:
        def prepare() -> Prepared:
            stored = references.get(conn, model, version)
            return Prepared(stored.statistics, analysis.basis(stored.statistics))

        return self._prepared.get(model.reference_key(version), prepare)


def subject(
    conn: Connection, model: Model, version: str | None, method: Method | None = None
) -> Subject:
    """What there is to look at, with what the detectors last said of it."""
    chosen = chosen_version(model, version)
    watch = detectors.find(conn, model.id, chosen) or Watch()
    stream = stream_of(conn, model, chosen, horizon.get(conn))
    return Subject(model, chosen, stream, watch, method=method)


def stream_of(conn: Connection, model: Model, version: str, known: Horizon) -> Stream:
    pending = arrivals.pending(conn, model.id, version)
    return Stream(model.id, version, model.k, model.settings.pane, pending, known)


def chosen_version(model: Model, version: str | None) -> str:
    chosen = version or model.active_version
    if chosen is None:
        raise Conflict(f"model {model.name!r} has no reference yet, so nothing can be estimated")
    if chosen not in model.versions:
        raise NotFound(f"model {model.name!r} has no reference {chosen!r}")
    return chosen


def comparable(found: Mapping[Kind, Sums], k: int, basis: Basis) -> Sums:
    """The sums to compare with the reference.

    Predictions with and without softmax rows do not add up as softmax. If most have rows and so
    has the reference, those count alone; otherwise all count, by their labels.
    """
    hard, soft = found.get("hard"), found.get("soft")
    if soft is not None and basis.soft is not None and (hard is None or hard.n <= soft.n):
        return soft
    labels = [Sums(part.counts) for part in (hard, soft) if part is not None]
    return moments.total(labels) if labels else moments.empty(k, soft=False)


def alike(found: Sequence[Mapping[Kind, Sums]], k: int, basis: Basis) -> list[Sums]:
    """The sums of several panes, all with softmax rows or all without, as all together would be."""
    everything = panes.added_up(
        panes.Piece(windows.EPOCH, kind, sums) for one in found for kind, sums in one.items()
    )
    whole = comparable(everything, k, basis)
    if whole.soft is None:
        return [moments.total([Sums(part.counts) for part in one.values()]) for one in found]
    soft = [one.get("soft") or moments.empty(k, soft=True) for one in found]
    return soft if whole.soft.coded else [moments.without_codes(part) for part in soft]


def _analysed(of: Subject, basis: Basis, sums: Sums, start: datetime, end: datetime) -> Analysis:
    return analysis.analyse(
        basis,
        sums,
        phi=of.phi,
        seed=seed(of.model, start, end),
        wanted=of.wanted.estimator,
        delta=of.wanted.delta,
    )


def _look(
    of: Subject,
    start: datetime,
    end: datetime,
    now: datetime,
    basis: Basis,
    sums: Sums,
    seen: Analysis,
    attention: Attention | None = None,
) -> Look:
    attention = of.watch.attention if attention is None else attention
    least = of.model.settings.alarm.min_effect
    verdict = judge(seen, least, attention, of.watch.accepted)
    return Look(of.version, start, end, now, basis, sums, seen, verdict, attention, notes=of.notes)


def _end(of: Subject, now: datetime) -> datetime:
    pane = of.model.settings.pane
    return windows.pane_start(now, pane) + pane


def _span(
    conn: Connection, of: Subject, window: Window, now: datetime, end: datetime | None
) -> tuple[datetime, datetime]:
    model, pane = of.model, of.model.settings.pane
    match window.kind:
        case WindowKind.LAST:
            end = end or _end(of, now)
            return rollups.start_of_last(conn, of.stream, window.count or 0, end), end
        case WindowKind.VERSION:
            own = references.summary(conn, model, of.version)
            # A version beside the active one, a canary, lives from its reference on.
            live_since = own.activated_at or own.created_at
            return windows.pane_start(live_since, pane), end or _end(of, now)
        case _:
            return windows.span(window, pane, now if end is None else end - pane)


def seed(model: Model, start: datetime, end: datetime) -> int:
    """The same window gives the same resampled p-value, whoever asks."""
    return hash((model.id, start.timestamp(), end.timestamp())) & 0x7FFFFFFF
