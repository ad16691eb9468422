"""All models at a glance: which one needs somebody to look."""

from deploy.grafana import meanings
from deploy.grafana.blocks import (
    CRITICAL,
    INFO,
    OK,
    WARNING,
    Json,
    annotated,
    column,
    dashboard,
    graph,
    line,
    link,
    linked,
    once,
    override,
    per_second,
    query,
    stat,
    steps,
    table,
    timeline,
    variable,
)

MODEL = 'model=~"$model"'
WINDOW = f'{MODEL}, window="$window"'
# Versions that gave way to another are shown for a day; here they would be in the way.
ACTIVE = 'and on (model, version) shiftwatch_model_info{active="true"}'
TO_THE_MODEL = link(
    "The model's dashboard",
    "/d/shiftwatch-model?var-model=${__data.fields.model}"
    "&var-version=${__data.fields.version}&${datasource:queryparam}&${__url_time_range}",
)
TO_THE_PAGE = link("The model's page", "${page_url}/models/${__data.fields.model}")


def of_active(selector: str) -> str:
    return f"max by (model, version) ({selector} {ACTIVE})"


def of_window(metric: str) -> str:
    return of_active(f"{metric}{{{WINDOW}}}")


def of_version(metric: str) -> str:
    return of_active(f"{metric}{{{MODEL}}}")


def moved_most() -> str:
    """The label whose share has moved most, and how far."""
    now = once(f"shiftwatch_label_prevalence_ratio{{{WINDOW}}}")
    before = once(f"shiftwatch_reference_prevalence_ratio{{{MODEL}}}")
    moved = f"abs({now} - ignoring (window) {before}) {ACTIVE}"
    return f"topk by (model, version) (1, max by (model, version, label) ({moved}))"


def alarms_of(severity: str, color: str) -> Json:
    expr = once(f'shiftwatch_alarm_active{{{MODEL}, severity="{severity}"}}')
    return stat(
        f"Alarms: {severity}",
        "Alarms that fire or were acknowledged.",
        f"sum({expr}) or vector(0)",
        thresholds=steps(OK, (1, color)),
    )


def overview() -> list[Json]:
    return line(
        4,
        stat("Models", "Registered ones.", f"sum({once('shiftwatch_models')})"),
        alarms_of("critical", CRITICAL),
        alarms_of("warning", WARNING),
        alarms_of("info", INFO),
        stat(
            "Predictions",
            "Counted per second, of all replicas.",
            f"sum(rate(shiftwatch_predictions_ingested_total{{{MODEL}}}[$__rate_interval]))",
            unit="cps",
        ),
        stat(
            "Longest wait",
            "How long the model that has waited longest for its evaluation has been due.",
            f"max(time() - {once('shiftwatch_oldest_due_timestamp_seconds')}) or vector(0)",
            unit="s",
            thresholds=steps(OK, (60, WARNING), (300, CRITICAL)),
        ),
    )


def models() -> Json:
    severity = f"max by (model, version) ({meanings.severity(MODEL)} {ACTIVE})"
    verdict = f"max by (model, version) ({meanings.verdict(WINDOW)} {ACTIVE})"
    arrived = of_version("shiftwatch_last_arrival_timestamp_seconds")
    share = {"unit": "percentunit", "decimals": 1}
    colored = {"custom__cellOptions": {"type": "color-text"}}
    return table(
        "Models",
        "The active version of each, in the chosen window.",
        {
            "Alarm": column(severity),
            "Verdict": column(verdict),
            "Distance": column(of_window("shiftwatch_shift_distance_ratio")),
            "Moved by": column(moved_most()),
            "Accuracy": column(of_window("shiftwatch_estimated_accuracy_ratio")),
            "Reference": column(of_version("shiftwatch_reference_accuracy_ratio")),
            "Predictions": column(of_window("shiftwatch_window_samples")),
            "Last ones": column(f"time() - {arrived}"),
        },
        overrides=[
            override("Alarm", mappings=meanings.SEVERITY_WORDS, **colored),
            override("Verdict", mappings=meanings.VERDICT_WORDS, **colored),
            override(
                "Distance",
                thresholds=steps(OK, (0.02, INFO), (0.05, WARNING), (0.1, CRITICAL)),
                **share,
                **colored,
            ),
            override("label", displayName="Moved most"),
            override("Moved by", **share),
            override("Accuracy", **share),
            override("Reference", **share),
            override("Last ones", unit="s", decimals=0),
            override("model", links=[TO_THE_MODEL, TO_THE_PAGE]),
        ],
        custom={"align": "auto", "filterable": True},
    )


def course() -> list[list[Json]]:
    active = once(f"shiftwatch_alarm_active{{{MODEL}}}")
    had_one = (
        f"max by (model, version) (max_over_time(shiftwatch_alarm_active{{{MODEL}}}[$__range]))"
    )
    level = f"max by (model, version) ({meanings.severity(MODEL)})"
    distance = once(f"shiftwatch_shift_distance_ratio{{{WINDOW}}}")
    accuracy = once(f"shiftwatch_estimated_accuracy_ratio{{{WINDOW}}}")
    reference = once(f"shiftwatch_reference_accuracy_ratio{{{MODEL}}}")
    lost = f"bottomk(10, {accuracy} - ignoring (window) {reference})"
    return [
        line(
            8,
            timeline(
                "Alarms",
                "Models that had one in the time shown, in the colour of the worst.",
                query(f"{level} and on (model, version) ({had_one} == 1)", "{{model}} {{version}}"),
                mappings=meanings.SEVERITY_WORDS,
            ),
            graph(
                "Alarms by kind",
                "That fire or were acknowledged.",
                query(f"sum by (alarm) ({active})", "{{alarm}}"),
                stacked=True,
                decimals=0,
                min=0,
            ),
            graph(
                "Predictions",
                "Counted per second.",
                query(
                    per_second(f"shiftwatch_predictions_ingested_total{{{MODEL}}}", "model"),
                    "{{model}}",
                ),
                unit="cps",
                min=0,
            ),
        ),
        line(
            8,
            graph(
                "Furthest from their reference",
                "The ten models whose estimated mix is furthest away, in total variation.",
                query(f"topk(10, {distance})", "{{model}} {{version}}"),
                unit="percentunit",
                min=0,
                thresholds=steps(OK, (0.05, WARNING), (0.1, CRITICAL)),
            ),
            graph(
                "Accuracy lost",
                "Estimated accuracy less that on the reference: the ten worst.",
                query(lost, "{{model}} {{version}}"),
                unit="percentunit",
            ),
        ),
    ]


def build() -> Json:
    found = dashboard(
        "shiftwatch-fleet",
        "Shiftwatch / Fleet",
        "Which models have changed, and how far.",
        [
            variable(
                "model", "label_values(shiftwatch_model_info, model)", many=True, anything=True
            ),
            variable("window", "label_values(shiftwatch_window_samples, window)"),
        ],
        [overview(), line(12, models()), *course()],
    )
    page = linked(found, "Shiftwatch itself", "${page_url}/")
    return annotated(page, once(f"shiftwatch_alarm_active{{{MODEL}}}") + " == 1")
