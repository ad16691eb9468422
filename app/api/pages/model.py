"""One model: how it is now, how it came to be so, and what it was told apart from."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response

from app.api.deps import Conn, Now, services
from app.api.estimates import VersionName, WindowName, window_of
from app.api.models import ModelName
from app.api.pages.base import Looking, PageRoute, shown, visiting
from app.api.panes import From, To
from app.domain import evaluation
from app.domain import window as windows
from app.domain.alarm import BLIND, Alarm
from app.domain.evaluation import Evaluation, LabelColumns, Point, Result
from app.domain.model import Model
from app.domain.verdict import SHIFTED_BELOW
from app.domain.window import Window
from app.errors import NotFound, wrong_parameter
from app.evaluate.look import Evaluator, chosen_version
from app.stats.analysis import ENOUGH
from app.storage import alarms, detectors, evaluations, models, predictions, references
from app.storage.db import Connection
from app.storage.keys import Scope
from app.web import curves, headline
from app.web import model as web
from app.web.curves import Drawn
from app.web.headline import Situation
from app.web.model import Asked, LabelRow

router = APIRouter(route_class=PageRoute, include_in_schema=False)

HOUR = timedelta(hours=1)
LONGEST_SPAN = timedelta(days=3660)
LEAST_SPAN = timedelta(seconds=30)
TABLE_POINTS, TABLE_LABELS = 20, 3
LATE_DAYS = 30


@dataclass(frozen=True, slots=True)
class Choice:
    """What is looked at: a model's window of a version, in a span of time."""

    asked: Asked
    model: Model
    window: Window
    start: datetime
    end: datetime


def chosen(
    conn: Conn,
    now: Now,
    model: ModelName,
    window: WindowName = None,
    version: VersionName = None,
    hours: Annotated[int | None, Query(ge=1, le=24 * 366)] = None,
    start: From = None,
    to: To = None,
    labels: Annotated[list[str] | None, Query(max_length=web.MOST_DRAWN)] = None,
) -> Choice:
    owner = models.get(conn, model)
    if version is not None and version not in owner.versions:
        raise NotFound(f"model {model!r} has no reference {version!r}")
    own = window_of(owner, window)
    end = to or now
    span = web.usual_span(own, owner.settings.pane) if hours is None else hours * HOUR
    begin = start or end - span
    if begin >= end or end - begin > LONGEST_SPAN:
        raise wrong_parameter("from", "must lie before `to`, and less than ten years")
    asked = Asked(model, window, version, hours, start, to, tuple(dict.fromkeys(labels or ())))
    unknown = set(asked.labels) - set(owner.labels)
    if unknown:
        raise wrong_parameter("labels", f"has {min(unknown)!r}, which is not one of the model's")
    if hours is None and start is None:
        begin = _first_seen(conn, owner, version, own.name, begin, end)
    return Choice(asked, owner, own, begin, end)


def _first_seen(
    conn: Connection,
    model: Model,
    version: str | None,
    window: str,
    begin: datetime,
    end: datetime,
) -> datetime:
    """The usual span, or all of a younger history: it would be a dot in a corner otherwise."""
    if model.active_version is None:
        return begin
    version = chosen_version(model, version)
    first = evaluations.first_since(conn, model.id, version, window, begin)
    return begin if first is None else max(begin, min(first, end - LEAST_SPAN))


Chosen = Annotated[Choice, Depends(chosen)]


