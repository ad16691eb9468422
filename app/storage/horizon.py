"""How far back the past is known, and how finely.

Whoever counts into old panes or adds panes up reads the horizon first, and holds the table of panes
from then on. Moving the horizon takes that table for oneself: so whoever has read it goes by what
is true until his transaction ends.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, func, select, text
from sqlalchemy.dialects.postgresql import insert

from app.domain.window import EPOCH
from app.storage import tables
from app.storage.db import patiently

# Nothing younger than this is ever closed, so that whoever counts what has just come in needs not
# ask. The pruner keeps twice the distance, because clocks differ.
ALWAYS_OPEN = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Horizon:
    """Three edges that only ever move forward.

    Nothing more is counted into panes that begin before `closed`. Those that begin before `coarse`
    exist only as blocks (`rollups.BLOCK` of them), and blocks that begin before `forgotten` do not
    exist any more.
    """

    closed: datetime = EPOCH
    coarse: datetime = EPOCH
    forgotten: datetime = EPOCH


NOTHING_FORGOTTEN = Horizon()

_HOLD = text("LOCK TABLE ONLY pane IN ACCESS SHARE MODE")
_TAKE = text("LOCK TABLE ONLY pane IN ACCESS EXCLUSIVE MODE")


def get(conn: Connection) -> Horizon:
    """The horizon, which will not move until the transaction ends."""
    # Two statements: the second must see what was committed while the first waited.
    conn.execute(_HOLD)
    own = tables.horizon.c
    row = conn.execute(select(own.closed, own.coarse, own.forgotten)).one_or_none()
    return NOTHING_FORGOTTEN if row is None else Horizon(*row)


def advance(
    conn: Connection,
    *,
    closed: datetime = EPOCH,
    coarse: datetime = EPOCH,
    forgotten: datetime = EPOCH,
) -> None:
    """Move edges forward; one that is further on already stays where it is."""
    patiently(conn, _TAKE)
    coarse = max(coarse, forgotten)
    edges = {"closed": max(closed, coarse), "coarse": coarse, "forgotten": forgotten}
    new = insert(tables.horizon).values(id=1, **edges)
    further = {name: func.greatest(tables.horizon.c[name], new.excluded[name]) for name in edges}
    conn.execute(new.on_conflict_do_update(index_elements=["id"], set_=further))
