"""Verb: judge the windows of a model."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from threading import Lock

from app.domain import window as windows
from app.domain.model import Model
from app.domain.verdict import Verdict, judge
from app.domain.window import Window, WindowKind
from app.errors import Conflict, wrong_parameter
from app.stats import analysis, moments
from app.stats.analysis import Analysis, Basis
from app.stats.moments import Sums
from app.storage import panes, references
from app.storage.db import Connection
from app.storage.panes import Kind

# Preparing a reference takes milliseconds for ten labels, and seconds for a thousand.
MOST_PREPARED = 64


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One look at one span of panes of one version."""

    version: str
    start: datetime
    end: datetime
    evaluated_at: datetime
    basis: Basis
    analysis: Analysis
    verdict: Verdict


@dataclass(slots=True)
class Evaluator:
    """Looks at spans of panes; remembers what it prepared of references, which never change."""

    _prepared: OrderedDict[tuple[int, str], Basis] = field(default_factory=OrderedDict, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)

    def window(
        self, conn: Connection, model: Model, version: str | None, window: Window, now: datetime
    ) -> Evaluation:
        """The window as it is now, the pane that is still open included."""
        chosen = _version(model, version)
        start, end = _span(conn, model, chosen, window, now)
        return self.span(conn, model, chosen, start, end, now)

    def span(
        self,
        conn: Connection,
        model: Model,
        version: str | None,
        start: datetime,
        end: datetime,
        now: datetime,
    ) -> Evaluation:
        """All panes that begin at `start` or later and before `end`."""
        chosen = _version(model, version)
        basis = self._basis(conn, model, chosen)
        sums = comparable(panes.total(conn, model.id, chosen, start, end), model.k, basis)
        found = analysis.analyse(basis, sums, seed=_seed(model, start, end))
        verdict = judge(found, model.settings.alarm.min_effect)
        return Evaluation(chosen, start, end, now, basis, found, verdict)

    def _basis(self, conn: Connection, model: Model, version: str) -> Basis:
        key = (model.id, version)
        with self._lock:
            if key in self._prepared:
                self._prepared.move_to_end(key)
                return self._prepared[key]
        stored = references.get(conn, model, version)
        basis = analysis.basis(stored.statistics, stored.summary.diagnosis)
        with self._lock:
            self._prepared[key] = basis
            while len(self._prepared) > MOST_PREPARED:
                self._prepared.popitem(last=False)
        return basis


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


def _version(model: Model, version: str | None) -> str:
    chosen = version or model.active_version
    if chosen is None:
        raise Conflict(f"model {model.name!r} has no reference yet, so nothing can be estimated")
    return chosen


def _span(
    conn: Connection, model: Model, version: str, window: Window, now: datetime
) -> tuple[datetime, datetime]:
    pane = model.settings.pane
    end = windows.pane_start(now, pane) + pane
    match window.kind:
        case WindowKind.SLIDING | WindowKind.TUMBLING:
            return windows.span(window, pane, now)
        case WindowKind.LAST:
            return panes.start_of_last(conn, model.id, version, window.count or 0, end), end
        case WindowKind.VERSION:
            live = references.summary(conn, model, version).activated_at
            return windows.pane_start(live or now, pane), end
        case WindowKind.ADAPTIVE:
            raise wrong_parameter("window", "is adaptive, which this release does not evaluate")


def _seed(model: Model, start: datetime, end: datetime) -> int:
    """The same window gives the same resampled p-value, whoever asks."""
    return hash((model.id, start.timestamp(), end.timestamp())) & 0x7FFFFFFF