@router.get("/models/{model}")
def get_model(visitor: Looking, choice: Chosen, conn: Conn, now: Now, request: Request) -> Response:
    model, asked = choice.model, choice.asked
    if model.active_version is None:
        return shown("model_without_reference.html", visitor, model=model)
    version = chosen_version(model, asked.version)
    reference = references.summary(conn, model, version).diagnosis
    seen = evaluations.latest(conn, model.id, version, choice.window.name)
    arrived = detectors.seen(conn, model.id).get(version)
    worries = _worries(alarms.open_of(conn, model.id).values(), version)
    columns = LabelColumns(p=tuple(reference.nu.tolist())) if seen is None else seen.result.labels
    ranked = web.ranked(columns)
    drawn = [model.labels.index(label) for label in asked.labels] or ranked[: web.FIRST_DRAWN]
    history = _history(conn, choice, version, drawn[:TABLE_LABELS], TABLE_POINTS)
    situation = Situation(
        model.labels,
        choice.window,
        seen,
        worries,
        None if arrived is None else arrived.arrived_at,
        now,
        _since_onset(services(request).evaluator, conn, model, seen, worries, now),
    )
    return shown(
        "model.html",
        visitor,
        model=model,
        asked=asked,
        window=choice.window,
        shown_version=version,
        versions=_versions(model),
        span=(choice.start, choice.end),
        hours=None if asked.start else (choice.end - choice.start) / HOUR,
        spans=web.SPANS,
        seen=seen,
        headline=headline.headline(situation),
        alarms=worries,
        reference=reference,
        arrived_at=situation.arrived_at,
        late=predictions.late_since(
            conn, model.id, version, (now - timedelta(days=LATE_DAYS)).date()
        ),
        late_days=LATE_DAYS,
        remarks=[] if seen is None else web.remarks(seen.result),
        notes=[] if seen is None else evaluation.notes(seen.result, model),
        rows=_rows(model, columns, ranked[: web.MOST_ROWS], seen),
        drawn=[model.labels[label] for label in drawn],
        choices=[model.labels[label] for label in sorted(ranked[: web.MOST_CHOICES])],
        most_drawn=web.MOST_DRAWN,
        history=history,
        now=now,
    )


def _rows(
    model: Model, columns: LabelColumns, order: list[int], seen: Evaluation | None
) -> list[LabelRow]:
    if seen is None:
        return web.label_rows(model.labels, columns, order)
    found = seen.result
    return web.label_rows(model.labels, columns, order, found.rates, found.identified)


@router.get("/models/{model}/series", dependencies=[Depends(visiting(Scope.READ))])
def get_series(choice: Chosen, conn: Conn) -> Response:
    """The curves of the page; of one label or more, by default of none."""
    model = choice.model
    version = chosen_version(model, choice.asked.version)
    reference = references.summary(conn, model, version).diagnosis
    labels = [model.labels.index(label) for label in choice.asked.labels]
    points = web.points_for(len(labels))
    found = curves.curves(
        _history(conn, choice, version, labels, points),
        [Drawn(model.labels[label], float(reference.nu[label])) for label in labels],
        float(reference.accuracy) if reference.n else None,
        SHIFTED_BELOW,
        (int(choice.start.timestamp()), int(choice.end.timestamp())),
        max(
            windows.slices(choice.start, choice.end, points).every,
            windows.stride(choice.window, model.settings.pane),
        ),
    )
    return Response(msgspec.json.encode(found), media_type="application/json")


def _history(
    conn: Connection, choice: Choice, version: str, labels: list[int], points: int
) -> list[Point]:
    return evaluations.series(
        conn,
        choice.model.id,
        version,
        choice.window.name,
        windows.slices(choice.start, choice.end, points),
        labels,
    )


def _since_onset(
    evaluator: Evaluator,
    conn: Connection,
    model: Model,
    seen: Evaluation | None,
    worries: list[Alarm],
    now: datetime,
) -> Result | None:
    """What is found since a change began, where the window began before it: a shorter span."""
    onset = headline.wants_since(seen, worries)
    if seen is None or onset is None:
        return None
    look = evaluator.span(conn, model, seen.version, onset, seen.end, now)
    found = look.evaluation(None).result
    enough = found.n >= ENOUGH and found.total_variation is not None
    return found if enough else None


def _worries(found: Iterable[Alarm], version: str) -> list[Alarm]:
    """Those about this version; that nothing comes in is about all of them."""
    return [one for one in found if one.version == version or one.kind in BLIND]


def _versions(model: Model) -> list[str]:
    """The active one first, then by name, which mostly is by age, the newest first."""
    others = sorted(model.versions.keys() - {model.active_version or ""}, reverse=True)
    return [*filter(None, [model.active_version]), *others]
