"""A reference as it is kept: what a labelled sample said of one version, and when it counts."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.stats import diagnosis
from app.stats import reference as references
from app.stats.diagnosis import Before, Diagnosis
from app.stats.moments import Counts
from app.stats.reference import ABSENT_BELOW, Reference

Singles = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LabelledRows:
    """The softmax rows a reference came from, kept in single precision.

    Nothing reads them once the reference is prepared, until a release prepares references anew.
    Of very many rows they are not kept.
    """

    rows: Singles
    actual: Counts
    predicted: Counts


@dataclass(frozen=True, slots=True)
class ReferenceSummary:
    """What is worth knowing of a reference without its sums.

    `activated_at` is when this version last became the active one. `notes` are doubts about what
    was sent, beside what the diagnosis says of it.
    """

    version: str
    kind: Literal["hard", "soft"]
    diagnosis: Diagnosis
    created_at: datetime
    activated_at: datetime | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredReference:
    summary: ReferenceSummary
    statistics: Reference


# A note: rows and columns of the confusion matrix seem to be exchanged.
TRANSPOSED_SUSPECTED = "transposed_suspected"


def unfit(summary: ReferenceSummary) -> str | None:
    """Why a reference should not become the active one: nothing can be estimated from it."""
    found = summary.diagnosis
    if found.estimable:
        return None
    known = len(found.support) - len(found.absent)
    if known < 2:
        reason = f"{known} of its labels has {ABSENT_BELOW} records or more, and it takes two"
    else:
        reason = "its predictions do not tell the labels apart"
    return f"nothing can be estimated from reference {summary.version!r}: {reason}"


def diagnosed(
    version: str, statistics: Reference, now: datetime, notes: tuple[str, ...] = ()
) -> StoredReference:
    """A new reference, with what it can and cannot support decided once and for all."""
    kind: Literal["hard", "soft"] = "hard" if statistics.soft is None else "soft"
    summary = ReferenceSummary(version, kind, diagnosis.diagnose(statistics), now, notes=notes)
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
