"""Turn the body of a reference into its statistics: a confusion matrix, or labelled predictions."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType

from app.domain.reference import LabelledRows
from app.errors import InvalidInput
from app.ingest import json_format, sample
from app.ingest.columns import Columns
from app.ingest.reduce import Watched
from app.stats import reference as references
from app.stats.moments import Counts
from app.stats.reference import Reference

# Sums of counts stay exact in a double below this.
MOST_RECORDS = 2**53
Count = Annotated[int, Meta(ge=0, le=MOST_RECORDS)]


# Whether a reference becomes the active one: by `force` even if nothing can be estimated from it.
Activate = bool | Literal["force"]


class ReferenceBody(Struct, forbid_unknown_fields=True):
    confusion: list[list[Count]] | None = None
    orientation: Literal["predicted-rows", "actual-rows"] | UnsetType = UNSET
    predicted: list[str | int] | None = None
    probabilities: list[list[float]] | None = None
    actual: list[str | int] | None = None
    activate: Activate | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class Table:
    """Labelled predictions as a table, which is read in parts once the labels are known."""

    parts: Callable[[tuple[str, ...]], Iterator[Columns]]


_decoder = msgspec.json.Decoder(ReferenceBody)


def parse(content: bytes) -> ReferenceBody:
    try:
        return _decoder.decode(content)
    except json_format.BROKEN as error:
        json_format.refuse(content, error)


def statistics(
    body: ReferenceBody | Table, watched: Watched, now: datetime
) -> tuple[Reference, LabelledRows | None]:
    """What the body says, and the softmax rows it came from, if any."""
    if isinstance(body, Table):
        return sample.read(body.parts(watched.model.labels), watched, now)
    if body.confusion is not None:
        _refuse_sample_beside_confusion(body)
        counts = _confusion(body.confusion, watched.model.k)
        return references.from_confusion(_predicted_rows(counts, body.orientation)), None
    if body.orientation is not UNSET:
        raise InvalidInput("says how to read `confusion`, which is not given", "#/orientation")
    if body.actual is None:
        missing = "a reference needs `confusion`, or `actual` with `predicted` or `probabilities`"
        raise InvalidInput(missing, "#")
    size = _common_length(body, body.actual)
    columns = Columns(size, body.predicted, body.probabilities, actual=body.actual)
    return sample.read([columns], watched, now)


def _refuse_sample_beside_confusion(body: ReferenceBody) -> None:
    for name in ("predicted", "probabilities", "actual"):
        if getattr(body, name) is not None:
            raise InvalidInput("give `confusion` or labelled predictions, not both", f"#/{name}")


def _confusion(rows: Sequence[Sequence[int]], k: int) -> Counts:
    if len(rows) != k:
        raise InvalidInput(f"has {len(rows)} rows, but there are {k} labels", "#/confusion")
    for i, row in enumerate(rows):
        if len(row) != k:
            detail = f"has {len(row)} columns, but there are {k} labels"
            raise InvalidInput(detail, f"#/confusion/{i}")
    total = sum(map(sum, rows))
    if not 0 < total <= MOST_RECORDS:
        detail = "counts no record at all" if not total else f"counts more than {MOST_RECORDS}"
        raise InvalidInput(detail, "#/confusion")
    return np.array(rows, dtype=np.int64)


def _predicted_rows(counts: Counts, orientation: str | UnsetType) -> Counts:
    """The matrix as the paper writes it; scikit-learn writes true labels as rows."""
    return np.ascontiguousarray(counts.T) if orientation == "actual-rows" else counts


def _common_length(body: ReferenceBody, actual: Sequence[str | int]) -> int:
    if body.predicted is None and body.probabilities is None:
        raise InvalidInput("`actual` needs `predicted` or `probabilities` beside it", "#")
    if not actual:
        raise InvalidInput("has no record at all", "#/actual")
    for name in ("predicted", "probabilities"):
        column = getattr(body, name)
        if column is not None and len(column) != len(actual):
            detail = f"`{name}` has {len(column)} entries, but `actual` has {len(actual)}"
            raise InvalidInput(detail, f"#/{name}")
    return len(actual)
