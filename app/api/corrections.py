"""Act on a shift: corrected probabilities for serving, class weights for retraining."""

import csv
import io
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal, Self

import msgspec
import numpy as np
from anyio import to_thread
from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel

from app.api import bodies, estimates
from app.api.deps import Conn, Now, Reader, Services, services
from app.api.models import ModelName
from app.api.openapi import body_of, schema_of
from app.api.schemas import Slug, known
from app.domain import correction as domain
from app.domain.correction import Correction
from app.domain.model import Model
from app.errors import InvalidInput
from app.evaluate.look import Look
from app.ingest import json_format
from app.ingest.columns import Columns
from app.ingest.reduce import Records, Watched, flaws_of, records_of
from app.stats import correction, moments
from app.storage import models
from app.storage.alarms import shift_firing
from app.storage.db import Connection

router = APIRouter(prefix="/v1/models/{model}", tags=["corrections"])

VersionName = Annotated[Slug | None, Query(description="without one, the active version")]
Force = Annotated[
    bool, Query(description="correct although no shift calls for it; never for serving")
]
Format = Annotated[Literal["json", "csv"] | None, Query(description="goes before `Accept`")]
Accept = Annotated[str, Header(description="`text/csv` for a table of label and weight")]


@dataclass(frozen=True, slots=True)
class Question:
    """What to correct for, and whether to do so without need."""

    model: str
    version: str | None
    window: str | None
    now: datetime
    force: bool


@dataclass(frozen=True, slots=True)
class Decided:
    """What was seen in the window, and what to do about it."""

    model: Model
    window: str
    seen: Look
    correction: Correction


class RowsBody(msgspec.Struct, forbid_unknown_fields=True):
    """Softmax rows, in the order of the model's labels."""

    probabilities: list[list[float]]


class LabelFactor(msgspec.Struct, frozen=True):
    """What a label's probability was multiplied by; null if the reference does not have it."""

    label: str
    w: float | None


class Corrected(msgspec.Struct, frozen=True):
    """The rows under the present label mix; as they came, unless `applied`.

    `calibrated` says whether they were first calibrated on the reference's own softmax rows.
    """

    model: str
    version: str
    window: str
    applied: bool
    reason: str
    calibrated: bool
    weights: list[LabelFactor]
    probabilities: list[list[float]]
    predicted: list[str]


class LabelWeight(BaseModel):
    """`w` is `q / p`, shrunken; `weight` the same scaled to average one over `support` records."""

    label: str
    w: float | None
    weight: float
    support: int


class WeightsView(BaseModel):
    """Weights for each record of a label when retraining on data with the reference's label mix.

    Weighted, the `n` records of the reference are worth `n_effective` of equal weight. `gamma` is
    how much of the estimated change was believed.
    """

    model: str
    version: str
    window: str
    applied: bool
    reason: str
    gamma: float | None
    labels: list[LabelWeight]
    n: int
    n_effective: float
    warnings: list[str]

    @classmethod
    def of(cls, decided: Decided) -> Self:
        found, support = decided.correction, decided.seen.basis.support
        weighed = correction.class_weights(found.w, support)
        columns = zip(decided.model.labels, found.w, weighed.weights, support, strict=True)
        return cls(
            model=decided.model.name,
            version=decided.seen.version,
            window=decided.window,
            applied=found.applied,
            reason=found.reason,
            gamma=found.gamma,
            labels=[
                LabelWeight(label=label, w=known(w), weight=weight, support=records)
                for label, w, weight, records in columns
            ],
            n=weighed.n,
            n_effective=weighed.n_effective,
            warnings=_warnings(decided, thin=weighed.thin),
        )


