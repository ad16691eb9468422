"""What a route may ask for."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Depends, Request

from app.api.auth import Gate
from app.config import Settings
from app.evaluate import Evaluator
from app.ingest.directory import Directory
from app.ingest.recorder import Recorder
from app.storage.db import Connection, Database
from app.storage.keys import Scope


@dataclass(frozen=True, slots=True)
class Services:
    """What lives as long as the process."""

    settings: Settings
    database: Database
    recorder: Recorder
    directory: Directory
    evaluator: Evaluator
    gate: Gate


def services(request: Request) -> Services:
    found: Services = request.app.state.services
    return found


def transaction(request: Request) -> Iterator[Connection]:
    with services(request).database.begin() as conn:
        yield conn


def now() -> datetime:
    return datetime.now(UTC)


def needs(scope: Scope) -> Callable[[Request], Awaitable[None]]:
    async def admit(request: Request) -> None:
        await services(request).gate.admit(request, scope)

    return admit


# FastAPI ends a yield-dependency after the response has left unless told otherwise: the caller
# would read 2xx before, or without, the commit.
Conn = Annotated[Connection, Depends(transaction, scope="function")]
Now = Annotated[datetime, Depends(now)]
Reader = Depends(needs(Scope.READ))
Admin = Depends(needs(Scope.ADMIN))
