"""Sums of many panes in a row, so that a day is not fourteen hundred rows to read.

A rollup is kept for each whole block of 60 and of 1,440 panes that has been over for a while. The
evaluation that takes a late arrival drops the blocks around it; until then whoever reads leaves
those blocks aside and reads the panes themselves. So a rollup is only ever a shorter way to the
same sums.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, delete, insert, tuple_

from app.domain.window import pane_start
from app.stats import moments
from app.stats.moments import Sums
from app.storage import panes, partitions
from app.storage.db import binary_rows
from app.storage.panes import PIECE_COLUMNS, Kind, Piece
from app.storage.partitions import Partition
from app.storage.tables import rollup

# Panes of a block, the largest first; each is a whole number of the next. With panes of a minute
# these are days and hours.
BLOCKS = (1440, 60)


@dataclass(frozen=True, slots=True)
class Keep:
    """Which blocks that are not there yet are to be kept for the next time: those in between."""

    after: datetime
    before: datetime


@dataclass(frozen=True, slots=True)
class Stream:
    """The panes of one version of a model. `pending` are those with arrivals nobody has taken."""

    model_id: int
    version: str
    k: int
    pane: timedelta
    pending: frozenset[datetime] = frozenset()


def total(
    conn: Connection,
    stream: Stream,
    start: datetime,
    end: datetime,
    *,
    keep: Keep | None = None,
) -> dict[Kind, Sums]:
    """The sums of all panes that begin at `start` or later and before `end`."""
    return panes.added_up(_pieces(conn, stream, start, end, BLOCKS, keep))


def needed_partitions(keep: Keep) -> set[Partition]:
    """Where the blocks live that are to be kept."""
    return partitions.covering("rollup", [keep.after, keep.before])


def drop(conn: Connection, stream: Stream, starts: Iterable[datetime]) -> None:
    """Forget the blocks around these panes: more has been added to them."""
    blocks = {(size, pane_start(start, size * stream.pane)) for start in starts for size in BLOCKS}
    if blocks:
        conn.execute(
            delete(rollup).where(
                rollup.c.model_id == stream.model_id,
                rollup.c.version == stream.version,
                tuple_(rollup.c.panes, rollup.c.start).in_(sorted(blocks)),
            )
        )


def _pieces(
    conn: Connection,
    stream: Stream,
    start: datetime,
    end: datetime,
    sizes: tuple[int, ...],
    keep: Keep | None,
) -> Iterator[Piece]:
    if start >= end:
        return
    if not sizes:
        yield from panes.pieces(conn, stream.model_id, stream.version, start, end)
        return
    size, smaller = sizes[0], sizes[1:]
    length = size * stream.pane
    first, last = pane_start(start - EPSILON, length) + length, pane_start(end, length)
    if first >= last:
        yield from _pieces(conn, stream, start, end, smaller, keep)
        return
    yield from _pieces(conn, stream, start, first, smaller, keep)
    kept = _kept(conn, stream, size, first, last)
    for block in _starts(first, last, length):
        if block in kept:
            yield from kept[block]
            continue
        found = panes.added_up(_pieces(conn, stream, block, block + length, smaller, keep))
        if keep is not None and keep.after <= block and block + length <= keep.before:
            _keep(conn, stream, size, block, found)
        yield from (Piece(block, kind, sums) for kind, sums in found.items())
    yield from _pieces(conn, stream, last, end, smaller, keep)


# A time that is itself the start of a block begins that block, not the one after it.
EPSILON = timedelta(microseconds=1)


def _starts(first: datetime, last: datetime, length: timedelta) -> Iterator[datetime]:
    while first < last:
        yield first
        first += length


_KEPT = (
    f"SELECT {PIECE_COLUMNS} FROM rollup"
    " WHERE model_id = %s AND version = %s AND panes = %s AND start >= %s AND start < %s"
)


def _kept(
    conn: Connection, stream: Stream, size: int, first: datetime, last: datetime
) -> dict[datetime, list[Piece]]:
    """The blocks that are there and may be used."""
    stale = _stale(stream.pending, size * stream.pane)
    rows = binary_rows(conn, _KEPT, (stream.model_id, stream.version, size, first, last))
    found: dict[datetime, list[Piece]] = {}
    for one in map(panes.piece, rows):
        if one.start not in stale:
            found.setdefault(one.start, []).append(one)
    return found


def _stale(pending: Collection[datetime], length: timedelta) -> set[datetime]:
    return {pane_start(start, length) for start in pending}


def _keep(
    conn: Connection, stream: Stream, size: int, block: datetime, found: Mapping[Kind, Sums]
) -> None:
    if block in _stale(stream.pending, size * stream.pane):
        return
    # A block without predictions is kept too: otherwise it would be looked for again and again.
    parts = found or {"hard": moments.empty(stream.k, soft=False)}
    conn.execute(
        insert(rollup),
        [
            {
                "model_id": stream.model_id,
                "version": stream.version,
                "panes": size,
                "start": block,
                "kind": kind,
                "prob": None,
                "outer": None,
                "cells": None,
                "score": None,
                **panes.values_without_codes(sums),
            }
            for kind, sums in parts.items()
        ],
    )
