"""Is the process alive, and can it do its work?"""

from collections.abc import Callable

from fastapi import APIRouter, Request, Response

from app.api.deps import Services, services
from app.errors import NotFound, Unavailable
from app.storage import schema

router = APIRouter(tags=["health"])


def _database(own: Services) -> None:
    own.database.ping()


def _schema(own: Services) -> None:
    with own.database.begin() as conn:
        if not schema.at_head(conn):
            raise Unavailable(
                f"the schema is at {schema.current(conn)}, not at {schema.head()}; "
                "run `shiftwatch migrate`"
            )


def _recorder(own: Services) -> None:
    if not own.recorder.alive:
        raise Unavailable("the recorder is stopping, stuck or dead")


CHECKS: dict[str, Callable[[Services], None]] = {
    "database": _database,
    "schema": _schema,
    "recorder": _recorder,
}


@router.head("/livez", include_in_schema=False)
@router.get("/livez")
@router.get("/healthz", include_in_schema=False)
async def livez() -> Response:
    """The event loop turns. Nothing else is asked: a database that is away needs no restart."""
    return Response("ok\n", media_type="text/plain")


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz")
def readyz(request: Request) -> Response:
    """Whether requests can be served: a line for each check, 503 if one fails."""
    return _report(services(request), list(CHECKS))


@router.get("/readyz/{check}")
def readyz_check(check: str, request: Request) -> Response:
    if check not in CHECKS:
        raise NotFound(f"there is no check {check!r}; there are: {', '.join(CHECKS)}")
    return _report(services(request), [check])


def _report(own: Services, names: list[str]) -> Response:
    found = {name: _failure(own, name) for name in names}
    lines = [f"{name}: {why or 'ok'}\n" for name, why in found.items()]
    status = 503 if any(found.values()) else 200
    return Response("".join(lines), status_code=status, media_type="text/plain")


def _failure(own: Services, name: str) -> str | None:
    try:
        CHECKS[name](own)
    except Unavailable as error:
        return str(error)
    return None
