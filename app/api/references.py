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
from app.domain.model import Model
from app.errors import Conflict
from app.ingest import labelled
from app.ingest.reduce import Watched
from app.storage import models, references
from app.storage.db import Connection, Database
from app.storage.references import Kept

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
    """Say what a labelled, held-out sample showed of one version.

    It can be replaced until the first prediction of the version is counted.
    """
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


@router.delete("/{version}", status_code=204, dependencies=[Admin])
def delete_reference(model: ModelName, version: Version, conn: Conn, now: Now) -> None:
    """Forget a reference under which nothing was counted; not the active one of several."""
    owner = models.get(conn, model, lock=True)
    references.forget(conn, owner, version)
    models.drop_version(conn, owner, version, now)


def _put(
    database: Database, name: str, version: str, content: bytes, now: datetime
) -> tuple[ReferenceView, bool]:
    body = labelled.parse(content)
    with database.begin() as conn:
        model = models.get(conn, name)
    # Outside of any transaction: nobody should wait for our arithmetic.
    statistics, rows = labelled.statistics(body, Watched.of(model), now)
    new = references.packed(domain.diagnosed(version, statistics, now), rows)
    with database.begin() as conn:
        current = models.get(conn, name, lock=True)
        if current.labels != model.labels:
            raise Conflict(f"the labels of model {name!r} were changed at this very moment")
        kept = references.put(conn, current, new)
        if kept is not Kept.SAME:
            _take_note(conn, current, version, now, activate=body.activate)
        current = models.get(conn, name)
        view = ReferenceView.of(references.summary(conn, current, version), current)
        return view, kept is Kept.NEW


def _take_note(
    conn: Connection, model: Model, version: str, now: datetime, *, activate: bool
) -> None:
    """Let ingest and workers see that a version has a reference, or another one."""
    if activate:
        models.activate(conn, model, version, now)
    else:
        models.touch(conn, model, now)
