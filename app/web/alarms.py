"""One alarm in plain words: what happened, since when, how sure, how large, and what to do next."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import exp, sqrt
from typing import Any

from app.domain.alarm import BLIND, Alarm, AlarmKind, AlarmState, Severity
from app.domain.verdict import Verdict
from app.web import words

# What there is to do, by what is behind the alarm; the template has the words and links.
STEPS: dict[Verdict | None, tuple[str, ...]] = {
    Verdict.LABEL_SHIFT: ("weights", "correct", "retrain", "accept"),
    Verdict.NOT_LABEL_SHIFT: ("look", "distrust", "reference"),
    Verdict.UNDETERMINED: ("softmax", "sample", "accept"),
}
STEPS_WHEN_BLIND = ("sender", "end_by_itself")

MEANING = {
    Verdict.LABEL_SHIFT: "The model still behaves as it did when it was tested; what it is shown "
    "has another mix. So the estimated label mix, weights and accuracy can be trusted, as far as "
    "their intervals go.",
    Verdict.NOT_LABEL_SHIFT: "The inputs or the model itself have changed. Estimates of the label "
    "mix and weights rest on neither having changed: do not act on them now.",
    Verdict.UNDETERMINED: "Predicted labels alone cannot tell a changed label mix from a changed "
    "model. If you know that only the mix can have changed, the estimates hold.",
}
# The check is as sure as one look allows, and it was asked when little had come in.
DOUBTFUL_MEANING = (
    "A changed label mix explains most of it, but perhaps not all: the check that the model "
    "behaves as it did is close to failing. Look at newer estimates before you act on this."
)
BLIND_MEANING = (
    "Nothing is known of the label mix or the accuracy while predictions are missing. "
    "Other alarms of the model stay as they are until then."
)

_SHIFTS = {
    Verdict.LABEL_SHIFT: "The label mix behind {} has changed.",
    Verdict.NOT_LABEL_SHIFT: "What {} predicts has changed, and a changed label mix does not "
    "explain it.",
    Verdict.UNDETERMINED: "The mix of what {} predicts has changed; the cause is not known.",
}
_OTHERS = {
    AlarmKind.ASSUMPTION: "How sure {} is of its predictions has changed in a way that no label "
    "mix explains.",
    AlarmKind.NO_DATA: "The active version of {} gets no predictions.",
    AlarmKind.INGEST_STOPPED: "{} is not sent predictions any more.",
}
_SEVERITIES = {
    Severity.INFO: "a small change",
    Severity.WARNING: "enough for a warning",
    Severity.CRITICAL: "a large change",
}


# What a form says when it is back.
DONE = {
    "acknowledged": "Acknowledged: nobody is reminded of this alarm any more.",
    "resolved": "Resolved. If it is not over, the detectors will raise a new alarm.",
    "accepted": "Accepted: from now on, alarms go by the mix since the onset.",
    "silenced": "Silenced: nobody is told of it until then. The alarm itself goes on.",
    "ended": "The silence has ended. What still fires is told of soon.",
}


@dataclass(frozen=True, slots=True)
class LabelRow:
    """How often a label was predicted: in the reference, and since the onset."""

    label: str
    expected: int
    expected_share: float
    count: int
    share: float

    @property
    def change(self) -> float:
        return self.share - self.expected_share


@dataclass(frozen=True, slots=True)
class Trial:
    """One of the tests, made once on all predictions since the onset."""

    name: str
    statistic: float | None
    df: float | None
    p_value: float | None


@dataclass(frozen=True, slots=True)
class Story:
    """All that the page says of one alarm. What is not known of it is None or empty."""

    headline: str
    moved: str | None
    sure: str | None
    confirmed: str | None
    size: str | None
    meaning: str
    steps: tuple[str, ...]
    n: int | None
    statistic: float | None
    threshold: float | None
    reference_version: str | None
    rows: tuple[LabelRow, ...]
    trials: tuple[Trial, ...]
    assumption: str | None
    is_complete: bool


def story(alarm: Alarm, model: str, pane: timedelta) -> Story:
    evidence = alarm.evidence
    rows = label_rows(evidence)
    return Story(
        headline=headline(alarm, model),
        moved=moved(alarm, rows),
        sure=sure(evidence, pane),
        confirmed=_confirmed(alarm),
        size=size(alarm),
        meaning=BLIND_MEANING if alarm.kind in BLIND else _meaning(alarm),
        steps=steps(alarm),
        n=evidence.get("n"),
        statistic=evidence.get("statistic"),
        threshold=evidence.get("threshold"),
        reference_version=evidence.get("reference", {}).get("version"),
        rows=rows,
        trials=_trials(evidence),
        assumption=(evidence.get("assumption") or {}).get("verdict"),
        is_complete=evidence.get("check", {}).get("complete", False),
    )


def headline(alarm: Alarm, model: str) -> str:
    if alarm.kind is AlarmKind.SHIFT:
        return _SHIFTS[_verdict(alarm)].format(model)
    return _OTHERS[alarm.kind].format(model)


def moved(alarm: Alarm, rows: tuple[LabelRow, ...]) -> str | None:
    """Which label's predictions have changed most, by the square roots of their shares."""
    if alarm.kind is not AlarmKind.SHIFT or not rows:
        return None
    most = max(rows, key=lambda row: abs(sqrt(row.share) - sqrt(row.expected_share)))
    now, before = words.percent(most.share), words.percent(most.expected_share)
    return f"“{most.label}” is {now} of what was predicted since then; in the reference, {before}."


