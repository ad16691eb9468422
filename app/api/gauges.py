"""The state of all models as Prometheus shows it, read from the database when it is asked for.

So every replica says the same, a restart changes nothing, and what is deleted is gone. The text is
written here and not by prometheus_client, which takes 12 microseconds for a sample: half a second
for two hundred models, and as long as that no request is served.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from app import metrics
from app.config import Settings
from app.domain.alarm import AlarmKind, AlarmState, Severity
from app.domain.evaluation import Known
from app.domain.fleet import Fleet, OpenAlarm, VersionNow, WindowNow
from app.domain.verdict import Verdict
from app.errors import Unavailable
from app.logs import logger
from app.storage import fleet
from app.storage.db import Database

log = logger(__name__)

# Prometheus and a few dashboards ask at the same time; once is enough for all of them.
REMEMBERED_SECONDS = 5.0

# Every gauge of models, in the order they are shown, and what it is; docs/metrics.md says more.
HELP = {
    "shiftwatch_models": "Registered models.",
    "shiftwatch_model_info": "A version of a model that is in use.",
    "shiftwatch_estimate_valid": "Whether the window supports an estimate of the label mix.",
    "shiftwatch_label_prevalence_ratio": "Estimated share of the label, q(y).",
    "shiftwatch_label_prevalence_lower_ratio": "Lower end of the interval of q(y).",
    "shiftwatch_label_prevalence_upper_ratio": "Upper end of the interval of q(y).",
    "shiftwatch_importance_weight": "Weight of the label, w(y) = q(y) / p(y).",
    "shiftwatch_importance_weight_lower": "Lower end of the interval of w(y).",
    "shiftwatch_importance_weight_upper": "Upper end of the interval of w(y).",
    "shiftwatch_bbse_weight": "Weight of the label as the paper has it, C^-1 mu; may be negative.",
    "shiftwatch_predicted_prevalence_ratio": "Share of predictions that say so.",
    "shiftwatch_reference_prevalence_ratio": "Share of the label in the reference, p(y).",
    "shiftwatch_estimated_accuracy_ratio": "Estimated accuracy under q(y).",
    "shiftwatch_estimated_accuracy_lower_ratio": "Lower end of the accuracy's interval.",
    "shiftwatch_estimated_accuracy_upper_ratio": "Upper end of the accuracy's interval.",
    "shiftwatch_reference_accuracy_ratio": "Accuracy on the reference.",
    "shiftwatch_shift_distance_ratio": "How far q(y) is from p(y).",
    "shiftwatch_bbsd_p_value": "P-value of a shift test of the window.",
    "shiftwatch_bbsd_statistic": "Statistic of a shift test of the window.",
    "shiftwatch_assumption_p_value": "P-value of the check that it is label shift at all.",
    "shiftwatch_verdict": "1 for what the window means, 0 for everything else.",
    "shiftwatch_window_samples": "Predictions in the window.",
    "shiftwatch_window_end_timestamp_seconds": "Where the window ended when last looked at.",
    "shiftwatch_last_evaluation_timestamp_seconds": "When the window was last looked at.",
    "shiftwatch_alarm_active": "1 while such an alarm fires or is acknowledged.",
    "shiftwatch_alarm_state": "1 for the state that the alarm is in, 0 for the others.",
    "shiftwatch_alarm_verdict": "1 for what a shift alarm says has moved, 0 for everything else.",
    "shiftwatch_confusion_min_singular_value": "How well the reference tells labels apart.",
    "shiftwatch_watermark_timestamp_seconds": "Start of the newest pane that has predictions.",
    "shiftwatch_last_arrival_timestamp_seconds": "When predictions last came in.",
    "shiftwatch_truncated_labels": "Labels of the model that are not shown here.",
    "shiftwatch_truncated_models": "Versions whose labels are not shown, for want of room.",
    "shiftwatch_oldest_due_timestamp_seconds": "Since when the longest waiting model is due.",
    "shiftwatch_webhook_queue_depth": "Notices that wait for their delivery.",
    "shiftwatch_webhook_oldest_pending_timestamp_seconds": "Since when the oldest one is due.",
    "shiftwatch_outbox_dead_letters": "Notices that were given up.",
    "shiftwatch_collector_success": "Whether the state of the models could be read.",
    "shiftwatch_scrape_duration_seconds": "How long it last took to read it.",
}

# The columns of an evaluation that have a gauge for each label.
OF_LABELS = {
    "shiftwatch_label_prevalence_ratio": "q",
    "shiftwatch_label_prevalence_lower_ratio": "q_lower",
    "shiftwatch_label_prevalence_upper_ratio": "q_upper",
    "shiftwatch_importance_weight": "w",
    "shiftwatch_importance_weight_lower": "w_lower",
    "shiftwatch_importance_weight_upper": "w_upper",
    "shiftwatch_predicted_prevalence_ratio": "predicted",
}

# Of an alarm that is over there is nothing to see: then it is well.
STATES = ("ok", AlarmState.PENDING, AlarmState.FIRING, AlarmState.ACKNOWLEDGED)

Value = float | bool | None
Sample = tuple[str, str, Value]
Lines = dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class Caps:
    """How many labels of a model are shown, and how many series of all of them."""

    labels: int
    series: int


class Gauges:
    """Shows the models of one database; remembers what it showed for a moment."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._caps = Caps(settings.metrics_max_labels, settings.metrics_max_series)
        self._lock = threading.Lock()
        self._shown = b""
        self._read_at = float("-inf")
        self._took = 0.0

    def show(self, now: Callable[[], datetime]) -> bytes:
        """The state of the models, and whether it could be had: without it, nothing stale."""
        # Whoever comes while somebody reads waits for that, instead of reading too.
        with self._lock:
            fresh = time.monotonic() - self._read_at < REMEMBERED_SECONDS
            success = fresh or self._read(now())
            shown = self._shown if success else b""
            took = self._took
        return shown + _about_itself(success, took)

    def _read(self, now: datetime) -> bool:
        began = time.perf_counter()
        try:
            with self._database.begin() as conn:
                found = fleet.read(conn, now)
        except Unavailable as error:
            log.warning("models cannot be read for metrics", error=str(error))
            return False
        except Exception:
            # What this process counts about itself is needed most when something is wrong.
            log.exception("models cannot be read for metrics")
            return False
        finally:
            self._took = time.perf_counter() - began
        forget_counters_of_others(found.models)
        self._shown = rendered(found, self._caps)
        self._took = time.perf_counter() - began
        self._read_at = time.monotonic()
        return True


