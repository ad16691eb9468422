"""One model: what its mix is, how sure that is, and since when."""

from deploy.grafana import meanings
from deploy.grafana.blocks import (
    CRITICAL,
    INFO,
    OK,
    WARNING,
    Json,
    annotated,
    band,
    column,
    dashboard,
    dashed,
    graph,
    line,
    linked,
    once,
    override,
    query,
    row,
    stat,
    steps,
    table,
    timeline,
    variable,
    words,
)

VERSION = 'model="$model", version="$version"'
WINDOW = f'{VERSION}, window="$window"'
LABEL = f'{WINDOW}, label=~"$label"'
DISTANCES = ((0.02, INFO), (0.05, WARNING), (0.1, CRITICAL))  # as the severities of alarms go


def of_version(metric: str) -> str:
    return once(f"{metric}{{{VERSION}}}")


def of_window(metric: str) -> str:
    return once(f"{metric}{{{WINDOW}}}")


def on_a_log_scale(metric: str) -> str:
    """A p-value can be 0, which has no place there."""
    return f"clamp_min({of_window(metric)}, 1e-16)"


def of_label(metric: str) -> str:
    return once(f"{metric}{{{LABEL}}}")


def reference_of_label() -> str:
    return once(f'shiftwatch_reference_prevalence_ratio{{{VERSION}, label=~"$label"}}')


def overview() -> list[Json]:
    return line(
        4,
        stat(
            "Verdict",
            "What the window means, by the detectors as soon as they are armed.",
            meanings.verdict(WINDOW),
            mappings=meanings.VERDICT_WORDS,
        ),
        stat(
            "Alarm",
            "The worst that fires or was acknowledged.",
            f"max({meanings.severity(VERSION)})",
            mappings=meanings.SEVERITY_WORDS,
        ),
        stat(
            "Distance",
            "Half the sum of |q - p|: the share of records that would have to change their label.",
            of_window("shiftwatch_shift_distance_ratio"),
            unit="percentunit",
            decimals=1,
            thresholds=steps(OK, *DISTANCES),
        ),
        stat(
            "Accuracy",
            "Estimated, under the mix of now.",
            of_window("shiftwatch_estimated_accuracy_ratio"),
            unit="percentunit",
            decimals=1,
        ),
        stat(
            "Predictions",
            "In the window.",
            of_window("shiftwatch_window_samples"),
            thresholds=steps(WARNING, (50, "text")),
        ),
        stat(
            "Last predictions",
            "How long ago some came in.",
            f"time() - {of_version('shiftwatch_last_arrival_timestamp_seconds')}",
            unit="s",
            decimals=0,
            thresholds=steps(OK, (900, WARNING), (3600, CRITICAL)),
        ),
    )


def mix_now() -> Json:
    share = {"unit": "percentunit", "decimals": 1}
    metrics = {
        "Estimated": "shiftwatch_label_prevalence_ratio",
        "from": "shiftwatch_label_prevalence_lower_ratio",
        "to": "shiftwatch_label_prevalence_upper_ratio",
        "Predicted": "shiftwatch_predicted_prevalence_ratio",
    }
    shares = {name: f"max by (label) ({metric}{{{LABEL}}})" for name, metric in metrics.items()}
    reference = f"max by (label) ({reference_of_label()})"
    weight = f"max by (label) ({of_label('shiftwatch_importance_weight')})"
    columns = {"Reference": reference, **shares, "Weight": weight}
    return table(
        "The mix now",
        "Shares of the labels in the reference, as estimated with its interval, and as predicted.",
        {name: column(expr) for name, expr in columns.items()},
        overrides=[
            override("label", displayName="Label"),
            *(override(name, **share) for name in columns if name != "Weight"),
            override("Weight", decimals=2),
        ],
        custom={"align": "auto"},
    )


def mix() -> list[list[Json]]:
    return [
        line(
            10,
            graph(
                "The mix over time",
                "Estimated share q(y) of each label.",
                query(of_label("shiftwatch_label_prevalence_ratio"), "{{label}}"),
                unit="percentunit",
                min=0,
            ),
            mix_now(),
            widths=[13, 11],
        ),
        line(
            5,
            timeline(
                "Alarms",
                "The state of each kind of alarm.",
                query(meanings.state(VERSION), "{{alarm}}"),
                mappings=meanings.STATE_WORDS,
            ),
            timeline(
                "Verdict",
                "What the window meant.",
                query(meanings.verdict(WINDOW), "{{window}}"),
                mappings=meanings.VERDICT_WORDS,
            ),
            widths=[13, 11],
        ),
    ]


def accuracy() -> Json:
    return graph(
        "Accuracy",
        "Estimated under the mix of now, with its interval, and as it was on the reference.",
        query(of_window("shiftwatch_estimated_accuracy_ratio"), "estimated"),
        query(of_window("shiftwatch_estimated_accuracy_lower_ratio"), "lower"),
        query(of_window("shiftwatch_estimated_accuracy_upper_ratio"), "upper"),
        query(of_version("shiftwatch_reference_accuracy_ratio"), "reference"),
        unit="percentunit",
        overrides=[*band("lower", "upper"), dashed("reference", "text")],
    )


