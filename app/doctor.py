"""`shiftwatch doctor`: what is wrong with this installation, and what to do about it.

It changes nothing and sends nothing. Each check is a pure function of what was found.
"""

import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path

import httpx

from app import deliver, serve
from app.config import PREFIX, BadSettings, Settings
from app.deliver import Resolve, resolve
from app.domain.address import Reach, refused
from app.domain.fleet import Fleet
from app.storage import checkup, fleet, keys, postgres_binaries, schema, webhooks
from app.storage.checkup import Backlog, Server
from app.storage.db import Connection, Database
from app.storage.embedded import EmbeddedError
from app.storage.keys import ApiKey, Scope
from app.storage.webhooks import Webhook

# The service takes predictions up to five minutes ahead of its clock.
SKEW, TOO_MUCH_SKEW = timedelta(minutes=1), timedelta(minutes=5)
# An evaluation is there within seconds, and a notice is tried at once.
WAITS_TOO_LONG = timedelta(minutes=1)
LITTLE_SPACE, NO_SPACE = 1_000_000_000, 100_000_000
NEWEST_SERVER = 18
OLDEST_PYTHON = (3, 11)
MOST_WEBHOOKS = 1000
PATIENCE_SECONDS = 5.0


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what was found and, unless all is well, what to do."""

    name: str
    level: Level
    said: str
    advice: str = ""


def ok(name: str, said: str) -> Finding:
    return Finding(name, Level.OK, said)


def warn(name: str, said: str, advice: str) -> Finding:
    return Finding(name, Level.WARN, said, advice)


def fail(name: str, said: str, advice: str) -> Finding:
    return Finding(name, Level.FAIL, said, advice)


def examine(
    environ: Mapping[str, str],
    given: Mapping[str, object],
    clock: Callable[[], datetime],
    *,
    connect: bool = False,
) -> list[Finding]:
    """All checks that can be made; `connect` also opens a connection to each webhook."""
    found = [python(sys.version_info[:3], platform.system(), platform.machine())]
    try:
        settings = Settings.from_env(environ, **given)
    except BadSettings as error:
        return [*found, *bad_settings(str(error))]
    found += [good_settings(environ), *_port(settings)]
    return found + list(_database(Visit(settings, clock, connect)))


# What can be told without a database.


def python(version: tuple[int, ...], system: str, machine: str) -> Finding:
    said = f"{'.'.join(map(str, version))} on {system} {machine}"
    if version < OLDEST_PYTHON:
        return fail("python", said, "use Python 3.11 or newer")
    if system != "Linux":
        advice = "use Linux in production: elsewhere a killed `serve` leaves its children running"
        return warn("python", said, advice)
    return ok("python", said)


def good_settings(environ: Mapping[str, str]) -> Finding:
    names = sorted(name for name in environ if name.startswith(PREFIX))
    return ok("settings", f"{len(names)} given{': ' if names else ''}{', '.join(names)}")


def bad_settings(problems: str) -> list[Finding]:
    advice = "`docs/operations.md` lists every setting; the other checks need them all"
    return [fail("settings", line, advice) for line in problems.splitlines()]


def data_dir(place: Path) -> Finding:
    """Where the embedded PostgreSQL keeps its files, or where they would be made."""
    there = place.resolve()
    while not there.exists():
        there = there.parent
    if not os.access(there, os.W_OK | os.X_OK):
        return fail("data dir", f"{there} cannot be written to", _CHOOSE_DATA_DIR)
    return space(place, shutil.disk_usage(there).free)


_CHOOSE_DATA_DIR = "choose another directory with SHIFTWATCH_DATA_DIR"


def space(place: Path, free: int) -> Finding:
    said = f"{place} has {free / 1e9:.1f} GB of room"
    if free < NO_SPACE:
        return fail("data dir", said, f"make room at once, or {_CHOOSE_DATA_DIR}")
    if free < LITTLE_SPACE:
        return warn("data dir", said, "make room; `docs/operations.md` says what grows")
    return ok("data dir", said)


def _port(settings: Settings) -> Iterator[Finding]:
    """Whether the service answers there, nobody does, or somebody else."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    shown = f"[{host}]" if ":" in host else host
    where = f"{shown}:{settings.port}"
    if settings.port == 0:
        yield ok("port", "a free one is taken")
        return
    try:
        answer = httpx.get(f"http://{where}/readyz", timeout=PATIENCE_SECONDS, trust_env=False)
    except httpx.ConnectError:
        yield _unserved(host, settings.port, where)
    except httpx.HTTPError:
        yield _stranger(where)
    else:
        yield served(where, answer.status_code, answer.text)


def _unserved(host: str, port: int, where: str) -> Finding:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            advice = "choose another address with SHIFTWATCH_HOST and SHIFTWATCH_PORT"
            return fail("port", f"{where} cannot be listened on: {error.strerror}", advice)
    return ok("port", f"{where} is free; the service does not run here")


