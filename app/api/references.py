"""References: put them once, compare them, choose the active one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Literal

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Path, Query, Request, Response
from msgspec import UNSET

from app.api import bodies, paging
from app.api.bodies import Received
from app.api.deps import Admin, Conn, Now, Reader, services
from app.api.models import ModelName
from app.api.openapi import body_of
from app.api.reference_views import ReferencePage, ReferenceSummaryView, ReferenceView
from app.api.schemas import Slug
from app.domain import reference as domain
from app.domain.model import Model
from app.domain.reference import ReferenceSummary
from app.errors import Conflict, wrong_parameter
from app.ingest import formats, labelled
from app.ingest.columns import Columns
from app.ingest.formats import Parts
from app.ingest.labelled import Activate, ReferenceBody, Table
from app.ingest.reduce import Watched
from app.stats.moments import Counts
from app.stats.orientation import Mixes, transposed_suspected
from app.storage import models, panes, references
from app.storage.db import Connection, Database
from app.storage.references import Kept

router = APIRouter(prefix="/v1/models/{model}/references", tags=["references"])

# Tables are read one after the other: a large one takes hundreds of megabytes until it is stored.
TABLES = CapacityLimiter(1)
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
    openapi_extra=body_of({formats.JSON: ReferenceBody} | formats.TABLES),
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
    view, created = await _stored(request, New(model, version, activate, now))
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

    def chosen(self, body: ReferenceBody | Table) -> Activate:
        """Whether to activate it, by the query, the body, or the default."""
        said = UNSET if isinstance(body, Table) else body.activate
        if self.activate is None:
            return True if said is UNSET else said
        asked: Activate = "force" if self.activate == "force" else self.activate == "true"
        if said not in (UNSET, asked):
            raise wrong_parameter("activate", "is not the `activate` of the body; give one of them")
        return asked


@dataclass(frozen=True, slots=True)
class Known:
    """Label mixes of earlier references, and of predictions of late, if there are any."""

    earlier: Sequence[Mixes]
    traffic: Mixes | None


async def _stored(request: Request, new: New) -> tuple[ReferenceView, bool]:
    """Read the body of a request by its content type, and store what it says."""
    own = services(request)
    media = formats.media_type(request.headers.get("content-type"))
    read_parts = formats.parts_of(media, formats.LABELLED, [formats.JSON, *formats.TABLES])
    # Singular values of a thousand labels take a while; the event loop has other callers.
    if read_parts is None:
        content = await bodies.read(request, own.settings.max_body_bytes)
        body = await to_thread.run_sync(labelled.parse, content)
        return await to_thread.run_sync(_put, own.database, new, body)
    async with bodies.received(request, own.settings.max_stream_bytes) as received:
        table = _table(received, read_parts, own.settings.max_stream_rows)
        return await to_thread.run_sync(_put, own.database, new, table, limiter=TABLES)


def _table(received: Received, read_parts: Parts, most_rows: int) -> Table:
    def parts(labels: tuple[str, ...]) -> Iterator[Columns]:
        return read_parts(received.open(), labels, skip=False, most_rows=most_rows)

    return Table(parts)


def _put(database: Database, new: New, body: ReferenceBody | Table) -> tuple[ReferenceView, bool]:
    activate = new.chosen(body)
    with database.begin() as conn:
        model = models.get(conn, new.model)
        is_matrix = isinstance(body, ReferenceBody) and body.confusion is not None
        known = _known(conn, model, new) if is_matrix else None
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
