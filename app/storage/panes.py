"""Panes: sums of predictions per model, version and slice of time."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any, Literal, NamedTuple

import numpy as np
from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    Table,
    any_,
    bindparam,
    delete,
    func,
    literal,
    select,
    text,
    tuple_,
)
from sqlalchemy.dialects.postgresql import insert

from app.stats import moments
from app.stats.moments import Sums
from app.storage.db import binary_rows, run, written
from app.storage.tables import pane, rollup

Kind = Literal["hard", "soft"]


class PaneKey(NamedTuple):
    """Panes of two versions, or with and without softmax rows, are never added up."""

    model_id: int
    version: str
    start: datetime
    kind: Kind


@dataclass(frozen=True, slots=True)
class Pane:
    """All predictions of one version in one slice of time: that of one pane, or of a block."""

    start: datetime
    version: str
    sums: Mapping[Kind, Sums]
    panes: int = 1

    @property
    def counts(self) -> moments.Counts:
        return np.asarray(np.sum([part.counts for part in self.sums.values()], axis=0))


def add(conn: Connection, sums: Mapping[PaneKey, Sums], shard: int, now: datetime) -> None:
    """Add to what the panes already hold.

    A pane is a row per `shard`, so that writers do not all wait for the row of the present.
    """
    # Sorted so that two transactions touching the same panes lock them in the same order;
    # unsorted, they can deadlock.
    keys = sorted(sums, key=lambda key: (key.kind, key))
    for kind, some in groupby(keys, lambda key: key.kind):
        run(conn, _UPSERT[kind], *(_row(key, shard, now, sums[key]) for key in some))


def _row(key: PaneKey, shard: int, now: datetime, part: Sums) -> dict[str, Any]:
    return {**key._asdict(), "shard": shard, "updated_at": now, **_values(part)}


class OwnPane(NamedTuple):
    """A pane of one version, and the shard in it that is a single source's."""

    model_id: int
    version: str
    start: datetime
    shard: int


# Arrays make it one condition for any number of panes. The bounds are for the planner.
OWN_PANES = text(
    "start BETWEEN :first AND :last AND (model_id, version, start, shard) IN (SELECT * FROM"
    " unnest(CAST(:model_id AS int[]), CAST(:version AS text[]),"
    " CAST(:start AS timestamptz[]), CAST(:shard AS smallint[])))"
)


def own_panes(keys: Collection[OwnPane]) -> dict[str, Any]:
    """What `OWN_PANES` is to be filled with, for at least one."""
    starts = [key.start for key in keys]
    return {
        "first": min(starts),
        "last": max(starts),
        "model_id": [key.model_id for key in keys],
        "version": [key.version for key in keys],
        "start": starts,
        "shard": [key.shard for key in keys],
    }


def of_sources(conn: Connection, keys: Collection[OwnPane]) -> dict[OwnPane, dict[Kind, Sums]]:
    """What sources have said of these panes."""
    found: defaultdict[OwnPane, dict[Kind, Sums]] = defaultdict(dict)
    for row in conn.execute(select(pane).where(OWN_PANES), own_panes(keys)):
        found[OwnPane(row.model_id, row.version, row.start, row.shard)][row.kind] = _sums(row)
    return dict(found)


def put(conn: Connection, sums: Mapping[OwnPane, Mapping[Kind, Sums]], now: datetime) -> None:
    """Let these panes of sources hold exactly this, whatever they held.

    Nothing is subtracted: what was there goes, so that sums of floats are those that came.
    """
    conn.execute(delete(pane).where(OWN_PANES), own_panes(sums))
    kinds: tuple[Kind, ...] = ("hard", "soft")
    for kind in kinds:
        rows = [
            {**key._asdict(), "kind": kind, "updated_at": now, **_values(parts[kind])}
            for key, parts in sums.items()
            if kind in parts
        ]
        if rows:
            conn.execute(insert(pane), rows)


