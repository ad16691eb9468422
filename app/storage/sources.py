"""Sources: who sends sums of whole panes, and which word of theirs on each pane was the last.

Each source of a model has a shard of its own, which no recorder uses, so that what it says of a
pane is a row of that pane: whoever adds up shards adds up sources as well. Whoever has the row of a
source in his hands is the only one who changes what it says.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, select, text
from sqlalchemy.dialects.postgresql import insert

from app.storage.db import Contention
from app.storage.panes import OWN_PANES, OwnPane, own_panes
from app.storage.tables import contribution

# Recorders have the shards below; numbers of this size are what a smallint leaves room for.
FIRST_SHARD = 1000
# Held, for each model, while a source gets its number.
SOURCE_LOCK = 74441


class SourceKey(NamedTuple):
    model_id: int
    name: str


_FIND = text(
    "SELECT model_id, name FROM source WHERE (model_id, name) IN"
    " (SELECT * FROM unnest(CAST(:model_id AS int[]), CAST(:name AS text[])))"
)
_ALONE = text("SELECT pg_advisory_xact_lock(:lock, :model_id)")
_ADD = text(
    "INSERT INTO source (model_id, name, shard, newest)"
    " SELECT :model_id, :name, free, :newest"
    " FROM generate_series(CAST(:first AS int), :last) AS free WHERE NOT EXISTS"
    " (SELECT FROM source WHERE model_id = :model_id AND shard = free)"
    " ORDER BY free LIMIT 1 ON CONFLICT DO NOTHING"
)
_HOLD = text(
    "UPDATE source SET newest = greatest(newest, :newest)"
    " WHERE model_id = :model_id AND name = :name RETURNING shard"
)


def hold(conn: Connection, newest: Mapping[SourceKey, datetime], most: int) -> dict[SourceKey, int]:
    """Keep these sources to oneself until the transaction ends; the shard of each.

    One that is not known yet is given a shard, unless its model has `most` of them already.
    `newest` is the newest pane that each speaks of.
    """
    if not newest:
        return {}
    known = _known(conn, newest)
    # Before any source is held: whoever holds one waits for nobody who wants to add another.
    _add(conn, {key: newest[key] for key in newest.keys() - known}, most)
    held: dict[SourceKey, int] = {}
    # Sorted so that two transactions that share sources wait in line and not for each other.
    for key in sorted(newest):
        shard = conn.execute(_HOLD, {**key._asdict(), "newest": newest[key]}).scalar_one_or_none()
        if shard is not None:
            held[key] = shard
        elif key in known:
            raise Contention(f"source {key.name!r} was forgotten at this very moment")
    return held


def _known(conn: Connection, keys: Iterable[SourceKey]) -> set[SourceKey]:
    model_ids, names = zip(*keys, strict=True)
    rows = conn.execute(_FIND, {"model_id": list(model_ids), "name": list(names)})
    return {SourceKey(*row) for row in rows}


def _add(conn: Connection, newest: Mapping[SourceKey, datetime], most: int) -> None:
    by_model: defaultdict[int, list[SourceKey]] = defaultdict(list)
    for key in sorted(newest):
        by_model[key.model_id].append(key)
    for model_id, keys in by_model.items():
        conn.execute(_ALONE, {"lock": SOURCE_LOCK, "model_id": model_id})
        for key in keys:
            numbers = {"first": FIRST_SHARD, "last": FIRST_SHARD + most - 1}
            conn.execute(_ADD, {**key._asdict(), **numbers, "newest": newest[key]})


def sequences(conn: Connection, keys: Collection[OwnPane]) -> dict[OwnPane, int]:
    """The sequence of the last word on each of these panes that there is one on."""
    rows = conn.execute(select(contribution).where(OWN_PANES), own_panes(keys))
    return {OwnPane(row.model_id, row.version, row.start, row.shard): row.sequence for row in rows}


def note(conn: Connection, words: Mapping[OwnPane, int]) -> None:
    """Note the sequence of the last word on each of these panes."""
    new = insert(contribution)
    conn.execute(
        new.on_conflict_do_update(
            index_elements=["model_id", "version", "start", "shard"],
            set_={"sequence": new.excluded.sequence},
        ),
        [{**key._asdict(), "sequence": sequence} for key, sequence in words.items()],
    )


_FORGET = text(
    # Asked outside as well, of the row as it is once it can be locked: it may have spoken since.
    "DELETE FROM source WHERE newest < :before AND (model_id, name) IN"
    " (SELECT model_id, name FROM source WHERE newest < :before LIMIT :limit)"
)


def forget(conn: Connection, before: datetime, limit: int) -> int:
    """Forget up to `limit` sources that have spoken of nothing since then.

    Their shards are given to others, so that nothing may be counted into panes before then.
    """
    return conn.execute(_FORGET, {"before": before, "limit": limit}).rowcount
