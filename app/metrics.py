"""What this process counts about itself; `/metrics` shows it beside the state of the models.

Everything here is per replica and can be added up over replicas. What is true of a model, and so is
the same for every replica, is not kept here but read from the database (`app.api.gauges`).
"""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)

from app import __version__

# A second series for every counter, to tell when it began, which Prometheus does not need. The
# library has types for all but this function.
disable_created_metrics()  # type: ignore[no-untyped-call]

REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)
GCCollector(registry=REGISTRY)

BUILD_INFO = Gauge(
    "shiftwatch_build_info", "Which release this is.", ["version"], registry=REGISTRY
)
BUILD_INFO.labels(__version__).set(1)

# HTTP.

REQUEST_SECONDS = Histogram(
    "http_request_duration_seconds",
    "Time from a request to the end of its answer, by route template.",
    ["method", "route", "code"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    registry=REGISTRY,
)

# Ingest.

INGESTED = Counter(
    "shiftwatch_predictions_ingested",
    "Predictions counted into panes.",
    ["model"],
    registry=REGISTRY,
)
REJECTED = Counter(
    "shiftwatch_predictions_rejected",
    "Predictions not counted: skipped one by one, or refused with their batch.",
    ["model", "reason"],
    registry=REGISTRY,
)
DUPLICATE = Counter(
    "shiftwatch_predictions_duplicate",
    "Predictions of batches that had been counted before.",
    registry=REGISTRY,
)
LATE = Counter(
    "shiftwatch_predictions_late",
    "Predictions of panes that were over: accepted into them, or dropped as too old.",
    ["outcome"],
    registry=REGISTRY,
)
for _outcome in ("accepted", "dropped"):
    LATE.labels(_outcome)
REFUSED = Counter(
    "shiftwatch_batches_refused",
    "Batches that were not counted, by the kind of problem.",
    ["reason"],
    registry=REGISTRY,
)
COMMIT_SECONDS = Histogram(
    "shiftwatch_commit_duration_seconds",
    "Time of a transaction that many batches share, retries included.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    registry=REGISTRY,
)
COMMIT_BATCHES = Histogram(
    "shiftwatch_commit_batches",
    "Batches that shared a transaction.",
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
    registry=REGISTRY,
)
WAITING = Gauge(
    "shiftwatch_recorder_waiting_batches",
    "Batches that wait for their commit; SHIFTWATCH_RECORDER_QUEUE is the most there may be.",
    registry=REGISTRY,
)

# The worker.

EVALUATIONS = Counter(
    "shiftwatch_evaluations",
    "Evaluations of a due model: done, or failed and put off.",
    ["outcome"],
    registry=REGISTRY,
)
for _outcome in ("done", "failed"):
    EVALUATIONS.labels(_outcome)
EVALUATION_SECONDS = Histogram(
    "shiftwatch_evaluation_duration_seconds",
    "Time to evaluate all windows of a model, its transaction included.",
    buckets=(0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30),
    registry=REGISTRY,
)
DELIVERIES = Counter(
    "shiftwatch_webhook_deliveries",
    "Attempts to deliver a notice, by the webhook's shape: delivered, retry, or dead.",
    ["kind", "outcome"],
    registry=REGISTRY,
)
PRUNED_PARTITIONS = Counter(
    "shiftwatch_pruned_partitions",
    "Partitions that were dropped because their time was over.",
    ["table"],
    registry=REGISTRY,
)
PRUNED_ROWS = Counter(
    "shiftwatch_pruned_rows",
    "Rows that were deleted, or went with their partition (as PostgreSQL estimates them).",
    ["table"],
    registry=REGISTRY,
)
LAST_PRUNE = Gauge(
    "shiftwatch_last_prune_timestamp_seconds",
    "When this worker last forgot what is too old, or began; 0 of a process that never does.",
    registry=REGISTRY,
)
