"""Alarms: which there are, what is behind each, and the buttons to do something about them."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from app.api.alarms import (
    AlarmId,
    AnswerBody,
    Hands,
    SilenceBody,
    SilenceId,
    heard_again,
    silenced,
)
from app.api.deps import Conn, Now
from app.api.pages.base import (
    NOTHING_TYPED,
    NOTHING_WRONG,
    Changing,
    Form,
    Looking,
    PageRoute,
    Search,
    Typed,
    Visitor,
    Wrong,
    back_to,
    checked,
    shown,
)
from app.domain.alarm import AlarmKind, AlarmState
from app.evaluate import by_hand
from app.storage import alarms, models, silences
from app.storage.alarms import Owned
from app.storage.db import Connection
from app.web import alarms as web

router = APIRouter(route_class=PageRoute, include_in_schema=False)

PER_PAGE = 50
LENGTHS = {
    "1 h": timedelta(hours=1),
    "4 h": timedelta(hours=4),
    "24 h": timedelta(hours=24),
    "7 d": timedelta(days=7),
}

# What a link may say that was done; nothing else that it says is shown.
Done = Annotated[str, Query(max_length=40)]
Whatever = Literal[""]


@router.get("/alarms")
def get_alarms(
    visitor: Looking,
    conn: Conn,
    now: Now,
    search: Annotated[Search, Query(alias="model", max_length=100)] = "",
    state: AlarmState | Whatever = "",
    kind: AlarmKind | Whatever = "",
    number: Annotated[int, Query(alias="page", ge=1, le=10_000)] = 1,
    done: Done = "",
) -> Response:
    found, total = alarms.open_first(
        conn, search.strip(), state or None, kind or None, PER_PAGE, PER_PAGE * (number - 1)
    )
    return shown(
        "alarms.html",
        visitor,
        alarms=found,
        total=total,
        search=search,
        state=state,
        states=list(AlarmState),
        kind=kind,
        kinds=list(AlarmKind),
        number=number,
        pages=-(-total // PER_PAGE),
        silences=silences.current(conn, now),
        done=web.DONE.get(done),
    )


@router.get("/alarms/{alarm_id}")
def get_alarm(
    alarm_id: AlarmId, visitor: Looking, conn: Conn, now: Now, done: Done = ""
) -> Response:
    return _page(conn, visitor, alarms.get(conn, alarm_id), now, done=done)


@router.post("/alarms/{alarm_id}/acknowledge")
def acknowledge(
    alarm_id: AlarmId, visitor: Changing, form: Typed, hands: Hands, now: Now
) -> Response:
    return _said(alarm_id, visitor, form, hands, now, hands.acknowledge, "acknowledged")


@router.post("/alarms/{alarm_id}/resolve")
def resolve(alarm_id: AlarmId, visitor: Changing, form: Typed, hands: Hands, now: Now) -> Response:
    return _said(alarm_id, visitor, form, hands, now, hands.resolve, "resolved")


@router.post("/alarms/{alarm_id}/accept")
def accept(alarm_id: AlarmId, visitor: Changing, form: Typed, hands: Hands, now: Now) -> Response:
    return _said(alarm_id, visitor, form, hands, now, hands.accept, "accepted")


@router.post("/alarms/{alarm_id}/silence")
def silence(alarm_id: AlarmId, visitor: Changing, form: Typed, conn: Conn, now: Now) -> Response:
    """Silence this worry of this version: its next alarm too, but no other."""
    found = alarms.get(conn, alarm_id)
    length = LENGTHS.get(form.one("for") or "")
    body = checked(
        SilenceBody,
        {
            "matchers": {
                "model": found.model,
                "version": found.alarm.version,
                "kind": found.alarm.kind,
            },
            "until": None if length is None else now + length,
            "reason": form.one("reason"),
        },
    )
    if isinstance(body, Wrong):
        return _page(conn, visitor, found, now, wrong=body, typed=form)
    silenced(conn, body, visitor.by, now)
    return back_to(f"/alarms/{alarm_id}?done=silenced")


@router.post("/silences/{silence_id}/end")
def end_silence(
    silence_id: SilenceId, visitor: Changing, form: Typed, conn: Conn, now: Now
) -> Response:
    heard_again(conn, silence_id, visitor.by, now)
    alarm = form.one("alarm") or ""
    place = f"/alarms/{alarm}" if alarm.isascii() and alarm.isdecimal() else "/alarms"
    return back_to(f"{place}?done=ended")


def _said(
    alarm_id: int,
    visitor: Visitor,
    form: Form,
    hands: by_hand.Hands,
    now: datetime,
    does: Callable[[by_hand.Answer], Owned],
    done: str,
) -> Response:
    body = checked(AnswerBody, {"note": form.one("note")})
    if isinstance(body, Wrong):
        found = alarms.get(hands.conn, alarm_id)
        return _page(hands.conn, visitor, found, now, wrong=body, typed=form)
    does(by_hand.Answer(alarm_id, visitor.by, now, body.note))
    return back_to(f"/alarms/{alarm_id}?done={done}")


def _page(
    conn: Connection,
    visitor: Visitor,
    found: Owned,
    now: datetime,
    *,
    done: str = "",
    wrong: Wrong = NOTHING_WRONG,
    typed: Form = NOTHING_TYPED,
) -> Response:
    alarm = found.alarm
    covering = [one for one in silences.current(conn, now) if one.covers(found.model, alarm, now)]
    return shown(
        "alarm.html",
        visitor,
        422 if wrong.by_field else 200,
        model=found.model,
        alarm=alarm,
        story=web.story(alarm, found.model, models.get(conn, found.model).settings.pane),
        state_words=web.state_words(alarm),
        history=alarms.history(conn, found),
        choices=by_hand.choices(conn, found),
        silences=covering,
        lengths=list(LENGTHS),
        done=web.DONE.get(done),
        wrong=wrong,
        typed=typed,
    )
