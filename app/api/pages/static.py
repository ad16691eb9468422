"""Styles and scripts, each under a path that changes with its content."""

from fastapi import APIRouter, Response

from app.errors import NotFound
from app.web import render

router = APIRouter(include_in_schema=False)


@router.get("/static/{name}")
def get_static(name: str) -> Response:
    found = render.files().get(name)
    if found is None:
        raise NotFound(f"there is no file {name!r}")
    content, media_type = found
    headers = {
        "content-type": media_type,
        "cache-control": "public, max-age=31536000, immutable",
        "x-content-type-options": "nosniff",
    }
    return Response(content, headers=headers)


@router.get("/favicon.ico")
def get_icon() -> Response:
    return get_static("icon.svg")
