"""Webhooks: who is told of alarms, what became of each notice, and buttons for both."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from app.api import paging
from app.api.deps import Conn, Now, services
from app.api.pages.base import (
    NOTHING_TYPED,
    NOTHING_WRONG,
    Admin,
    Changing,
    Form,
    Looking,
    PageRoute,
    Typed,
    Visitor,
    Wrong,
    back_to,
    checked,
    shown,
)
from app.api.webhooks import DeliveryId, WebhookBody, WebhookId, WebhookView, made, tried
from app.domain.notice import Event, Shape
from app.errors import InvalidInput
from app.storage import deliveries, webhooks
from app.storage.db import Connection
from app.storage.deliveries import State
from app.web.webhooks import DONE

router = APIRouter(route_class=PageRoute, include_in_schema=False)

PER_PAGE = 20
DELIVERIES_PER_PAGE = 50

Done = Annotated[str, Query(max_length=40)]


@router.get("/webhooks")
def get_webhooks(
    visitor: Looking, conn: Conn, cursor: paging.Cursor = None, done: Done = ""
) -> Response:
    return _list(conn, visitor, cursor, done=done)


@router.post("/webhooks")
def make_webhook(
    visitor: Changing, form: Typed, conn: Conn, now: Now, request: Request
) -> Response:
    body = checked(
        WebhookBody,
        {
            "url": (form.one("url") or "").strip(),
            "shape": form.one("shape"),
            "events": form.all("events") or None,
            "routing_key": (form.one("routing_key") or "").strip() or None,
        },
    )
    if isinstance(body, Wrong):
        return _list(conn, visitor, None, wrong=body, typed=form)
    try:
        found = made(conn, body, services(request).settings, now)
    except InvalidInput as error:
        return _list(conn, visitor, None, wrong=Wrong({"url": str(error)}), typed=form)
    return _secret(visitor, WebhookView.of(found), found.secret, 201)


@router.get("/webhooks/{webhook_id}")
def get_webhook(
    webhook_id: WebhookId,
    visitor: Looking,
    conn: Conn,
    state: State | Literal[""] = "",
    cursor: paging.Cursor = None,
    done: Done = "",
) -> Response:
    found = webhooks.get(conn, webhook_id)
    before = paging.number_in(cursor)
    listed = deliveries.page(conn, found.id, state or None, before, DELIVERIES_PER_PAGE + 1)
    more = len(listed) > DELIVERIES_PER_PAGE
    return shown(
        "webhook.html",
        visitor,
        webhook=WebhookView.of(found),
        tally=deliveries.tally(conn, found.id),
        deliveries=listed[:DELIVERIES_PER_PAGE],
        next=paging.by_number(listed[DELIVERIES_PER_PAGE - 1].id) if more else None,
        is_first=cursor is None,
        state=state,
        states=list(State),
        done=DONE.get(done),
    )


@router.post("/webhooks/{webhook_id}/test", dependencies=[Admin])
def try_webhook(webhook_id: WebhookId, conn: Conn, now: Now, request: Request) -> Response:
    tried(conn, webhook_id, services(request).settings, now)
    return back_to(f"/webhooks/{webhook_id}?done=tried")


@router.post("/webhooks/{webhook_id}/rotate")
def rotate_webhook(webhook_id: WebhookId, visitor: Changing, conn: Conn, now: Now) -> Response:
    found = webhooks.rotate(conn, webhook_id, now)
    return _secret(visitor, WebhookView.of(found), found.secret)


@router.post("/webhooks/{webhook_id}/disable")
def disable_webhook(webhook_id: WebhookId, visitor: Changing, conn: Conn, now: Now) -> Response:
    webhooks.disable(conn, webhook_id, f"disabled by {visitor.by}", now)
    return back_to(f"/webhooks/{webhook_id}?done=disabled")


@router.post("/webhooks/{webhook_id}/enable", dependencies=[Admin])
def enable_webhook(webhook_id: WebhookId, conn: Conn) -> Response:
    webhooks.enable(conn, webhook_id)
    return back_to(f"/webhooks/{webhook_id}?done=enabled")


@router.post("/webhooks/{webhook_id}/delete", dependencies=[Admin])
def delete_webhook(webhook_id: WebhookId, conn: Conn) -> Response:
    webhooks.forget(conn, webhook_id)
    return back_to("/webhooks?done=deleted")


@router.post("/deliveries/{delivery_id}/replay", dependencies=[Admin])
def replay_delivery(delivery_id: DeliveryId, conn: Conn, now: Now) -> Response:
    found = deliveries.replay(conn, delivery_id, now)
    return back_to(f"/webhooks/{found.webhook_id}?done=replayed")


def _list(
    conn: Connection,
    visitor: Visitor,
    cursor: str | None,
    *,
    done: str = "",
    wrong: Wrong = NOTHING_WRONG,
    typed: Form = NOTHING_TYPED,
) -> Response:
    found = webhooks.page(conn, paging.number_in(cursor), PER_PAGE + 1)
    rows: list[Any] = [
        (WebhookView.of(one), deliveries.tally(conn, one.id)) for one in found[:PER_PAGE]
    ]
    return shown(
        "webhooks.html",
        visitor,
        422 if wrong.by_field else 200,
        rows=rows,
        next=paging.by_number(found[PER_PAGE - 1].id) if len(found) > PER_PAGE else None,
        is_first=cursor is None,
        shapes=list(Shape),
        events=[event for event in Event if event is not Event.TEST],
        done=DONE.get(done),
        wrong=wrong,
        typed=typed,
    )


def _secret(visitor: Visitor, webhook: WebhookView, secret: str, status: int = 200) -> Response:
    """The answer itself, and no redirect: this is the one time that the secret is shown."""
    return shown("webhook_secret.html", visitor, status, webhook=webhook, secret=secret)
