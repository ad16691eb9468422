"""A batch of predictions as it came in, ready to be reduced as often as its model changes."""

import hashlib
from collections.abc import Iterator
from typing import Protocol

from anyio import CapacityLimiter, to_thread

from app.api.bodies import Received
from app.api.deps import now
from app.ingest import formats, json_format
from app.ingest.columns import Columns
from app.ingest.fold import fold
from app.ingest.reduce import Reduced, Watched, reduce

# Parsing more than this takes milliseconds, which other callers should not wait for.
INLINE_BYTES = 256 * 1024
INLINE_CELLS = 50_000
# How many large bodies are read at once: each takes a processor and tens of megabytes.
STREAMS = CapacityLimiter(4)


class Batch(Protocol):
    @property
    def key(self) -> str | None:
        """What the body itself says that it is called."""

    @property
    def size(self) -> int:
        """Its records, as far as they have been looked at."""

    async def fingerprint(self) -> bytes: ...

    async def reduced(self, watched: Watched) -> Reduced: ...


class JsonBatch:
    """Parsed whole, before anything else is done with it."""

    def __init__(self, content: bytes, columns: Columns, *, skip: bool) -> None:
        self._content = content
        self._columns = columns
        self._skip = skip
        self.key = columns.key
        self.size = columns.size

    async def fingerprint(self) -> bytes:
        return hashlib.sha256(self._content).digest()

    async def reduced(self, watched: Watched) -> Reduced:
        columns, skip = self._columns, self._skip
        if columns.size * watched.model.k <= INLINE_CELLS:
            return reduce(columns, watched, now(), skip=skip)
        return await to_thread.run_sync(lambda: reduce(columns, watched, now(), skip=skip))


async def parsed(content: bytes, labels: tuple[str, ...], *, skip: bool) -> Columns:
    if len(content) <= INLINE_BYTES:
        return json_format.parse(content, labels, skip=skip)
    return await to_thread.run_sync(lambda: json_format.parse(content, labels, skip=skip))


class StreamedBatch:
    """Read part by part, each time anew."""

    key = None

    def __init__(
        self, body: Received, media: str, version: str | None, most_rows: int, *, skip: bool
    ) -> None:
        self._body = body
        self._parse = formats.IN_PARTS[media]
        self._inline = body.is_small(formats.INLINE_BYTES[media])
        self._version = version
        self._most_rows = most_rows
        self._skip = skip
        self.size = 0

    async def fingerprint(self) -> bytes:
        if self._inline:
            return self._body.fingerprint()
        return await to_thread.run_sync(self._body.fingerprint)

    async def reduced(self, watched: Watched) -> Reduced:
        if self._inline:
            return self._fold(watched)
        return await to_thread.run_sync(self._fold, watched, limiter=STREAMS)

    def _fold(self, watched: Watched) -> Reduced:
        return fold(self._parts(watched), watched, self._version, now(), skip=self._skip)

    def _parts(self, watched: Watched) -> Iterator[Columns]:
        self.size = 0
        labels, most_rows = watched.model.labels, self._most_rows
        for part in self._parse(self._body.open(), labels, skip=self._skip, most_rows=most_rows):
            self.size += part.size
            yield part
