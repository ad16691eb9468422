"""References: put them once, compare them, choose the active one."""

from datetime import datetime
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Path, Request, Response

from app.api import bodies, paging
from app.api.deps import Admin, Conn, Now, Reader, services
from app.api.models import ModelName
from app.api.openapi import body_of
from app.api.reference_views import ReferencePage, ReferenceSummaryView, ReferenceView
from app.api.schemas import Slug
from app.domain import reference as domain
from app.errors import Conflict
from app.ingest import labelled
from app.ingest.reduce import Watched
from app.storage import models, references
from app.storage.db import Database

router = APIRouter(prefix="/v1/models/{model}/references", tags=["references"])

Version = Annotated[Slug, Path(description="version of the model, a URL-safe slug")]


@router.put(
    "/{version}",
    dependencies=[Admin],
    responses={201: {"model": ReferenceView}},
    openapi_extra=body_of({"application/json": labelled.ReferenceBody}),
)
async def put_reference(
    model: ModelName, version: Version, now: Now, request: Request, response: Response
) -> ReferenceView:
    """Say what a labelled, held-out sample showed of one version. It cannot be changed later."""
    own = services(request)
    bodies.refuse_all_but_json(request)
    content = await bodies.read(request, own.settings.max_body_bytes)
    # Singular values of a thousand labels take a while; the event loop has other callers.
    view, created = await to_thread.run_sync(_put, own.database, model, version, content, now)
    response.status_code = 201 if created else 200
    return view


@router.get("", dependencies=[Reader])
def list_references(
    model: ModelName, conn: Conn, limit: paging.Limit = 50, cursor: paging.Cursor = None
) -> ReferencePage:
    """All versions, newest first; of two predictors, the larger sigma_min sees shifts sooner."""
    owner = models.get(conn, model)
    found = references.page(conn, owner, paging.time_in(cursor), limit + 1)
    last = found[limit - 1] if len(found) > limit else None
    return ReferencePage(
        items=[ReferenceSummaryView.of(one, owner) for one in found[:limit]],
        next=None if last is None else paging.by_time(last.created_at, last.version),
    )


@router.get("/{version}", dependencies=[Reader])
def get_reference(model: ModelName, version: Version, conn: Conn) -> ReferenceView:
    owner = models.get(conn, model)
    return ReferenceView.of(references.summary(conn, owner, version), owner)


@router.post("/{version}/activate", dependencies=[Admin])
def activate_reference(model: ModelName, version: Version, conn: Conn, now: Now) -> ReferenceView:
    """Make this the version that predictions without a version belong to."""
    owner = models.get(conn, model, lock=True)
    references.summary(conn, owner, version)
    models.activate(conn, owner, version, now)
    owner = models.get(conn, model)
    return ReferenceView.of(references.summary(conn, owner, version), owner)


def _put(
    database: Database, name: str, version: str, content: bytes, now: datetime
) -> tuple[ReferenceView, bool]:
    body = labelled.parse(content)
    with database.begin() as conn:
        model = models.get(conn, name)
    # Outside of any transaction: nobody should wait for our arithmetic.
    statistics, rows = labelled.statistics(body, Watched.of(model), now)
    new = domain.diagnosed(version, statistics, now)
    with database.begin() as conn:
        current = models.get(conn, name, lock=True)
        if current.labels != model.labels:
            raise Conflict(f"the labels of model {name!r} were changed at this very moment")
        created = references.put(conn, current, new, rows)
        if created and body.activate:
            models.activate(conn, current, version, now)
        elif created:
            models.touch(conn, current, now)
        current = models.get(conn, name)
        return ReferenceView.of(references.summary(conn, current, version), current), created
