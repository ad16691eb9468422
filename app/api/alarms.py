"""Alarms: which there are, on what evidence, and what people do about them."""

from datetime import datetime, timedelta
from typing import Annotated, Any, Self

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import AfterValidator, AwareDatetime, BaseModel, StringConstraints, model_validator

from app.api import paging
from app.api.deps import Admin, Caller, Conn, Now, Reader, json_body, services
from app.api.openapi import body_of
from app.api.schemas import Label, Moment, Slug, Strict, storable
from app.domain import alarm as domain
from app.domain.alarm import AlarmKind, AlarmState, Severity, Silence
from app.domain.verdict import Verdict
from app.errors import InvalidInput
from app.evaluate import by_hand
from app.storage import alarms, models, silences
from app.storage.alarms import Owned, PastChange
from app.storage.db import Connection

router = APIRouter(prefix="/v1/alarms", tags=["alarms"])
silences_router = APIRouter(prefix="/v1/silences", tags=["alarms"])

LONGEST_SILENCE = timedelta(days=366)

AlarmId = Annotated[int, Path(ge=0, lt=2**63)]
SilenceId = Annotated[int, Path(ge=0, lt=2**31)]
Person = Annotated[Label, StringConstraints(max_length=200)]
Words = Annotated[str, StringConstraints(max_length=2000), AfterValidator(storable)]


class AlarmView(BaseModel):
    """`since` is when it was first seen, `onset` when what it is about is estimated to have begun.

    `evidence` says what was compared with what, and by which test.
    """

    id: int
    model: str
    version: str
    kind: AlarmKind
    state: AlarmState
    severity: Severity
    verdict: Verdict | None
    reason: str
    since: Moment
    onset: Moment | None
    fired_at: Moment | None
    acknowledged_by: str | None
    acknowledged_at: Moment | None
    resolved_at: Moment | None
    confirmed: bool
    evidence: dict[str, Any]

    @classmethod
    def of(cls, owned: Owned) -> Self:
        return cls.model_validate(domain.described(owned.alarm, owned.model, slim=True))


class ChangeView(BaseModel):
    at: Moment
    event: str
    state: AlarmState
    reason: str
    by: str | None
    note: str | None

    @classmethod
    def of(cls, change: PastChange) -> Self:
        return cls(
            at=change.at,
            event=change.event,
            state=change.state,
            reason=change.reason,
            by=change.by,
            note=change.note,
        )


class AlarmDetail(AlarmView):
    """The evidence has all that goes into its numbers under `check`."""

    history: list[ChangeView]

    @classmethod
    def in_full(cls, owned: Owned, history: list[PastChange]) -> Self:
        shown = domain.described(owned.alarm, owned.model)
        return cls.model_validate({**shown, "history": [ChangeView.of(one) for one in history]})


class AlarmPage(BaseModel):
    items: list[AlarmView]
    next: str | None


class AnswerBody(Strict):
    """Who does it (the name of the key, if nobody is named), and what there is to say about it."""

    by: Person | None = None
    note: Words | None = None


class Matchers(Strict):
    """What an alarm must be for the silence to cover it; at least one of them."""

    model: Slug | None = None
    version: Slug | None = None
    kind: AlarmKind | None = None
    severity: Severity | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.model_dump(exclude_none=True):
            raise ValueError("name at least one of model, version, kind and severity")
        return self


class SilenceBody(Strict):
    matchers: Matchers
    until: AwareDatetime
    by: Person | None = None
    reason: Words = ""


class SilenceView(BaseModel):
    id: int
    matchers: dict[str, str]
    until: Moment
    by: str
    reason: str
    created_at: Moment
    ended_at: Moment | None
    ended_by: str | None
    active: bool

    @classmethod
    def of(cls, one: Silence, now: datetime) -> Self:
        return cls(
            id=one.id or 0,
            matchers=dict(one.matchers),
            until=one.until,
            by=one.by,
            reason=one.reason,
            created_at=one.created_at,
            ended_at=one.ended_at,
            ended_by=one.ended_by,
            active=one.ended_at is None and now < one.until,
        )


class SilencePage(BaseModel):
    items: list[SilenceView]
    next: str | None


