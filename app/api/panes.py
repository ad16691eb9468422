"""The sums themselves, so that anyone can check them."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Self

from fastapi import APIRouter, Query, Response
from pydantic import AwareDatetime, BaseModel, Field

from app.api import paging
from app.api.deps import Conn, Now, Reader
from app.api.models import ModelName
from app.api.schemas import Moment, Slug
from app.domain.model import Model
from app.errors import wrong_parameter
from app.ingest.reduce import FUTURE_TOLERANCE
from app.stats import moments
from app.stats.moments import Sums
from app.storage import models, rollups
from app.storage.panes import Pane

router = APIRouter(prefix="/v1/models/{model}/panes", tags=["panes"])

# Beyond these no pane can be, and a clock's arithmetic overflows.
FIRST, LAST = datetime(1970, 1, 2, tzinfo=UTC), datetime(2999, 1, 1, tzinfo=UTC)
Time = Annotated[AwareDatetime, Field(ge=FIRST, le=LAST)]
From = Annotated[Time | None, Query(alias="from", description="begin, inclusive")]
To = Annotated[Time | None, Query(description="end, exclusive")]

DEFAULT_SPAN = timedelta(hours=1)


class LabelCount(BaseModel):
    label: str
    count: int


class LabelSum(BaseModel):
    """`probability`: sum over rows; `score`: sum of the largest entry where this was predicted."""

    label: str
    probability: float
    score: float
    cells: list[int]


class CodeCount(BaseModel):
    """Rows whose largest entry is `first`'s, then `second`'s, by coarse confidence bin."""

    first: str
    second: str
    bin: int
    count: int


class SoftView(BaseModel):
    """Sums over the records that came with softmax rows.

    `outer` is the upper triangle of the sum of `p p'`, row by row, or its diagonal for more than
    64 labels; `cells` count rows by confidence bin. `counts` are predictions among these records.
    """

    n: int
    counts: list[LabelCount]
    labels: list[LabelSum]
    outer: list[float]
    codes: list[CodeCount]
    score: float
    score_squared: float


class PaneView(BaseModel):
    """All predictions of a version in one slice of time; `counts` are those of every record.

    The slice is `length` long: a pane, or a block of 60 panes where it is older than panes are
    kept. A block that an earlier release made has no `codes`.
    """

    start: Moment
    length: timedelta
    version: str
    n: int
    counts: list[LabelCount]
    soft: SoftView | None = None

    @classmethod
    def of(cls, pane: Pane, model: Model) -> Self:
        counts = pane.counts
        soft = pane.sums.get("soft")
        return cls(
            start=pane.start,
            length=pane.panes * model.settings.pane,
            version=pane.version,
            n=int(counts.sum()),
            counts=_counts(counts, model),
            soft=None if soft is None else _soft(soft, model),
        )


class PanePage(BaseModel):
    items: list[PaneView]
    next: str | None


@router.get("", dependencies=[Reader], response_model=PanePage)
def list_panes(
    model: ModelName,
    conn: Conn,
    now: Now,
    start: From = None,
    to: To = None,
    version: Annotated[Slug | None, Query()] = None,
    limit: paging.Limit = 50,
    cursor: paging.Cursor = None,
) -> Response:
    """Panes that begin in a span of time, oldest first; without one, those of the last hour."""
    owner = models.get(conn, model)
    end = to or now + FUTURE_TOLERANCE
    begin = start or end - DEFAULT_SPAN
    if begin >= end:
        raise wrong_parameter("from", "must lie before `to`")
    after = paging.time_in(cursor)
    span = (owner.settings.pane, begin, end)
    found = rollups.between(conn, owner.id, *span, version, after, limit + 1)
    last = found[limit - 1] if len(found) > limit else None
    following = None if last is None else paging.by_time(last.start, last.version)
    return Response(_page(found[:limit], owner, following), media_type="application/json")


def _page(found: Sequence[Pane], model: Model, following: str | None) -> bytes:
    """A `PanePage`, pane by pane: as objects, all of them would take many times what is sent."""
    items = (PaneView.of(one, model).model_dump_json().encode() for one in found)
    return b'{"items":[%b],"next":%b}' % (b",".join(items), json.dumps(following).encode())


def _counts(counts: moments.Counts, model: Model) -> list[LabelCount]:
    pairs = zip(model.labels, counts.tolist(), strict=True)
    return [LabelCount(label=label, count=count) for label, count in pairs]


def _soft(sums: Sums, model: Model) -> SoftView:
    soft = sums.soft
    assert soft is not None
    cells = soft.cells.reshape(model.k, moments.CONFIDENCE_BINS).tolist()
    columns = zip(
        model.labels, soft.prob.tolist(), soft.score_by_label.tolist(), cells, strict=True
    )
    return SoftView(
        n=sums.n,
        counts=_counts(sums.counts, model),
        labels=[
            LabelSum(label=label, probability=probability, score=score, cells=some)
            for label, probability, score, some in columns
        ],
        outer=soft.outer.tolist(),
        codes=_codes(soft, model),
        score=soft.score,
        score_squared=soft.score_squared,
    )


def _codes(soft: moments.SoftSums, model: Model) -> list[CodeCount]:
    parts = (part.tolist() for part in moments.decode(model.k, soft.codes))
    return [
        CodeCount(first=model.labels[first], second=model.labels[second], bin=bin, count=count)
        for first, second, bin, count in zip(*parts, soft.code_counts.tolist(), strict=True)
    ]
