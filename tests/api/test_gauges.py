"""The state of the models as text: what is shown, what is left out, and who says so."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app import metrics
from app.api.gauges import HELP, Caps, forget_counters_of_others, rendered
from app.domain.alarm import AlarmKind, AlarmState, Severity
from app.domain.evaluation import (
    AccuracyNow,
    AssumptionFound,
    LabelColumns,
    PaperNumbers,
    Significance,
)
from app.domain.fleet import Fleet, OpenAlarm, VersionNow, WindowNow
from app.domain.verdict import Verdict

AT = datetime(2026, 11, 17, 10, tzinfo=UTC)
AMPLE = Caps(labels=50, series=100_000)
OWN = {"model": "fraud", "version": "v1"}
IN_WINDOW = {**OWN, "window": "1h"}

COLUMNS = LabelColumns(
    p=(0.9, 0.06, 0.04),
    predicted=(0.8, 0.15, 0.05),
    q=(0.79, 0.16, None),
    q_lower=(0.7, 0.1, None),
    q_upper=(0.8, 0.2, None),
    w=(0.88, 2.7, None),
    w_lower=(0.8, 2.0, None),
    w_upper=(0.9, 3.0, None),
    q_raw=(0.79, 0.16, 0.05),
)
WINDOW = WindowNow(
    window="1h",
    end=AT,
    evaluated_at=AT,
    n=1000,
    verdict=Verdict.LABEL_SHIFT,
    labels=COLUMNS,
    tests=(Significance("chi2", 134.0, 2, 1e-29),),
    total_variation=0.11,
    accuracy=AccuracyNow(0.97, 0.96, 0.98, 0.98),
    assumption=AssumptionFound("label_shift_consistent", 0.4),
)
VERSION = VersionNow(
    model="fraud",
    version="v1",
    active=True,
    kind="soft",
    labels=("legit", "fraud", "abuse"),
    p=(0.9, 0.04, 0.06),
    accuracy=0.98,
    sigma_min=0.03,
    newest=AT,
    arrived_at=AT,
    windows=(WINDOW,),
    alarms=(),
)


def fleet(*versions: VersionNow, **changes: Any) -> Fleet:
    found = Fleet(tuple(one.model for one in versions), versions, None, 0, None, 0)
    return replace(found, **changes)


def shown(found: Fleet, caps: Caps = AMPLE) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    """Values by name and labels, as Prometheus reads them; nothing may be there twice."""
    values: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for family in text_string_to_metric_families(rendered(found, caps).decode()):
        assert family.name not in values
        assert family.type == "gauge"
        own = values[family.name] = {}
        for sample in family.samples:
            key = frozenset(sample.labels.items())
            assert key not in own
            own[key] = sample.value
    return values


def value(found: Fleet, name: str, **labels: str) -> float | None:
    return shown(found).get(name, {}).get(frozenset(labels.items()))


def test_an_estimate_is_shown_label_by_label() -> None:
    found = shown(fleet(VERSION))["shiftwatch_label_prevalence_ratio"]

    assert found == {
        frozenset({**IN_WINDOW, "label": "legit"}.items()): 0.79,
        frozenset({**IN_WINDOW, "label": "fraud"}.items()): 0.16,
    }


def test_an_estimate_that_is_not_valid_is_left_out_and_said_to_be_so() -> None:
    unknown = LabelColumns(p=COLUMNS.p, predicted=COLUMNS.predicted)
    window = replace(
        WINDOW, labels=unknown, verdict=Verdict.NOT_LABEL_SHIFT, total_variation=None, accuracy=None
    )

    found = shown(fleet(replace(VERSION, windows=(window,))))

    assert found["shiftwatch_estimate_valid"] == {frozenset(IN_WINDOW.items()): 0.0}
    assert "shiftwatch_label_prevalence_ratio" not in found
    assert "shiftwatch_importance_weight" not in found
    assert "shiftwatch_estimated_accuracy_ratio" not in found
    assert "shiftwatch_shift_distance_ratio" not in found
    assert len(found["shiftwatch_predicted_prevalence_ratio"]) == 3


def test_an_estimate_from_a_few_predictions_is_shown_and_not_valid() -> None:
    few = replace(WINDOW, n=1, verdict=Verdict.INSUFFICIENT_DATA)

    found = shown(fleet(replace(VERSION, windows=(few,))))

    assert found["shiftwatch_estimate_valid"] == {frozenset(IN_WINDOW.items()): 0.0}
    assert "shiftwatch_label_prevalence_ratio" in found


def test_alarms_are_there_before_the_first_one() -> None:
    found = shown(fleet(replace(VERSION, windows=())))

    assert set(found["shiftwatch_alarm_active"].values()) == {0.0}
    assert len(found["shiftwatch_alarm_active"]) == len(AlarmKind) * len(Severity)
    ok = {key for key, on in found["shiftwatch_alarm_state"].items() if on}
    assert ok == {
        frozenset({**OWN, "alarm": kind.value, "state": "ok"}.items()) for kind in AlarmKind
    }


@pytest.mark.parametrize(
    ("state", "active"),
    [(AlarmState.PENDING, 0.0), (AlarmState.FIRING, 1.0), (AlarmState.ACKNOWLEDGED, 1.0)],
)
def test_an_alarm_is_active_from_firing_until_it_is_over(state: AlarmState, active: float) -> None:
    alarm = OpenAlarm(AlarmKind.SHIFT, state, Severity.CRITICAL)
    found = fleet(replace(VERSION, alarms=(alarm,)))

    severities = {
        severity: value(
            found, "shiftwatch_alarm_active", **OWN, alarm="shift", severity=severity.value
        )
        for severity in Severity
    }

    assert severities == {Severity.INFO: 0.0, Severity.WARNING: 0.0, Severity.CRITICAL: active}
    assert value(found, "shiftwatch_alarm_state", **OWN, alarm="shift", state=state.value) == 1.0
    assert value(found, "shiftwatch_alarm_state", **OWN, alarm="shift", state="ok") == 0.0


@pytest.mark.parametrize("state", [AlarmState.PENDING, AlarmState.FIRING])
def test_what_an_active_shift_alarm_says_has_moved_is_told(state: AlarmState) -> None:
    alarm = OpenAlarm(AlarmKind.SHIFT, state, Severity.CRITICAL, Verdict.NOT_LABEL_SHIFT)

    found = shown(fleet(replace(VERSION, alarms=(alarm,))))["shiftwatch_alarm_verdict"]

    told = {dict(labels)["verdict"]: value for labels, value in found.items()}
    active = 1.0 if state is AlarmState.FIRING else 0.0
    assert told == {"label_shift": 0.0, "not_label_shift": active, "undetermined": 0.0}


def test_the_papers_weights_are_shown_with_their_moments_where_there_are_any() -> None:
    paper = PaperNumbers("soft", 0.03, (0.8, 0.21, -0.01), (0.9, 3.5, -0.3))
    singular = PaperNumbers("hard", 0.0, None, None, "never_predicted", (2,))

    with_weights = fleet(replace(VERSION, windows=(replace(WINDOW, paper=paper),)))
    without = fleet(replace(VERSION, windows=(replace(WINDOW, paper=singular),)))

    name = "shiftwatch_bbse_weight"
    assert value(with_weights, name, **IN_WINDOW, moments="soft", label="abuse") == -0.3
    assert name not in shown(without)


def test_one_verdict_is_true_and_the_others_are_not() -> None:
    found = shown(fleet(VERSION))["shiftwatch_verdict"]

    true = [dict(key)["verdict"] for key, on in found.items() if on]
    assert (true, len(found)) == (["label_shift"], len(Verdict))


def test_the_labels_that_are_left_out_are_the_rarest_in_the_reference() -> None:
    found = shown(fleet(VERSION), Caps(labels=2, series=1000))

    labels = {dict(key)["label"] for key in found["shiftwatch_predicted_prevalence_ratio"]}
    assert labels == {"legit", "abuse"}
    assert set(found["shiftwatch_truncated_labels"].values()) == {1.0}


def test_labels_give_way_before_anything_else_when_there_are_too_many_series() -> None:
    other = replace(VERSION, model="other")
    both = fleet(VERSION, other)
    all_of_it = sum(len(samples) for samples in shown(both).values())

    found = shown(both, Caps(labels=50, series=all_of_it - 5))

    models = {dict(key)["model"] for key in found["shiftwatch_label_prevalence_ratio"]}
    assert models == {"fraud"}
    truncated = found["shiftwatch_truncated_labels"]
    assert truncated[frozenset({**OWN, "model": "other"}.items())] == 3.0
    assert truncated[frozenset(OWN.items())] == 0.0
    assert found["shiftwatch_truncated_models"] == {frozenset(): 1.0}
    assert len(found["shiftwatch_estimate_valid"]) == 2


def test_what_cannot_be_known_is_left_out() -> None:
    nothing_yet = replace(VERSION, newest=None, arrived_at=None, accuracy=None, windows=())

    found = shown(fleet(nothing_yet))

    for name in (
        "shiftwatch_watermark_timestamp_seconds",
        "shiftwatch_last_arrival_timestamp_seconds",
        "shiftwatch_reference_accuracy_ratio",
        "shiftwatch_oldest_due_timestamp_seconds",
        "shiftwatch_webhook_oldest_pending_timestamp_seconds",
    ):
        assert name not in found


def test_any_name_of_a_label_survives() -> None:
    strange = 'a "b"\\c\nd,e="f"} 1'
    version = replace(VERSION, labels=(strange, "fraud", "abuse"))

    found = shown(fleet(version))["shiftwatch_reference_prevalence_ratio"]

    assert found[frozenset({**OWN, "label": strange}.items())] == 0.9


def test_times_are_seconds_since_the_epoch() -> None:
    found = fleet(VERSION, oldest_due_at=AT, oldest_pending_at=AT, pending=2, dead=1)

    assert value(found, "shiftwatch_oldest_due_timestamp_seconds") == AT.timestamp()
    assert value(found, "shiftwatch_webhook_oldest_pending_timestamp_seconds") == AT.timestamp()
    assert value(found, "shiftwatch_watermark_timestamp_seconds", **OWN) == AT.timestamp()
    assert value(found, "shiftwatch_webhook_queue_depth") == 2.0
    assert value(found, "shiftwatch_outbox_dead_letters") == 1.0


def test_every_gauge_has_its_help_once() -> None:
    text = rendered(fleet(VERSION), AMPLE).decode()

    helped = [line.split()[2] for line in text.splitlines() if line.startswith("# HELP")]
    assert len(helped) == len(set(helped))
    assert set(helped) <= set(HELP)


def test_a_model_that_is_gone_is_not_counted_any_more() -> None:
    for name in ("gauges-stays", "gauges-gone"):
        metrics.INGESTED.labels(name).inc()
        metrics.REJECTED.labels(name, "skipped").inc()

    forget_counters_of_others(["gauges-stays"])

    def counted(name: str) -> list[float | None]:
        registry = metrics.REGISTRY
        return [
            registry.get_sample_value("shiftwatch_predictions_ingested_total", {"model": name}),
            registry.get_sample_value(
                "shiftwatch_predictions_rejected_total", {"model": name, "reason": "skipped"}
            ),
        ]

    assert counted("gauges-stays") == [1.0, 1.0]
    assert counted("gauges-gone") == [None, None]