@router.post(
    "/correct",
    dependencies=[Reader],
    response_class=Response,
    responses={200: {"content": {"application/json": {"schema": schema_of(Corrected)}}}},
    openapi_extra=body_of({"application/json": RowsBody}),
)
async def correct(
    model: ModelName,
    now: Now,
    request: Request,
    window: estimates.WindowName = None,
    version: VersionName = None,
    force: Force = False,
) -> Response:
    """Softmax rows corrected for the label mix of a window, if a label shift calls for it."""
    own = services(request)
    bodies.refuse_all_but_json(request)
    content = await bodies.read(request, own.settings.max_body_bytes)
    # A body may hold millions of numbers; the event loop has other callers.
    asked = Question(model, version, window, now, force)
    answer = await to_thread.run_sync(_correct, own, content, asked)
    return Response(answer, media_type="application/json")


@router.get(
    "/weights",
    dependencies=[Reader],
    response_model=WeightsView,
    responses={200: {"content": {"text/csv": {"schema": {"type": "string"}}}}},
)
def get_weights(
    model: ModelName,
    conn: Conn,
    now: Now,
    request: Request,
    window: estimates.WindowName = None,
    version: VersionName = None,
    force: Force = False,
    format: Format = None,
    accept: Accept = "application/json",
) -> WeightsView | Response:
    """Class weights for retraining; all one unless a label shift calls for others."""
    asked = Question(model, version, window, now, force)
    view = WeightsView.of(_decide(conn, services(request), asked))
    if format == "csv" or (format is None and "text/csv" in accept):
        return Response(_table(view), media_type="text/csv")
    return view


def _decide(conn: Connection, own: Services, asked: Question) -> Decided:
    model = models.get(conn, asked.model)
    window = estimates.window_of(model, asked.window)
    seen = own.evaluator.window(conn, model, asked.version, window, asked.now)
    alarm = shift_firing(conn, model.id, seen.version)
    found = domain.decide(seen.analysis, seen.verdict, model.k, alarm=alarm, force=asked.force)
    return Decided(model, window.name, seen, found)


def _correct(own: Services, content: bytes, asked: Question) -> bytes:
    body = _parse(content)
    with own.database.begin() as conn:
        decided = _decide(conn, own, asked)
        prepared = own.evaluator.prepared(conn, decided.model, decided.seen.version)
    # Outside of any transaction: nobody should wait for our arithmetic.
    model, version, found = decided.model, decided.seen.version, decided.correction
    records = _records(body, model, asked.now)
    probabilities, predicted, fitted = body.probabilities, records.predicted, None
    if found.applied and records.rows is not None:
        fitted = prepared.calibration
        rows = domain.corrected(records.rows, found.w, fitted)
        probabilities, predicted = rows.tolist(), moments.argmax(rows)
    answer = Corrected(
        model=model.name,
        version=version,
        window=decided.window,
        applied=found.applied,
        reason=found.reason,
        calibrated=fitted is not None,
        weights=[LabelFactor(*pair) for pair in zip(model.labels, found.w.tolist(), strict=True)],
        probabilities=probabilities,
        predicted=np.array(model.labels, dtype=object)[predicted].tolist(),
    )
    return msgspec.json.encode(answer)


def _parse(content: bytes) -> RowsBody:
    try:
        return _decoder.decode(content)
    except json_format.BROKEN as error:
        json_format.refuse(content, error)


_decoder = msgspec.json.Decoder(RowsBody)


def _records(body: RowsBody, model: Model, now: datetime) -> Records:
    """The rows as arrays. All must be sound: a caller expects as many back as it sent."""
    columns = Columns(len(body.probabilities), rows=body.probabilities)
    watched = Watched.of(model)
    records, good = records_of(columns, watched, now)
    if not good.all():
        flaws = flaws_of(columns, watched, now, good)
        raise InvalidInput(f"{flaws[0].pointer}: {flaws[0].detail}", flaws=flaws)
    return records


def _warnings(decided: Decided, *, thin: bool) -> list[str]:
    if not decided.correction.applied:
        return []
    shaky = ("not_identified", "weakly_identified", "A2_class_absent", "low_support")
    words = [word for word in shaky if word in decided.seen.analysis.status]
    return ["thin", *words] if thin else words


def _table(view: WeightsView) -> str:
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(["label", "weight"])
    writer.writerows([label.label, label.weight] for label in view.labels)
    return table.getvalue()
