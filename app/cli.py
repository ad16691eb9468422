"""The commands."""

import argparse
import http.client
import ipaddress
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app import __version__, allocator, logs, serve
from app.config import BadSettings, Settings
from app.demo import run as demo
from app.demo.run import DemoError
from app.errors import AppError
from app.storage import keys, schema
from app.storage.db import Database
from app.storage.embedded import EmbeddedError
from app.storage.keys import Scope

# Shorter than what orchestrators allow for a check, so that it is us who say what is wrong.
HEALTHY_SECONDS = 4.0

Command = Callable[[Settings, argparse.Namespace], None]


class Refused(Exception):
    """A command cannot do what it was asked; the message says why."""


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    given = {name: getattr(options, name, None) for name in ("host", "port", "data_dir")}
    if options.run is None:
        # Settings that cannot be used are something to tell, here.
        return _doctor(given, options)
    try:
        settings = Settings.from_env(os.environ, **given)
        logs.configure(settings.log_level, settings.log_format)
        options.run(settings, options)
    except BadSettings as error:
        return _fail(f"the settings cannot be used:\n{error}", 2)
    except (AppError, EmbeddedError, schema.WrongServer, DemoError, Refused) as error:
        return _fail(str(error), 1)
    return 0


def _fail(message: str, code: int) -> int:
    print(f"shiftwatch: {message}", file=sys.stderr)
    return code


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="shiftwatch", description="Label-shift monitoring for deployed classifiers."
    )
    found.add_argument("--version", action="version", version=f"shiftwatch {__version__}")
    commands = found.add_subparsers(required=True, metavar="COMMAND")
    _add_serving(commands, "serve", _serve, "the whole service, with a PostgreSQL of its own")
    _add_demo(commands)
    _add_serving(commands, "api", _api, "the API alone, on the PostgreSQL you configured")
    _add(commands, "worker", _worker, "evaluates models and delivers notices; any number of them")
    _add(commands, "migrate", _migrate, "bring the database to the schema of this release")
    _add(commands, "prune", _prune, "forget what is too old, as every worker does by the hour")
    _add_doctor(commands)
    _add_key_commands(commands.add_parser("key", help="who may use the service"))
    healthy = _add(commands, "healthy", _healthy, "whether the process on a port answers well")
    healthy.add_argument("--port", type=int, help="port of the API (8000) or of a worker")
    healthy.add_argument("--path", default="/livez", help="what to ask for (/livez)")
    return found


def _add(commands: Any, name: str, run: Command, help: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=help, description=help)
    command.add_argument("--data-dir", type=Path, help="of the embedded PostgreSQL (.shiftwatch)")
    command.set_defaults(run=run)
    return command


def _add_serving(commands: Any, name: str, run: Command, help: str) -> None:
    command = _add(commands, name, run, help)
    command.add_argument("--host", help="address to listen on (127.0.0.1)")
    command.add_argument("--port", type=int, help="port to listen on (8000)")


def _add_demo(commands: Any) -> None:
    help = "the service with two models, their traffic, and something that happens to each"
    command: argparse.ArgumentParser = commands.add_parser("demo", help=help, description=help)
    command.add_argument("--port", type=int, help="port to listen on (8000)")
    command.add_argument(
        "--data-dir",
        type=Path,
        help="where to keep the demo's data, a directory that is not there yet; "
        "left out, everything goes when it ends",
    )
    command.add_argument(
        "--speed", type=_positive, default=1.0, help="of the story; 0.5 takes twice as long (1)"
    )
    command.add_argument("--minutes", type=_positive, help="end by itself after so many")
    # For the process that `demo` itself starts.
    command.add_argument("--tell", metavar="URL", help=argparse.SUPPRESS)
    command.set_defaults(run=_demo)


def _add_doctor(commands: Any) -> None:
    help = "check settings, database, clock, worker and webhooks, and say what to do"
    command: argparse.ArgumentParser = commands.add_parser("doctor", help=help, description=help)
    command.add_argument("--data-dir", type=Path, help="of the embedded PostgreSQL (.shiftwatch)")
    command.add_argument("--json", action="store_true", help="for programs")
    command.add_argument(
        "--test-webhooks",
        action="store_true",
        help="also open a connection to each webhook; nothing is sent on it",
    )
    command.set_defaults(run=None)


def _positive(text: str) -> float:
    number = float(text)
    if not 0.0 < number < float("inf"):
        raise ValueError(text)
    return number