def evidence() -> list[list[Json]]:
    return [
        line(
            8,
            accuracy(),
            graph(
                "Distance from the reference",
                "Total variation between the estimated mix and that of the reference.",
                query(of_window("shiftwatch_shift_distance_ratio"), "{{metric}}"),
                unit="percentunit",
                min=0,
                thresholds=steps(OK, *DISTANCES),
            ),
            graph(
                "Weights",
                "w(y) = q(y) / p(y): how much commoner a label is than in the reference.",
                query(of_label("shiftwatch_importance_weight"), "{{label}}"),
                query(of_label("shiftwatch_bbse_weight"), "{{label}}, as the paper has it"),
                min=0,
            ),
        ),
        line(
            8,
            graph(
                "P-values",
                "Of one look at the window. All day long they cry wolf; alarms do not go by them.",
                query(on_a_log_scale("shiftwatch_bbsd_p_value"), "{{test}}"),
                query(on_a_log_scale("shiftwatch_assumption_p_value"), "{{check}} (assumption)"),
                logarithmic=True,
                max=1,
                thresholds=steps(CRITICAL, (0.01, "transparent")),
            ),
            graph(
                "Predictions in the window",
                "Below 50 no estimate is tried.",
                query(of_window("shiftwatch_window_samples"), "{{window}}"),
                min=0,
            ),
            graph(
                "How fresh",
                "How long ago predictions came in, the newest of them were made, "
                "and the window was looked at.",
                *(
                    query(f"time() - {expr}", legend)
                    for legend, expr in {
                        "last arrival": of_version("shiftwatch_last_arrival_timestamp_seconds"),
                        "newest pane": of_version("shiftwatch_watermark_timestamp_seconds"),
                        "evaluation": of_window("shiftwatch_last_evaluation_timestamp_seconds"),
                        "end of window": of_window("shiftwatch_window_end_timestamp_seconds"),
                    }.items()
                ),
                unit="s",
            ),
        ),
    ]


def foundation() -> list[Json]:
    return line(
        4,
        stat(
            "Estimate",
            "Whether the window supports one.",
            of_window("shiftwatch_estimate_valid"),
            mappings=words({0: ("not possible", WARNING), 1: ("valid", OK)}),
        ),
        stat(
            "Accuracy on the reference",
            "Of the labelled, held-out sample.",
            of_version("shiftwatch_reference_accuracy_ratio"),
            unit="percentunit",
            decimals=1,
        ),
        stat(
            "Least singular value",
            "Of the reference's confusion matrix: near 0, labels cannot be told apart.",
            of_version("shiftwatch_confusion_min_singular_value"),
            decimals=4,
            unit="none",
        ),
        stat(
            "Labels not shown",
            "Left out of the metrics because of SHIFTWATCH_METRICS_MAX_LABELS.",
            of_version("shiftwatch_truncated_labels"),
            thresholds=steps("text", (1, INFO)),
        ),
    )


def each_label() -> Json:
    """A panel that Grafana repeats for every label that is chosen."""
    found = graph(
        "$label",
        "Share of the label: estimated with its interval, predicted, and in the reference.",
        query(of_label("shiftwatch_label_prevalence_ratio"), "estimated"),
        query(of_label("shiftwatch_label_prevalence_lower_ratio"), "lower"),
        query(of_label("shiftwatch_label_prevalence_upper_ratio"), "upper"),
        query(of_label("shiftwatch_predicted_prevalence_ratio"), "predicted"),
        query(reference_of_label(), "reference"),
        unit="percentunit",
        overrides=[
            *band("lower", "upper"),
            dashed("reference", "text"),
            dashed("predicted", "purple"),
        ],
    )
    return {**found, "repeat": "label", "repeatDirection": "h", "maxPerRow": 3}


def build() -> Json:
    found = dashboard(
        "shiftwatch-model",
        "Shiftwatch / Model",
        "What the label mix of one model is, how sure that is, and since when.",
        [
            variable("model", "label_values(shiftwatch_model_info, model)"),
            variable("version", 'label_values(shiftwatch_model_info{model="$model"}, version)'),
            variable("window", f"label_values(shiftwatch_window_samples{{{VERSION}}}, window)"),
            variable(
                "label",
                f"label_values(shiftwatch_reference_prevalence_ratio{{{VERSION}}}, label)",
                many=True,
                anything=True,
            ),
        ],
        [
            overview(),
            *mix(),
            *evidence(),
            row("What it rests on"),
            foundation(),
            row("Each label"),
            line(8, each_label()),
        ],
    )
    page = linked(found, "Its page", "${page_url}/models/${model}")
    return annotated(page, once(f"shiftwatch_alarm_active{{{VERSION}}}") + " == 1")
