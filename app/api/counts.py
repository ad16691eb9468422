"""Sums of whole panes, from whoever has added them up himself; what is sent again replaces."""

from collections import Counter
from datetime import datetime

from anyio import to_thread
from fastapi import APIRouter, Request
from pydantic import BaseModel

from app import metrics, tracing
from app.api import bodies, errors
from app.api.deps import Ingest, Services, now, services
from app.api.models import ModelName
from app.api.openapi import body_of
from app.api.predictions import MOST_CHANGES
from app.errors import AppError, InvalidInput, Unavailable
from app.ingest import counts
from app.ingest.contributions import Contradicted, Contributions, Fate, Settled, TooManySources
from app.ingest.counts import Body
from app.ingest.record import Outcome, Stale

router = APIRouter(prefix="/v1/models/{model}/counts", tags=["predictions"])


class PaneFates(BaseModel):
    """How many panes were new, took the place of what their source had said, were known already,
    were older than what is known, or came too late. The last three changed nothing."""

    stored: int = 0
    replaced: int = 0
    duplicate: int = 0
    stale: int = 0
    late: int = 0


class CountsView(BaseModel):
    """`accepted` predictions are in the panes that were stored or replaced, `late` in those that
    came too late. `version` is that of panes which named none."""

    accepted: int
    late: int
    panes: PaneFates
    version: str


@router.post(
    "",
    status_code=202,
    dependencies=[Ingest],
    openapi_extra=body_of({"application/json": Body}),
)
async def post_counts(model: ModelName, request: Request) -> CountsView:
    """Say how many predictions of each label a source has counted in panes, until it says more.

    A pane with a higher `sequence` takes the place of what the source has said of it before. The
    answer comes only when it is durable; sending the same again is always safe.
    """
    own = services(request)
    try:
        bodies.refuse_all_but_json(request)
        content = await bodies.read(request, own.settings.max_body_bytes)
        # Sums of many labels take a while to check; the event loop has other callers.
        body = await to_thread.run_sync(counts.parse, content)
        sent, settled = await _record(own, model, body)
    except AppError as error:
        metrics.REFUSED.labels(errors.problem_of(type(error)).slug).inc()
        raise
    _measure(sent, settled, now())
    return _answer(sent, settled)


async def _record(own: Services, name: str, body: Body) -> tuple[Contributions, Settled]:
    """Check and record, again if the model is changed at that very moment."""
    for _ in range(MOST_CHANGES):
        # Once a minute is not so often that a model would have to be remembered.
        watched = await own.directory.look_again(name)
        most, trace = own.settings.max_sources, tracing.current()
        try:
            sent = await to_thread.run_sync(counts.contributions, body, watched, now(), most, trace)
            outcome = await tracing.around("record", own.recorder.record(sent))
            settled = _settled(sent, outcome)
        except InvalidInput:
            metrics.REJECTED.labels(name, "refused").inc(counts.size(body))
            raise
        if settled is not None:
            return sent, settled
    raise Unavailable(f"model {name!r} is being changed all the time; send the counts again")


def _settled(sent: Contributions, outcome: Outcome) -> Settled | None:
    """What became of the panes; None if the model has changed since they were checked."""
    match outcome:
        case Settled():
            return outcome
        case Contradicted():
            sequence = sent.panes[outcome.place].sequence
            raise InvalidInput(
                f"source {sent.source!r} has sent this pane with sequence {sequence} before, with "
                "other content; what is to replace it needs a higher one",
                f"#/panes/{outcome.place}/sequence",
            )
        case TooManySources():
            raise InvalidInput(
                f"model {sent.model.name!r} has {sent.most_sources} sources already, which is the "
                f"most (SHIFTWATCH_MAX_SOURCES), and {sent.source!r} is not one of them",
                "#/source",
            )
        case Stale():
            return None
        case _:
            raise AssertionError(f"{outcome} is no answer to counts")


def _measure(sent: Contributions, settled: Settled, arrived: datetime) -> None:
    """Count what became of the predictions: of a pane that is replaced, those it has got more."""
    name, pane = sent.model.name, sent.model.settings.pane
    metrics.INGESTED.labels(name).inc(sum(settled.added))
    over = sum(
        added
        for one, added in zip(sent.panes, settled.added, strict=True)
        if one.start + pane <= arrived
    )
    metrics.LATE.labels("accepted").inc(over)
    metrics.LATE.labels("dropped").inc(_predictions(sent, settled, Fate.LATE))
    metrics.DUPLICATE.inc(_predictions(sent, settled, Fate.DUPLICATE))


def _predictions(sent: Contributions, settled: Settled, *which: Fate) -> int:
    pairs = zip(sent.panes, settled.fates, strict=True)
    return sum(one.n for one, found in pairs if found in which)


def _answer(sent: Contributions, settled: Settled) -> CountsView:
    return CountsView(
        accepted=_predictions(sent, settled, Fate.STORED, Fate.REPLACED),
        late=_predictions(sent, settled, Fate.LATE),
        panes=PaneFates(**{str(found): n for found, n in Counter(settled.fates).items()}),
        version=sent.version,
    )
