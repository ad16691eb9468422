"""A reference as it is kept: what a labelled sample said of one version, and when it counts."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from app.stats import diagnosis
from app.stats import reference as references
from app.stats.diagnosis import Before, Diagnosis
from app.stats.moments import Counts, Floats
from app.stats.reference import Reference


@dataclass(frozen=True, slots=True)
class LabelledRows:
    """The softmax rows a reference came from, kept in single precision.

    Nothing reads them once the reference is prepared, until a release prepares references anew.
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


def statistics(counts: Counts, sample: LabelledRows | None) -> Reference:
    """The statistics of a reference, from what is kept of it."""
    if sample is None:
        return references.from_confusion(counts)
    return references.from_sample(len(counts), sample.predicted, sample.actual, sample.rows)


def renewed(stored: StoredReference, before: Before) -> StoredReference:
    """A reference that a release prepared anew, with what was said of it `before`."""
    found = replace(stored.summary.diagnosis, before=before)
    return replace(stored, summary=replace(stored.summary, diagnosis=found))
