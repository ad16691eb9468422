"""The service itself: does it answer, count, evaluate and tell."""

from deploy.grafana.blocks import (
    CRITICAL,
    OK,
    WARNING,
    Json,
    annotated,
    dashboard,
    graph,
    line,
    linked,
    once,
    per_second,
    quantile,
    query,
    row,
    stat,
    steps,
    variable,
    words,
)

JOB = 'job=~"$job"'
INGEST = f'{JOB}, method="POST", route="/v1/models/{{model}}/predictions"'
ANSWERS = "http_request_duration_seconds"


def age(metric: str) -> str:
    """Of the oldest that waits; 0 if nothing does."""
    return f"max(time() - {once(f'{metric}{{{JOB}}}')}) or vector(0)"


def quantiles(buckets: str) -> list[Json]:
    return [
        query(quantile(share, buckets), name)
        for name, share in {"median": 0.5, "95 %": 0.95, "99 %": 0.99}.items()
    ]


def overview() -> list[Json]:
    failed = per_second(f'{ANSWERS}_count{{{JOB}, code=~"5.."}}', "job")
    all_of_them = per_second(f"{ANSWERS}_count{{{JOB}}}", "job")
    return line(
        4,
        stat(
            "Processes that answer",
            "API and workers that Prometheus reaches.",
            f"sum(up{{{JOB}}})",
            thresholds=steps(CRITICAL, (1, OK)),
        ),
        stat(
            "Database read",
            "Whether the state of the models could be read, by the replica that fares worst.",
            f"min(shiftwatch_collector_success{{{JOB}}})",
            mappings=words({0: ("failing", CRITICAL), 1: ("ok", OK)}),
        ),
        stat(
            "Failed answers",
            "Share of 5xx.",
            f"sum({failed}) / sum({all_of_them}) or vector(0)",
            unit="percentunit",
            decimals=2,
            thresholds=steps(OK, (0.001, WARNING), (0.01, CRITICAL)),
        ),
        stat(
            "Longest wait",
            "How long the model that has waited longest for its evaluation has been due.",
            age("shiftwatch_oldest_due_timestamp_seconds"),
            unit="s",
            thresholds=steps(OK, (60, WARNING), (300, CRITICAL)),
        ),
        stat(
            "Notices that wait",
            "For their delivery.",
            f"sum({once(f'shiftwatch_webhook_queue_depth{{{JOB}}}')})",
            thresholds=steps(OK, (100, WARNING)),
        ),
        stat(
            "Dead letters",
            "Notices that were given up, as long as they are kept.",
            f"sum({once(f'shiftwatch_outbox_dead_letters{{{JOB}}}')})",
            thresholds=steps(OK, (1, WARNING)),
        ),
    )


def answers() -> list[Json]:
    slow = quantile(0.95, f"{ANSWERS}_bucket{{{JOB}}}", "route")
    return line(
        8,
        graph(
            "Requests",
            "By route.",
            query(per_second(f"{ANSWERS}_count{{{JOB}}}", "method, route"), "{{method}} {{route}}"),
            unit="reqps",
            min=0,
        ),
        graph(
            "Slow answers",
            "19 of 20 requests of a route are answered within this time.",
            query(slow, "{{route}}"),
            unit="s",
            min=0,
        ),
        graph(
            "Answers that are no success",
            "4xx and 5xx, by route.",
            query(
                per_second(f'{ANSWERS}_count{{{JOB}, code=~"[45].."}}', "route, code"),
                "{{code}} {{route}}",
            ),
            unit="reqps",
            min=0,
        ),
    )


def predictions() -> list[list[Json]]:
    return [
        line(
            8,
            graph(
                "Predictions counted",
                "Of the ten models with most of them.",
                query(
                    "topk(10, "
                    + per_second(f"shiftwatch_predictions_ingested_total{{{JOB}}}", "model")
                    + ")",
                    "{{model}}",
                ),
                unit="cps",
                min=0,
            ),
            graph(
                "Predictions that are special",
                "Not counted (rejected), counted before (duplicate), or of a pane that was over.",
                query(
                    per_second(f"shiftwatch_predictions_rejected_total{{{JOB}}}", "reason"),
                    "rejected: {{reason}}",
                ),
                query(
                    per_second(f"shiftwatch_predictions_duplicate_total{{{JOB}}}", "job"),
                    "duplicate",
                ),
                query(
                    per_second(f"shiftwatch_predictions_late_total{{{JOB}}}", "outcome"),
                    "late: {{outcome}}",
                ),
                unit="cps",
                min=0,
            ),
            graph(
                "Batches refused",
                "By the problem that their sender was told of.",
                query(
                    per_second(f"shiftwatch_batches_refused_total{{{JOB}}}", "reason"),
                    "{{reason}}",
                ),
                unit="reqps",
                min=0,
            ),
        ),
        line(
            8,
            graph(
                "Time to answer a batch",
                "From its request to the end of its answer, commit included.",
                *quantiles(f"{ANSWERS}_bucket{{{INGEST}}}"),
                unit="s",
                min=0,
            ),
            graph(
                "Time of a commit",
                "Of the transaction that batches share.",
                *quantiles(f"shiftwatch_commit_duration_seconds_bucket{{{JOB}}}"),
                unit="s",
                min=0,
                thresholds=steps("transparent", (1, CRITICAL)),
            ),
            graph(
                "Batches that wait",
                "For their commit, per process, and how many a commit takes along on average.",
                query(f"shiftwatch_recorder_waiting_batches{{{JOB}}}", "{{instance}} waiting"),
                query(
                    per_second(f"shiftwatch_commit_batches_sum{{{JOB}}}", "job")
                    + " / "
                    + per_second(f"shiftwatch_commit_batches_count{{{JOB}}}", "job"),
                    "per commit",
                ),
                min=0,
            ),
        ),
    ]


