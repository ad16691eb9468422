"""References: put them once, compare them, choose the active one."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Literal

from anyio import to_thread
from fastapi import APIRouter, Path, Query, Request, Response
from msgspec import UNSET

from app.api import bodies, paging
from app.api.deps import Admin, Conn, Now, Reader, services
from app.api.models import ModelName
from app.api.openapi import body_of
from app.api.reference_views import ReferencePage, ReferenceSummaryView, ReferenceView
from app.api.schemas import Slug
from app.domain import reference as domain
from app.domain.model import Model
from app.domain.reference import ReferenceSummary
from app.errors import Conflict, wrong_parameter
from app.ingest import labelled
from app.ingest.labelled import Activate, ReferenceBody
from app.ingest.reduce import Watched
from app.stats.moments import Counts
from app.stats.orientation import Mixes, transposed_suspected
from app.storage import models, panes, references
from app.storage.db import Connection, Database
from app.storage.references import Kept

router = APIRouter(prefix="/v1/models/{model}/references", tags=["references"])

# The predictions that a new confusion matrix is compared with: of the last day, in as many rows of
# panes as are read in a moment.
RECENT = timedelta(days=1)
RECENT_ROWS = 256

Activates = Annotated[
    Literal["true", "false", "force"] | None,
    Query(description="instead of `activate` in the body; `force` if nothing can be estimated"),
]
Force = Annotated[bool, Query(description="activate it even if nothing can be estimated from it")]
Version = Annotated[Slug, Path(description="version of the model, a URL-safe slug")]


@router.put(
    "/{version}",
    dependencies=[Admin],
    responses={201: {"model": ReferenceView}},
    openapi_extra=body_of({"application/json": labelled.ReferenceBody}),
)
async def put_reference(
    model: ModelName,
    version: Version,
    now: Now,
    request: Request,
    response: Response,
    activate: Activates = None,
) -> ReferenceView:
    """Say what a labelled, held-out sample showed of one version.

    It can be replaced until the first prediction of the version is counted.
    """
    own = services(request)
    bodies.refuse_all_but_json(request)
    content = await bodies.read(request, own.settings.max_body_bytes)
    # Singular values of a thousand labels take a while; the event loop has other callers.
    new = New(model, version, activate, now)
    view, created = await to_thread.run_sync(_put, own.database, new, content)
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
def activate_reference(
    model: ModelName, version: Version, conn: Conn, now: Now, force: Force = False
) -> ReferenceView:
    """Make this the version that predictions without a version belong to."""
    owner = models.get(conn, model, lock=True)
    why_not = domain.unfit(references.summary(conn, owner, version))
    if why_not is not None and not force:
        raise Conflict(f"{why_not}. `?force=true` activates it all the same")
    models.activate(conn, owner, version, now)
    owner = models.get(conn, model)
    return ReferenceView.of(references.summary(conn, owner, version), owner)


@router.delete("/{version}", status_code=204, dependencies=[Admin])
def delete_reference(model: ModelName, version: Version, conn: Conn, now: Now) -> None:
    """Forget a reference under which nothing was counted; not the active one of several."""
    owner = models.get(conn, model, lock=True)
    references.forget(conn, owner, version)
    models.drop_version(conn, owner, version, now)


@dataclass(frozen=True, slots=True)
class New:
    """A reference that is to be put; `activate` is what the query says, if anything."""

    model: str
    version: str
    activate: Literal["true", "false", "force"] | None
    now: datetime

    def chosen(self, body: ReferenceBody) -> Activate:
        """Whether to activate it, by the query, the body, or the default."""
        if self.activate is None:
            return True if body.activate is UNSET else body.activate
        asked: Activate = "force" if self.activate == "force" else self.activate == "true"
        if body.activate not in (UNSET, asked):
            raise wrong_parameter("activate", "is not the `activate` of the body; give one of them")
        return asked


@dataclass(frozen=True, slots=True)
class Known:
    """Label mixes of earlier references, and of predictions of late, if there are any."""

    earlier: Sequence[Mixes]
    traffic: Mixes | None


def _put(database: Database, new: New, content: bytes) -> tuple[ReferenceView, bool]:
    body = labelled.parse(content)
    activate = new.chosen(body)
    with database.begin() as conn:
        model = models.get(conn, new.model)
        known = _known(conn, model, new) if body.confusion is not None else None
    # Outside of any transaction: nobody should wait for our arithmetic.
    statistics, rows = labelled.statistics(body, Watched.of(model), new.now)
    stored = domain.diagnosed(new.version, statistics, new.now, _notes(statistics.counts, known))
    row = references.packed(stored, rows)
    with database.begin() as conn:
        current = models.get(conn, new.model, lock=True)
        if current.labels != model.labels:
            raise Conflict(f"the labels of model {new.model!r} were changed at this very moment")
        kept = references.put(conn, current, row)
        if kept is not Kept.SAME:
            _refuse_unfit(current, stored.summary, activate)
            _take_note(conn, current, new.version, new.now, activate=bool(activate))
        current = models.get(conn, new.model)
        view = ReferenceView.of(references.summary(conn, current, new.version), current)
        return view, kept is Kept.NEW


def _known(conn: Connection, model: Model, new: New) -> Known:
    """What a confusion matrix is compared with, to see whether it stands the right way round."""
    active = model.active_version or new.version
    recent = panes.recent(conn, model.id, active, new.now - RECENT, new.now, RECENT_ROWS)
    traffic = None if recent is None else Mixes(recent)
    return Known(references.mixes(conn, model, but=new.version), traffic)


def _notes(counts: Counts, known: Known | None) -> tuple[str, ...]:
    if known is None or not transposed_suspected(counts, known.earlier, known.traffic):
        return ()
    return (domain.TRANSPOSED_SUSPECTED,)


def _refuse_unfit(model: Model, summary: ReferenceSummary, activate: Activate) -> None:
    """Refuse a reference that would be active without being of any use, unless by force."""
    becomes_active = activate or summary.version == model.active_version
    why_not = domain.unfit(summary) if becomes_active and activate != "force" else None
    if why_not is not None:
        store_only = ", or as `false` to store it only" if activate else ""
        raise Conflict(
            f"{why_not}. It was not stored, because it would be active: send more labelled "
            f'records, or `activate` as `"force"` to have it active all the same{store_only}'
        )


def _take_note(
    conn: Connection, model: Model, version: str, now: datetime, *, activate: bool
) -> None:
    """Let ingest and workers see that a version has a reference, or another one."""
    if activate:
        models.activate(conn, model, version, now)
    else:
        models.touch(conn, model, now)
