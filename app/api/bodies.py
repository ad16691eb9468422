"""Read a request's body, bounded and decompressed."""

import gzip
import io
import zlib

from anyio import to_thread
from fastapi import Request

from app.errors import Malformed, TooLarge, UnsupportedMedia
from app.ingest import formats

# Smaller bodies are decompressed at once; larger ones must not hold up the event loop.
INLINE_BYTES = 64 * 1024


async def read(request: Request, limit: int) -> bytes:
    """The body as the client wrote it, at most `limit` bytes of it."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip"):
        raise UnsupportedMedia(f"content encoding {encoding!r} is not known; use gzip, or none")
    _refuse_by_length(request, limit)
    body = await _bounded(request, limit)
    if encoding == "identity":
        return body
    if len(body) <= INLINE_BYTES:
        return gunzip(body, limit)
    return await to_thread.run_sync(gunzip, body, limit)


def refuse_all_but_json(request: Request) -> None:
    media = formats.media_type(request.headers.get("content-type"))
    if media != "application/json":
        raise UnsupportedMedia(f"content type {media!r} is not known; use application/json")


def gunzip(body: bytes, limit: int) -> bytes:
    """What is inside, without ever holding more than `limit` bytes of it."""
    try:
        content = gzip.GzipFile(fileobj=io.BytesIO(body)).read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise Malformed(f"the body is not valid gzip: {error}") from None
    if len(content) > limit:
        raise _too_large(limit)
    return content


def _refuse_by_length(request: Request, limit: int) -> None:
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit)


async def _bounded(request: Request, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is larger than {limit} bytes", limit)
