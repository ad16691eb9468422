"""A body comes in parts, is as long as it may be, or does not come to its end."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.types import Message

from app.api import bodies
from app.errors import TooLarge


def request(*parts: bytes, hangs_up: bool = False) -> Request:
    """One whose body comes in these parts; who hangs up does so instead of the last."""
    *some, last = parts
    messages: list[Message] = [
        *({"type": "http.request", "body": part, "more_body": True} for part in some),
        {"type": "http.disconnect"} if hangs_up else {"type": "http.request", "body": last},
    ]
    left = iter(messages)

    async def receive() -> Message:
        return next(left)

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


def read(one: Request, limit: int) -> bytes:
    return asyncio.run(bodies.read(one, limit))


def received(one: Request, limit: int) -> bytes:
    async def content() -> bytes:
        async with bodies.received(one, limit) as body:
            found: bytes = body.open().read()
            assert body.size == len(found)
            return found

    return asyncio.run(content())


Reader = Callable[[Request, int], bytes]
READERS = pytest.mark.parametrize("reader", [read, received])
SIZES = pytest.mark.parametrize("memory", [3, 5, 6, 7, 100])


@READERS
@SIZES
@pytest.mark.parametrize("parts", [[b"abcdef"], [b"abc", b"", b"def"], [b"abcde", b"f"]])
def test_all_parts_are_read(
    reader: Reader, parts: Sequence[bytes], memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "MEMORY_BYTES", memory)

    assert reader(request(*parts), 6) == b"abcdef"


@READERS
@SIZES
@pytest.mark.parametrize("parts", [[b"abcdef"], [b"abc", b"", b"def"], [b"abcde", b"f"]])
def test_a_byte_too_many_is_refused(
    reader: Reader, parts: Sequence[bytes], memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "MEMORY_BYTES", memory)

    with pytest.raises(TooLarge):
        reader(request(*parts), 5)


@READERS
@SIZES
def test_whoever_hangs_up_has_sent_nothing(
    reader: Reader, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "MEMORY_BYTES", memory)

    with pytest.raises(ClientDisconnect):
        reader(request(b"abc", b"def", b"g", hangs_up=True), 100)
