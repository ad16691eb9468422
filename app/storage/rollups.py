"""Sums of many panes in a row, so that a day is not fourteen hundred rows to read.

A rollup is kept for each whole block of 60 and of 1,440 panes that has been over for a while. The
evaluation that takes a late arrival drops the blocks around it; until then whoever reads leaves
those blocks aside and reads the panes themselves. So a rollup is only ever a shorter way to the
same sums.

Panes before the horizon are gone, and the blocks of 60 are all that is left of them: these are read
whole or not at all, and nothing drops them but their age. A block that the horizon runs through
holds the panes before it, and those after it are still there.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, case, delete, func, select, tuple_
from sqlalchemy.dialects.postgresql import insert

from app.domain.window import EPOCH, pane_start
from app.stats import moments
from app.stats.moments import Sums
from app.storage import horizon, panes, partitions, tables
from app.storage.db import binary_rows
from app.storage.horizon import NOTHING_FORGOTTEN, Horizon
from app.storage.panes import PIECE_COLUMNS, Kind, Pane, Piece
from app.storage.partitions import Partition
from app.storage.tables import rollup

# Panes of a block, the largest first; each is a whole number of the next. With panes of a minute
# these are days and hours.
BLOCKS = (1440, 60)
# What is left of panes that are old.
BLOCK = 60


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
    horizon: Horizon = NOTHING_FORGOTTEN

    @property
    def block(self) -> timedelta:
        return BLOCK * self.pane


def covering(stream: Stream, start: datetime, end: datetime) -> tuple[datetime, datetime]:
    """The span that can be added up in place of this one: old panes go by whole blocks."""
    coarse = stream.horizon.coarse
    oldest = min(_not_before(stream.horizon.forgotten, stream.block), coarse)
    if start >= coarse or end <= oldest:
        return start, end
    if end < coarse:
        end = min(_not_before(end, stream.block), coarse)
    return max(pane_start(start, stream.block), oldest), end


def total(
    conn: Connection,
    stream: Stream,
    start: datetime,
    end: datetime,
    *,
    keep: Keep | None = None,
) -> dict[Kind, Sums]:
    """The sums of all panes that begin at `start` or later and before `end`.

    Of those that are left only as blocks, all blocks that they are in.
    """
    start, end = covering(stream, start, end)
    edge = min(max(start, stream.horizon.coarse), end)
    old = _pieces(conn, stream, start, edge, BLOCKS, keep)
    return panes.added_up(chain(old, _pieces(conn, stream, edge, end, (*BLOCKS, 1), keep)))


_BLOCKS_BACK = (
    f"SELECT start, counts FROM rollup WHERE panes = {BLOCK} AND model_id = %s AND version = %s"
    " AND 0 < ANY (counts) AND start < %s ORDER BY start DESC LIMIT %s"
)


def start_of_last(conn: Connection, stream: Stream, count: int, end: datetime) -> datetime:
    """Where the newest panes before `end`, or blocks, begin that hold at least `count`."""
    own, coarse = (stream.model_id, stream.version), stream.horizon.coarse
    start, found = panes.back(conn, panes.SIZES_BACK, (*own, coarse), end, count)
    if found >= count:
        return start
    older, more = panes.back(conn, _BLOCKS_BACK, own, min(end, coarse), count - found)
    return older if more else start


def newest(
    conn: Connection, stream: Stream, end: datetime, limit: int
) -> list[tuple[datetime, dict[Kind, Sums]]]:
    """Up to `limit` panes that begin before `end`, and blocks where they end, the newest first."""
    own, coarse = (stream.model_id, stream.version), stream.horizon.coarse
    found = panes.newest(conn, *own, coarse, end, limit)
    if len(found) == limit:
        return found
    rows = binary_rows(conn, _NEWEST, (*own, *own, min(end, coarse), limit - len(found)))
    return found + panes.by_start(map(panes.piece, rows))


# A block is a row for each kind, so that their starts are told apart first.
_NEWEST = (
    f"SELECT {PIECE_COLUMNS} FROM rollup WHERE panes = {BLOCK} AND model_id = %s AND version = %s"
    f" AND start IN (SELECT DISTINCT start FROM rollup WHERE panes = {BLOCK}"
    " AND model_id = %s AND version = %s AND 0 < ANY (counts) AND start < %s"
    " ORDER BY start DESC LIMIT %s)"
)


def between(
    conn: Connection,
    model_id: int,
    pane: timedelta,
    start: datetime,
    end: datetime,
    version: str | None = None,
    after: tuple[datetime, str] | None = None,
    limit: int = 1000,
) -> list[Pane]:
    """Up to `limit` panes, or blocks where there are no panes any more, oldest first."""
    coarse, own = horizon.get(conn).coarse, (version, after)
    blocks: list[Pane] = []
    if start < coarse:
        first, last = pane_start(start, BLOCK * pane), min(end, coarse)
        blocks = panes.between(conn, model_id, first, last, *own, limit, BLOCK)
    if len(blocks) == limit or end <= coarse:
        return blocks
    rest = limit - len(blocks)
    return blocks + panes.between(conn, model_id, max(start, coarse), end, *own, rest)


def needed_partitions(keep: Keep) -> set[Partition]:
    """Where the blocks live that are to be kept."""
    return partitions.covering("rollup", [keep.after, keep.before])


def drop(conn: Connection, stream: Stream, starts: Iterable[datetime]) -> None:
    """Forget the blocks around these panes, unless they are all that is left of them."""
    _drop(conn, stream, _around(stream, starts))


def _drop(conn: Connection, stream: Stream, blocks: Collection[tuple[int, datetime]]) -> None:
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
    """The sums in between, from the largest blocks that there are down to the last of `sizes`."""
    if start >= end:
        return
    if len(sizes) == 1:
        yield from _smallest(conn, stream, start, end, sizes[0])
        return
    size, smaller = sizes[0], sizes[1:]
    length = size * stream.pane
    first, last = _not_before(start, length), pane_start(end, length)
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
        if keep is not None and _is_worth_keeping(stream, keep, block, block + length):
            _keep(conn, stream, size, block, found)
        yield from (Piece(block, kind, sums) for kind, sums in found.items())
    yield from _pieces(conn, stream, last, end, smaller, keep)


def _is_worth_keeping(stream: Stream, keep: Keep, block: datetime, end: datetime) -> bool:
    """Whether a block is wanted again, and is not just being made from panes that are to go."""
    going = block < stream.horizon.closed and end > stream.horizon.coarse
    return keep.after <= block and end <= keep.before and not going


def _smallest(
    conn: Connection, stream: Stream, start: datetime, end: datetime, size: int
) -> list[Piece]:
    own = (stream.model_id, stream.version)
    if size == 1:
        return panes.pieces(conn, *own, start, end)
    return [panes.piece(row) for row in binary_rows(conn, _KEPT, (*own, size, start, end))]


def _not_before(at: datetime, length: timedelta) -> datetime:
    """The start of the first block that does not begin before `at`."""
    return at + -(at - EPOCH) % length


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
    return {
        block: pieces
        for block, pieces in found.items()
        if all(map(_has_codes, pieces)) or block < stream.horizon.coarse
    }


def _has_codes(piece: Piece) -> bool:
    """Not so of a block that an earlier release kept: it is made anew while its panes are there."""
    return piece.sums.soft is None or piece.sums.soft.coded


def _stale(pending: Collection[datetime], length: timedelta) -> set[datetime]:
    return {pane_start(start, length) for start in pending}


def _keep(
    conn: Connection, stream: Stream, size: int, block: datetime, found: Mapping[Kind, Sums]
) -> None:
    if block in _stale(stream.pending, size * stream.pane):
        return
    # A block without predictions is kept too: otherwise it would be looked for again and again.
    parts = found or {"hard": moments.empty(stream.k, soft=False)}
    conn.execute(_REPLACE, _rows(stream, size, block, parts))


def _rows(
    stream: Stream, size: int, block: datetime, parts: Mapping[Kind, Sums]
) -> list[dict[str, Any]]:
    return [
        {
            "model_id": stream.model_id,
            "version": stream.version,
            "panes": size,
            "start": block,
            "kind": kind,
            "prob": None,
            "outer": None,
            "cells": None,
            "codes": None,
            "code_counts": None,
            "score": None,
            **panes.values_of_block(sums),
        }
        for kind, sums in parts.items()
    ]


_SUMS = ("counts", "prob", "outer", "cells", "score")
_CODES = ("codes", "code_counts")
_NEW = insert(rollup)
_KEY = ["model_id", "version", "panes", "start", "kind"]
# Only a block without codes is ever there already.
_REPLACE = _NEW.on_conflict_do_update(
    index_elements=_KEY, set_={name: _NEW.excluded[name] for name in (*_SUMS, *_CODES)}
)
_WAS, _MORE = rollup.c, _NEW.excluded
# A block whose codes are missing must not look as if it had some.
_BOTH_HAVE_CODES = _WAS.codes.is_not(None) & _MORE.codes.is_not(None)
_ADD = _NEW.on_conflict_do_update(
    index_elements=_KEY,
    set_={
        **{name: func.add_arrays(_WAS[name], _MORE[name]) for name in _SUMS},
        "codes": case((_BOTH_HAVE_CODES, func.merged_codes(_WAS.codes, _MORE.codes))),
        "code_counts": case(
            (
                _BOTH_HAVE_CODES,
                func.merged_code_counts(
                    _WAS.codes, _WAS.code_counts, _MORE.codes, _MORE.code_counts
                ),
            )
        ),
    },
)


def coarsen(conn: Connection, stream: Stream, first: datetime, end: datetime) -> None:
    """Make blocks hold all that the panes between these hold, which then may go.

    A block that begins before the horizon has lost its panes already: what is there is added to it.
    Any other is left as it was kept, or made now. The transaction must move the horizon to `end`.
    """
    # Those that hold panes on both sides of the new horizon.
    _drop(conn, stream, {(size, start) for size, start in _around(stream, [end]) if start < end})
    whole = _kept_starts(conn, stream, max(first, stream.horizon.coarse), end)
    for block in sorted(_blocks_with_panes(conn, stream, first, end) - whole):
        own = (max(block, first), min(block + stream.block, end))
        found = panes.added_up(panes.pieces(conn, stream.model_id, stream.version, *own))
        _drop(conn, stream, _around(stream, [block]))
        # Where nobody but us can have put anything, it is a mistake if somebody has.
        put = _NEW if block >= stream.horizon.coarse else _ADD
        conn.execute(put, _rows(stream, BLOCK, block, found))


def _blocks_with_panes(
    conn: Connection, stream: Stream, first: datetime, end: datetime
) -> set[datetime]:
    block = func.date_bin(stream.block, tables.pane.c.start, EPOCH)
    return set(conn.execute(select(block).where(_of(stream, first, end)).distinct()).scalars())


def has_panes(conn: Connection, stream: Stream, first: datetime, end: datetime) -> bool:
    """Whether anything was counted between these two."""
    query = select(tables.pane.c.start).where(_of(stream, first, end)).limit(1)
    return conn.execute(query).one_or_none() is not None


def _of(stream: Stream, first: datetime, end: datetime) -> ColumnElement[bool]:
    own = tables.pane.c
    return and_(
        own.model_id == stream.model_id,
        own.version == stream.version,
        own.start >= first,
        own.start < end,
    )


def _kept_starts(conn: Connection, stream: Stream, first: datetime, end: datetime) -> set[datetime]:
    """Where the blocks begin that are there and may be used."""
    own = rollup.c
    rows = conn.execute(
        select(own.start).where(
            own.model_id == stream.model_id,
            own.version == stream.version,
            own.panes == BLOCK,
            own.start >= first,
            own.start < end,
        )
    )
    return set(rows.scalars()) - _stale(stream.pending, stream.block)


def _around(stream: Stream, starts: Iterable[datetime]) -> set[tuple[int, datetime]]:
    """The blocks around these times that can be added up again from what is smaller."""
    blocks = {(size, pane_start(start, size * stream.pane)) for start in starts for size in BLOCKS}
    return {
        (size, start) for size, start in blocks if size > BLOCK or start >= stream.horizon.coarse
    }


def forget_models(conn: Connection, model_ids: Collection[int]) -> None:
    """Forget the blocks of models that are gone."""
    conn.execute(delete(rollup).where(rollup.c.model_id.in_(sorted(model_ids))))
