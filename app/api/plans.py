"""Ask beforehand: what can this reference show, and how many predictions does that take?"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Self

import numpy as np
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from app.api.corrections import VersionName
from app.api.deps import Conn, Now, Reader, services
from app.api.models import ModelName
from app.api.schemas import known
from app.domain.model import Model
from app.domain.verdict import SHIFTED_BELOW
from app.domain.window import Window, WindowKind
from app.errors import wrong_parameter
from app.evaluate.look import Look
from app.stats import planning
from app.stats.analysis import Method
from app.stats.bbse import Prepared
from app.stats.diagnosis import ABSENT_BELOW
from app.stats.moments import Floats
from app.stats.planning import Needed, Unattainable
from app.storage import models

router = APIRouter(prefix="/v1/models/{model}/plan", tags=["plans"])

HOUR = timedelta(hours=1)
# What to reckon with before there is any traffic.
DEFAULT_PER_HOUR = 1000.0
LEVEL = 0.95
SHOWN_LABELS = 20

Share = Annotated[float, Field(gt=0, lt=1)]
Traffic = Annotated[float, Field(gt=0, le=1e12)]


@dataclass(frozen=True, slots=True)
class Terms:
    """What counts as seen, and how much traffic there is to see it in."""

    alpha: float
    power: float
    per_hour: float
    per_pane: float


class VisibleChange(BaseModel):
    """How far a label's share must grow from `p` to be seen in an hour; null if it never is."""

    label: str
    p: float | None
    growth: float | None


class SizeView(BaseModel):
    """How many predictions will do. If none will: how many times larger the reference must be."""

    predictions: int | None = None
    reference_factor: float | None = None

    @classmethod
    def of(cls, size: Needed | Unattainable) -> Self:
        match size:
            case Needed(predictions):
                return cls(predictions=predictions)
            case Unattainable(factor):
                return cls(reference_factor=known(factor))


class DetectionPlan(SizeView):
    """One label moves from its share of the reference to another, the others share the rest.

    `delay_panes` is how long the streaming alarm is expected to take; null if it would not fire.
    """

    label: str
    p: float
    to: float
    delay_panes: float | None


class IntervalSize(SizeView):
    """A label, or labels that can only be estimated together."""

    labels: list[str]


class IntervalPlan(BaseModel):
    half_width: float
    level: float = LEVEL
    labels: list[IntervalSize]


class PlanView(BaseModel):
    """What a reference of `n` records can show. `status` has the words of its diagnosis."""

    model: str
    version: str
    n: int
    status: list[str]
    method: Method
    alpha: float
    power: float
    per_hour: float
    per_pane: float
    labels: list[VisibleChange]
    groups: list[list[str]]
    detection: DetectionPlan | None
    interval: IntervalPlan | None


@router.get("", dependencies=[Reader])
def get_plan(
    model: ModelName,
    conn: Conn,
    now: Now,
    request: Request,
    version: VersionName = None,
    label: Annotated[str | None, Query(description="the label that moves")] = None,
    to: Annotated[Share | None, Query(description="the share that it moves to")] = None,
    alpha: Annotated[float, Query(ge=1e-9, le=0.5)] = SHIFTED_BELOW,
    power: Annotated[float, Query(gt=0, le=0.9999)] = 0.8,
    half_width: Annotated[Share | None, Query(description="of each label's interval")] = None,
    per_hour: Annotated[Traffic | None, Query(description="predictions an hour")] = None,
    per_pane: Annotated[Traffic | None, Query(description="the same, per pane")] = None,
) -> PlanView:
    """How large a shift must be to be seen, and how many predictions other wishes take.

    Without `per_hour` or `per_pane`, traffic is taken to go on as in the last hour.
    """
    owner = models.get(conn, model)
    hour = Window("hour", WindowKind.SLIDING, length=max(HOUR, owner.settings.pane))
    seen = services(request).evaluator.window(conn, owner, version, hour, now)
    prepared = _prepared(seen)
    moving = _moving(owner, prepared, label, to)
    terms = _terms(owner, alpha, power, per_hour, per_pane, seen.analysis.n)
    q = prepared.nu
    if moving is not None and prepared.estimable:
        q = planning.moved(prepared, *moving)
    return PlanView(
        model=owner.name,
        version=seen.version,
        n=prepared.reference.n,
        status=list(prepared.diagnosis.status),
        method="bbse-soft" if prepared.soft else "bbse-hard",
        alpha=alpha,
        power=power,
        per_hour=terms.per_hour,
        per_pane=terms.per_pane,
        labels=_visible(owner, prepared, terms),
        groups=[_names(owner, group) for group in prepared.diagnosis.groups],
        detection=None if moving is None else _detection(owner, prepared, moving, q, terms),
        interval=None if half_width is None else _interval(owner, prepared, q, half_width),
    )


