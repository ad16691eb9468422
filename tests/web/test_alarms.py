"""What is said of an alarm, in plain words."""

from datetime import timedelta
from typing import Any

import pytest

from app.domain.alarm import Alarm, AlarmKind, AlarmState, Severity
from app.domain.verdict import Verdict
from app.web import alarms
from tests.factories import NOW

MINUTE = timedelta(minutes=1)
EVIDENCE: dict[str, Any] = {
    "detector": "shift",
    "statistic": 12.5,
    "threshold": 10.6736,
    "n": 1000,
    "counts": [{"label": "legit", "count": 780}, {"label": "fraud", "count": 220}],
    "reference": {
        "version": "v1",
        "n": 10_000,
        "predicted": [{"label": "legit", "count": 9500}, {"label": "fraud", "count": 500}],
    },
    "tests": [{"test": "chi2", "statistic": 150.6, "df": 1, "p_value": 2e-33}],
    "effect": {"total_variation": 0.171, "method": "bbse-hard"},
    "assumption": {"verdict": "label_shift_consistent", "p_value": 0.4},
    "check": {"complete": True},
}


def alarm(**changes: Any) -> Alarm:
    own: dict[str, Any] = {
        "kind": AlarmKind.SHIFT,
        "version": "v1",
        "state": AlarmState.FIRING,
        "severity": Severity.CRITICAL,
        "verdict": Verdict.LABEL_SHIFT,
        "reason": "because",
        "since": NOW,
        "evidence": EVIDENCE,
    }
    return Alarm(**{**own, **changes})


def test_a_label_shift_is_told_with_onset_size_and_certainty() -> None:
    said = alarms.story(alarm(), "fraud", MINUTE)

    assert said.headline == "The label mix behind fraud has changed."
    assert said.moved is not None
    assert said.moved.startswith("“fraud” is 22.0 % of what was predicted since then")
    assert said.sure is not None
    assert "at most once in 190 days; once in 30 days is enough" in said.sure
    assert said.size is not None
    assert said.size.startswith("About 17.1 % of all records have another label")
    assert said.steps == ("weights", "correct", "retrain", "accept")


def test_labels_stand_beside_what_the_reference_has_of_them() -> None:
    rows = alarms.label_rows(EVIDENCE)

    assert [(row.label, row.expected, row.count) for row in rows] == [
        ("legit", 9500, 780),
        ("fraud", 500, 220),
    ]
    assert rows[1].change == pytest.approx(0.17)


def test_what_is_not_label_shift_has_no_size_to_trust() -> None:
    said = alarms.story(alarm(verdict=Verdict.NOT_LABEL_SHIFT), "fraud", MINUTE)

    assert said.size is None
    assert "do not act on them" in said.meaning
    assert "weights" not in said.steps
    assert "accept" not in said.steps


def test_a_doubtful_check_is_not_called_trust() -> None:
    doubtful = {**EVIDENCE, "assumption": {"verdict": "label_shift_doubtful", "p_value": 0.03}}

    sure, unsure = (
        alarms.story(alarm(evidence=one), "fraud", MINUTE).meaning for one in (EVIDENCE, doubtful)
    )

    assert "can be trusted" in sure
    assert "can be trusted" not in unsure
    assert "perhaps not all" in unsure


def test_the_size_of_what_may_be_something_else_is_told_with_an_if() -> None:
    said = alarms.size(alarm(verdict=Verdict.UNDETERMINED))

    assert said is not None
    assert said.startswith("If only the mix changed, about 17.1 %")


def test_labels_that_look_alike_make_the_size_a_least_one() -> None:
    at_least = {**EVIDENCE, "effect": {"total_variation": 0.171, "at_least": True}}

    told, doubtful = (
        alarms.size(alarm(evidence=at_least, verdict=verdict))
        for verdict in (Verdict.LABEL_SHIFT, Verdict.UNDETERMINED)
    )

    assert told is not None
    assert told.startswith("At least 17.1 %")
    assert doubtful is not None
    assert doubtful.startswith("If only the mix changed, at least 17.1 %")


def test_an_effect_that_cannot_be_measured_is_said_to_be_so() -> None:
    said = alarms.size(alarm(evidence={**EVIDENCE, "effect": {"total_variation": None}}))

    assert said is not None
    assert "cannot be said" in said


@pytest.mark.parametrize("kind", [AlarmKind.NO_DATA, AlarmKind.INGEST_STOPPED])
def test_without_predictions_there_is_nothing_to_say_but_that(kind: AlarmKind) -> None:
    said = alarms.story(alarm(kind=kind, verdict=None, evidence={}), "fraud", MINUTE)

    assert (said.sure, said.size, said.moved, said.rows) == (None, None, None, ())
    assert said.steps == alarms.STEPS_WHEN_BLIND


@pytest.mark.parametrize("kind", list(AlarmKind))
@pytest.mark.parametrize("verdict", [None, *Verdict])
@pytest.mark.parametrize("evidence", [{}, EVIDENCE])
def test_every_alarm_has_a_story(
    kind: AlarmKind, verdict: Verdict | None, evidence: dict[str, Any]
) -> None:
    said = alarms.story(alarm(kind=kind, verdict=verdict, evidence=evidence), "fraud", MINUTE)

    assert "fraud" in said.headline
    assert said.meaning
    assert said.steps


def test_when_it_is_over_nothing_is_left_to_do() -> None:
    over = alarm(state=AlarmState.RESOLVED, resolved_at=NOW)

    assert alarms.steps(over) == ()
    assert alarms.state_words(over) == "over since 17 Nov 10:00 UTC"


def test_evidence_beyond_all_numbers_can_be_told() -> None:
    said = alarms.sure({**EVIDENCE, "statistic": 5000.0}, MINUTE)

    assert said is not None
    assert "once in a million years" in said
