"""Read a request's body: bounded, decompressed, in memory or beside it."""

import hashlib
import io
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from threading import BoundedSemaphore
from typing import IO

from anyio import to_thread
from fastapi import Request
from starlette.requests import ClientDisconnect

from app.api import encodings
from app.errors import TooLarge, Unavailable, UnsupportedMedia
from app.ingest import formats
from app.ingest.columns import no_room

# Smaller bodies are decompressed at once; larger ones must not hold up the event loop.
INLINE_BYTES = 64 * 1024
# What a streamed body takes of the memory before it goes to a file.
MEMORY_BYTES = 4 * 1024 * 1024
# How many bodies may be on their way into files at once.
FILES = BoundedSemaphore(8)


async def read(request: Request, limit: int) -> bytes:
    """The body as the client wrote it, at most `limit` bytes of it."""
    encoding = encodings.of(request.headers.get("content-encoding"))
    _refuse_by_length(request, limit)
    body = await _bounded(request, limit)
    if encoding == "identity":
        return body
    if len(body) <= INLINE_BYTES:
        return encodings.decoded(encoding, body, limit)
    return await to_thread.run_sync(encodings.decoded, encoding, body, limit)


class Received:
    """A body that has come in whole, and can be read from its beginning any number of times."""

    def __init__(self, raw: IO[bytes], size: int, encoding: str, limit: int) -> None:
        self._raw = raw
        self._encoding = encoding
        self._limit = limit
        self.size = size

    def is_small(self, most: int) -> bool:
        """Whether there are at most so many bytes in it; who knows what is in a packed one?"""
        return self._encoding == "identity" and self.size <= most

    def open(self) -> IO[bytes]:
        """What the client wrote: reading more than the limit raises."""
        self._raw.seek(0)
        if self._encoding == "identity":
            return self._raw
        return encodings.reader(self._encoding, self._raw, self._limit)

    def fingerprint(self) -> bytes:
        return hashlib.file_digest(self.open(), "sha256").digest()  # type: ignore[arg-type]


@asynccontextmanager
async def received(request: Request, limit: int) -> AsyncIterator[Received]:
    """A body that need not fit into memory; nobody's thread waits for a client that is slow."""
    encoding = encodings.of(request.headers.get("content-encoding"))
    _refuse_by_length(request, limit)
    parts: list[bytes] = []
    size = 0
    more = True
    while more and size <= min(limit, MEMORY_BYTES):
        part, more = await _part(request)
        size += len(part)
        parts.append(part)
    if size > limit:
        raise _too_large(limit)
    if size <= MEMORY_BYTES:
        yield Received(io.BytesIO(b"".join(parts)), size, encoding, limit)
        return
    with _place(), tempfile.TemporaryFile(prefix="shiftwatch-body-") as file:
        await _write(file, b"".join(parts))
        del parts
        while more:
            part, more = await _part(request)
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            await _write(file, part)
        yield Received(file, size, encoding, limit)


@contextmanager
def _place() -> Iterator[None]:
    """One of the few: slow clients must neither fill the disk nor wait in line for each other."""
    if not FILES.acquire(blocking=False):
        raise Unavailable("too many large bodies are coming in; send this one again")
    try:
        yield
    finally:
        FILES.release()


async def _write(file: IO[bytes], part: bytes) -> None:
    def write() -> None:
        with no_room():
            file.write(part)
            file.flush()

    await to_thread.run_sync(write)


def refuse_all_but_json(request: Request) -> None:
    media = formats.media_type(request.headers.get("content-type"))
    if media != "application/json":
        raise UnsupportedMedia(f"content type {media!r} is not known; use application/json")


def _refuse_by_length(request: Request, limit: int) -> None:
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit)


async def _bounded(request: Request, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    more = True
    while more:
        part, more = await _part(request)
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _part(request: Request) -> tuple[bytes, bool]:
    """The next part of the body, and whether there are more.

    Not by Starlette's generator: any generator takes longer than to receive what it passes on.
    """
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is larger than {limit} bytes", limit)
