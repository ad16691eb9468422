"""Arrivals: what came in and was not looked at yet, for detectors that must see it exactly once.

Whoever counts a batch leaves a row for each pane it touched, in the same transaction; whoever
evaluates takes the rows away, in the transaction that notes what became of them. Rows are only
added and removed, so neither ever waits for the other.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from sqlalchemy import Connection, bindparam, exists, insert, select

from app.domain.watch import Part, merged
from app.stats.moments import Counts, Sums
from app.storage.db import binary_rows, run, written
from app.storage.panes import PaneKey
from app.storage.tables import arrival


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What came in for one version: a part for each pane, oldest first, and when the last came."""

    parts: tuple[Part, ...]
    arrived_at: datetime


@dataclass(frozen=True, slots=True)
class Taken:
    """What was taken, by version; whether there may be `more`; the traces it belongs to, newest
    first."""

    by_version: Mapping[str, Arrivals]
    more: bool
    traces: tuple[str, ...] = ()


class Increase(NamedTuple):
    """What a pane has got more of: predictions, and the sum of the largest entries of their rows.

    Nothing at all says that the pane has changed in another way than by getting more.
    """

    counts: Counts
    score: float = 0.0


def add(
    conn: Connection,
    sums: Mapping[PaneKey, Sums],
    now: datetime,
    traces: Mapping[PaneKey, str] = MappingProxyType({}),
) -> None:
    """Note what is being added to panes, and which traces it belongs to, if somebody traces."""
    increases = {
        key: Increase(part.counts, 0.0 if part.soft is None else part.soft.score)
        for key, part in sums.items()
    }
    note(conn, increases.items(), now, traces)


def note(
    conn: Connection,
    increases: Iterable[tuple[PaneKey, Increase]],
    now: datetime,
    traces: Mapping[PaneKey, str] = MappingProxyType({}),
) -> None:
    """Note what panes have got more of; a pane may be named more than once."""
    pairs = list(increases)
    rows = [{**key._asdict(), **part._asdict(), "arrived_at": now} for key, part in pairs]
    if traces:
        rows = [
            {**row, "trace": traces.get(key)} for (key, _), row in zip(pairs, rows, strict=True)
        ]
    run(conn, _NOTE_TRACED if traces else _NOTE, *rows)


_COLUMNS = (*PaneKey._fields, *Increase._fields, "arrived_at")
_NOTE = written(insert(arrival).inline().values({name: bindparam(name) for name in _COLUMNS}))
_NOTE_TRACED = written(
    insert(arrival).inline().values({name: bindparam(name) for name in (*_COLUMNS, "trace")})
)


# In the order of event time, so that a backlog is worked off oldest first.
_TAKE = (
    "DELETE FROM arrival WHERE model_id = %s AND id IN ("
    " SELECT id FROM arrival WHERE model_id = %s ORDER BY start, id LIMIT %s)"
    " RETURNING id, version, start, kind, counts, score, arrived_at, trace"
)


def take(conn: Connection, model_id: int, limit: int) -> Taken:
    """Take away up to `limit` rows."""
    rows = binary_rows(conn, _TAKE, (model_id, model_id, limit))
    # DELETE promises no order, and sums of floats depend on it in the last digit.
    rows.sort(key=lambda row: row[0])
    parts: defaultdict[str, list[Part]] = defaultdict(list)
    latest: dict[str, datetime] = {}
    for _, version, start, kind, counts, score, arrived_at, _ in rows:
        soft = counts if kind == "soft" else np.zeros_like(counts)
        parts[version].append(Part(int(start.timestamp()), counts, soft, score))
        latest[version] = max(arrived_at, latest.get(version, arrived_at))
    found = {
        version: Arrivals(tuple(merged(some)), latest[version]) for version, some in parts.items()
    }
    # The rows are sorted by id: the last was noted last.
    traces = dict.fromkeys(row[-1] for row in reversed(rows) if row[-1] is not None)
    return Taken(found, len(rows) == limit, tuple(traces))


def pending(conn: Connection, model_id: int, version: str) -> frozenset[datetime]:
    """The panes that have predictions which no evaluation has taken yet."""
    rows = conn.execute(
        select(arrival.c.start)
        .where(arrival.c.model_id == model_id, arrival.c.version == version)
        .distinct()
    )
    return frozenset(rows.scalars())


def any_before(conn: Connection, when: datetime) -> bool:
    """Whether any model has predictions of that time that no evaluation has taken yet."""
    return bool(conn.execute(select(exists().where(arrival.c.start < when))).scalar_one())
