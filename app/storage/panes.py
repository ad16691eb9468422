"""Panes: sums of predictions per model, version and slice of time."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any, Literal, NamedTuple

import numpy as np
from sqlalchemy import Connection, Row, Select, func, select, text, tuple_
from sqlalchemy.dialects.postgresql import insert

from app.stats import moments
from app.stats.moments import Sums
from app.storage.tables import pane

Kind = Literal["hard", "soft"]


class PaneKey(NamedTuple):
    """Panes of two versions, or with and without softmax rows, are never added up."""

    model_id: int
    version: str
    start: datetime
    kind: Kind


@dataclass(frozen=True, slots=True)
class Pane:
    """All predictions of one version in one slice of time."""

    start: datetime
    version: str
    sums: Mapping[Kind, Sums]

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
        rows = [
            {**key._asdict(), "shard": shard, "updated_at": now, **_values(sums[key])}
            for key in some
        ]
        conn.execute(_UPSERT[kind], rows)


def between(
    conn: Connection,
    model_id: int,
    start: datetime,
    end: datetime,
    version: str | None = None,
    after: tuple[datetime, str] | None = None,
    limit: int = 1000,
) -> list[Pane]:
    """Up to `limit` panes that begin at `start` or later and before `end`, oldest first."""
    place = tuple_(pane.c.start, pane.c.version)
    query = select(pane.c.start, pane.c.version).where(
        pane.c.model_id == model_id, pane.c.start >= start, pane.c.start < end
    )
    if version is not None:
        query = query.where(pane.c.version == version)
    if after is not None:
        query = query.where(place > after)
    keys = conn.execute(query.distinct().order_by(pane.c.start, pane.c.version).limit(limit)).all()
    if not keys:
        return []
    # The bounds on `start` alone are what lets the planner leave partitions out.
    rows = select(pane).where(
        pane.c.model_id == model_id,
        pane.c.start.between(keys[0].start, keys[-1].start),
        place.between(tuple_(*keys[0]), tuple_(*keys[-1])),
    )
    return list(_panes(conn, rows if version is None else rows.where(pane.c.version == version)))


def total(
    conn: Connection, model_id: int, version: str, start: datetime, end: datetime
) -> dict[Kind, Sums]:
    """The sums of all panes of one version that begin at `start` or later and before `end`."""
    rows = conn.execute(
        select(pane).where(
            pane.c.model_id == model_id,
            pane.c.version == version,
            pane.c.start >= start,
            pane.c.start < end,
        )
    )
    return _by_kind(rows.all())


def start_of_last(
    conn: Connection, model_id: int, version: str, count: int, end: datetime
) -> datetime:
    """Where the newest panes before `end` begin that together hold at least `count` predictions."""
    found = conn.execute(
        _START_OF_LAST, {"model_id": model_id, "version": version, "count": count, "end": end}
    ).scalar_one_or_none()
    return end if found is None else found


# The running total is over panes from the newest back; the last one that is still needed is the
# first at which it reaches the count, or the oldest of all.
_START_OF_LAST = text(
    "SELECT coalesce(max(start) FILTER (WHERE total >= :count), min(start)) FROM ("
    " SELECT start, sum(sum(n)) OVER (ORDER BY start DESC) AS total FROM ("
    " SELECT start, (SELECT sum(one) FROM unnest(counts) AS each(one)) AS n FROM pane"
    " WHERE model_id = :model_id AND version = :version AND start < :end) AS rows"
    " GROUP BY start) AS running"
)


def _panes(conn: Connection, query: Select[Any]) -> Iterator[Pane]:
    rows = conn.execute(query.order_by(pane.c.start, pane.c.version))
    for (start, version), some in groupby(rows, lambda row: (row.start, row.version)):
        yield Pane(start, version, _by_kind(list(some)))


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


def _sums(row: Row[Any]) -> Sums:
    if row.kind == "hard":
        return Sums(row.counts)
    soft = moments.SoftSums(
        prob=row.prob,
        outer=row.outer,
        cells=row.cells,
        codes=row.codes,
        code_counts=row.code_counts,
        score=float(row.score[0]),
        score_squared=float(row.score[1]),
        score_by_label=row.score[2:],
    )
    return Sums(row.counts, soft)


def _upsert(columns: Sequence[str]) -> Any:
    """Add to the row that is there, or be the first."""
    new = insert(pane)
    added = {name: func.add_arrays(pane.c[name], new.excluded[name]) for name in columns}
    if "codes" in added:
        was, more = pane.c, new.excluded
        added["codes"] = func.merged_codes(was.codes, more.codes)
        added["code_counts"] = func.merged_code_counts(
            was.codes, was.code_counts, more.codes, more.code_counts
        )
    return new.on_conflict_do_update(
        index_elements=[pane.c.model_id, pane.c.version, pane.c.start, pane.c.kind, pane.c.shard],
        set_={**added, "updated_at": new.excluded.updated_at},
    )


_UPSERT: dict[Kind, Any] = {
    "hard": _upsert(["counts"]),
    "soft": _upsert(["counts", "prob", "outer", "cells", "codes", "code_counts", "score"]),
}
