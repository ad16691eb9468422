"""Who may do what: API keys with scopes, and the rules for a machine of one's own."""

import time
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from anyio import CapacityLimiter, to_thread
from fastapi import Request

from app.config import Settings
from app.errors import Forbidden, Unauthenticated, Unavailable
from app.storage import keys, sessions
from app.storage.db import Database
from app.storage.keys import ApiKey, Scope

# A key that was revoked elsewhere may be used for this long; one that is new is looked up at once.
REMEMBERED_SECONDS = 1.0
# Guessing keys must not become a way to keep the database busy.
LOOK_AGAIN_SECONDS = 0.1
# Nor must making up cookies, which are looked up one by one: others need connections, too.
SESSIONS_AT_ONCE = 2

NEVER = float("-inf")
# Where the page keeps who has signed in, and the methods that change nothing.
COOKIE = "shiftwatch_session"
SAFE = ("GET", "HEAD")
FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")


class Gate:
    """Decides about each request, by keys that it remembers for a moment."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._open = settings.auth == "off"
        self._loopback = settings.loopback
        self._keys: dict[bytes, ApiKey] | None = None
        self._read_at = NEVER
        self._reading = False
        self._changes = 0
        self._looking_up = CapacityLimiter(SESSIONS_AT_ONCE)

    async def admit(
        self, request: Request, scope: Scope, *, from_page: bool = False
    ) -> ApiKey | None:
        """Returns if the request may do what `scope` stands for, with its key; raises otherwise.

        Who has signed in to the page may read by his cookie. To change anything by it, the request
        must be known to come `from_page`: a browser sends cookies along for any page.
        """
        if self._open:
            return None
        known = await self._known()
        if not known and self._loopback:
            refuse_strangers(request)
            return None
        secret, session = _bearer(request), request.cookies.get(COOKIE)
        if secret is not None:
            key = await self.key_of(secret)
        elif session is not None and (from_page or request.method in SAFE):
            key = await to_thread.run_sync(self._of_session, session, limiter=self._looking_up)
        else:
            raise Unauthenticated("send a key: Authorization: Bearer <key>")
        if not key.allows(scope):
            raise Forbidden(f"the key {key.name!r} does not have the scope {scope.value!r}")
        return key

    async def key_of(self, secret: str) -> ApiKey:
        """The key with that secret, if it is still good."""
        known = await self._known()
        key = known.get(keys.digest(secret)) or await self._new(secret)
        if key is None or key.revoked_at is not None:
            raise Unauthenticated("the key is not known, or was revoked")
        return key

    def _of_session(self, session: str) -> ApiKey:
        with self._database.begin() as conn:
            key = sessions.find(conn, session, datetime.now(UTC))
        if key is None:
            raise Unauthenticated("the session is over; sign in again")
        return key

    async def _new(self, secret: str) -> ApiKey | None:
        """A key that was made after we last looked."""
        if time.monotonic() - self._read_at < LOOK_AGAIN_SECONDS:
            return None
        return (await self._reread()).get(keys.digest(secret))

    def forget(self) -> None:
        """Look the keys up again: one was made or revoked here."""
        self._changes += 1
        self._read_at = NEVER

    async def _known(self) -> dict[bytes, ApiKey]:
        fresh = time.monotonic() - self._read_at < REMEMBERED_SECONDS
        # One request looks; the others of that moment go by what was known.
        if self._keys is not None and (fresh or self._reading):
            return self._keys
        return await self._reread()

    async def _reread(self) -> dict[bytes, ApiKey]:
        self._reading = True
        changes = self._changes
        try:
            self._keys = await to_thread.run_sync(self._read)
            # What was read while a key was made or revoked may be older than that.
            if changes == self._changes:
                self._read_at = time.monotonic()
        except Unavailable:
            # While the database is away, whoever was let in before still is.
            if self._keys is None:
                raise
        finally:
            self._reading = False
        return self._keys

    def _read(self) -> dict[bytes, ApiKey]:
        with self._database.begin() as conn:
            return keys.by_digest(conn)


def refuse_strangers(request: Request) -> None:
    """Without keys, only this machine's own programs are let in.

    A page in a browser can be made to call this address, even under a name of its own (DNS
    rebinding), and a proxy can pass on callers from anywhere: all of it shows in the headers.
    """
    headers = request.headers
    if not _is_local(f"//{headers.get('host', '')}"):
        raise Forbidden("without keys only calls to localhost are answered; create a key first")
    if "origin" in headers and not _is_local(headers["origin"]):
        raise Forbidden("without keys no calls from other sites' pages are answered")
    if any(name in headers for name in FORWARDED):
        raise Forbidden("without keys no forwarded calls are answered; create a key first")


@lru_cache(maxsize=256)
def _is_local(url: str) -> bool:
    """Whether a URL names this machine."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _bearer(request: Request) -> str | None:
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" and secret.strip() else None
