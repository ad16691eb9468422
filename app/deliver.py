"""Deliver: take a notice that is due, send it to its webhook, note what became of it.

A webhook's address is somebody's input. So that nobody reaches through us what only we can reach,
the name is looked up here, every address it has is judged, and the connection goes to an address
that was judged: what the name says a moment later does not matter.
"""

import asyncio
import email.utils
import logging
import random
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from ipaddress import ip_address

import httpx
from anyio import to_thread
from structlog.contextvars import bind_contextvars

from app import __version__, metrics, tracing
from app.config import Settings
from app.domain import notice
from app.domain.address import Reach, literal, refused
from app.domain.notice import Shaped
from app.logs import logger
from app.storage import deliveries, keys
from app.storage.db import Database
from app.storage.deliveries import Claimed, Delivered, GaveUp, Outcome, RetryAt

log = logger(__name__)
# httpx tells every address that it calls, and that of a chat is a secret.
logging.getLogger("httpx").setLevel(logging.WARNING)

Resolve = Callable[[str, int], Sequence[str]]

# Of looking up, connecting, sending and the answer together. Standard Webhooks: 15 to 30 seconds.
PATIENCE = timedelta(seconds=15)
# Long enough that no attempt outlives its lease.
LEASE = timedelta(seconds=60)
CONNECT_SECONDS = 5.0
MOST_ANSWER_BYTES = 4096
MOST_ANSWER_CHARACTERS = 200

# How long to wait after each attempt: the schedule of Standard Webhooks 1.0.
SCHEDULE = (
    timedelta(seconds=5),
    timedelta(minutes=5),
    timedelta(minutes=30),
    timedelta(hours=2),
    timedelta(hours=5),
    timedelta(hours=10),
    timedelta(hours=14),
    timedelta(hours=20),
    timedelta(hours=24),
)
# How they are counted.
OUTCOMES: dict[type[Outcome], str] = {Delivered: "delivered", RetryAt: "retry", GaveUp: "dead"}
# Receivers that were away together should not all be called again together.
JITTER = 0.1
LONGEST_RETRY_AFTER = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the receiver said; `text` is the beginning of it, if it is worth reading."""

    status_code: int
    retry_after: str | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Why there is none."""

    error: str


Send = Callable[[Claimed, "Reach", datetime], Answer | NoAnswer]


def deliver_next(
    database: Database,
    settings: Settings,
    send: Send,
    clock: Callable[[], datetime],
    chance: Callable[[], float] = random.random,
) -> bool:
    """Send the delivery that has been due for longest; says whether there was any.

    Nothing is locked while the receiver takes its time. A crash in the middle leaves a lease that
    runs out: then the notice is sent again, perhaps for the second time.
    """
    now = clock()
    with database.begin() as conn:
        claimed = deliveries.claim(conn, now, LEASE)
        allowed = reach(settings, any_key=bool(keys.all_keys(conn)))
    if claimed is None:
        return False
    bind_contextvars(delivery=claimed.id, webhook=claimed.webhook.id, **_model(claimed))
    with _span(claimed):
        try:
            said = send(claimed, allowed, now)
        except Exception:
            # What we cannot send must not come up again at once, and not for ever.
            _settle(
                database, claimed, NoAnswer("a bug of the service; its log has more"), clock, chance
            )
            raise
        _settle(database, claimed, said, clock, chance)
    return True


def _settle(
    database: Database,
    claimed: Claimed,
    said: Answer | NoAnswer,
    clock: Callable[[], datetime],
    chance: Callable[[], float],
) -> None:
    now = clock()
    found = outcome(said, claimed.attempts, now, chance())
    with database.begin() as conn:
        ours = deliveries.settle(conn, claimed, found, now)
    metrics.DELIVERIES.labels(claimed.webhook.shape.value, OUTCOMES[type(found)]).inc()
    log.info(
        "delivery",
        notice=claimed.event.value,
        attempt=claimed.attempts,
        outcome=type(found).__name__,
        status=found.status_code,
        ours=ours,
    )


