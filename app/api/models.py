"""Register, show and forget models."""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Path, Response

from app.api import paging
from app.api.deps import Admin, Conn, Now, Reader, json_body
from app.api.openapi import body_of
from app.api.schemas import ModelBody, ModelPage, ModelView, Slug
from app.storage import models

router = APIRouter(prefix="/v1/models", tags=["models"])

ModelName = Annotated[Slug, Path(description="name of a model, a URL-safe slug")]
IfMatch = Annotated[str | None, Header(description="`ETag` of the state that is to be changed")]


@router.put(
    "/{model}",
    dependencies=[Admin],
    responses={201: {"model": ModelView}},
    openapi_extra=body_of({"application/json": ModelBody}),
)
def put_model(
    model: ModelName,
    body: Annotated[ModelBody, Depends(json_body(ModelBody))],
    conn: Conn,
    now: Now,
    response: Response,
    if_match: IfMatch = None,
) -> ModelView:
    """Register a model, or change its settings. Labels and pane stay once there is a reference."""
    found, created = models.put(conn, model, body.settings(), now, if_match)
    response.status_code = 201 if created else 200
    response.headers["etag"] = found.etag
    return ModelView.of(found)


@router.get("", dependencies=[Reader])
def list_models(conn: Conn, limit: paging.Limit = 50, cursor: paging.Cursor = None) -> ModelPage:
    """All models, by name."""
    found = models.page(conn, paging.name_in(cursor), limit + 1)
    more = paging.by_name(found[limit - 1].name) if len(found) > limit else None
    return ModelPage(items=[ModelView.of(one) for one in found[:limit]], next=more)


@router.get("/{model}", dependencies=[Reader])
def get_model(model: ModelName, conn: Conn, response: Response) -> ModelView:
    found = models.get(conn, model)
    response.headers["etag"] = found.etag
    return ModelView.of(found)


@router.delete("/{model}", dependencies=[Admin], status_code=204)
def delete_model(model: ModelName, conn: Conn, if_match: IfMatch = None) -> None:
    """Forget the model and everything that was recorded of it."""
    models.forget(conn, model, if_match)