def _about_itself(success: bool, took: float) -> bytes:
    lines = _no_lines()
    _write(lines, ("shiftwatch_collector_success", "", success))
    _write(lines, ("shiftwatch_scrape_duration_seconds", "", took))
    return _text(lines)


def forget_counters_of_others(models: Sequence[str]) -> None:
    """A model that is gone is not counted any more, by no replica."""
    known = set(models)
    for counter in (metrics.INGESTED, metrics.REJECTED):
        samples = (sample for metric in counter.collect() for sample in metric.samples)
        for name in {sample.labels["model"] for sample in samples} - known:
            counter.remove_by_labels({"model": name})


def rendered(found: Fleet, caps: Caps) -> bytes:
    """All gauges of the models as text, which both formats have in common."""
    lines = _no_lines()
    size = 0
    for sample in _scalars(found):
        size += _write(lines, sample)
    without = 0
    for version in found.versions:
        chosen = version.commonest[: caps.labels]
        more = [sample for sample in _of_labels(version, chosen) if sample[2] is not None]
        if size + len(more) > caps.series:
            without, chosen = without + 1, []
        else:
            size += sum(_write(lines, sample) for sample in more)
        left_out = len(version.labels) - len(chosen)
        _write(lines, ("shiftwatch_truncated_labels", _named(version), left_out))
    _write(lines, ("shiftwatch_truncated_models", "", without))
    return _text(lines)


def _no_lines() -> Lines:
    return {name: [] for name in HELP}


def _text(lines: Lines) -> bytes:
    parts: list[str] = []
    for name, samples in lines.items():
        if samples:
            parts.append(f"# HELP {name} {HELP[name]}\n# TYPE {name} gauge\n")
            parts += samples
    return "".join(parts).encode()


def _write(lines: Lines, sample: Sample) -> int:
    """Add a sample, unless its value is not known: then it is left out, which is not zero."""
    name, labels, value = sample
    if value is None:
        return 0
    within = f"{{{labels}}}" if labels else ""
    lines[name].append(f"{name}{within} {float(value)!r}\n")
    return 1


def _scalars(found: Fleet) -> Iterator[Sample]:
    yield "shiftwatch_models", "", len(found.models)
    yield "shiftwatch_oldest_due_timestamp_seconds", "", _seconds(found.oldest_due_at)
    yield "shiftwatch_webhook_queue_depth", "", found.pending
    oldest = _seconds(found.oldest_pending_at)
    yield "shiftwatch_webhook_oldest_pending_timestamp_seconds", "", oldest
    yield "shiftwatch_outbox_dead_letters", "", found.dead
    for version in found.versions:
        yield from _of_version(version)
        for window in version.windows:
            yield from _of_window(f'{_named(version)},window="{_escaped(window.window)}"', window)


