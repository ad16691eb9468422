"""Styles and scripts, each under a path that changes with its content."""

import gzip
from functools import cache

from fastapi import APIRouter, Request, Response

from app.errors import NotFound
from app.web import render

router = APIRouter(include_in_schema=False)


@router.get("/static/{name}")
def get_static(name: str, request: Request) -> Response:
    found = render.files().get(name)
    if found is None:
        raise NotFound(f"there is no file {name!r}")
    content, media_type = found
    headers = {
        "content-type": media_type,
        "cache-control": "public, max-age=31536000, immutable",
        "x-content-type-options": "nosniff",
        "vary": "accept-encoding",
    }
    if "gzip" in request.headers.get("accept-encoding", ""):
        content = _compressed(name)
        headers["content-encoding"] = "gzip"
    return Response(content, headers=headers)


@router.get("/favicon.ico")
def get_icon(request: Request) -> Response:
    return get_static("icon.svg", request)


@cache
def _compressed(name: str) -> bytes:
    content, _ = render.files()[name]
    return gzip.compress(content, mtime=0)