def between(
    conn: Connection,
    model_id: int,
    start: datetime,
    end: datetime,
    version: str | None = None,
    after: tuple[datetime, str] | None = None,
    limit: int = 1000,
    size: int = 1,
) -> list[Pane]:
    """Up to `limit` panes that begin at `start` or later and before `end`, oldest first.

    With a `size`, blocks of so many instead.
    """
    source, own = _source(size)
    own = [*own, source.c.model_id == model_id]
    if version is not None:
        own.append(source.c.version == version)
    order = (source.c.start, source.c.version)
    query = select(*order).where(*own, source.c.start >= start, source.c.start < end)
    if after is not None:
        query = query.where(tuple_(*order) > after)
    keys = conn.execute(query.distinct().order_by(*order).limit(limit)).all()
    if not keys:
        return []
    # The bounds on `start` alone are what lets the planner leave partitions out.
    rows = select(source).where(
        *own,
        source.c.start.between(keys[0].start, keys[-1].start),
        tuple_(*order).between(tuple_(*keys[0]), tuple_(*keys[-1])),
    )
    return list(_panes(conn, rows.order_by(*order), size))


def _source(size: int) -> tuple[Table, list[ColumnElement[bool]]]:
    """Where blocks of so many panes are, and which rows there: blocks may be kept empty."""
    if size == 1:
        return pane, []
    return rollup, [rollup.c.panes == size, literal(0) < any_(rollup.c.counts)]


class Piece(NamedTuple):
    """Sums of a stretch of time that begins at `start`."""

    start: datetime
    kind: Kind
    sums: Sums


PIECE_COLUMNS = 'start, kind, counts, prob, "outer", cells, codes, code_counts, score'

_PIECES = (
    f"SELECT {PIECE_COLUMNS} FROM pane"
    " WHERE model_id = %s AND version = %s AND start >= %s AND start < %s"
)


def pieces(
    conn: Connection, model_id: int, version: str, start: datetime, end: datetime
) -> list[Piece]:
    """The panes of one version that begin at `start` or later and before `end`, by shard."""
    rows = binary_rows(conn, _PIECES, (model_id, version, start, end))
    return [piece(row) for row in rows]


def newest(
    conn: Connection, model_id: int, version: str, start: datetime, end: datetime, limit: int
) -> list[tuple[datetime, dict[Kind, Sums]]]:
    """Up to `limit` panes between these, the newest first."""
    starts = conn.execute(
        select(pane.c.start)
        .where(pane.c.model_id == model_id, pane.c.version == version)
        .where(pane.c.start >= start, pane.c.start < end)
        .distinct()
        .order_by(pane.c.start.desc())
        .limit(limit)
    ).scalars()
    found = list(starts)
    if not found:
        return []
    return by_start(pieces(conn, model_id, version, found[-1], end))


def by_start(some: Iterable[Piece]) -> list[tuple[datetime, dict[Kind, Sums]]]:
    """The sums of pieces that begin together, the newest first."""
    found: defaultdict[datetime, list[Piece]] = defaultdict(list)
    for one in some:
        found[one.start].append(one)
    return [(start, added_up(found[start])) for start in sorted(found, reverse=True)]


def added_up(some: Iterable[Piece]) -> dict[Kind, Sums]:
    """The sums of all pieces; those with and without softmax rows apart."""
    parts: defaultdict[Kind, list[Sums]] = defaultdict(list)
    for one in some:
        parts[one.kind].append(one.sums)
    return {kind: moments.total(of_kind) for kind, of_kind in sorted(parts.items())}


def recent(
    conn: Connection, model_id: int, version: str, start: datetime, end: datetime, rows: int
) -> moments.Counts | None:
    """Predictions by label in the newest rows of panes between these, if there are any."""
    found = binary_rows(conn, SIZES_BACK, (model_id, version, start, end, rows))
    return np.sum([counts for _, counts in found], axis=0) if found else None


# How many rows are read to begin with; each further reading is twice as long.
FIRST_READING = 128

SIZES_BACK = (
    "SELECT start, counts FROM pane WHERE model_id = %s AND version = %s"
    " AND start >= %s AND start < %s ORDER BY start DESC LIMIT %s"
)


