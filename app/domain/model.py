"""A monitored model: its labels, how its predictions are cut into windows, what to watch for."""

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from app.domain.window import DEFAULT_WINDOWS, Window
from app.stats.analysis import Estimator

MIN_LABELS, MAX_LABELS = 2, 1000
MAX_LABEL_LENGTH = 200

# What may stand between two slashes of a URL, unescaped, and in a metric's label unchanged.
SLUG = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._~-]{0,98}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class AlarmPolicy:
    """At most `at_most` false alarms per `per`, and silence below `min_effect`.

    An alarm fires when its cause has lasted `min_duration`, resolves after `clear_panes` quiet
    panes, is told again every `renotify`, and stays pending within `cooldown` of the one before.
    None for the two `_after` means that nobody wants to know. `overdispersion` is how many
    predictions come for each independent one; None: measured on the first `calibration_panes`.
    """

    at_most: float = 1.0
    per: timedelta = timedelta(days=30)
    min_effect: float = 0.02
    min_duration: timedelta = timedelta(0)
    clear_panes: int = 30
    cooldown: timedelta = timedelta(0)
    renotify: timedelta = timedelta(hours=4)
    no_data_after: timedelta | None = timedelta(hours=1)
    ingest_stopped_after: timedelta | None = timedelta(hours=1)
    calibration_panes: int = 200
    overdispersion: float | None = None

    def average_run_length(self, pane: timedelta) -> float:
        """The mean number of panes between two false alarms that the budget asks for.

        >>> AlarmPolicy().average_run_length(timedelta(minutes=1))
        43200.0
        """
        return self.per / pane / self.at_most


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What a caller decides about a model."""

    labels: tuple[str, ...]
    pane: timedelta = timedelta(minutes=1)
    windows: tuple[Window, ...] = DEFAULT_WINDOWS
    alarm: AlarmPolicy = field(default_factory=AlarmPolicy)
    allowed_lateness: timedelta = timedelta(days=1)
    keep_ids: bool = False
    estimator: Estimator = "default"


@dataclass(frozen=True, slots=True)
class Model:
    """`revision` grows with every change, of settings and of the active version alike.

    `versions` says when the reference of each version came in.
    """

    id: int
    name: str
    settings: ModelSettings
    revision: int
    versions: Mapping[str, datetime] = field(default_factory=dict)
    active_version: str | None = None
    updated_at: datetime | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        return self.settings.labels

    @property
    def k(self) -> int:
        return len(self.settings.labels)

    def reference_key(self, version: str) -> Hashable:
        """Names the reference of a version in a cache: one that replaces it came in later."""
        return self.id, version, self.versions.get(version)

    @property
    def etag(self) -> str:
        """Names this state of the model; one of the same name that came later has another id."""
        return f'"{self.id}-{self.revision}"'
