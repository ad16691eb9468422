"""Arrivals: what came in and was not looked at yet, for detectors that must see it exactly once.

Whoever counts a batch leaves a row for each pane it touched, in the same transaction; whoever
evaluates takes the rows away, in the transaction that notes what became of them. Rows are only
added and removed, so neither ever waits for the other.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from sqlalchemy import Connection, exists, insert, select

from app.domain.watch import Part, merged
from app.stats.moments import Sums
from app.storage.db import binary_rows
from app.storage.panes import PaneKey
from app.storage.tables import arrival


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What came in for one version: a part for each pane, oldest first, and when the last came."""

    parts: tuple[Part, ...]
    arrived_at: datetime


def add(conn: Connection, sums: Mapping[PaneKey, Sums], now: datetime) -> None:
    """Note what is being added to panes."""
    conn.execute(
        insert(arrival),
        [
            {
                **key._asdict(),
                "counts": part.counts,
                "score": 0.0 if part.soft is None else part.soft.score,
                "arrived_at": now,
            }
            for key, part in sums.items()
        ],
    )


# In the order of event time, so that a backlog is worked off oldest first.
_TAKE = (
    "DELETE FROM arrival WHERE model_id = %s AND id IN ("
    " SELECT id FROM arrival WHERE model_id = %s ORDER BY start, id LIMIT %s)"
    " RETURNING id, version, start, kind, counts, score, arrived_at"
)


def take(conn: Connection, model_id: int, limit: int) -> tuple[dict[str, Arrivals], bool]:
    """Take away up to `limit` rows, by version; says whether there may be more."""
    rows = binary_rows(conn, _TAKE, (model_id, model_id, limit))
    # DELETE promises no order, and sums of floats depend on it in the last digit.
    rows.sort(key=lambda row: row[0])
    parts: defaultdict[str, list[Part]] = defaultdict(list)
    latest: dict[str, datetime] = {}
    for _, version, start, kind, counts, score, arrived_at in rows:
        soft = counts if kind == "soft" else np.zeros_like(counts)
        parts[version].append(Part(int(start.timestamp()), counts, soft, score))
        latest[version] = max(arrived_at, latest.get(version, arrived_at))
    found = {
        version: Arrivals(tuple(merged(some)), latest[version]) for version, some in parts.items()
    }
    return found, len(rows) == limit


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
