"""What a route may ask for."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, TypeVar

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from app.api import bodies
from app.api.auth import Gate
from app.api.gauges import Gauges
from app.api.pace import Answers, Pace
from app.config import Settings
from app.evaluate.look import Evaluator
from app.ingest.directory import Directory
from app.ingest.recorder import Recorder
from app.storage.db import Connection, Database
from app.storage.keys import ApiKey, Scope

Body = TypeVar("Body", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Services:
    """What lives as long as the process."""

    settings: Settings
    database: Database
    recorder: Recorder
    directory: Directory
    evaluator: Evaluator
    gate: Gate
    gauges: Gauges
    pace: Pace
    answers: Answers


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
        request.state.key = await services(request).gate.admit(request, scope)

    return admit


def caller(request: Request) -> str:
    """Who asks, by the name of the key; for routes that need a scope."""
    key: ApiKey | None = request.state.key
    return "anonymous" if key is None else key.name


def json_body(kind: type[Body], *, optional: bool = False) -> Callable[[Request], Awaitable[Body]]:
    """A body of that kind, read like any other: bounded, perhaps compressed, JSON and nothing else.

    FastAPI's own way of reading a body knows no bounds. Where it is `optional`, no body at all
    stands for one that says nothing.
    """

    async def read(request: Request) -> Body:
        content = await bodies.read(request, services(request).settings.max_body_bytes)
        if optional and not content:
            return kind()
        bodies.refuse_all_but_json(request)
        try:
            return kind.model_validate_json(content)
        except ValidationError as error:
            flaws = error.errors(include_url=False, include_input=False, include_context=False)
            raise RequestValidationError(
                [{**flaw, "loc": ("body", *flaw["loc"])} for flaw in flaws]
            ) from None

    return read


# FastAPI ends a yield-dependency after the response has left unless told otherwise: the caller
# would read 2xx before, or without, the commit.
Conn = Annotated[Connection, Depends(transaction, scope="function")]
Now = Annotated[datetime, Depends(now)]
Caller = Annotated[str, Depends(caller)]
Ingest = Depends(needs(Scope.INGEST))
Reader = Depends(needs(Scope.READ))
Admin = Depends(needs(Scope.ADMIN))
