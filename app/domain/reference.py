"""A reference as it is kept: what a labelled sample said of one version, and when it counts."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from app.stats import diagnosis
from app.stats.diagnosis import Diagnosis
from app.stats.moments import Counts, Floats
from app.stats.reference import Reference


@dataclass(frozen=True, slots=True)
class LabelledRows:
    """The softmax rows a reference came from.

    Sums are enough for everything but calibration (BCTS), with it maximum likelihood and the sharp
    estimate, and the kernel test. For those the rows are kept, in single precision.
    """

    rows: Floats
    actual: Counts
    predicted: Counts


@dataclass(frozen=True, slots=True)
class ReferenceSummary:
    """What is worth knowing of a reference without its sums.

    Nothing changes but `activated_at`: when this version last became the active one.
    """

    version: str
    kind: Literal["hard", "soft"]
    diagnosis: Diagnosis
    created_at: datetime
    activated_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class StoredReference:
    summary: ReferenceSummary
    statistics: Reference


def diagnosed(version: str, statistics: Reference, now: datetime) -> StoredReference:
    """A new reference, with what it can and cannot support decided once and for all."""
    kind: Literal["hard", "soft"] = "hard" if statistics.soft is None else "soft"
    summary = ReferenceSummary(version, kind, diagnosis.diagnose(statistics), now)
    return StoredReference(summary, statistics)
