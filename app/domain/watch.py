"""What the detectors have made of a version's stream so far, and what more of it makes of them.

Three detectors watch each version: for a change of the mix (F1), for one beyond the reference's
error (F2), and for a change that is not of the label mix (F3); docs/statistics-sequential.md has
them. They are fed each prediction exactly once, in parts of panes as they come in. Before that, the
first panes of a stream tell how far its predictions depend on each other.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from app.domain.evaluation import Evidence
from app.domain.model import AlarmPolicy
from app.domain.verdict import Attention
from app.stats import (
    assumption_monitor,
    overdispersion,
    sequential,
    shift_detector,
    worst_case,
)
from app.stats.assumption import LEAST_GAP, Check
from app.stats.assumption_monitor import AssumptionMonitor
from app.stats.moments import Counts, Floats
from app.stats.reference import Reference
from app.stats.sequential import State
from app.stats.shift_detector import ShiftDetector
from app.stats.worst_case import WorstCaseDetector

# What the mix since an onset is mixed with, in predictions of the old mix, so that a label that has
# not been seen since is improbable rather than impossible.
PRIOR_RECORDS = 10.0


@dataclass(frozen=True, slots=True)
class Part:
    """Predictions of one pane that no detector has seen yet.

    `mark` is the pane's start in seconds since the epoch. `soft` and `score` are of the predictions
    that came with softmax rows: their counts, and the sum of their largest entries.
    """

    mark: int
    counts: Counts
    soft: Counts
    score: float


@dataclass(frozen=True, slots=True)
class Confidence:
    """How sure the model is of each prediction, `h`, and how far single predictions are from it."""

    h: Floats
    variance: float


@dataclass(frozen=True, slots=True)
class Detectors:
    """What a reference and a false-alarm budget fix; no monitor without softmax rows."""

    shift: ShiftDetector
    worst: WorstCaseDetector
    monitor: AssumptionMonitor | None
    confidence: Confidence | None = None

    @property
    def size(self) -> int:
        """About how many numbers they hold: two dictionaries of bets are most of it."""
        return 2 * (self.shift.bets.tilt.size + self.shift.bets.strides.size)


def detectors(reference: Reference, arl: float, check: Check | None = None) -> Detectors:
    """The detectors of a version that together raise one false alarm in `arl` panes or less.

    What raises alarms is F1 and F3. Promises add up, so each gets half of the budget; without
    softmax rows there is no F3, and F1 gets all. `check` is the reference's, for knowing when what
    F3 has called is over.
    """
    shared = arl if reference.soft is None else 2.0 * arl
    return Detectors(
        shift=shift_detector.prepare(reference, shared),
        worst=worst_case.prepare(reference, arl),
        monitor=assumption_monitor.prepare(reference, shared),
        confidence=None if check is None else _confidence(check),
    )


def _confidence(check: Check) -> Confidence | None:
    if check.scores is None:
        return None
    return Confidence(check.scores.h, check.scores.spread)


@dataclass(frozen=True, slots=True)
class Raised:
    """A detector has called: with which pane, for evidence since when, and all it takes to check.

    `before` is the detector's state before the part that made it call, `statistic` the logarithm of
    its evidence after it. It calls again as long as the change lasts: `recent` is the onset that
    the last call gave, and `quiet_panes` have passed since. `back` is the log evidence since then
    that things are as they were before the onset rather than as they were after it: of a prediction
    of each label in `way_back` for F1, and against the gap in confidence that stands there for F3.
    """

    at: int
    onset: int
    bet: int
    statistic: float
    before: State
    part: Part
    opens: bool
    recent: int
    way_back: Floats
    back: float = 0.0
    quiet_panes: int = 0


@dataclass(frozen=True, slots=True)
class Watch:
    """All that is remembered of one stream.

    `waiting` are the parts that came before the detectors were armed. `phi` is how many predictions
    come for each independent one, and `phi_upper` the upper limit that detectors must go by.
    `newest` is the mark of the newest pane. `frozen` is what F1 had learned when the change that it
    called began. `accepted` is the label mix that was accepted as the new normal.
    """

    waiting: tuple[Part, ...] = ()
    phi: float | None = None
    phi_upper: float = 1.0
    newest: int | None = None
    panes: int = 0
    shift: State | None = None
    worst: State | None = None
    monitor: State | None = None
    shifted: Raised | None = None
    violated: Raised | None = None
    confirmed: int | None = None
    frozen: Floats | None = field(default=None, repr=False)
    accepted: Floats | None = None

    @property
    def armed(self) -> bool:
        return self.phi is not None

    @property
    def attention(self) -> Attention:
        if not self.armed:
            return Attention.CALIBRATING
        if self.violated is not None:
            return Attention.VIOLATED
        return Attention.QUIET if self.shifted is None else Attention.SHIFTED


# All that was counted into the panes from the first mark to the last, as one part.
Between = Callable[[int, int], Part]


def arm(watch: Watch, own: Detectors, policy: AlarmPolicy) -> Watch:
    """The watch with its detectors armed, if enough is known of how predictions scatter.

    The newest pane may still be open, so it does not count. Neighbouring panes are compared: a
    shift among the first panes must not be taken for scatter.
    """
    if policy.overdispersion is not None:
        return _armed(watch, own, policy.overdispersion, policy.overdispersion)
    closed = watch.waiting[:-1][: policy.calibration_panes]
    if len(closed) < policy.calibration_panes:
        return watch
    found = overdispersion.between_neighbours(np.stack([part.counts for part in closed]))
    return _armed(watch, own, found.phi, found.upper)


def _armed(watch: Watch, own: Detectors, phi: float, upper: float) -> Watch:
    return replace(
        watch,
        phi=phi,
        phi_upper=upper,
        shift=shift_detector.start(own.shift),
        worst=worst_case.start(own.worst),
        monitor=None if own.monitor is None else assumption_monitor.start(own.monitor),
    )


def merged(parts: Iterable[Part]) -> list[Part]:
    """One part for each pane, oldest first.

    >>> one, two = np.array([1, 0]), np.array([0, 2])
    >>> [part.counts.tolist() for part in merged([Part(60, one, one, 0.9), Part(60, two, two, 1)])]
    [[1, 2]]
    """
    found: dict[int, Part] = {}
    for part in parts:
        there = found.get(part.mark)
        found[part.mark] = part if there is None else _sum(there, part)
    return [found[mark] for mark in sorted(found)]


def _sum(one: Part, other: Part) -> Part:
    return Part(
        one.mark,
        one.counts + other.counts,
        one.soft + other.soft,
        one.score + other.score,
    )


@dataclass(frozen=True, slots=True)
class Turn:
    """Something that happened in a stream with the pane `at`, and the watch as it was then."""

    at: int
    watch: Watch
    shift_over: bool = False
    violation_over: bool = False


def advance(
    watch: Watch, own: Detectors, parts: Iterable[Part], policy: AlarmPolicy, between: Between
) -> tuple[Watch, list[Turn]]:
    """The watch after more parts of panes, and the turns that the stream took on the way.

    A part without predictions only says that its pane has changed, and is nothing to step on.
    """
    parts = [part for part in parts if part.counts.any()]
    if watch.armed and policy.overdispersion is not None:
        known = policy.overdispersion
        watch = replace(watch, phi=known, phi_upper=known)
    if not watch.armed:
        waiting = merged([*watch.waiting, *parts])
        watch = arm(replace(watch, waiting=tuple(waiting)), own, policy)
        if not watch.armed:
            return watch, []
        watch, parts = replace(watch, waiting=()), waiting
    turns: list[Turn] = []
    for part in parts:
        before, watch = watch, step(watch, own, part, between)
        if _has_raised(before, watch):
            turns.append(Turn(part.mark, watch))
        if shift_is_over(watch, own, policy):
            watch = without_shift(watch, own)
            turns.append(Turn(part.mark, watch, shift_over=True))
        if violation_is_over(watch, own, policy):
            watch = without_violation(watch)
            turns.append(Turn(part.mark, watch, violation_over=True))
    return watch, turns


def _has_raised(before: Watch, after: Watch) -> bool:
    return (before.shifted is None and after.shifted is not None) or (
        before.violated is None and after.violated is not None
    )


def step(watch: Watch, own: Detectors, part: Part, between: Between) -> Watch:
    """The watch after one more part of a pane; it must be armed."""
    newest = watch.newest
    opens = newest is None or part.mark > newest
    # What comes late is evidence of now: it must not date an onset back to where it belongs.
    mark = part.mark if newest is None else max(part.mark, newest)
    watch = _step_shift(watch, own, part, mark, opens, between)
    watch = _step_worst(watch, own, part, mark, opens)
    watch = _step_monitor(watch, own, part, mark, opens, between)
    return replace(watch, newest=mark, panes=watch.panes + opens)


def _step_shift(
    watch: Watch, own: Detectors, part: Part, mark: int, opens: bool, between: Between
) -> Watch:
    before = watch.shift
    assert before is not None
    after = shift_detector.step(
        own.shift, before, part.counts, phi=watch.phi_upper, mark=mark, opens=opens
    )
    if after.alarm is None:
        raised = watch.shifted
        if raised is not None:
            towards = float(part.counts @ raised.way_back) / watch.phi_upper
            raised = _quieter(raised, towards, opens)
        return replace(watch, shift=after, shifted=raised)
    first = after.alarm.onset if watch.shifted is None else watch.shifted.onset
    since = between(first, mark).counts
    frozen = watch.frozen
    if frozen is None:
        frozen = shift_detector.frozen(after, since, phi=watch.phi_upper)
    way_back = _log_ratio(frozen, since / watch.phi_upper)
    raised = _called(watch.shifted, after, before, own.shift.log_weights, part, opens, way_back)
    # From where the change began: it calls again as long as the change lasts, and only so long.
    again = shift_detector.start(own.shift, frozen)
    return replace(watch, shift=again, shifted=raised, frozen=frozen)


def _log_ratio(old: Floats, new: Floats) -> Floats:
    """The log evidence of one prediction of each label that the old mix is back."""
    p = (old + shift_detector.JEFFREYS) / (old + shift_detector.JEFFREYS).sum()
    mixed = new + PRIOR_RECORDS * p
    return np.asarray(np.log(p) - np.log(mixed / mixed.sum()))


def _step_worst(watch: Watch, own: Detectors, part: Part, mark: int, opens: bool) -> Watch:
    # Once another mix was accepted, distance from the reference is no news.
    if watch.confirmed is not None or watch.accepted is not None or watch.worst is None:
        return watch
    after = worst_case.step(
        own.worst, watch.worst, part.counts, phi=watch.phi_upper, mark=mark, opens=opens
    )
    return replace(watch, worst=after, confirmed=None if after.alarm is None else mark)


def _step_monitor(
    watch: Watch, own: Detectors, part: Part, mark: int, opens: bool, between: Between
) -> Watch:
    if own.monitor is None or watch.monitor is None:
        return watch
    before = watch.monitor
    after = assumption_monitor.step(
        own.monitor,
        before,
        part.soft,
        part.score,
        phi=watch.phi_upper,
        mark=mark,
        opens=opens,
    )
    if after.alarm is None:
        raised = watch.violated
        if raised is not None:
            towards = _towards_confidence(own, part, raised.way_back[0]) / watch.phi_upper
            raised = _quieter(raised, towards, opens)
        return replace(watch, monitor=after, violated=raised)
    first = after.alarm.onset if watch.violated is None else watch.violated.onset
    gap = np.array([_gap(own, between(first, mark))])
    raised = _called(watch.violated, after, before, own.monitor.log_weights, part, opens, gap)
    return replace(watch, violated=raised, monitor=assumption_monitor.start(own.monitor))


def _gap(own: Detectors, since: Part) -> float:
    """How much surer the model has been than its predictions stand for; at least what matters."""
    if own.confidence is None or not since.soft.any():
        return LEAST_GAP
    gap = (since.score - float(since.soft @ own.confidence.h)) / float(since.soft.sum())
    return float(np.copysign(max(abs(gap), LEAST_GAP), gap))


def _towards_confidence(own: Detectors, part: Part, gap: float) -> float:
    """The log evidence of a part that there is no gap, against one of this size."""
    if own.confidence is None:
        return 0.0
    excess = part.score - float(part.soft @ own.confidence.h)
    m = float(part.soft.sum())
    return float((m * gap**2 / 2.0 - gap * excess) / own.confidence.variance)


def _called(
    raised: Raised | None,
    after: State,
    before: State,
    log_weights: Floats,
    part: Part,
    opens: bool,
    way_back: Floats,
) -> Raised:
    """A detector has called, for the first time or again."""
    alarm = after.alarm
    assert alarm is not None
    if raised is not None:
        return replace(raised, recent=alarm.onset, way_back=way_back, back=0.0, quiet_panes=0)
    return Raised(
        at=alarm.at,
        onset=alarm.onset,
        bet=alarm.bet,
        statistic=float(sequential.log_mean(after.log_m, log_weights)),
        before=before,
        part=part,
        opens=opens,
        recent=alarm.onset,
        way_back=way_back,
    )


def _quieter(raised: Raised, towards: float, opens: bool) -> Raised:
    return replace(
        raised, quiet_panes=raised.quiet_panes + opens, back=max(0.0, raised.back + towards)
    )


def shift_is_over(watch: Watch, own: Detectors, policy: AlarmPolicy) -> bool:
    """Whether the old mix is back: quiet for a while, and as sure of it as of the shift before."""
    raised = watch.shifted
    if raised is None or raised.quiet_panes < policy.clear_panes:
        return False
    return raised.back >= own.shift.log_arl


def violation_is_over(watch: Watch, own: Detectors, policy: AlarmPolicy) -> bool:
    """The same for what is not of the label mix."""
    raised = watch.violated
    if raised is None or own.monitor is None or raised.quiet_panes < policy.clear_panes:
        return False
    return own.confidence is None or raised.back >= own.monitor.log_arl


def evidence(watch: Watch, own: Detectors) -> Evidence | None:
    """How much speaks for a change of the mix by now; None before there is anything to go by.

    After each call F1 begins anew, so with the pane that made it call it has reached the threshold
    and has nothing left.
    """
    state, raised, threshold = watch.shift, watch.shifted, own.shift.log_arl
    if state is None:
        return None
    if state.steps:
        return Evidence(float(sequential.log_mean(state.log_m, own.shift.log_weights)), threshold)
    if raised is None:
        return None
    first = raised.at == watch.newest
    return Evidence(raised.statistic if first else threshold, threshold)


def without_shift(watch: Watch, own: Detectors) -> Watch:
    """The watch after a shift has passed, or somebody said that it has."""
    return replace(
        watch,
        shifted=None,
        frozen=None,
        worst=None if watch.worst is None else worst_case.start(own.worst),
        confirmed=None,
    )


def without_violation(watch: Watch) -> Watch:
    return replace(watch, violated=None)


def accept(watch: Watch, own: Detectors, since_onset: Counts, mix: Floats | None) -> Watch:
    """The watch with the mix since the onset as the new normal, for F1 and for effect sizes."""
    normal = shift_detector.start(own.shift, since_onset / watch.phi_upper)
    return replace(without_shift(watch, own), shift=normal, accepted=mix)
