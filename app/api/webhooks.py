"""Webhooks: who is told of alarms, and what became of each notice."""

from datetime import datetime
from typing import Annotated, Any, Self

import httpx
from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import (
    BaseModel,
    Field,
    SecretStr,
    StringConstraints,
    ValidationInfo,
    field_validator,
)

from app import deliver, tracing
from app.api import paging
from app.api.deps import Admin, Conn, Now, Reader, json_body, services
from app.api.openapi import body_of
from app.api.schemas import Moment, Strict
from app.config import Settings
from app.domain import notice
from app.domain.notice import Event, Shape
from app.domain.times import rfc_3339
from app.errors import InvalidInput, wrong_parameter
from app.storage import deliveries, keys, webhooks
from app.storage.db import Connection
from app.storage.deliveries import Delivery, State
from app.storage.webhooks import Webhook

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])
deliveries_router = APIRouter(prefix="/v1/deliveries", tags=["webhooks"])

WebhookId = Annotated[int, Path(ge=0, lt=2**31)]
DeliveryId = Annotated[int, Path(ge=0, lt=2**63)]

# Whoever knows the address of a chat can write into it.
SECRET_ADDRESSES = (Shape.SLACK, Shape.TEAMS)


class WebhookBody(Strict):
    """`events` left out: firing, resolved and revised; of Alertmanager, acknowledged as well."""

    url: Annotated[str, StringConstraints(min_length=1, max_length=2000)]
    shape: Shape = Shape.STANDARD
    events: Annotated[list[Event], Field(min_length=1, max_length=len(Event))] | None = None
    routing_key: Annotated[
        SecretStr | None,
        Field(validate_default=True, description="the integration key of a PagerDuty service"),
    ] = None

    @field_validator("routing_key")
    @classmethod
    def _is_for_pagerduty(cls, key: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        # A shape that makes no sense is reported by itself.
        needed = info.data.get("shape") is Shape.PAGERDUTY
        if needed and key is None:
            raise ValueError("the shape pagerduty needs the routing key of a service")
        if key is None or "shape" not in info.data:
            return key
        if not needed:
            raise ValueError(f"the shape {info.data['shape']} has no routing key")
        secret = key.get_secret_value()
        if not 0 < len(secret) <= 100 or not (secret.isascii() and secret.isalnum()):
            raise ValueError("must be at most 100 letters and digits")
        return key


class WebhookView(BaseModel):
    """Of a chat only the host is shown: its address is a secret in itself."""

    id: int
    url: str
    shape: Shape
    events: list[Event]
    created_at: Moment
    disabled_at: Moment | None
    disabled_because: str | None
    old_secret_until: Moment | None

    @classmethod
    def of(cls, found: Webhook, **more: str) -> Self:
        return cls(
            id=found.id,
            url=_shown(found),
            shape=found.shape,
            events=[event for event in Event if event in found.events],
            created_at=found.created_at,
            disabled_at=found.disabled_at,
            disabled_because=found.disabled_because,
            old_secret_until=found.old_secret_until,
            **more,
        )


class SecretWebhookView(WebhookView):
    secret: str


class WebhookPage(BaseModel):
    items: list[WebhookView]
    next: str | None


class DeliveryView(BaseModel):
    """`error` is what went wrong last; `due_at`, while it is pending, when it is tried again."""

    id: int
    webhook_id: int
    alarm_id: int | None
    event: Event
    message_id: str
    state: State
    attempts: int
    created_at: Moment
    due_at: Moment
    settled_at: Moment | None
    status_code: int | None
    error: str | None

    @classmethod
    def of(cls, found: Delivery) -> Self:
        return cls(**{name: getattr(found, name) for name in cls.model_fields})


class DeliveryPage(BaseModel):
    items: list[DeliveryView]
    next: str | None


@router.post(
    "",
    status_code=201,
    dependencies=[Admin],
    openapi_extra=body_of({"application/json": WebhookBody}),
)
def create_webhook(
    body: Annotated[WebhookBody, Depends(json_body(WebhookBody))],
    conn: Conn,
    now: Now,
    request: Request,
) -> SecretWebhookView:
    """Tell this address of alarms. The secret that signs is in this answer and nowhere else."""
    found = made(conn, body, services(request).settings, now)
    return SecretWebhookView.of(found, secret=found.secret)


def made(conn: Connection, body: WebhookBody, settings: Settings, now: datetime) -> Webhook:
    allowed = deliver.reach(settings, any_key=bool(keys.all_keys(conn)))
    if reason := deliver.refused_url(body.url, allowed):
        raise InvalidInput(f"the URL {reason}", "#/url")
    return webhooks.create(
        conn,
        body.url,
        body.events or notice.default_events(body.shape),
        body.shape,
        now,
        None if body.routing_key is None else body.routing_key.get_secret_value(),
    )


@router.get("", dependencies=[Reader])
def list_webhooks(
    conn: Conn, limit: paging.Limit = 50, cursor: paging.Cursor = None
) -> WebhookPage:
    """All webhooks, in the order they were made."""
    found = webhooks.page(conn, _id_in(cursor), limit + 1)
    more = paging.by_name(str(found[limit - 1].id)) if len(found) > limit else None
    return WebhookPage(items=[WebhookView.of(one) for one in found[:limit]], next=more)


@router.get("/{webhook_id}", dependencies=[Reader])
def get_webhook(webhook_id: WebhookId, conn: Conn) -> WebhookView:
    return WebhookView.of(webhooks.get(conn, webhook_id))


@router.delete("/{webhook_id}", dependencies=[Admin], status_code=204)
def delete_webhook(webhook_id: WebhookId, conn: Conn) -> None:
    """Forget the webhook and its deliveries."""
    webhooks.forget(conn, webhook_id)


@router.post("/{webhook_id}/test", dependencies=[Admin], status_code=202)
def try_webhook(webhook_id: WebhookId, conn: Conn, now: Now, request: Request) -> DeliveryView:
    """Queue a notice of the event `test` for this webhook, whatever else it wants to know of."""
    return DeliveryView.of(tried(conn, webhook_id, services(request).settings, now))


def tried(conn: Connection, webhook_id: int, settings: Settings, now: datetime) -> Delivery:
    trial = {
        "type": Event.TEST.value,
        "timestamp": rfc_3339(now),
        "data": {
            "reason": "This is a test. Notices of alarms will arrive here.",
            "links": _links(settings, webhook_id),
        },
    }
    return deliveries.queue_for(conn, webhook_id, trial, Event.TEST, None, now, tracing.current())


@router.post("/{webhook_id}/rotate", dependencies=[Admin])
def rotate_webhook(webhook_id: WebhookId, conn: Conn, now: Now) -> SecretWebhookView:
    """A new secret, shown once. For 24 hours the old one signs, too."""
    found = webhooks.rotate(conn, webhook_id, now)
    return SecretWebhookView.of(found, secret=found.secret)


@router.post("/{webhook_id}/disable", dependencies=[Admin])
def disable_webhook(webhook_id: WebhookId, conn: Conn, now: Now) -> WebhookView:
    """Send it nothing until it is enabled again."""
    return WebhookView.of(webhooks.disable(conn, webhook_id, "disabled through the API", now))


@router.post("/{webhook_id}/enable", dependencies=[Admin])
def enable_webhook(webhook_id: WebhookId, conn: Conn) -> WebhookView:
    """What was pending when it was disabled is sent now; what came in between is not."""
    return WebhookView.of(webhooks.enable(conn, webhook_id))


@router.get("/{webhook_id}/deliveries", dependencies=[Reader])
def list_deliveries(
    webhook_id: WebhookId,
    conn: Conn,
    state: Annotated[State | None, Query()] = None,
    limit: paging.Limit = 50,
    cursor: paging.Cursor = None,
) -> DeliveryPage:
    """What was sent to a webhook or waits to be, newest first."""
    owner = webhooks.get(conn, webhook_id)
    found = deliveries.page(conn, owner.id, state, _id_in(cursor), limit + 1)
    more = paging.by_name(str(found[limit - 1].id)) if len(found) > limit else None
    return DeliveryPage(items=[DeliveryView.of(one) for one in found[:limit]], next=more)


@deliveries_router.post("/{delivery_id}/replay", dependencies=[Admin], status_code=202)
def replay_delivery(delivery_id: DeliveryId, conn: Conn, now: Now) -> DeliveryView:
    """Send the same notice again, under the same message id."""
    return DeliveryView.of(deliveries.replay(conn, delivery_id, now, tracing.current()))


def _shown(found: Webhook) -> str:
    if found.shape not in SECRET_ADDRESSES:
        return found.url
    url = httpx.URL(found.url)
    return f"{url.scheme}://{url.netloc.decode()}/…"


def _links(settings: Settings, webhook_id: int) -> dict[str, Any]:
    root = settings.root_url
    return {"page": f"{root}/webhooks/{webhook_id}", "api": f"{root}/v1/webhooks/{webhook_id}"}


def _id_in(cursor: str | None) -> int | None:
    name = paging.name_in(cursor)
    if name is None:
        return None
    if not (name.isascii() and name.isdecimal() and len(name) < 19):
        raise wrong_parameter("cursor", "is not a cursor of this list")
    return int(name)
