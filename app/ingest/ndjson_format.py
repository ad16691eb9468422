"""Batches in NDJSON: a row a line, read a block of lines at a time."""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any, NoReturn

import msgspec
from msgspec.structs import replace

from app.errors import InvalidInput, Malformed
from app.ingest import json_format
from app.ingest.columns import Columns, after, element_pointer, refuse_too_many
from app.ingest.json_format import BROKEN, Body, Row

BLOCK_BYTES = 1024 * 1024
# A row of ten thousand labels has a fifth of this.
LINE_BYTES = 1024 * 1024

_decoder = msgspec.json.Decoder(Row)


def parts(
    source: IO[bytes], labels: tuple[str, ...] = (), *, skip: bool, most_rows: int
) -> Iterator[Columns]:
    """The columns of each block of lines; with `skip`, bad lines are given up one by one."""
    before = 0
    for block in _blocks(source):
        part = _columns(block, labels, before, skip)
        before += part.size
        refuse_too_many(before, most_rows)
        yield part


def _blocks(source: IO[bytes]) -> Iterator[bytes]:
    """Whole lines, about a block of them at a time."""
    rest = b""
    while block := source.read(BLOCK_BYTES):
        end = block.rfind(b"\n") + 1
        if not end:
            rest += block
            if len(rest) > LINE_BYTES:
                raise Malformed(f"a line is longer than {LINE_BYTES} bytes")
            continue
        yield rest + block[:end]
        rest = block[end:]
    if rest:
        yield rest


def _columns(block: bytes, labels: tuple[str, ...], before: int, skip: bool) -> Columns:
    try:
        rows = _decode(block, labels)
    except BROKEN:
        if not skip:
            _refuse(block, before)
        return _leniently(block, before)
    return _of_rows(rows, before, labels)


def _decode(block: bytes, labels: tuple[str, ...]) -> list[Row]:
    if labels:
        # Whatever is wrong, the plain decoder says it better.
        with suppress(*BROKEN):
            return json_format.decoders_for(labels).row.decode_lines(block)
    return _decoder.decode_lines(block)


def _of_rows(rows: list[Row], before: int, labels: tuple[str, ...] = ()) -> Columns:
    columns = json_format.from_rows(Body(), rows, labels)
    return replace(columns, pointer=after(element_pointer, before))


def _lines(block: bytes) -> list[bytes]:
    return [line for line in block.split(b"\n") if line.strip()]


def _refuse(block: bytes, before: int) -> NoReturn:
    """Say which line is wrong, and what about it."""
    for record, line in enumerate(_lines(block), before):
        try:
            _decoder.decode(line)
        except msgspec.ValidationError as error:
            flaw = json_format.flaw_within(error, element_pointer(None, record))
            raise InvalidInput(flaw.detail, flaw.pointer) from None
        except BROKEN as error:
            raise Malformed(f"line {record + 1} is not valid JSON: {error}") from None
    raise Malformed("the body is not valid NDJSON")


def _leniently(block: bytes, before: int) -> Columns:
    """Each line by itself. One that is not even JSON refuses all: what else is wrong with it?"""
    flaws: dict[int, Any] = {}
    rows = []
    for record, line in enumerate(_lines(block)):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Malformed(f"line {before + record + 1} is not valid JSON: {error}") from None
        place = element_pointer(None, before + record)
        rows.append(json_format.row_of(value, record, place, flaws))
    return replace(_of_rows(rows, before), flaws=flaws)