@router.get("", dependencies=[Reader])
def list_alarms(
    conn: Conn,
    model: Annotated[Slug | None, Query()] = None,
    state: Annotated[AlarmState | None, Query()] = None,
    kind: Annotated[AlarmKind | None, Query()] = None,
    limit: paging.Limit = 50,
    cursor: paging.Cursor = None,
) -> AlarmPage:
    """Alarms, newest first, those that are over included."""
    found = alarms.page(
        conn,
        model_name=model,
        state=state,
        kind=kind,
        before=paging.number_in(cursor),
        limit=limit + 1,
    )
    last = found[limit - 1].alarm if len(found) > limit else None
    return AlarmPage(
        items=[AlarmView.of(one) for one in found[:limit]],
        next=None if last is None else paging.by_number(last.id or 0),
    )


@router.get("/{alarm_id}", dependencies=[Reader])
def get_alarm(alarm_id: AlarmId, conn: Conn) -> AlarmDetail:
    found = alarms.get(conn, alarm_id)
    return AlarmDetail.in_full(found, alarms.history(conn, found))


ANSWERED = body_of({"application/json": AnswerBody}, required=False)


def answer(
    alarm_id: AlarmId,
    body: Annotated[AnswerBody, Depends(json_body(AnswerBody, optional=True))],
    now: Now,
    caller: Caller,
) -> by_hand.Answer:
    return by_hand.Answer(alarm_id, body.by or caller, now, body.note)


def hands(request: Request, conn: Conn) -> by_hand.Hands:
    own = services(request)
    return by_hand.Hands(conn, own.evaluator, own.settings.root_url)


Answer = Annotated[by_hand.Answer, Depends(answer)]
Hands = Annotated[by_hand.Hands, Depends(hands)]


@router.post("/{alarm_id}/acknowledge", dependencies=[Admin], openapi_extra=ANSWERED)
def acknowledge_alarm(answer: Answer, hands: Hands) -> AlarmView:
    """Say that somebody looks after it; it is not told of again until it is over."""
    return AlarmView.of(hands.acknowledge(answer))


@router.post("/{alarm_id}/resolve", dependencies=[Admin], openapi_extra=ANSWERED)
def resolve_alarm(answer: Answer, hands: Hands) -> AlarmView:
    """Say that it is over. If it is not, the detectors will raise a new one."""
    return AlarmView.of(hands.resolve(answer))


@router.post("/{alarm_id}/accept", dependencies=[Admin], openapi_extra=ANSWERED)
def accept_alarm(answer: Answer, hands: Hands) -> AlarmView:
    """Accept the mix since the onset as the new normal: alarms go by it from now on."""
    return AlarmView.of(hands.accept(answer))


@silences_router.post(
    "",
    status_code=201,
    dependencies=[Admin],
    openapi_extra=body_of({"application/json": SilenceBody}),
)
def create_silence(
    body: Annotated[SilenceBody, Depends(json_body(SilenceBody))],
    conn: Conn,
    now: Now,
    caller: Caller,
) -> SilenceView:
    """Tell nobody of alarms that match, until then. The alarms themselves go on."""
    return SilenceView.of(silenced(conn, body, caller, now), now)


def silenced(conn: Connection, body: SilenceBody, caller: str, now: datetime) -> Silence:
    if not now < body.until <= now + LONGEST_SILENCE:
        raise InvalidInput("until must lie in the future, within a year", "#/until")
    matchers = {
        name: str(value) for name, value in body.matchers.model_dump(exclude_none=True).items()
    }
    new = Silence(matchers, body.until, body.by or caller, body.reason, now)
    return silences.create(conn, new)


@silences_router.get("", dependencies=[Reader])
def list_silences(
    conn: Conn, now: Now, limit: paging.Limit = 50, cursor: paging.Cursor = None
) -> SilencePage:
    """All silences, newest first."""
    found = silences.page(conn, paging.number_in(cursor), limit + 1)
    last = found[limit - 1] if len(found) > limit else None
    return SilencePage(
        items=[SilenceView.of(one, now) for one in found[:limit]],
        next=None if last is None else paging.by_number(last.id or 0),
    )


@silences_router.delete("/{silence_id}", dependencies=[Admin])
def end_silence(silence_id: SilenceId, conn: Conn, now: Now, caller: Caller) -> SilenceView:
    """End a silence before its time; what it covered and still fires is told of soon."""
    return SilenceView.of(heard_again(conn, silence_id, caller, now), now)


def heard_again(conn: Connection, silence_id: int, caller: str, now: datetime) -> Silence:
    ended = silences.end(conn, silence_id, caller, now)
    models.mark_due(conn, alarms.models_with_open(conn), now)
    return ended