def evaluations() -> list[Json]:
    return line(
        8,
        graph(
            "Evaluations",
            "Of a model with all its windows.",
            query(per_second(f"shiftwatch_evaluations_total{{{JOB}}}", "outcome"), "{{outcome}}"),
            unit="ops",
            min=0,
        ),
        graph(
            "Time of an evaluation",
            "Its transaction included.",
            *quantiles(f"shiftwatch_evaluation_duration_seconds_bucket{{{JOB}}}"),
            unit="s",
            min=0,
        ),
        graph(
            "Longest wait",
            "How long the model that has waited longest has been due.",
            query(age("shiftwatch_oldest_due_timestamp_seconds"), "waits"),
            unit="s",
            min=0,
            thresholds=steps("transparent", (300, CRITICAL)),
        ),
    )


def notices() -> list[Json]:
    return line(
        8,
        graph(
            "Attempts to deliver",
            "By the shape of the webhook and what came of it.",
            query(
                per_second(f"shiftwatch_webhook_deliveries_total{{{JOB}}}", "kind, outcome"),
                "{{kind}} {{outcome}}",
            ),
            unit="ops",
            min=0,
        ),
        graph(
            "Notices",
            "That wait for their delivery, and that were given up.",
            query(f"sum({once(f'shiftwatch_webhook_queue_depth{{{JOB}}}')})", "wait"),
            query(f"sum({once(f'shiftwatch_outbox_dead_letters{{{JOB}}}')})", "given up"),
            min=0,
            decimals=0,
        ),
        graph(
            "Oldest notice that could go",
            "How long it has been due. One that is to be tried again later is not.",
            query(age("shiftwatch_webhook_oldest_pending_timestamp_seconds"), "waits"),
            unit="s",
            min=0,
            thresholds=steps("transparent", (600, CRITICAL)),
        ),
    )


def processes() -> list[list[Json]]:
    pruned = f"sum by (table) (increase(shiftwatch_pruned_rows_total{{{JOB}}}[1d]))"
    last = f"max(shiftwatch_last_prune_timestamp_seconds{{{JOB}}})"
    return [
        line(
            8,
            graph(
                "Memory",
                "Resident, of each process.",
                query(f"process_resident_memory_bytes{{{JOB}}}", "{{job}} {{instance}}"),
                unit="bytes",
                min=0,
            ),
            graph(
                "CPU",
                "1 is a whole core.",
                query(
                    f"rate(process_cpu_seconds_total{{{JOB}}}[$__rate_interval])",
                    "{{job}} {{instance}}",
                ),
                min=0,
            ),
            graph(
                "Open files",
                "As a share of what the process may open.",
                query(
                    f"process_open_fds{{{JOB}}} / process_max_fds{{{JOB}}}", "{{job}} {{instance}}"
                ),
                unit="percentunit",
                min=0,
                thresholds=steps("transparent", (0.8, WARNING)),
            ),
        ),
        line(
            8,
            graph(
                "Time to read the models",
                "For these metrics.",
                query(f"shiftwatch_scrape_duration_seconds{{{JOB}}}", "{{instance}}"),
                unit="s",
                min=0,
            ),
            graph(
                "Rows removed",
                "Because their time was over, in 24 hours.",
                query(pruned, "{{table}}"),
                min=0,
            ),
            graph(
                "Since the last removal",
                "Once a day is usual.",
                query(f"time() - ({last} > 0)", "ago"),
                unit="s",
                min=0,
                thresholds=steps("transparent", (172800, WARNING)),
            ),
        ),
        line(
            6,
            graph(
                "Releases",
                "Processes by release: two lines while a new one is rolled out.",
                query(f"count by (version) (shiftwatch_build_info{{{JOB}}})", "{{version}}"),
                min=0,
                decimals=0,
            ),
            graph(
                "Models and labels left out",
                "Of these metrics, because of their caps.",
                query(f"sum({once(f'shiftwatch_truncated_models{{{JOB}}}')})", "models"),
                query(f"sum({once(f'shiftwatch_truncated_labels{{{JOB}}}')})", "labels"),
                min=0,
                decimals=0,
            ),
        ),
    ]


def build() -> Json:
    found = dashboard(
        "shiftwatch-service",
        "Shiftwatch / Service",
        "Whether the service answers, counts, evaluates and tells.",
        [variable("job", "label_values(shiftwatch_build_info, job)", many=True)],
        [
            overview(),
            row("Requests"),
            answers(),
            row("Predictions"),
            *predictions(),
            row("Evaluations"),
            evaluations(),
            row("Notices"),
            notices(),
            row("Processes"),
            *processes(),
        ],
    )
    page = linked(found, "Shiftwatch itself", "${page_url}/")
    return annotated(page, once(f"shiftwatch_alarm_active{{{JOB}}}") + " == 1")
