"""Single predictions, kept by id for models that ask for it, and counts of those that came late."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime

from sqlalchemy import Connection, func, select, text
from sqlalchemy.dialects.postgresql import insert

from app.storage.tables import late


@dataclass(frozen=True, slots=True)
class KeptPredictions:
    """Columns of predictions that can be joined with their labels later."""

    ids: Sequence[str]
    at: Sequence[datetime]
    predicted: Sequence[int]

    def where(self, wanted: Callable[[datetime], bool]) -> "KeptPredictions | None":
        """Those of a time that is wanted; None if there are none."""
        rows = zip(self.ids, self.at, self.predicted, strict=True)
        chosen = [row for row in rows if wanted(row[1])]
        return KeptPredictions(*map(list, zip(*chosen, strict=True))) if chosen else None


def joined(parts: Sequence[KeptPredictions]) -> KeptPredictions:
    """The predictions of several batches as one."""
    return KeptPredictions(
        ids=[id for part in parts for id in part.ids],
        at=[at for part in parts for at in part.at],
        predicted=[label for part in parts for label in part.predicted],
    )


_KEEP = text(
    "INSERT INTO prediction (model_id, version, id, at, predicted)"
    " SELECT :model_id, :version, * FROM unnest(CAST(:ids AS text[]),"
    " CAST(:at AS timestamptz[]), CAST(:predicted AS smallint[])) AS kept(id, at, predicted)"
    " ORDER BY id, at ON CONFLICT DO NOTHING"
)


def keep(conn: Connection, model_id: int, version: str, kept: KeptPredictions) -> None:
    """Remember each prediction by its id; one that is there already stays as it was."""
    conn.execute(
        _KEEP,
        {
            "model_id": model_id,
            "version": version,
            "ids": list(kept.ids),
            "at": list(kept.at),
            "predicted": list(kept.predicted),
        },
    )


def late_since(conn: Connection, model_id: int, version: str, first: date) -> int:
    """How many predictions of a version have come too late for any window since a day."""
    found = conn.execute(
        select(func.coalesce(func.sum(late.c.predictions), 0)).where(
            late.c.model_id == model_id,
            late.c.version == version,
            late.c.received_on >= first,
        )
    )
    return int(found.scalar_one())


def count_late(
    conn: Connection, counts: Mapping[tuple[int, str], int], shard: int, now: datetime
) -> None:
    """Count predictions by model and version that came too late for any window."""
    upsert = insert(late)
    conn.execute(
        upsert.on_conflict_do_update(
            index_elements=[late.c.model_id, late.c.version, late.c.received_on, late.c.shard],
            set_={"predictions": late.c.predictions + upsert.excluded.predictions},
        ),
        [
            {
                "model_id": model_id,
                "version": version,
                "received_on": now.date(),
                "shard": shard,
                "predictions": n,
            }
            for (model_id, version), n in sorted(counts.items())
        ],
    )


_FORGET_LATE = text(
    "DELETE FROM late WHERE (model_id, version, received_on, shard) IN ("
    " SELECT model_id, version, received_on, shard FROM late"
    " WHERE received_on < :before LIMIT :limit)"
)


def forget_late(conn: Connection, before: datetime, limit: int) -> int:
    """Forget up to `limit` counts of predictions that came late before that day."""
    return conn.execute(_FORGET_LATE, {"before": before.date(), "limit": limit}).rowcount