def _add_key_commands(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    create = _add(commands, "create", _create_key, "make a key and print its secret, once")
    create.add_argument(
        "--scope", action="append", required=True, choices=[scope.value for scope in Scope]
    )
    create.add_argument("--name", default="unnamed", help="to tell keys apart")
    create.add_argument(
        "--secret-file",
        type=Path,
        help="take the secret from there and print none; the same again changes nothing",
    )
    _add(commands, "list", _list_keys, "show all keys, without their secrets")
    revoke = _add(commands, "revoke", _revoke_key, "end a key for good")
    revoke.add_argument("id", type=int)


def _serve(settings: Settings, _: argparse.Namespace) -> None:
    serve.run(settings)


def _demo(settings: Settings, options: argparse.Namespace) -> None:
    if options.tell is not None:
        from app.demo import tell  # takes as long to load as the API

        tell.tell(options.tell, options.speed, options.minutes)
    else:
        demo.run(settings, options.data_dir, options.speed, options.minutes)


def _doctor(given: dict[str, Any], options: argparse.Namespace) -> int:
    from app import doctor  # takes as long to load as the worker

    found = doctor.examine(
        os.environ, given, lambda: datetime.now(UTC), connect=options.test_webhooks
    )
    if options.json:
        print(json.dumps([asdict(one) for one in found], indent=2))
    else:
        for one in found:
            print(f"{one.level:<4}  {one.name:<12}  {one.said}")
            if one.advice:
                print(f"{'':20}-> {one.advice}")
    return int(any(one.level is doctor.Level.FAIL for one in found))


def _api(settings: Settings, _: argparse.Namespace) -> None:
    if settings.database_url is None:
        raise Refused("`api` needs SHIFTWATCH_DATABASE_URL; `serve` brings a PostgreSQL of its own")
    allocator.settle()
    # Here, because the web framework and SciPy take most of a second to load, which the process
    # that looks after the others and the small commands can do without.
    from app.api import server

    database = Database(settings.database_url.get_secret_value(), settings.pool_size)
    try:
        server.run(settings, database)
    except server.Exposed as error:
        raise Refused(str(error)) from None
    finally:
        database.close()


def _worker(settings: Settings, _: argparse.Namespace) -> None:
    if settings.database_url is None:
        raise Refused("`worker` needs SHIFTWATCH_DATABASE_URL; `serve` runs one of its own")
    allocator.settle()
    from app import vitals, worker  # takes as long to load as the API

    database = Database(settings.database_url.get_secret_value(), settings.pool_size)
    try:
        worker.run(settings, database)
    except vitals.CannotListen as error:
        raise Refused(str(error)) from None
    finally:
        database.close()


def _migrate(settings: Settings, _: argparse.Namespace) -> None:
    with _database(settings) as database:
        schema.upgrade(database)
        with database.begin() as conn:
            print(f"the schema is at {schema.current(conn)}")


def _prune(settings: Settings, _: argparse.Namespace) -> None:
    from app import prune  # takes as long to load as the worker

    with _database(settings) as database:
        with database.begin() as conn:
            if not schema.at_head(conn):
                raise Refused("the database is not at the schema of this release: `migrate` first")
        try:
            report = prune.prune_now(database, settings, datetime.now(UTC))
        except prune.WrongClock as error:
            raise Refused(str(error)) from None
    for one in report.purged:
        print(f"{one.partition or one.table}\t{one.rows} rows")
    if report.busy:
        raise Refused("somebody else is pruning just now")
    if not report.purged:
        print("nothing was too old")
    if report.failed:
        raise Refused(f"could not be pruned now: {', '.join(report.failed)}")


def _create_key(settings: Settings, options: argparse.Namespace) -> None:
    scopes = [Scope(scope) for scope in options.scope]
    given = None if options.secret_file is None else _secret(options.secret_file)
    with _database(settings) as database:
        schema.upgrade(database)
        with database.begin() as conn:
            if given is None:
                _, answer = keys.create(conn, options.name, scopes, datetime.now(UTC))
            else:
                key, new = keys.adopt(conn, options.name, scopes, given, datetime.now(UTC))
                answer = f"key {key.id} ({key.name}) {'is made' if new else 'was there already'}"
    print(answer)


def _secret(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise Refused(f"cannot read the secret in {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Refused(f"cannot read the secret in {path}: not UTF-8") from None


def _list_keys(settings: Settings, _: argparse.Namespace) -> None:
    with _database(settings) as database, database.begin() as conn:
        for key in keys.all_keys(conn):
            state = f"revoked {key.revoked_at:%Y-%m-%d}" if key.revoked_at else "valid"
            print(f"{key.id}\t{key.name}\t{','.join(sorted(key.scopes))}\t{key.hint}…\t{state}")


def _revoke_key(settings: Settings, options: argparse.Namespace) -> None:
    with _database(settings) as database, database.begin() as conn:
        key = keys.revoke(conn, options.id, datetime.now(UTC))
        print(f"key {key.id} ({key.name}) is revoked")


def _healthy(settings: Settings, options: argparse.Namespace) -> None:
    # No client that would heed a proxy: the process is on this machine.
    host = _reachable(settings.host)
    place = f"{host} port {settings.port}, {options.path}"
    connection = http.client.HTTPConnection(host, settings.port, timeout=HEALTHY_SECONDS)
    try:
        connection.request("GET", options.path)
        answer = connection.getresponse()
        body = answer.read().decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        raise Refused(f"{place}: no answer: {error}") from None
    finally:
        connection.close()
    if answer.status != 200:
        raise Refused(f"{place}: {answer.status} {body}")
    print(f"{place}: {body}")


def _reachable(host: str) -> str:
    """Where a process that listens on `host` is reached from its own machine."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if not address.is_unspecified:
        return host
    return "127.0.0.1" if address.version == 4 else "::1"


@contextmanager
def _database(settings: Settings) -> Iterator[Database]:
    """The configured database, or the embedded one: the running one, or started for a moment."""
    with serve.database_url(settings) as (url, _):
        database = Database(url)
        try:
            yield database
        finally:
            database.close()