def _of_version(version: VersionNow) -> Iterator[Sample]:
    own = _named(version)
    active = "true" if version.active else "false"
    yield "shiftwatch_model_info", f'{own},active="{active}",kind="{version.kind}"', 1
    yield "shiftwatch_reference_accuracy_ratio", own, version.accuracy
    yield "shiftwatch_confusion_min_singular_value", own, version.sigma_min
    yield "shiftwatch_watermark_timestamp_seconds", own, _seconds(version.newest)
    yield "shiftwatch_last_arrival_timestamp_seconds", own, _seconds(version.arrived_at)
    alarms = {one.alarm: one for one in version.alarms}
    for kind in AlarmKind:
        yield from _of_alarm(f'{own},alarm="{kind}"', alarms.get(kind))
    yield from _what_moved(own, alarms.get(AlarmKind.SHIFT))


def _of_alarm(own: str, alarm: OpenAlarm | None) -> Iterator[Sample]:
    """There before the first alarm, too: otherwise nobody could tell zero from nothing."""
    for severity in Severity:
        active = alarm is not None and alarm.active and alarm.severity is severity
        yield "shiftwatch_alarm_active", f'{own},severity="{severity}"', active
    for state in STATES:
        is_in = "ok" if alarm is None else alarm.state
        yield "shiftwatch_alarm_state", f'{own},state="{state}"', state == is_in


# What a shift alarm may turn out to be.
MOVED = (Verdict.LABEL_SHIFT, Verdict.NOT_LABEL_SHIFT, Verdict.UNDETERMINED)


def _what_moved(own: str, alarm: OpenAlarm | None) -> Iterator[Sample]:
    for verdict in MOVED:
        told = alarm is not None and alarm.active and alarm.verdict is verdict
        yield "shiftwatch_alarm_verdict", f'{own},alarm="shift",verdict="{verdict}"', told


def _of_window(own: str, window: WindowNow) -> Iterator[Sample]:
    yield "shiftwatch_estimate_valid", own, window.valid
    yield "shiftwatch_window_samples", own, window.n
    yield "shiftwatch_window_end_timestamp_seconds", own, _seconds(window.end)
    yield "shiftwatch_last_evaluation_timestamp_seconds", own, _seconds(window.evaluated_at)
    for verdict in Verdict:
        yield "shiftwatch_verdict", f'{own},verdict="{verdict}"', verdict is window.verdict
    for test in window.tests:
        yield "shiftwatch_bbsd_p_value", f'{own},test="{test.test}"', test.p_value
        yield "shiftwatch_bbsd_statistic", f'{own},test="{test.test}"', test.statistic
    if window.assumption is not None:
        checked = window.assumption.p_value
        yield "shiftwatch_assumption_p_value", f'{own},check="label_shift"', checked
    yield "shiftwatch_shift_distance_ratio", f'{own},metric="tv"', window.total_variation
    if window.accuracy is not None:
        yield "shiftwatch_estimated_accuracy_ratio", own, window.accuracy.estimate
        yield "shiftwatch_estimated_accuracy_lower_ratio", own, window.accuracy.lower
        yield "shiftwatch_estimated_accuracy_upper_ratio", own, window.accuracy.upper


def _of_labels(version: VersionNow, chosen: Sequence[int]) -> Iterator[Sample]:
    names = {label: f'label="{_escaped(version.labels[label])}"' for label in chosen}
    own = _named(version)
    for label in chosen:
        yield "shiftwatch_reference_prevalence_ratio", f"{own},{names[label]}", version.p[label]
    for window in version.windows:
        within = f'{own},window="{_escaped(window.window)}"'
        for name, column in OF_LABELS.items():
            values: Known | None = getattr(window.labels, column)
            if values is not None:
                for label in chosen:
                    yield name, f"{within},{names[label]}", values[label]
        if window.paper is not None and window.paper.w is not None:
            of_paper = f'{within},moments="{window.paper.moments}"'
            for label in chosen:
                yield "shiftwatch_bbse_weight", f"{of_paper},{names[label]}", window.paper.w[label]


def _named(version: VersionNow) -> str:
    return f'model="{_escaped(version.model)}",version="{_escaped(version.version)}"'


def _escaped(value: str) -> str:
    """A label's value between quotes.

    >>> print(_escaped('a "b"'))
    a \\"b\\"
    """
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()