def back(
    conn: Connection, query: str, own: Sequence[Any], end: datetime, count: int
) -> tuple[datetime, int]:
    """Where the newest panes before `end` begin that together hold at least `count` predictions.

    And how many these hold, fewer if there are no more. Reads back only as far as it must: a window
    must not get slower with the age of its model.
    """
    reading, total = FIRST_READING, 0
    start: datetime = end
    while True:
        rows = binary_rows(conn, query, (*own, start, reading))
        for begin, some in groupby(rows, lambda row: row[0]):
            # A pane is several rows, one a shard, and the reading may have ended among them: the
            # last pane of a full reading is read again, whole. With many sources one pane may be
            # more than a reading, and the next is longer.
            if len(rows) == reading and begin == rows[-1][0]:
                break
            start = begin
            total += int(sum(row[1].sum() for row in some))
            if total >= count:
                return start, total
        if len(rows) < reading:
            return start, total
        reading *= 2


def _panes(conn: Connection, query: Select[Any], size: int) -> Iterator[Pane]:
    rows = conn.execute(query)
    for (start, version), some in groupby(rows, lambda row: (row.start, row.version)):
        yield Pane(start, version, _by_kind(list(some)), size)


def _by_kind(rows: Sequence[Row[Any]]) -> dict[Kind, Sums]:
    parts: defaultdict[Kind, list[Sums]] = defaultdict(list)
    for row in rows:
        parts[row.kind].append(_sums(row))
    return {kind: moments.total(some) for kind, some in sorted(parts.items())}


def _values(part: Sums) -> dict[str, Any]:
    soft = part.soft
    if soft is None:
        return {"counts": part.counts}
    return {
        "counts": part.counts,
        "prob": soft.prob,
        "outer": soft.outer,
        "cells": soft.cells,
        "codes": soft.codes,
        "code_counts": soft.code_counts,
        "score": np.concatenate([[soft.score, soft.score_squared], soft.score_by_label]),
    }


def piece(row: tuple[Any, ...]) -> Piece:
    """A row of `PIECE_COLUMNS`."""
    start, kind, counts, prob, outer, cells, codes, code_counts, score = row
    if kind == "hard":
        return Piece(start, kind, Sums(counts))
    soft = moments.SoftSums(
        prob=prob,
        outer=outer,
        cells=cells,
        # Blocks that an earlier release kept have lost them.
        codes=_NONE if codes is None else codes,
        code_counts=_NONE if code_counts is None else code_counts,
        score=float(score[0]),
        score_squared=float(score[1]),
        score_by_label=score[2:],
    )
    return Piece(start, kind, Sums(counts, soft))


_NONE = np.zeros(0, dtype=np.int64)


def values_of_block(part: Sums) -> dict[str, Any]:
    """The columns of a block, whose codes may be missing."""
    values = _values(part)
    if part.soft is not None and not part.soft.coded:
        values |= {"codes": None, "code_counts": None}
    return values


def _sums(row: Row[Any]) -> Sums:
    if row.kind == "hard":
        return Sums(row.counts)
    soft = moments.SoftSums(
        prob=row.prob,
        outer=row.outer,
        cells=row.cells,
        codes=_NONE if row.codes is None else row.codes,
        code_counts=_NONE if row.code_counts is None else row.code_counts,
        score=float(row.score[0]),
        score_squared=float(row.score[1]),
        score_by_label=row.score[2:],
    )
    return Sums(row.counts, soft)


def _upsert(columns: Sequence[str]) -> str:
    """Add to the row that is there, or be the first."""
    new = insert(pane).values({name: bindparam(name) for name in (*_KEY, *columns, "updated_at")})
    added = {name: func.add_arrays(pane.c[name], new.excluded[name]) for name in columns}
    if "codes" in added:
        was, more = pane.c, new.excluded
        added["codes"] = func.merged_codes(was.codes, more.codes)
        added["code_counts"] = func.merged_code_counts(
            was.codes, was.code_counts, more.codes, more.code_counts
        )
    upsert = new.on_conflict_do_update(
        index_elements=_KEY, set_={**added, "updated_at": new.excluded.updated_at}
    )
    return written(upsert)


_KEY = ("model_id", "version", "start", "kind", "shard")
_UPSERT: dict[Kind, str] = {
    "hard": _upsert(["counts"]),
    "soft": _upsert(["counts", "prob", "outer", "cells", "codes", "code_counts", "score"]),
}
