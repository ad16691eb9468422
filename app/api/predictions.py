"""Ingest: the hot path. Reads, reduces, waits for the commit, answers."""

import re
from collections.abc import Sequence

import msgspec
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.routing import APIRoute
from msgspec.structs import replace
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Send
from starlette.types import Scope as ASGIScope

from app import metrics, tracing
from app.api import bodies, errors
from app.api.batches import Batch, JsonBatch, StreamedBatch, parsed
from app.api.deps import Services, now, services
from app.api.hot_request import HotRequest
from app.api.openapi import body_of, schema_of
from app.api.request_id import request_id
from app.errors import AppError, Flaw, InvalidInput, Unavailable, wrong_parameter
from app.ingest import formats
from app.ingest.columns import Columns
from app.ingest.record import KeyReused, Receipt, Stale, Submission
from app.ingest.reduce import Reduced, Watched
from app.storage.keys import Scope

router = APIRouter(prefix="/v1/models/{model}/predictions", tags=["predictions"])

# How often a batch is reduced again because its model was changed at that very moment.
MOST_CHANGES = 5
MAX_KEY_LENGTH = 200

PATH = re.compile(r"/v1/models/(?P<model>[^/]+)/predictions")


class FlawOfRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    detail: str
    pointer: str | None = None


class Recorded(msgspec.Struct, frozen=True, omit_defaults=False):
    """What became of a batch. `accepted` were counted into panes; `late` came too late for that."""

    accepted: int
    rejected: int
    late: int
    duplicate: bool
    version: str
    errors: list[FlawOfRecord] | msgspec.UnsetType = msgspec.UNSET


_encoder = msgspec.json.Encoder()

# The route reads its parameters itself, so OpenAPI has to be told of them.
PARAMETERS = [
    {
        "name": "model",
        "in": "path",
        "required": True,
        "schema": {"type": "string"},
    },
    {
        "name": "on_error",
        "in": "query",
        "description": "whether a bad record refuses the whole batch, or only itself",
        "schema": {"enum": ["refuse", "skip"], "default": "refuse"},
    },
    {
        "name": "version",
        "in": "query",
        "description": "the version that predicted; left out, the body's, or the active one",
        "schema": {"type": "string"},
    },
    {
        "name": "Idempotency-Key",
        "in": "header",
        "description": "the same key and content again is answered as before and counts nothing",
        "schema": {"type": "string", "maxLength": MAX_KEY_LENGTH},
    },
]


@router.post(
    "",
    status_code=202,
    responses={202: {"content": {"application/json": {"schema": schema_of(Recorded)}}}},
    openapi_extra={"parameters": PARAMETERS, **body_of(formats.SCHEMAS)},
)
async def post_predictions(request: Request) -> Response:
    """Count a batch of predictions; the answer comes only when it is durable."""
    # FastAPI documents this route; `serve` serves it.
    return Response(await _counted(request), 202, media_type="application/json")


async def _counted(request: Request) -> bytes:
    """Count the batch of a request, and say what became of it."""
    own = services(request)
    await own.gate.admit(request, Scope.INGEST)
    skip = _skips(request.query_params.get("on_error", "refuse"))
    version = request.query_params.get("version")
    media = formats.media_type(request.headers.get("content-type"))
    if not formats.is_in_parts(media):
        content = await bodies.read(request, own.settings.max_body_bytes)
        watched = await own.directory.get(request.path_params["model"])
        columns = await parsed(content, watched.model.labels, skip=skip)
        batch = JsonBatch(content, _of_version(columns, version), skip=skip)
        return await _count(request, own, watched, batch)
    async with bodies.received(request, own.settings.max_stream_bytes) as body:
        watched = await own.directory.get(request.path_params["model"])
        streamed = StreamedBatch(body, media, version, own.settings.max_stream_rows, skip=skip)
        return await _count(request, own, watched, streamed)


async def _count(request: Request, own: Services, watched: Watched, batch: Batch) -> bytes:
    key = _key(request.headers.get("idempotency-key"), batch.key)
    try:
        receipt, reduced = await _record(own, watched, batch, key)
    except InvalidInput:
        metrics.REJECTED.labels(watched.model.name, "refused").inc(batch.size)
        raise
    own.pace.beat(watched.model.name)
    _measure(receipt, reduced)
    return _answer(receipt, reduced.flaws)


# What a request that matches it is counted under.
ROUTE = next(route for route in router.routes if isinstance(route, APIRoute))