def _prepared(seen: Look) -> Prepared:
    """The reference as traffic like this would be compared with it; at its best without traffic."""
    if seen.basis.soft is None or (seen.analysis.n and seen.analysis.method == "bbse-hard"):
        return seen.basis.hard
    return seen.basis.soft


def _moving(
    model: Model, prepared: Prepared, label: str | None, to: float | None
) -> tuple[int, float] | None:
    if label is None and to is None:
        return None
    if label is None or to is None:
        missing = "label" if label is None else "to"
        raise wrong_parameter(missing, "is missing: a shift is of a `label`, `to` a share")
    if label not in model.labels:
        names = ", ".join(model.labels[:SHOWN_LABELS])
        more = ", …" if model.k > SHOWN_LABELS else ""
        raise wrong_parameter("label", f"{label!r} is not one of the model's: {names}{more}")
    position = model.labels.index(label)
    if prepared.owner[position] < 0:
        detail = f"{label!r} has fewer than {ABSENT_BELOW} records in the reference"
        raise wrong_parameter("label", f"{detail}, so nothing is known of how it would look")
    if np.isclose(to, prepared.spread(prepared.nu)[position]):
        raise wrong_parameter("to", f"is the share that {label!r} has in the reference: no shift")
    return position, to


def _terms(
    model: Model,
    alpha: float,
    power: float,
    per_hour: float | None,
    per_pane: float | None,
    last_hour: int,
) -> Terms:
    if power <= alpha:
        raise wrong_parameter("power", "must be greater than `alpha`: chance alone sees that often")
    if per_hour is not None and per_pane is not None:
        raise wrong_parameter("per_pane", "says the same as `per_hour`; leave one out")
    pane = model.settings.pane / HOUR
    if per_pane is not None:
        return Terms(alpha, power, per_pane / pane, per_pane)
    rate = per_hour or last_hour / max(1.0, pane) or DEFAULT_PER_HOUR
    return Terms(alpha, power, rate, rate * pane)


def _visible(model: Model, prepared: Prepared, terms: Terms) -> list[VisibleChange]:
    growth = planning.smallest_visible_shift(
        prepared, terms.per_hour, alpha=terms.alpha, power=terms.power
    )
    columns = zip(model.labels, prepared.spread(prepared.nu), growth, strict=True)
    return [VisibleChange(label=label, p=known(p), growth=known(g)) for label, p, g in columns]


def _detection(
    model: Model, prepared: Prepared, moving: tuple[int, float], q: Floats, terms: Terms
) -> DetectionPlan:
    label, to = moving
    size = planning.predictions_to_detect(prepared, q, alpha=terms.alpha, power=terms.power)
    run_length = model.settings.alarm.average_run_length(model.settings.pane)
    delay = planning.detection_delay(
        prepared, q, per_pane=terms.per_pane, average_run_length=max(1.0, run_length)
    )
    return DetectionPlan(
        **SizeView.of(size).model_dump(),
        label=model.labels[label],
        p=float(prepared.spread(prepared.nu)[label]),
        to=to,
        delay_panes=known(delay),
    )


def _interval(model: Model, prepared: Prepared, q: Floats, half_width: float) -> IntervalPlan:
    sizes = planning.predictions_for_half_width(prepared, q, half_width, level=LEVEL)
    return IntervalPlan(
        half_width=half_width,
        labels=[
            IntervalSize(**SizeView.of(size).model_dump(), labels=_names(model, column))
            for column, size in zip(prepared.columns, sizes, strict=True)
        ],
    )


def _names(model: Model, labels: tuple[int, ...]) -> list[str]:
    return [model.labels[label] for label in labels]
