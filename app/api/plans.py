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
from app.stats import planning
from app.stats.analysis import Basis, Method, of_reference
from app.stats.estimator import Operator
from app.stats.moments import Floats
from app.stats.planning import Needed, Unattainable
from app.stats.reference import ABSENT_BELOW
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
    """Of one label."""

    labels: list[str]


class IntervalPlan(BaseModel):
    half_width: float
    level: float = LEVEL
    labels: list[IntervalSize]


class PlanView(BaseModel):
    """What a reference of `n` records can show. `status` has the words of its diagnosis.

    `groups` are labels that look alike and are known together only.
    """

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
    not_identified: list[str]
    weakly_identified: list[str]
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
    basis = seen.basis
    # The reference as traffic like this is compared with it; at its best without traffic.
    solver = basis.for_window(seen.sums) if seen.analysis.n else basis.soft or basis.hard
    moving = _moving(owner, basis, label, to)
    terms = _terms(owner, alpha, power, per_hour, per_pane, seen.analysis.n)
    identified = solver.identified
    return PlanView(
        model=owner.name,
        version=seen.version,
        n=int(basis.support.sum()),
        status=list(of_reference(basis, solver)),
        method="bbse-cells",
        alpha=alpha,
        power=power,
        per_hour=terms.per_hour,
        per_pane=terms.per_pane,
        labels=_visible(owner, basis, terms),
        groups=[_names(owner, group) for group in identified.groups],
        not_identified=_names(owner, identified.not_identified),
        weakly_identified=_names(owner, identified.weakly_identified),
        detection=None if moving is None else _detection(owner, basis, moving, terms),
        interval=None
        if half_width is None
        else _interval(owner, solver.operator, moving, half_width),
    )


def _moving(
    model: Model, basis: Basis, label: str | None, to: float | None
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
    if basis.support[position] < ABSENT_BELOW:
        detail = f"{label!r} has fewer than {ABSENT_BELOW} records in the reference"
        raise wrong_parameter("label", f"{detail}, so nothing is known of how it would look")
    if np.isclose(to, basis.nu[position]):
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


def _visible(model: Model, basis: Basis, terms: Terms) -> list[VisibleChange]:
    on = basis.hard.operator
    growth, p = np.full(model.k, np.nan), basis.nu
    if on is not None:
        p = on.spread(on.nu)
        growth = planning.smallest_visible_shift(
            on, terms.per_hour, alpha=terms.alpha, power=terms.power
        )
    columns = zip(model.labels, p, growth, strict=True)
    return [VisibleChange(label=label, p=known(p), growth=known(g)) for label, p, g in columns]


def _detection(
    model: Model, basis: Basis, moving: tuple[int, float], terms: Terms
) -> DetectionPlan:
    label, to = moving
    on = basis.hard.operator
    size: Needed | Unattainable = Unattainable(np.inf)
    delay = np.inf
    if on is not None:
        q = planning.moved(on, label, to)
        size = planning.predictions_to_detect(on, q, alpha=terms.alpha, power=terms.power)
        run_length = model.settings.alarm.average_run_length(model.settings.pane)
        delay = planning.detection_delay(
            on, q, per_pane=terms.per_pane, average_run_length=max(1.0, run_length)
        )
    return DetectionPlan(
        **SizeView.of(size).model_dump(),
        label=model.labels[label],
        p=float(basis.nu[label]),
        to=to,
        delay_panes=known(delay),
    )


def _interval(
    model: Model, on: Operator | None, moving: tuple[int, float] | None, half_width: float
) -> IntervalPlan:
    if on is None:
        return IntervalPlan(half_width=half_width, labels=[])
    q: Floats = on.nu if moving is None else planning.moved(on, *moving)
    sizes = planning.predictions_for_half_width(on, q, half_width, level=LEVEL)
    return IntervalPlan(
        half_width=half_width,
        labels=[
            IntervalSize(**SizeView.of(size).model_dump(), labels=[model.labels[label]])
            for label, size in zip(on.table.present.tolist(), sizes, strict=True)
        ],
    )


def _names(model: Model, labels: tuple[int, ...]) -> list[str]:
    return [model.labels[label] for label in labels]