async def serve(app: FastAPI, scope: ASGIScope, receive: Receive, send: Send) -> bool:
    """Serve ingest ahead of FastAPI, whose routing and dependencies cost more than all the rest.

    Says whether the request was for us. Errors are answered as everywhere else.
    """
    found = PATH.fullmatch(scope["path"]) if scope["method"] == "POST" else None
    if found is None:
        return False
    scope["app"] = app
    scope["route"] = ROUTE
    scope["path_params"] = found.groupdict()
    request = HotRequest(scope, receive)
    try:
        answer = await _counted(request)
    except AppError as error:
        metrics.REFUSED.labels(errors.problem_of(type(error)).slug).inc()
        await errors.response_of(error, request_id(request))(scope, receive, send)
    except ClientDisconnect:
        pass
    except Exception as error:
        await errors.bug(request, error)(scope, receive, send)
    else:
        await _send(answer, send)
    return True


async def _send(answer: bytes, send: Send) -> None:
    """What Starlette's response would send, without making one."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": 202, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


def _skips(on_error: str) -> bool:
    if on_error not in ("refuse", "skip"):
        raise wrong_parameter("on_error", "must be `refuse` or `skip`")
    return on_error == "skip"


def _of_version(columns: Columns, version: str | None) -> Columns:
    """The version that the query names, or the body; they must not disagree."""
    if version is None:
        return columns
    if columns.version not in (None, version):
        raise wrong_parameter("version", "is not the `version` of the body; give one of them")
    return replace(columns, version=version)


async def _record(
    own: Services, watched: Watched, batch: Batch, key: str | None
) -> tuple[Receipt, Reduced]:
    """Reduce and record, again if the model turns out to have changed since we last read it."""
    name = watched.model.name
    fingerprint = b"" if key is None else await batch.fingerprint()
    for _ in range(MOST_CHANGES):
        try:
            reduced = await tracing.around("reduce", batch.reduced(watched))
        except AppError:
            # A version that we do not know of may be new.
            latest = await own.directory.look_again(name)
            if latest.model == watched.model:
                raise
            watched = latest
            continue
        submission = Submission(reduced, key, fingerprint, tracing.current())
        outcome = await tracing.around("record", own.recorder.record(submission))
        match outcome:
            case Receipt():
                return outcome, reduced
            case KeyReused():
                raise _reused(key)
            case Stale():
                watched = await own.directory.look_again(name)
    raise Unavailable(f"model {name!r} is being changed all the time; send the batch again")


def _measure(receipt: Receipt, reduced: Reduced) -> None:
    """Count what became of the predictions of a batch."""
    if receipt.duplicate:
        metrics.DUPLICATE.inc(receipt.accepted + receipt.late)
        return
    name, pane, arrived = reduced.model.name, reduced.model.settings.pane, now()
    metrics.INGESTED.labels(name).inc(receipt.accepted)
    if receipt.rejected:
        metrics.REJECTED.labels(name, "skipped").inc(receipt.rejected)
    over = sum(sums.n for key, sums in reduced.panes.items() if key.start + pane <= arrived)
    if over:
        # Of what was counted: some of a batch may have turned out to be too late after all.
        metrics.LATE.labels("accepted").inc(min(over, receipt.accepted))
    if receipt.late:
        metrics.LATE.labels("dropped").inc(receipt.late)


def _key(header: str | None, body: str | None) -> str | None:
    """The key of the batch: the header's, quoted as its draft says or not, or the body's."""
    if header is None:
        return body
    key = header.strip()
    if len(key) > 1 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if not key.isprintable() or not 1 <= len(key) <= MAX_KEY_LENGTH:
        raise wrong_parameter(
            "Idempotency-Key", f"must have 1 to {MAX_KEY_LENGTH} printable characters"
        )
    if body is not None and body != key:
        raise wrong_parameter(
            "Idempotency-Key", "is not the `batch_id` of the body; give one of them"
        )
    return key


def _reused(key: str | None) -> InvalidInput:
    return InvalidInput(
        f"the key {key!r} came before with other content; a new batch needs a new key",
        flaws=[Flaw("came before with other content", parameter="idempotency-key")],
    )


def _answer(receipt: Receipt, flaws: Sequence[Flaw]) -> bytes:
    recorded = Recorded(
        receipt.accepted, receipt.rejected, receipt.late, receipt.duplicate, receipt.version
    )
    if flaws:
        shown = [FlawOfRecord(flaw.detail, flaw.pointer) for flaw in flaws]
        recorded = replace(recorded, errors=shown)
    return _encoder.encode(recorded)
