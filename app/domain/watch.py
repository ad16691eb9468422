"""What the detectors have made of a version's stream so far, and what more of it makes of them.

Three detectors watch each version: for a change of the mix (F1), for one beyond the reference's
error (F2), and for a change that is not of the label mix (F3); docs/statistics-sequential.md has
them. They are fed each prediction exactly once, in parts of panes as they come in. Before that, the
first panes of a stream tell how far its predictions depend on each other.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from app.domain.model import AlarmPolicy
from app.domain.verdict import Attention
from app.stats import (
    assumption_monitor,
    bbsd,
    overdispersion,
    sequential,
    shift_detector,
    worst_case,
)
from app.stats.assumption_monitor import AssumptionMonitor
from app.stats.moments import Counts, Floats
from app.stats.reference import Reference
from app.stats.sequential import State
from app.stats.shift_detector import ShiftDetector
from app.stats.worst_case import WorstCaseDetector

# A quiet stretch agrees with the old mix unless one look at it would say otherwise.
DISAGREES_BELOW = 0.05


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
class Detectors:
    """What a reference and a false-alarm budget fix; no monitor without softmax rows."""

    shift: ShiftDetector
    worst: WorstCaseDetector
    monitor: AssumptionMonitor | None

    @property
    def size(self) -> int:
        """About how many numbers they hold: two dictionaries of bets are most of it."""
        return 2 * (self.shift.bets.tilt.size + self.shift.bets.strides.size)


def detectors(reference: Reference, arl: float) -> Detectors:
    """The detectors of a version that together raise one false alarm in `arl` panes or less.

    What raises alarms is F1 and F3. Promises add up, so each gets half of the budget; without
    softmax rows there is no F3, and F1 gets all.
    """
    shared = arl if reference.soft is None else 2.0 * arl
    return Detectors(
        shift=shift_detector.prepare(reference, shared),
        worst=worst_case.prepare(reference, arl),
        monitor=assumption_monitor.prepare(reference, shared),
    )


@dataclass(frozen=True, slots=True)
class Raised:
    """A detector has called: with which pane, for evidence since when, and all it takes to check.

    `before` is the detector's state before the part that made it call, `statistic` the logarithm of
    its evidence after it. `quiet_panes` panes with counts `quiet` have passed since it last called.
    """

    at: int
    onset: int
    bet: int
    statistic: float
    before: State
    part: Part
    opens: bool
    quiet_panes: int
    quiet: Counts


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


# The counts of the panes that begin from the first mark to the last, both included.
CountsBetween = Callable[[int, int], Counts]


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
    watch: Watch, own: Detectors, parts: Iterable[Part], policy: AlarmPolicy, between: CountsBetween
) -> tuple[Watch, list[Turn]]:
    """The watch after more parts of panes, and the turns that the stream took on the way."""
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
        if shift_is_over(watch, policy):
            watch = without_shift(watch, own)
            turns.append(Turn(part.mark, watch, shift_over=True))
        if violation_is_over(watch, policy):
            watch = without_violation(watch)
            turns.append(Turn(part.mark, watch, violation_over=True))
    return watch, turns


def _has_raised(before: Watch, after: Watch) -> bool:
    return (before.shifted is None and after.shifted is not None) or (
        before.violated is None and after.violated is not None
    )


def step(watch: Watch, own: Detectors, part: Part, between: CountsBetween) -> Watch:
    """The watch after one more part of a pane; it must be armed."""
    opens = watch.newest is None or part.mark > watch.newest
    watch = _step_shift(watch, own, part, opens, between)
    watch = _step_worst(watch, own, part, opens)
    watch = _step_monitor(watch, own, part, opens)
    return replace(
        watch,
        newest=part.mark if opens else watch.newest,
        panes=watch.panes + opens,
    )


def _step_shift(
    watch: Watch, own: Detectors, part: Part, opens: bool, between: CountsBetween
) -> Watch:
    before = watch.shift
    assert before is not None
    after = shift_detector.step(
        own.shift, before, part.counts, phi=watch.phi_upper, mark=part.mark, opens=opens
    )
    if after.alarm is None:
        return replace(watch, shift=after, shifted=_quieter(watch.shifted, part, opens))
    if watch.shifted is None:
        weights = own.shift.log_weights
        raised = _raised(after, before, weights, part, opens)
        # A late part is not the newest that has been learned.
        since = between(raised.onset, max(raised.at, watch.newest or raised.at))
        frozen = shift_detector.frozen(after, since, phi=watch.phi_upper)
        watch = replace(watch, shifted=raised, frozen=frozen)
    else:
        watch = replace(watch, shifted=_louder(watch.shifted))
    # From where the change began: it calls again as long as the change lasts, and only so long.
    return replace(watch, shift=shift_detector.start(own.shift, watch.frozen))


def _step_worst(watch: Watch, own: Detectors, part: Part, opens: bool) -> Watch:
    # Once another mix was accepted, distance from the reference is no news.
    if watch.confirmed is not None or watch.accepted is not None or watch.worst is None:
        return watch
    after = worst_case.step(
        own.worst, watch.worst, part.counts, phi=watch.phi_upper, mark=part.mark, opens=opens
    )
    return replace(watch, worst=after, confirmed=None if after.alarm is None else part.mark)


def _step_monitor(watch: Watch, own: Detectors, part: Part, opens: bool) -> Watch:
    if own.monitor is None or watch.monitor is None:
        return watch
    before = watch.monitor
    after = assumption_monitor.step(
        own.monitor,
        before,
        part.soft,
        part.score,
        phi=watch.phi_upper,
        mark=part.mark,
        opens=opens,
    )
    if after.alarm is None:
        return replace(watch, monitor=after, violated=_quieter(watch.violated, part, opens))
    if watch.violated is None:
        violated = _raised(after, before, own.monitor.log_weights, part, opens)
    else:
        violated = _louder(watch.violated)
    return replace(watch, violated=violated, monitor=assumption_monitor.start(own.monitor))


def _raised(after: State, before: State, log_weights: Floats, part: Part, opens: bool) -> Raised:
    assert after.alarm is not None
    return Raised(
        at=after.alarm.at,
        onset=after.alarm.onset,
        bet=after.alarm.bet,
        statistic=float(sequential.log_mean(after.log_m, log_weights)),
        before=before,
        part=part,
        opens=opens,
        quiet_panes=0,
        quiet=np.zeros_like(part.counts),
    )


def _quieter(raised: Raised | None, part: Part, opens: bool) -> Raised | None:
    if raised is None:
        return None
    return replace(raised, quiet_panes=raised.quiet_panes + opens, quiet=raised.quiet + part.counts)


def _louder(raised: Raised) -> Raised:
    return replace(raised, quiet_panes=0, quiet=np.zeros_like(raised.quiet))


def shift_is_over(watch: Watch, policy: AlarmPolicy) -> bool:
    """Whether the old mix is back: quiet for long enough, and one look at that stretch agrees."""
    raised = watch.shifted
    if raised is None or watch.frozen is None or raised.quiet_panes < policy.clear_panes:
        return False
    old = np.rint(watch.frozen).astype(np.int64)
    seen = bbsd.chi_square(old, raised.quiet, phi=watch.phi_upper, seed=raised.at)
    return seen.p_value >= DISAGREES_BELOW


def violation_is_over(watch: Watch, policy: AlarmPolicy) -> bool:
    return watch.violated is not None and watch.violated.quiet_panes >= policy.clear_panes


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
