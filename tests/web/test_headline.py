"""The state of a model in a sentence."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.domain.alarm import Alarm, AlarmKind, AlarmState, Severity
from app.domain.evaluation import (
    AccuracyNow,
    Evaluation,
    GroupShare,
    Identified,
    LabelColumns,
    Result,
)
from app.domain.verdict import Attention, Verdict
from app.domain.window import DEFAULT_WINDOWS, Window, WindowKind
from app.web.headline import Said, Situation, headline, wants_since

NOW = datetime(2026, 11, 17, 16, 0, tzinfo=UTC)
ONSET = NOW.replace(hour=14, minute=5)
HOUR = DEFAULT_WINDOWS[0]
MIX = LabelColumns(p=(0.988, 0.012), q=(0.952, 0.048), q_lower=(0.94, 0.041), q_upper=(0.96, 0.055))
CALM = LabelColumns(p=(0.988, 0.012), q=(0.988, 0.012))
WORSE = AccuracyNow(0.912, 0.9, 0.92, 0.95)
SAME = AccuracyNow(0.981, 0.97, 0.99, 0.983)


def found(verdict: Verdict, attention: Attention = Attention.SHIFTED, **more: Any) -> Result:
    told = {"labels": MIX, "accuracy": WORSE, "total_variation": 0.036, **more}
    return Result(told.pop("n", 1000), verdict, attention, ("ok",), "bbse-soft", **told)


def alarm(kind: AlarmKind = AlarmKind.SHIFT, state: AlarmState = AlarmState.FIRING) -> Alarm:
    return Alarm(kind, "v1", state, Severity.WARNING, None, "", ONSET, onset=ONSET)


def situation(result: Result | None, *alarms: Alarm, window: Window = HOUR) -> Situation:
    seen = None if result is None else Evaluation("v1", "1h", ONSET, NOW, NOW, result)
    arrived_at = NOW - timedelta(minutes=3)
    return Situation(("legit", "fraud"), window, seen, alarms, arrived_at, NOW)


def said(of: Situation) -> str:
    return "".join(f"*{piece.text}*" if piece.strong else piece.text for piece in headline(of))


WITHHELD: dict[str, Any] = {
    "labels": LabelColumns(p=MIX.p),
    "accuracy": None,
    "total_variation": None,
}
NOT_ARMED = " Alarms are not armed yet: the detectors are learning how this stream scatters."
CASES = {
    "nothing yet": (
        situation(None),
        "No predictions have been evaluated yet.",
    ),
    "empty window": (
        situation(found(Verdict.NO_DATA, Attention.CALIBRATING, n=0)),
        "There are no predictions in this window. The last one came 3 min ago.",
    ),
    "too few": (
        situation(found(Verdict.INSUFFICIENT_DATA, Attention.CALIBRATING, n=12)),
        "Too few predictions to say anything: 12 in this window, and it takes 50 or more.",
    ),
    "calm": (
        situation(found(Verdict.NO_SHIFT, Attention.QUIET, labels=CALM, accuracy=SAME)),
        "No change: the mix of predictions is what the reference leads one to expect. "
        "Accuracy is about 98 % (was 98 %).",
    ),
    "calm, calibrating": (
        situation(found(Verdict.NO_SHIFT, Attention.CALIBRATING, labels=CALM, accuracy=SAME)),
        "No change: the mix of predictions is what the reference leads one to expect. "
        f"Accuracy is about 98 % (was 98 %).{NOT_ARMED}",
    ),
    "too little to matter": (
        situation(found(Verdict.NO_SHIFT, accuracy=None), alarm(state=AlarmState.PENDING)),
        "The mix of predictions has changed since 14:05 UTC, but too little to matter here.",
    ),
    "shift": (
        situation(found(Verdict.LABEL_SHIFT), alarm()),
        "Since 14:05 UTC the share of *fraud* is about 4.8 % (was 1.2 %). "
        "Accuracy is now about 91 % (was 95 %).",
    ),
    "shift before alarms are armed": (
        situation(found(Verdict.LABEL_SHIFT, Attention.CALIBRATING)),
        "Over the last 60 min the share of *fraud* is about 4.8 % (was 1.2 %). "
        f"Accuracy is now about 91 % (was 95 %).{NOT_ARMED}",
    ),
    "cause unknown": (
        situation(found(Verdict.UNDETERMINED), alarm()),
        "Since 14:05 UTC, if nothing else has changed, the share of *fraud* is about 4.8 % "
        "(was 1.2 %). Accuracy is then about 91 % (was 95 %). "
        "Whether something else has cannot be checked without softmax rows.",
    ),
    "nothing can be estimated": (
        situation(found(Verdict.UNDETERMINED, **WITHHELD), alarm()),
        "Since 14:05 UTC the mix of predictions is not what the reference leads to expect. "
        "This reference cannot say to what.",
    ),
    "the paper's weights of a singular matrix": (
        replace(
            situation(None),
            seen=Evaluation(
                "v1",
                "1h",
                ONSET,
                NOW,
                NOW,
                replace(found(Verdict.UNDETERMINED, accuracy=None), status=("degenerate_w1",)),
            ),
        ),
        "Over the last 60 min the mix of predictions is not what the reference leads to expect."
        " Whether something else has cannot be checked without softmax rows.",
    ),
    "labels that look alike": (
        situation(
            found(
                Verdict.LABEL_SHIFT,
                identified=Identified(not_identified=(0, 1)),
                groups=(GroupShare((0, 1), 0.5, 0.4, 0.6),),
                accuracy=None,
            ),
            alarm(),
        ),
        "Since 14:05 UTC the share of *legit or fraud* is about 50.0 % (was 100 %).",
    ),
    "not label shift": (
        situation(
            found(Verdict.NOT_LABEL_SHIFT, Attention.VIOLATED, **WITHHELD),
            alarm(AlarmKind.ASSUMPTION),
        ),
        "Something other than the class mix has changed since 14:05 UTC: the estimates are "
        "withheld. Look at the inputs and the model.",
    ),
    "stopped": (
        situation(found(Verdict.LABEL_SHIFT), alarm(), alarm(AlarmKind.INGEST_STOPPED)),
        "No predictions have come in since 15:57 UTC, 3 min ago. What is shown was true then.",
    ),
}


@pytest.mark.parametrize(("of", "expected"), CASES.values(), ids=CASES)
def test_a_headline_says_what_is_the_matter(of: Situation, expected: str) -> None:
    assert said(of) == expected


def test_a_version_that_nothing_ever_came_for_is_said_to_be_so() -> None:
    of = replace(situation(None, alarm(AlarmKind.NO_DATA)), arrived_at=None)

    assert said(of) == "No predictions have come in for this version yet."


def test_no_change_is_not_claimed_of_labels_whose_split_is_unknown() -> None:
    calm = found(
        Verdict.NO_SHIFT,
        Attention.QUIET,
        labels=CALM,
        accuracy=None,
        identified=Identified(not_identified=(0, 1)),
    )

    assert said(situation(calm)).endswith(" How much of it is legit or fraud cannot be told.")


def test_an_accepted_mix_is_what_there_is_no_change_from() -> None:
    result = replace(found(Verdict.NO_SHIFT, Attention.QUIET), status=("ok", "baseline_accepted"))

    assert said(situation(result)).startswith("No change: the mix of predictions is the one that")


def test_a_window_that_began_before_the_change_does_not_speak_for_the_time_since() -> None:
    of = situation(found(Verdict.LABEL_SHIFT), alarm())
    assert of.seen is not None
    mixed = replace(of, seen=replace(of.seen, start=ONSET - timedelta(hours=1)))

    assert wants_since(of.seen, of.alarms) is None
    assert wants_since(mixed.seen, mixed.alarms) == ONSET
    assert said(mixed).startswith("Over the last 60 min the share of *fraud* is about 4.8 %")


def test_what_was_found_since_the_change_is_told_instead() -> None:
    since = found(Verdict.LABEL_SHIFT, labels=LabelColumns(p=(0.988, 0.012), q=(0.9, 0.1)))
    of = situation(found(Verdict.LABEL_SHIFT), alarm())
    assert of.seen is not None
    mixed = replace(of, seen=replace(of.seen, start=ONSET - timedelta(hours=1)), since=since)

    assert said(mixed).startswith("Since 14:05 UTC the share of *fraud* is about 10.0 % (was 1.2")


def test_an_onset_of_another_day_has_its_date() -> None:
    early = replace(alarm(), onset=ONSET - timedelta(days=8))

    assert said(situation(found(Verdict.LABEL_SHIFT), early)).startswith("Since 9 Nov 14:05 UTC ")


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (Window("n", WindowKind.LAST, count=5000), "Over the last 5,000 predictions the"),
        (Window("v", WindowKind.VERSION), "Since this version went live the"),
        (Window("a", WindowKind.ADAPTIVE), "Lately the"),
        (Window("day", WindowKind.TUMBLING, length=timedelta(days=1)), "In the window day the"),
    ],
)
def test_without_an_onset_the_window_says_when(window: Window, expected: str) -> None:
    assert said(situation(found(Verdict.LABEL_SHIFT), window=window)).startswith(expected)


def test_only_the_label_is_strong() -> None:
    strong = [piece for piece in headline(situation(found(Verdict.LABEL_SHIFT))) if piece.strong]

    assert strong == [Said("fraud", strong=True)]