def served(where: str, status: int, said: str) -> Finding:
    lines = said.splitlines()
    if not any(line.startswith("recorder:") for line in lines):
        return _stranger(where)
    if status == httpx.codes.OK:
        return ok("port", f"{where} is served by Shiftwatch, which is ready")
    ill = "; ".join(line for line in lines if not line.endswith(": ok"))
    return fail("port", f"Shiftwatch at {where} is not ready: {ill}", "see the checks below")


def _stranger(where: str) -> Finding:
    advice = "end it, or choose another port with SHIFTWATCH_PORT"
    return fail("port", f"{where} is taken by something else", advice)


# The database.


@dataclass(frozen=True, slots=True)
class Visit:
    """What the checks of a database need to know; `running`: a worker may be at work on it."""

    settings: Settings
    clock: Callable[[], datetime]
    connect: bool
    running: bool = True


def _database(visit: Visit) -> Iterator[Finding]:
    settings = visit.settings
    if settings.database_url is not None:
        yield from _reached(visit, settings.database_url.get_secret_value())
        return
    yield data_dir(settings.data_dir)
    if not (settings.data_dir / "pgdata" / "PG_VERSION").exists():
        yield _unmade(settings.pg_bin)
        return
    try:
        with serve.database_url(settings) as (url, embedded):
            # One that we had to start is nobody else's.
            served = embedded is not None and not embedded.start().owned
            yield from _reached(replace(visit, running=served), url)
    except EmbeddedError as error:
        yield fail("database", str(error), "see `postgres.log` in the data directory")


def _unmade(pg_bin: Path | None) -> Finding:
    try:
        found = postgres_binaries.find(pg_bin)
    except EmbeddedError as error:
        return fail("database", "the embedded PostgreSQL cannot be started", str(error))
    return ok("database", f"none yet; `shiftwatch serve` makes one of PostgreSQL {found.major}")


def _reached(visit: Visit, url: str) -> Iterator[Finding]:
    if why := checkup.unreachable(url):
        advice = "is PostgreSQL running there, and are host, port, name and password right?"
        yield fail("database", f"cannot be reached: {why}", advice)
        return
    database = Database(url)
    try:
        with database.begin() as conn:
            yield from _examined(visit, conn)
    finally:
        database.close()


def _examined(visit: Visit, conn: Connection) -> Iterator[Finding]:
    settings = visit.settings
    asked = visit.clock()
    found = checkup.server(conn)
    now = visit.clock()
    yield from server(found, settings.pool_size)
    yield skew(found.now - (asked + (now - asked) / 2))
    yield migrations(schema.current(conn), schema.head(), embedded=settings.database_url is None)
    if not schema.at_head(conn):
        return
    all_keys = keys.all_keys(conn)
    yield access(settings, all_keys)
    if visit.running:
        yield from worker(checkup.backlog(conn, now), now)
        yield outbox(fleet.read(conn, now), now)
    else:
        yield ok("worker", "none, as the service does not run on this data directory")
    allowed = deliver.reach(settings, any_key=bool(all_keys))
    for one in webhooks.page(conn, None, MOST_WEBHOOKS):
        yield webhook(one, allowed, resolve, _connected if visit.connect else None)


def server(found: Server, pool_size: int) -> Iterator[Finding]:
    major = found.version // 10000
    said = f"PostgreSQL {major} answers"
    if found.version < schema.OLDEST_SERVER:
        yield fail("database", said, "use PostgreSQL 15 or newer")
    elif found.replica:
        yield fail("database", f"{said}, but is a replica", "name the primary server in the URL")
    elif major > NEWEST_SERVER:
        yield warn("database", said, f"it is newer than {NEWEST_SERVER}, the last that was tried")
    else:
        yield ok("database", said)
    yield _durability(found.unsafe)
    yield _connections(found.connections, 2 * (pool_size + 1))
    if not found.may_create:
        advice = "make its account the owner of the schema: partitions are made at run time"
        yield fail("rights", "the account cannot make tables beside those of the service", advice)


def _durability(unsafe: frozenset[str]) -> Finding:
    said = f"{', '.join(sorted(unsafe))} off"
    if unsafe & {"fsync", "full_page_writes"}:
        advice = "turn it on: without it a crash of the machine can destroy the database"
        return fail("durability", said, advice)
    if unsafe:
        advice = "turn it on: without it a crash loses predictions that were acknowledged"
        return warn("durability", said, advice)
    return ok("durability", "what is acknowledged is on disk")


def _connections(there: int, needed: int) -> Finding:
    said = f"{there} in all; one API and one worker take up to {needed}"
    if there < needed:
        advice = "raise max_connections of PostgreSQL, or lower SHIFTWATCH_POOL_SIZE"
        return warn("connections", said, advice)
    return ok("connections", said)


def skew(difference: timedelta) -> Finding:
    """Between the clock of the database and ours."""
    seconds = difference.total_seconds()
    if abs(difference) <= SKEW:
        return ok("clock", f"{abs(seconds):.1f} s from the database's")
    said = f"the database's is {abs(seconds):.0f} s {'ahead' if seconds > 0 else 'behind'}"
    advice = "set the clocks of both machines by NTP: panes and alarms go by them"
    return (fail if abs(difference) > TOO_MUCH_SKEW else warn)("clock", said, advice)


