"""The state of a model in a sentence or two, for somebody who has ten seconds."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from app.domain.alarm import BLIND, Alarm, AlarmKind
from app.domain.evaluation import AccuracyNow, Evaluation, Result
from app.domain.verdict import Attention, Verdict
from app.domain.window import Window, WindowKind
from app.domain.words import named
from app.stats.analysis import ENOUGH
from app.web import moved, words

NOT_ARMED = " Alarms are not armed yet: the detectors are learning how this stream scatters."
NO_CHANGE = "No change: the mix of predictions is what the reference leads one to expect."
ACCEPTED = "No change: the mix of predictions is the one that was accepted as normal."


@dataclass(frozen=True, slots=True)
class Said:
    """A piece of a sentence; the name of a label is `strong`."""

    text: str
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Situation:
    """What the sentence is about: the newest evaluation of a window, and the open alarms.

    A window that began before a change mixes what was with what is. `since` is what was found of
    the panes since the onset alone, where that is so.
    """

    labels: Sequence[str]
    window: Window
    seen: Evaluation | None
    alarms: Sequence[Alarm]
    arrived_at: datetime | None
    now: datetime
    since: Result | None = None


def wants_since(seen: Evaluation | None, alarms: Sequence[Alarm]) -> datetime | None:
    """The onset of a shift that the newest window began before, so that it says too little."""
    onset = next((one.onset for one in alarms if one.kind is AlarmKind.SHIFT), None)
    if seen is None or onset is None or not seen.start < onset < seen.end:
        return None
    shifted = seen.result.verdict in (Verdict.LABEL_SHIFT, Verdict.UNDETERMINED)
    return onset if shifted else None


def headline(of: Situation) -> list[Said]:
    """What is the matter, since when, and how much; plain words only."""
    blind = _blind(of)
    if blind is not None:
        return [Said(blind)]
    if of.seen is None:
        return [Said("No predictions have been evaluated yet.")]
    found = of.seen.result
    said = _judged(of, found)
    known = found.verdict not in (Verdict.NO_DATA, Verdict.INSUFFICIENT_DATA)
    if known and found.attention is Attention.CALIBRATING:
        said.append(Said(NOT_ARMED))
    return said


def _judged(of: Situation, found: Result) -> list[Said]:
    match found.verdict:
        case Verdict.NO_DATA:
            last = words.ago(of.arrived_at, of.now)
            return [Said(f"There are no predictions in this window. The last one came {last}.")]
        case Verdict.INSUFFICIENT_DATA:
            few = f"Too few predictions to say anything: {words.count(found.n)} in this window"
            return [Said(f"{few}, and it takes {ENOUGH} or more.")]
        case Verdict.NO_SHIFT:
            return [Said(_calm(of, found)), *_accuracy(found.accuracy, now="")]
        case Verdict.LABEL_SHIFT:
            now = of.since or found
            return [*_moved(of, now), *_accuracy(now.accuracy, now="now ")]
        case Verdict.UNDETERMINED:
            return _undetermined(of, of.since or found)
        case Verdict.NOT_LABEL_SHIFT:
            since = _since(_onset(of, AlarmKind.ASSUMPTION, AlarmKind.SHIFT), of.now)
            what = f"Something other than the class mix has changed{since}"
            return [Said(f"{what}: the estimates are withheld. Look at the inputs and the model.")]


def clock(at: datetime, now: datetime) -> str:
    """A time of today, or of another day.

    >>> now = datetime(2026, 11, 17, 16, 0, tzinfo=UTC)
    >>> clock(now.replace(hour=14, minute=5), now), clock(now.replace(day=9), now)
    ('14:05 UTC', '9 Nov 16:00 UTC')
    """
    at = at.astimezone(UTC)
    same_day = at.date() == now.astimezone(UTC).date()
    return f"{at:%H:%M} UTC" if same_day else words.moment(at)


def about(share: float) -> str:
    """A whole percentage, where that does not hide the little that is missing.

    >>> about(0.912), about(0.9962)
    ('91 %', '99.6 %')
    """
    return f"{100 * share:.0f} %" if 0.01 <= share < 0.99 else words.percent(share)


def _blind(of: Situation) -> str | None:
    """That nothing comes in, while that is so: nothing else is known then."""
    kinds = {alarm.kind for alarm in of.alarms if alarm.was_raised}
    if not kinds.intersection(BLIND):
        return None
    if of.arrived_at is None:
        return "No predictions have come in for this version yet."
    since = f"No predictions have come in since {clock(of.arrived_at, of.now)}"
    return f"{since}, {words.ago(of.arrived_at, of.now)}. What is shown was true then."


def _calm(of: Situation, found: Result) -> str:
    if found.attention is Attention.SHIFTED:
        since = _since(_onset(of, AlarmKind.SHIFT), of.now)
        return f"The mix of predictions has changed{since}, but too little to matter here."
    calm = ACCEPTED if "baseline_accepted" in found.status else NO_CHANGE
    return f"{calm}{_unknown(of, found)}"


def _unknown(of: Situation, found: Result) -> str:
    """Which labels may have changed all the same."""
    unknown = [of.labels[label] for label in found.identified.not_identified]
    if not unknown:
        return ""
    return f" How much of it is {named(unknown, 'or')} cannot be told."


def _undetermined(of: Situation, found: Result) -> list[Said]:
    if found.total_variation is None:
        return [*_moved(of, found), Said(" This reference cannot say to what.")]
    shares = _moved(of, found, ", if nothing else has changed,")
    unknown = Said(" Whether something else has cannot be checked without softmax rows.")
    return [*shares, *_accuracy(found.accuracy, now="then "), unknown]


def _moved(of: Situation, found: Result, provided: str = "") -> list[Said]:
    when = _when(of)
    most = moved.most(of.labels, found.labels, found.identified, found.groups)
    nothing = found.total_variation is None or "degenerate_w1" in found.status
    if most is None or nothing:
        return [Said(f"{when} the mix of predictions is not what the reference leads to expect.")]
    return [
        Said(f"{when}{provided} the share of "),
        Said(most.label, strong=True),
        Said(f" is about {words.percent(most.q)} (was {words.percent(most.p)})."),
    ]


def _accuracy(found: AccuracyNow | None, *, now: str) -> list[Said]:
    if found is None:
        return []
    return [
        Said(f" Accuracy is {now}about {about(found.estimate)} (was {about(found.reference)}).")
    ]


def _when(of: Situation) -> str:
    onset = _onset(of, AlarmKind.SHIFT)
    mixed = of.since is None and wants_since(of.seen, of.alarms) is not None
    if onset is not None and not mixed:
        return f"Since {clock(onset, of.now)}"
    match of.window.kind:
        case WindowKind.SLIDING if of.window.length is not None:
            return f"Over the last {words.duration(of.window.length)}"
        case WindowKind.LAST:
            return f"Over the last {words.count(of.window.count)} predictions"
        case WindowKind.ADAPTIVE:
            return "Lately"
        case WindowKind.VERSION:
            return "Since this version went live"
        case _:
            return f"In the window {of.window.name}"


def _onset(of: Situation, *kinds: AlarmKind) -> datetime | None:
    found = [alarm.onset for kind in kinds for alarm in of.alarms if alarm.kind is kind]
    return next((at for at in found if at is not None), None)


def _since(at: datetime | None, now: datetime) -> str:
    return "" if at is None else f" since {clock(at, now)}"