def _model(claimed: Claimed) -> dict[str, str]:
    """The model that the notice is about; a trial is about none."""
    alarm = claimed.notice.get("data", {}).get("alarm")
    return {} if alarm is None else {"model": alarm["model"]}


def _span(claimed: Claimed) -> tracing.Span:
    of = [] if claimed.trace is None else [claimed.trace]
    about = {
        "shiftwatch.delivery": claimed.id,
        "shiftwatch.webhook": claimed.webhook.id,
        "shiftwatch.notice": claimed.event.value,
        "shiftwatch.attempt": claimed.attempts,
    }
    return tracing.span("deliver", of, "client", about)


# What an answer means.


def outcome(said: Answer | NoAnswer, attempts: int, now: datetime, chance: float) -> Outcome:
    """What to do after attempt number `attempts`; `chance` lies between 0 and 1."""
    if isinstance(said, Answer) and 200 <= said.status_code < 300:
        return Delivered(said.status_code)
    code = said.status_code if isinstance(said, Answer) else None
    error = _error(said)
    if code == HTTPStatus.GONE:
        return GaveUp(error, code, gone=True)
    if attempts > len(SCHEDULE):
        return GaveUp(f"given up after {attempts} attempts: {error}", code)
    pause = SCHEDULE[attempts - 1] * (1 - JITTER + 2 * JITTER * chance)
    asked = retry_after(said.retry_after, now) if isinstance(said, Answer) else None
    return RetryAt(now + max(pause, asked or pause), error, code)


def retry_after(header: str | None, now: datetime) -> timedelta | None:
    """How long the receiver asks to be left alone: seconds, or a date. None if that is unclear.

    >>> retry_after("120", datetime(2026, 11, 17, tzinfo=UTC))
    datetime.timedelta(seconds=120)
    """
    if header is None:
        return None
    if header.isascii() and header.isdecimal():
        # A number may have more digits than a duration can hold.
        return min(timedelta(seconds=int(header[:9])), LONGEST_RETRY_AFTER)
    try:
        at = email.utils.parsedate_to_datetime(header)
    except ValueError:
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return min(max(at - now, timedelta(0)), LONGEST_RETRY_AFTER)


def _error(said: Answer | NoAnswer) -> str:
    if isinstance(said, NoAnswer):
        return said.error
    if 300 <= said.status_code < 400:
        return f"HTTP {said.status_code}: redirects are not followed"
    return f"HTTP {said.status_code}" + (f": {said.text}" if said.text else "")


# Where a webhook may point.


def reach(settings: Settings, *, any_key: bool) -> Reach:
    """On a machine of one's own, before there is any key, whoever calls is on it already."""
    if settings.webhook_allow_private:
        return Reach.PRIVATE
    return Reach.LOOPBACK if settings.loopback and not any_key else Reach.PUBLIC