def migrations(current: str | None, head: str | None, *, embedded: bool) -> Finding:
    if current is None:
        said = "the database is empty"
    elif current == head:
        return ok("schema", f"at {current}, as this release wants it")
    elif head is not None and current > head:
        return ok("schema", f"at {current}, of a newer release; this one works on it")
    else:
        said = f"at {current}, not at {head}"
    if embedded:
        return warn("schema", said, "`shiftwatch serve` brings it up to date when it starts")
    return fail("schema", said, "run `shiftwatch migrate`; back up before, if it is not empty")


def access(settings: Settings, all_keys: Sequence[ApiKey]) -> Finding:
    valid = [key for key in all_keys if key.revoked_at is None]
    make_one = "make one with `shiftwatch key create --scope admin`"
    if settings.auth == "off":
        if settings.loopback:
            return ok("keys", "none asked for: SHIFTWATCH_AUTH is off, on this machine only")
        advice = "unset SHIFTWATCH_AUTH, unless something in front keeps strangers out"
        return warn("keys", f"anybody who reaches {settings.host} may do everything", advice)
    if not all_keys and settings.loopback:
        return ok("keys", "none, and none needed: only this machine can reach the service")
    if not all_keys:
        return fail("keys", f"none, so the service does not start on {settings.host}", make_one)
    if not valid:
        return fail("keys", "all are revoked: nobody gets in", make_one)
    if not any(key.allows(Scope.ADMIN) for key in valid):
        return warn("keys", f"{len(valid)} valid, none of them for `admin`", make_one)
    return ok("keys", f"{len(valid)} valid")


def worker(found: Backlog, now: datetime) -> Iterator[Finding]:
    """Whether somebody evaluates what came in."""
    oldest = min(filter(None, (found.due_since, found.arrived_at)), default=now)
    if now - oldest > WAITS_TOO_LONG:
        said = f"an evaluation has been waiting for {(now - oldest).total_seconds():.0f} s"
        advice = "is `shiftwatch worker` (or `serve`) running? If it is, run one more"
        yield fail("worker", said, advice)
    else:
        yield ok("worker", f"nothing waits for it; models: {found.models}")
    if found.failing:
        said = f"cannot be evaluated: {', '.join(found.failing)}"
        yield fail("models", said, "look for `evaluation failed` in the worker's log")


# Webhooks.


def outbox(found: Fleet, now: datetime) -> Finding:
    late = now - (found.oldest_pending_at or now) > WAITS_TOO_LONG
    said = f"{found.pending} on their way, {found.dead} given up"
    if late:
        advice = "is `shiftwatch worker` running? GET /v1/webhooks/{id}/deliveries says more"
        return fail("notices", f"{said}; one should have gone long ago", advice)
    if found.dead:
        advice = "GET /v1/webhooks/{id}/deliveries?state=dead says why; replay them when mended"
        return warn("notices", said, advice)
    return ok("notices", said)


def webhook(
    hook: Webhook,
    allowed: Reach,
    look_up: Resolve,
    connected: Callable[[str, int], str | None] | None,
) -> Finding:
    """Whether a notice would get there, as far as that can be told without sending one."""
    url = httpx.URL(hook.url)
    # The rest of a chat's address is a secret.
    name = f"webhook {hook.id}"
    where = f"{url.scheme}://{url.netloc.decode()}"
    if hook.disabled_at is not None:
        advice = f"POST /v1/webhooks/{hook.id}/enable when it is mended"
        return warn(name, f"{where} is disabled: {hook.disabled_because}", advice)
    if reason := deliver.refused_url(hook.url, allowed):
        return fail(name, f"{where} gets no notice: the URL {reason}", "change its address")
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        addresses = look_up(url.raw_host.decode(), port)
    except (OSError, UnicodeError):
        return fail(name, f"{url.host} cannot be resolved", "is the name right? ask your DNS")
    for address in addresses:
        if reason := refused(ip_address(address), allowed):
            advice = "SHIFTWATCH_WEBHOOK_ALLOW_PRIVATE=true allows private and loopback addresses"
            return fail(name, f"{where} gets no notice: {reason}", advice)
    if connected is None:
        return ok(name, f"{where} resolves to {addresses[0]}; --test-webhooks connects to it")
    if why := connected(addresses[0], port):
        return fail(name, f"{where} takes no connection: {why}", "is it up? does a firewall deny?")
    return ok(name, f"{where} takes connections; POST /v1/webhooks/{hook.id}/test sends a notice")


def _connected(address: str, port: int) -> str | None:
    """Why no connection can be made; nothing is sent on it."""
    try:
        socket.create_connection((address, port), PATIENCE_SECONDS).close()
    except OSError as error:
        return error.strerror or str(error)
    return None
