"""Content encodings of a request: gzip, and zstd where it is installed."""

import gzip
import io
import sys
import zlib
from typing import IO, Any, cast

from app.errors import Malformed, TooLarge, UnsupportedMedia

zstd: Any
try:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
except ImportError:
    zstd = None

# Two to this power: how much of what it wrote before a client may make us remember. More than
# eight megabytes is against RFC 9659.
ZSTD_WINDOW = 23
KNOWN = ("identity", "gzip", "zstd") if zstd is not None else ("identity", "gzip")


def of(header: str | None) -> str:
    """The encoding that a header names."""
    encoding = (header or "identity").strip().lower()
    if encoding not in KNOWN:
        missing = encoding == "zstd"
        advice = "the server lacks the extra `formats`" if missing else f"use one of: {_named()}"
        raise UnsupportedMedia(f"content encoding {encoding!r} is not known; {advice}")
    return encoding


def _named() -> str:
    return ", ".join((*KNOWN[1:], "or none"))


def decoded(encoding: str, body: bytes, limit: int) -> bytes:
    """What is inside, without ever holding more than `limit` bytes of it."""
    return reader(encoding, io.BytesIO(body), limit).read()


def reader(encoding: str, raw: IO[bytes], limit: int) -> IO[bytes]:
    """What is inside, piece by piece; it raises when that turns out to be more than `limit`."""
    if encoding == "gzip":
        opened: IO[bytes] = cast(IO[bytes], gzip.GzipFile(fileobj=raw))
    else:
        opened = zstd.ZstdFile(
            raw, options={zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW}
        )
    return cast(IO[bytes], io.BufferedReader(Bounded(encoding, opened, limit)))


class Bounded(io.RawIOBase):
    """Decompresses no more than it may, and says in our own words what is wrong."""

    def __init__(self, encoding: str, opened: IO[bytes], limit: int) -> None:
        self._encoding = encoding
        self._opened = opened
        self._limit = limit
        self._read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        try:
            part = self._opened.read(min(len(buffer), self._limit + 1 - self._read))
        except _BROKEN as error:
            raise Malformed(f"the body is not valid {self._encoding}: {error}") from None
        self._read += len(part)
        if self._read > self._limit:
            raise TooLarge(f"the body is larger than {self._limit} bytes inside", self._limit)
        buffer[: len(part)] = part
        return len(part)


_BROKEN: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error)
if zstd is not None:
    _BROKEN = (*_BROKEN, zstd.ZstdError)
