"""Ask: what is the label mix now, how sure are we, and does it matter?"""

from datetime import datetime, timedelta
from typing import Annotated, Literal, NamedTuple

from fastapi import APIRouter, Query, Request, Response

from app.api import paging
from app.api.deps import Conn, Now, Reader, services
from app.api.estimate_views import EstimateView, EvaluationPage
from app.api.models import ModelName
from app.api.panes import From, To
from app.api.schemas import Slug
from app.domain.alarm import Alarm, worst
from app.domain.evaluation import Evaluation
from app.domain.model import Model
from app.domain.window import Window, pane_start
from app.errors import NotFound, wrong_parameter
from app.evaluate.look import Evaluator, Method, chosen_version
from app.stats.analysis import Estimator
from app.storage import alarms, arrivals, evaluations, models
from app.storage.db import Connection

router = APIRouter(prefix="/v1/models/{model}", tags=["estimates"])

# The worker has looked by then, unless there is none or it has too much to do.
FRESH = timedelta(seconds=2)

WindowName = Annotated[
    Slug | None, Query(description="name of a window of the model; without one, its first")
]
VersionName = Annotated[Slug | None, Query(description="without one, the active version")]
MethodName = Annotated[
    Estimator | None,
    Query(description="what `q` and `w` are; without one, as the model is set"),
]
Delta = Annotated[
    float | None,
    Query(
        ge=0,
        le=1,
        description="the paper's threshold: weights are one where sigma_min is at most that",
    ),
]


@router.get("/estimate", dependencies=[Reader], response_model=EstimateView)
def get_estimate(
    model: ModelName,
    now: Now,
    request: Request,
    window: WindowName = None,
    version: VersionName = None,
    start: From = None,
    to: To = None,
    method: MethodName = None,
    delta: Delta = None,
) -> Response:
    """The label mix of a window as it is now, or of a span of panes."""
    own = services(request)
    question = Question(model, window, version, _method(method, delta))
    fast = start is None and to is None and own.pace.is_fast(model)
    answer = own.answers.get(question) if fast else None
    if answer is None:
        with own.database.begin() as conn:
            if start is None and to is None:
                view = _now(conn, own.evaluator, question, now, fast=fast)
            else:
                view = _of_span(conn, own.evaluator, question, start, to, now)
        answer = view.model_dump_json(by_alias=True).encode()
        if fast:
            own.answers.remember(question, answer)
    return Response(answer, media_type="application/json")


class Question(NamedTuple):
    """Of a window and a version of a model, by their names; estimated by a method of choice."""

    model: str
    window: str | None
    version: str | None
    method: Method | None = None


def _method(estimator: Estimator | None, delta: float | None) -> Method | None:
    if delta is None:
        return None if estimator is None else Method(estimator)
    if estimator is None or estimator == "default":
        raise wrong_parameter("delta", "is for `method=bbse-hard` or `method=bbse-soft`")
    return Method(estimator, delta)


def _now(
    conn: Connection, evaluator: Evaluator, question: Question, now: datetime, *, fast: bool
) -> EstimateView:
    name, window, version, method = question
    owner = models.get(conn, name)
    alarm = _alarm(conn, owner, version)
    chosen = window_of(owner, window)
    found = None
    if method is None or method == Method(owner.settings.estimator):
        found = _stored(conn, owner, version, chosen, now, fast=fast)
    if found is None:
        look = evaluator.window(conn, owner, version, chosen, now, method)
        found = look.evaluation(chosen.name)
    return EstimateView.of(found, owner, alarm)


def _of_span(
    conn: Connection,
    evaluator: Evaluator,
    question: Question,
    start: datetime | None,
    to: datetime | None,
    now: datetime,
) -> EstimateView:
    name, window, version, method = question
    owner = models.get(conn, name)
    alarm = _alarm(conn, owner, version)
    begin, end = _span(start, to, window, owner.settings.pane)
    look = evaluator.span(conn, owner, version, begin, end, now, method)
    return EstimateView.of(look.evaluation(None), owner, alarm)


@router.get("/evaluations", dependencies=[Reader])
def list_evaluations(
    model: ModelName,
    conn: Conn,
    window: WindowName = None,
    version: VersionName = None,
    start: From = None,
    to: To = None,
    revisions: Annotated[Literal["last", "all"], Query(description="of each evaluation")] = "last",
    limit: paging.Limit = 50,
    cursor: paging.Cursor = None,
) -> EvaluationPage:
    """What was found of a window whenever it was looked at, newest first."""
    owner = models.get(conn, model)
    if start is not None and to is not None and start >= to:
        raise wrong_parameter("from", "must lie before `to`")
    found = evaluations.page(
        conn,
        owner.id,
        chosen_version(owner, version),
        window_of(owner, window).name,
        start=start,
        end=to,
        before=paging.place_in(cursor),
        all_revisions=revisions == "all",
        limit=limit + 1,
    )
    last = found[limit - 1] if len(found) > limit else None
    return EvaluationPage(
        items=[EstimateView.of(one, owner, None) for one in found[:limit]],
        next=None
        if last is None or last.slot is None
        else paging.by_place(last.slot, last.revision),
    )


def _stored(
    conn: Connection,
    model: Model,
    version: str | None,
    window: Window,
    now: datetime,
    *,
    fast: bool,
) -> Evaluation | None:
    """The stored evaluation of a window, unless a look would find more than it has.

    Of a `fast` stream it may leave out what the worker has not seen yet: looking anew for each
    question would take most of a busy process's time, and say the same.
    """
    chosen = chosen_version(model, version)
    found = evaluations.latest(conn, model.id, chosen, window.name)
    if found is None or found.outdated or now >= found.end:
        return None
    # An earlier release estimated by other rules, and had nothing of the paper's.
    if found.result.n and found.result.paper is None:
        return None
    # The windows of a model may have been changed under the same name since.
    if model.updated_at is not None and model.updated_at > found.evaluated_at:
        return None
    if fast and now - found.evaluated_at <= FRESH:
        return found
    return None if arrivals.pending(conn, model.id, chosen) else found


def _alarm(conn: Connection, model: Model, version: str | None) -> Alarm | None:
    chosen = chosen_version(model, version)
    open_ones = alarms.open_of(conn, model.id)
    return worst(alarm for (own, _), alarm in open_ones.items() if own == chosen)


def window_of(model: Model, name: str | None) -> Window:
    """The window of that name, or the first."""
    if name is None:
        return model.settings.windows[0]
    for window in model.settings.windows:
        if window.name == name:
            return window
    names = ", ".join(window.name for window in model.settings.windows)
    raise NotFound(f"model {model.name!r} has no window {name!r}; it has: {names}")


def _span(
    start: datetime | None, end: datetime | None, window: str | None, pane: timedelta
) -> tuple[datetime, datetime]:
    """Whole panes that cover what was asked for."""
    if window is not None:
        raise wrong_parameter("window", "stands for a span of its own; leave it out")
    if start is None or end is None:
        raise wrong_parameter("to" if end is None else "from", "is missing: a span has two ends")
    if start >= end:
        raise wrong_parameter("from", "must lie before `to`")
    last = pane_start(end, pane)
    return pane_start(start, pane), last if last == end else last + pane
