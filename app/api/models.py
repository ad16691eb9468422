"""Register, show and forget models."""

import re
from typing import Annotated

from fastapi import APIRouter, Header, Path, Response

from app.api import paging
from app.api.deps import Admin, Conn, Now, Reader
from app.api.schemas import ModelBody, ModelPage, ModelView, Slug
from app.errors import Flaw, InvalidInput
from app.storage import models

router = APIRouter(prefix="/v1/models", tags=["models"])

ModelName = Annotated[Slug, Path(description="name of a model, a URL-safe slug")]
IfMatch = Annotated[str | None, Header(description="`ETag` of the state that is to be changed")]


@router.put("/{model}", dependencies=[Admin], responses={201: {"model": ModelView}})
def put_model(
    model: ModelName,
    body: ModelBody,
    conn: Conn,
    now: Now,
    response: Response,
    if_match: IfMatch = None,
) -> ModelView:
    """Register a model, or change its settings. Labels and pane stay once there is a reference."""
    found, created = models.put(conn, model, body.settings(), now, _revision(if_match))
    response.status_code = 201 if created else 200
    response.headers["etag"] = _etag(found.revision)
    return ModelView.of(found)


@router.get("", dependencies=[Reader])
def list_models(conn: Conn, limit: paging.Limit = 50, cursor: paging.Cursor = None) -> ModelPage:
    """All models, by name."""
    after = paging.decode(cursor, 1)
    found = models.page(conn, None if after is None else str(after[0]), limit + 1)
    more = paging.encode(found[limit - 1].name) if len(found) > limit else None
    return ModelPage(items=[ModelView.of(one) for one in found[:limit]], next=more)


@router.get("/{model}", dependencies=[Reader])
def get_model(model: ModelName, conn: Conn, response: Response) -> ModelView:
    found = models.get(conn, model)
    response.headers["etag"] = _etag(found.revision)
    return ModelView.of(found)


@router.delete("/{model}", dependencies=[Admin], status_code=204)
def delete_model(model: ModelName, conn: Conn) -> None:
    """Forget the model and everything that was recorded of it."""
    models.forget(conn, model)


def _etag(revision: int) -> str:
    return f'"{revision}"'


def _revision(if_match: str | None) -> int | None:
    if if_match is None:
        return None
    found = re.fullmatch(r'"(\d{1,9})"', if_match.strip())
    if found is None:
        detail = 'must be an ETag of this model, such as "3"'
        raise InvalidInput(f"If-Match {detail}", flaws=[Flaw(detail, parameter="if-match")])
    return int(found[1])
