"""All models at one moment: what was last found of each, and how the service is doing."""

from dataclasses import dataclass
from datetime import datetime

from app.domain.alarm import AlarmKind, AlarmState, Severity
from app.domain.evaluation import (
    AccuracyNow,
    AssumptionFound,
    GroupShare,
    Identified,
    Known,
    LabelColumns,
    PaperNumbers,
    Significance,
)
from app.domain.verdict import Verdict

ALL_IDENTIFIED = Identified()


@dataclass(frozen=True, slots=True)
class WindowNow:
    """The newest evaluation of one window of one version."""

    window: str
    end: datetime
    evaluated_at: datetime
    n: int
    verdict: Verdict
    labels: LabelColumns
    tests: tuple[Significance, ...]
    total_variation: float | None
    accuracy: AccuracyNow | None
    assumption: AssumptionFound | None
    paper: PaperNumbers | None = None
    identified: Identified = ALL_IDENTIFIED
    groups: tuple[GroupShare, ...] = ()
    degenerate: bool = False

    @property
    def valid(self) -> bool:
        """Whether there is an estimate of the label mix that can be relied on.

        Without one there is no effect either: the reference may tell no labels apart, or more than
        the label mix may have moved. Of a few predictions it says next to nothing. A `degenerate`
        one is the paper's of a singular matrix, which is the reference's own mix.
        """
        known = self.labels.q is not None and self.total_variation is not None
        return known and self.verdict is not Verdict.INSUFFICIENT_DATA and not self.degenerate


@dataclass(frozen=True, slots=True)
class OpenAlarm:
    alarm: AlarmKind
    state: AlarmState
    severity: Severity
    verdict: Verdict | None = None

    @property
    def active(self) -> bool:
        return self.state in (AlarmState.FIRING, AlarmState.ACKNOWLEDGED)


@dataclass(frozen=True, slots=True)
class VersionNow:
    """One version of one model: its reference, its stream, its windows and its open alarms."""

    model: str
    version: str
    active: bool
    kind: str
    labels: tuple[str, ...]
    p: Known
    accuracy: float | None
    sigma_min: float | None
    newest: datetime | None
    arrived_at: datetime | None
    windows: tuple[WindowNow, ...]
    alarms: tuple[OpenAlarm, ...]

    @property
    def commonest(self) -> list[int]:
        """Positions of the labels, the commonest in the reference first: an order that stays."""
        shares = [share or 0.0 for share in self.p]
        return sorted(range(len(self.labels)), key=lambda label: -shares[label])


@dataclass(frozen=True, slots=True)
class Fleet:
    """`models` are the names of all; `oldest_due_at` is since when the first of them has waited."""

    models: tuple[str, ...]
    versions: tuple[VersionNow, ...]
    oldest_due_at: datetime | None
    pending: int
    oldest_pending_at: datetime | None
    dead: int
