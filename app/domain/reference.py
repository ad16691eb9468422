"""A reference as it is kept: what a labelled sample said of one version, and when it counts."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.stats import diagnosis
from app.stats.diagnosis import ABSENT_BELOW, Diagnosis
from app.stats.moments import Counts
from app.stats.reference import Reference

Singles = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LabelledRows:
    """The softmax rows a reference came from.

    Sums are enough for everything but calibration (BCTS), with it maximum likelihood and the sharp
    estimate, and the kernel test. For those the rows are kept, in single precision, unless there
    are very many.
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