def sure(evidence: Mapping[str, Any], pane: timedelta) -> str | None:
    """How seldom a stream that has not changed gives such evidence.

    Evidence M comes up once in M panes, or less often: that is what the detectors promise.
    """
    if evidence.get("statistic") is None:
        return None
    found, needed = (
        words.span(exp(min(evidence[name], 700.0)) * pane.total_seconds())
        for name in ("statistic", "threshold")
    )
    return (
        f"Had nothing changed, evidence this strong would come up at most once in {found}; "
        f"once in {needed} is enough for an alarm."
    )


def size(alarm: Alarm) -> str | None:
    stored = alarm.evidence.get("effect") or {}
    effect, about = stored.get("total_variation"), "at least" if stored.get("at_least") else "about"
    if alarm.kind is not AlarmKind.SHIFT or _verdict(alarm) is Verdict.NOT_LABEL_SHIFT:
        return None
    if effect is None:
        return "How large it is cannot be said: the reference does not tell its labels apart."
    # The size is that of a label shift: where it may be something else, it may be another size.
    only_mix = "" if _verdict(alarm) is Verdict.LABEL_SHIFT else "if only the mix changed, "
    begin = f"{only_mix}{about}".capitalize()
    return (
        f"{begin} {words.percent(effect)} of all records have another label than the reference's "
        f"mix would give them: {_SEVERITIES[alarm.severity]}."
    )


def steps(alarm: Alarm) -> tuple[str, ...]:
    """What to do next. When it is over there is nothing left to do."""
    if not alarm.is_open:
        return ()
    return STEPS_WHEN_BLIND if alarm.kind in BLIND else STEPS[_verdict(alarm)]


def label_rows(evidence: Mapping[str, Any]) -> tuple[LabelRow, ...]:
    """By label, in the model's order."""
    if "counts" not in evidence:
        return ()
    expected, counts = evidence["reference"]["predicted"], evidence["counts"]
    all_expected, all_counts = (sum(one["count"] for one in side) for side in (expected, counts))
    return tuple(
        LabelRow(
            now["label"],
            before["count"],
            before["count"] / max(all_expected, 1),
            now["count"],
            now["count"] / max(all_counts, 1),
        )
        for before, now in zip(expected, counts, strict=True)
    )


def state_words(alarm: Alarm) -> str:
    """Where the alarm stands, as the end of a sentence."""
    match alarm.state:
        case AlarmState.PENDING:
            return "seen, but too small or too young to be told of"
        case AlarmState.FIRING:
            return "nobody looks after it yet"
        case AlarmState.ACKNOWLEDGED:
            since = words.moment(alarm.acknowledged_at)
            return f"{alarm.acknowledged_by} looks after it since {since}"
        case AlarmState.RESOLVED:
            return f"over since {words.moment(alarm.resolved_at)}"


def _verdict(alarm: Alarm) -> Verdict:
    return Verdict.UNDETERMINED if alarm.verdict not in MEANING else alarm.verdict


def _meaning(alarm: Alarm) -> str:
    verdict = _verdict(alarm)
    checked = (alarm.evidence.get("assumption") or {}).get("verdict")
    if verdict is Verdict.LABEL_SHIFT and checked == "label_shift_doubtful":
        return DOUBTFUL_MEANING
    return MEANING[verdict]


def _confirmed(alarm: Alarm) -> str | None:
    if alarm.kind is not AlarmKind.SHIFT:
        return None
    if alarm.confirmed:
        return "It is beyond what the reference's own error could explain."
    return "The reference's own error could still explain it: a larger labelled sample would tell."


def _trials(evidence: Mapping[str, Any]) -> tuple[Trial, ...]:
    return tuple(
        Trial(one["test"], one["statistic"], one["df"], one["p_value"])
        for one in evidence.get("tests", ())
    )