def refused_url(url: str, allowed: Reach) -> str | None:
    """Why this cannot be the address of a webhook, as far as it can be told without looking it up.

    It is read by the same parser that is used to send, so that both see the same host.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return "is not a URL"
    if parsed.scheme not in ("https", "http") or not parsed.host:
        return "must be an https address with a host"
    if parsed.scheme == "http" and allowed is Reach.PUBLIC:
        return "must be https"
    if parsed.userinfo or "#" in url:
        return "must have no credentials and no fragment"
    if parsed.port is not None and not 0 < parsed.port < 65536:
        return "has an impossible port"
    address = literal(parsed.host)
    reason = None if address is None else refused(address, allowed)
    return None if reason is None else f"{reason}; {_HOW_TO_ALLOW}"


_HOW_TO_ALLOW = "SHIFTWATCH_WEBHOOK_ALLOW_PRIVATE=true allows private and loopback ones"


# Sending.


def resolve(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Sender:
    """Calls receivers, each attempt on a connection of its own."""

    def __init__(
        self,
        *,
        resolve: Resolve = resolve,
        transport: httpx.AsyncBaseTransport | None = None,
        patience: timedelta = PATIENCE,
    ) -> None:
        self._resolve = resolve
        self._transport = transport
        self._patience = patience
        # Certificates by SSL_CERT_FILE if it is set, as everywhere; made once, since it is slow.
        self._tls = httpx.create_ssl_context()

    def __call__(self, claimed: Claimed, allowed: Reach, now: datetime) -> Answer | NoAnswer:
        """Send it once; whatever the far side does is a value."""
        hook = claimed.webhook
        # The rules may have changed since the webhook was made: those of now count.
        if reason := refused_url(hook.url, allowed):
            return NoAnswer(f"refused: the URL {reason}")
        made = notice.shaped(
            hook.shape,
            claimed.notice,
            message_id=claimed.message_id,
            now=now,
            routing_key=hook.routing_key,
        )
        headers = _headers(claimed, made, now)
        return asyncio.run(self._post_in_time(httpx.URL(hook.url), headers, made.body, allowed))

    async def _post_in_time(
        self, url: httpx.URL, headers: dict[str, str], body: bytes, allowed: Reach
    ) -> Answer | NoAnswer:
        try:
            # httpx bounds each single step; one byte at a time would go on for ever.
            async with asyncio.timeout(self._patience.total_seconds()):
                return await self._post(url, headers, body, allowed)
        except TimeoutError:
            return NoAnswer(f"no answer within {self._patience.total_seconds():g} seconds")

    async def _post(
        self, url: httpx.URL, headers: dict[str, str], body: bytes, allowed: Reach
    ) -> Answer | NoAnswer:
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            # Given up on, the thread is left to itself: a lookup cannot be stopped.
            addresses = await to_thread.run_sync(
                self._resolve, url.raw_host.decode(), port, abandon_on_cancel=True
            )
        except (OSError, UnicodeError):
            return NoAnswer(f"{url.host} cannot be resolved")
        # One bad address among good ones is reason enough: who mixes them is up to something.
        for address in addresses:
            if reason := refused(ip_address(address), allowed):
                return NoAnswer(f"refused: {url.host} resolves to {address}: {reason}")
        return await self._post_to_any(addresses, url, headers, body)

    async def _post_to_any(
        self, addresses: Sequence[str], url: httpx.URL, headers: dict[str, str], body: bytes
    ) -> Answer | NoAnswer:
        failure = NoAnswer(f"{url.host} has no address")
        for address in addresses:
            try:
                return await self._post_to(address, url, headers, body)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failure = NoAnswer(_cause(error))
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                return NoAnswer(_cause(error))
        return failure

    async def _post_to(
        self, address: str, url: httpx.URL, headers: dict[str, str], body: bytes
    ) -> Answer:
        """To that very address, under the name that the receiver and its certificate go by."""
        client = httpx.AsyncClient(
            transport=self._transport,
            verify=self._tls,
            # A proxy from the environment would look the name up again, and judge nothing.
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(self._patience.total_seconds(), connect=CONNECT_SECONDS),
        )
        async with (
            client,
            client.stream(
                "POST",
                url.copy_with(host=address),
                content=body,
                headers={**headers, "host": url.netloc.decode()},
                extensions={"sni_hostname": url.raw_host.decode()},
            ) as response,
        ):
            text = "" if response.is_success else await _beginning(response)
            return Answer(response.status_code, response.headers.get("retry-after"), text)


def _headers(claimed: Claimed, made: Shaped, now: datetime) -> dict[str, str]:
    timestamp = int(now.timestamp())
    signatures = [
        notice.signature(secret, claimed.message_id, timestamp, made.body)
        for secret in claimed.webhook.secrets(now)
    ]
    headers = {
        "webhook-id": claimed.message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signatures),
        "content-type": made.content_type,
        "user-agent": f"shiftwatch/{__version__}",
        "accept-encoding": "identity",
    }
    trace = tracing.current()
    return headers if trace is None else {**headers, "traceparent": trace}


async def _beginning(response: httpx.Response) -> str:
    """Enough of the answer to see what the receiver did not like."""
    read = b""
    async for part in response.aiter_raw():
        read += part
        if len(read) >= MOST_ANSWER_BYTES:
            break
    text = read[:MOST_ANSWER_BYTES].decode(errors="replace")
    # What cannot be printed cannot be stored, either.
    return "".join(one for one in text if one.isprintable())[:MOST_ANSWER_CHARACTERS]


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
