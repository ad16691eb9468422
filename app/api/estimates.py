"""Ask: what is the label mix now, how sure are we, and does it matter?"""

from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Request

from app.api.deps import Conn, Now, Reader, services
from app.api.estimate_views import EstimateView
from app.api.models import ModelName
from app.api.panes import From, To
from app.api.schemas import Slug
from app.domain.model import Model
from app.domain.window import Window, pane_start
from app.errors import NotFound, wrong_parameter
from app.storage import models

router = APIRouter(prefix="/v1/models/{model}/estimate", tags=["estimates"])

WindowName = Annotated[
    Slug | None, Query(description="name of a window of the model; without one, its first")
]


@router.get("", dependencies=[Reader])
def get_estimate(
    model: ModelName,
    conn: Conn,
    now: Now,
    request: Request,
    window: WindowName = None,
    version: Annotated[Slug | None, Query(description="without one, the active version")] = None,
    start: From = None,
    to: To = None,
) -> EstimateView:
    """The label mix of a window as it is now, or of a span of panes."""
    owner = models.get(conn, model)
    evaluator = services(request).evaluator
    if start is None and to is None:
        chosen = _window(owner, window)
        found = evaluator.window(conn, owner, version, chosen, now)
        return EstimateView.of(found, owner, chosen.name)
    begin, end = _span(start, to, window, owner.settings.pane)
    return EstimateView.of(evaluator.span(conn, owner, version, begin, end, now), owner, None)


def _window(model: Model, name: str | None) -> Window:
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
