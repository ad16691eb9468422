"""One reference: can it tell its labels apart, and what can be seen with it?"""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from app.api.deps import Conn, Now
from app.api.models import ModelName
from app.api.pages.base import Looking, PageRoute, shown
from app.api.plans import Traffic, get_plan
from app.api.references import Version
from app.storage import models, references
from app.web import reference as web
from app.web.reference import Growth

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/models/{model}/references/{version}")
def get_reference(
    visitor: Looking,
    model: ModelName,
    version: Version,
    conn: Conn,
    now: Now,
    request: Request,
    per_hour: Annotated[Traffic | None, Query()] = None,
) -> Response:
    owner = models.get(conn, model)
    stored = references.get(conn, owner, version)
    plan = get_plan(model, conn, now, request, version=version, per_hour=per_hour)
    found = stored.summary.diagnosis
    changes = [Growth(one.label, one.growth) for one in plan.labels]
    return shown(
        "reference.html",
        visitor,
        model=owner,
        reference=stored.summary,
        diagnosis=found,
        heat_map=web.heat_map(owner.labels, stored.statistics.counts),
        verdict=web.verdict(found),
        doubts=web.doubts(stored.summary.notes),
        separation=web.separation(found),
        little_support=web.little_support(owner.labels, found),
        look_alikes=web.look_alikes(owner.labels, found),
        renewed=web.renewed(owner.labels, found),
        plan=plan,
        promise=web.plan(plan.per_hour, changes),
        asked_per_hour=per_hour,
        rows=web.label_rows(owner.labels, found, changes),
        now=now,
    )
