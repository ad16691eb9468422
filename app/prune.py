"""Forget what is too old: by partitions, and rows of the few tables that have none.

Any number of workers may try; one at a time does it. Each step is a transaction of its own that
keeps nobody waiting for long: what is in use just now is tried again the next time. Panes are not
forgotten at once, but added up to blocks first.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from functools import partial

from app import metrics
from app.config import Settings
from app.domain.model import Model
from app.domain.window import WindowKind, pane_start
from app.logs import logger
from app.storage import (
    alarms,
    arrivals,
    checkup,
    deliveries,
    evaluations,
    horizon,
    models,
    partitions,
    predictions,
    rollups,
    sources,
    writers,
)
from app.storage.db import Connection, Contention, Database, Outage, give_way
from app.storage.horizon import ALWAYS_OPEN
from app.storage.partitions import Partition
from app.storage.rollups import Keep, Stream

log = logger(__name__)

DAY = timedelta(days=1)
# Panes wait this much longer for evaluations that are behind. Whatever is the matter with one
# model, the others' panes must not pile up for ever.
PATIENCE = 7 * DAY
# A recorder that has written nothing for so long is not going to ask for its last transaction.
FORGET_WRITERS_AFTER = 7 * DAY
# Clocks differ by seconds; whoever is further ahead must not forget anything.
MOST_AHEAD = timedelta(hours=1)
# Rows that one transaction deletes at the most.
PORTION = 1000


@dataclass(frozen=True, slots=True)
class Purged:
    """What went: a partition with about so many rows, or rows of a table that has none."""

    table: str
    partition: str | None
    rows: int


@dataclass(frozen=True, slots=True)
class Report:
    """What went, and which tables could not be pruned this time; `busy`: somebody else is at it."""

    purged: tuple[Purged, ...]
    failed: tuple[str, ...]
    busy: bool = False


class SomebodyElse(Exception):
    """Another worker is doing the same just now."""


class WrongClock(Exception):
    """Our clock is far ahead of the database's: what is too old by it need not be."""


def prune_now(database: Database, settings: Settings, now: datetime) -> Report:
    """Forget all that is too old, by a clock that the database's agrees with.

    Whatever a wrong clock had us forget would be gone, and the horizon does not move back.
    """
    with database.begin() as conn:
        theirs = checkup.server(conn).now
    if now - theirs > MOST_AHEAD:
        raise WrongClock(f"nothing was pruned: the clock is {now - theirs} ahead of the database's")
    return prune(database, settings, now)


def prune(database: Database, settings: Settings, now: datetime) -> Report:
    """Forget all that is too old. What fails for one table must not keep us from the others."""
    purged: list[Purged] = []
    failed: list[str] = []
    for table, forget in _duties(database, settings, now).items():
        try:
            for one in forget():
                _note(one)
                purged.append(one)
        except SomebodyElse:
            log.info("somebody else is pruning")
            return Report(tuple(purged), tuple(failed), busy=True)
        except Outage:
            raise
        except Contention:
            log.warning("not pruned, it is in use", table=table)
            failed.append(table)
        except Exception:
            log.exception("not pruned", table=table)
            failed.append(table)
    if not failed:
        metrics.LAST_PRUNE.set(now.timestamp())
    return Report(tuple(purged), tuple(failed))


def _duties(
    database: Database, settings: Settings, now: datetime
) -> dict[str, Callable[[], Iterable[Purged]]]:
    def older(days: int) -> datetime:
        return now - days * DAY

    drop, delete = partial(_drop_partitions, database), partial(_delete, database)
    return {
        "batch": lambda: drop("batch", older(settings.keep_batches_days)),
        "prediction": lambda: drop("prediction", older(settings.keep_predictions_days)),
        "pane": lambda: _panes(database, settings, now),
        "source": lambda: _sources(database),
        "rollup": lambda: _rollups(database, older(settings.keep_rollups_days)),
        "evaluation": lambda: _evaluations(database, older(settings.keep_evaluations_days)),
        "delivery": lambda: _deliveries(database, older(settings.keep_deliveries_days)),
        "alarm": lambda: delete("alarm", alarms.forget, older(settings.keep_alarms_days)),
        "late": lambda: delete("late", predictions.forget_late, older(settings.keep_rollups_days)),
        "writer": lambda: delete("writer", writers.forget, now - FORGET_WRITERS_AFTER),
    }


def _note(one: Purged) -> None:
    log.info("pruned", table=one.table, partition=one.partition, rows=one.rows)
    if one.partition is not None:
        metrics.PRUNED_PARTITIONS.labels(one.table).inc()
    metrics.PRUNED_ROWS.labels(one.table).inc(one.rows)


@contextmanager
def _alone(database: Database) -> Iterator[Connection]:
    """A transaction of the only one who forgets anything."""
    with database.begin() as conn:
        if not partitions.may_prune(conn):
            raise SomebodyElse
        yield conn


def _old(database: Database, table: str, before: datetime) -> list[Partition]:
    """The partitions that lie wholly before a time, oldest first."""
    with database.begin() as conn:
        return [one for one in partitions.existing(conn, table) if one.is_before(before)]


def _drop_partitions(database: Database, table: str, before: datetime) -> Iterator[Purged]:
    for partition in _old(database, table, before):
        with _alone(database) as conn:
            rows = partitions.drop(conn, partition)
        yield Purged(table, partition.name, rows)


def _delete(
    database: Database,
    table: str,
    forget: Callable[[Connection, datetime, int], int],
    before: datetime,
) -> Iterator[Purged]:
    rows = PORTION
    while rows == PORTION:
        with _alone(database) as conn:
            rows = forget(conn, before, PORTION)
        if rows:
            yield Purged(table, None, rows)


def _evaluations(database: Database, before: datetime) -> Iterator[Purged]:
    """A tumbling window's evaluation stands where the window began, which may be long ago."""
    with database.begin() as conn:
        lengths = (
            window.length
            for model in models.every(conn)
            for window in model.settings.windows
            if window.kind is WindowKind.TUMBLING and window.length is not None
        )
        longest = max(lengths, default=timedelta(0))
    return _drop_partitions(database, "evaluation", before - longest)


def _deliveries(database: Database, before: datetime) -> Iterator[Purged]:
    for partition in _old(database, "delivery", before):
        with _alone(database) as conn:
            needed = deliveries.why_needed(conn, partition)
            if needed is None:
                # Somebody may have asked for one of them to be sent again since.
                partitions.take(conn, partition)
                needed = deliveries.why_needed(conn, partition)
            rows = 0 if needed else partitions.drop(conn, partition)
        if needed:
            log.warning("not pruned", partition=partition.name, because=needed)
        else:
            yield Purged("delivery", partition.name, rows)


def _panes(database: Database, settings: Settings, now: datetime) -> Iterator[Purged]:
    """Close the months that are old, then leave only blocks of them, month by month."""
    with _alone(database) as conn:
        edge = _edge(conn, settings.keep_panes_days * DAY, now)
        before = horizon.get(conn)
        if before.closed < edge:
            horizon.advance(conn, closed=edge)
    for partition in _old(database, "pane", edge):
        span = (partition.first_moment, partition.end_moment)
        rows = _coarsen(database, *span, now, partition)
        yield Purged("pane", partition.name, rows)
    if before.coarse < edge:
        # Months without any pane pass as well.
        _coarsen(database, edge, edge, now)


def _sources(database: Database) -> Iterator[Purged]:
    """Nothing more is counted into what is closed, so that nobody asks who has spoken of it."""
    with database.begin() as conn:
        closed = horizon.get(conn).closed
    yield from _drop_partitions(database, "contribution", closed)
    yield from _delete(database, "source", sources.forget, closed)


def _edge(conn: Connection, keep: timedelta, now: datetime) -> datetime:
    """The month before which panes may go: old, and closed to whatever is still to come."""
    lateness = (model.settings.allowed_lateness for model in models.every(conn))
    old = now - max(keep, max(lateness, default=keep)) - ALWAYS_OPEN
    edge, patient = _month(old), _month(old - PATIENCE)
    if patient < edge and _is_behind(conn, edge):
        log.warning("panes wait for evaluations that are behind", before=str(edge.date()))
        return patient
    return edge


def _is_behind(conn: Connection, edge: datetime) -> bool:
    """Whether somebody has yet to look at panes before then, one by one."""
    return arrivals.any_before(conn, edge) or evaluations.any_outdated_before(conn, edge)


def _month(at: datetime) -> datetime:
    return datetime.combine(at.date().replace(day=1), time(), UTC)


def _coarsen(
    database: Database,
    first: datetime,
    end: datetime,
    now: datetime,
    partition: Partition | None = None,
) -> int:
    """Leave only blocks of the panes between these, and drop their partition."""
    with database.begin() as conn:
        blocks = [model.settings.pane * rollups.BLOCK for model in models.every(conn)]
        oldest = first - max(blocks, default=timedelta(0))
        partitions.ensure(conn, partitions.covering("rollup", [oldest, end]))
    _make_blocks(database, first, end)
    with _alone(database) as conn:
        if partition is not None:
            # Who knows the horizon adds nothing any more; who is of an older release waits here.
            partitions.freeze(conn, partition)
        owners = models.every(conn)
        for stream in _streams(conn, owners):
            rollups.coarsen(conn, stream, first, end)
        _forget_what_is_gone(conn, owners, now)
        rows = 0 if partition is None else partitions.drop(conn, partition)
        horizon.advance(conn, coarse=end)
    return rows


def _make_blocks(database: Database, first: datetime, end: datetime) -> None:
    """Most of the work beforehand, in short transactions, so that the last one is short as well."""
    with database.begin() as conn:
        owners = models.every(conn)
    for model in owners:
        block = model.settings.pane * rollups.BLOCK
        length = max(1, DAY // block) * block
        start = pane_start(first, length)
        while start < end:
            _make_blocks_of(database, model, max(start, first), min(start + length, end))
            start += length


def _make_blocks_of(database: Database, model: Model, first: datetime, end: datetime) -> None:
    with database.begin() as conn:
        # An evaluation keeps blocks as well: not the same ones at the same moment.
        if models.lock(conn, model.id) is None:
            return
        for stream in _streams(conn, [model]):
            if rollups.has_panes(conn, stream, first, end):
                rollups.total(conn, stream, first, end, keep=Keep(first, end))


def _forget_what_is_gone(conn: Connection, owners: Iterable[Model], now: datetime) -> None:
    """A model may have been deleted after we began: then its blocks are nobody's."""
    ids = {model.id for model in owners}
    # Who deletes a model waits for its panes, which we have: he must not wait for us in vain.
    give_way(conn)
    rollups.forget_models(conn, ids - models.hold(conn, ids, now).keys())


def _streams(conn: Connection, owners: Iterable[Model]) -> Iterator[Stream]:
    known = horizon.get(conn)
    for model in owners:
        for version in sorted(model.versions):
            pending = arrivals.pending(conn, model.id, version)
            yield Stream(model.id, version, model.k, model.settings.pane, pending, known)


def _rollups(database: Database, before: datetime) -> Iterator[Purged]:
    """A block may go when no more can be added to it."""
    with database.begin() as conn:
        blocks = [model.settings.pane * rollups.BLOCK for model in models.every(conn)]
        whole = horizon.get(conn).coarse - max(blocks, default=timedelta(0))
    for partition in _old(database, "rollup", min(before, whole)):
        with _alone(database) as conn:
            # The panes first, like everybody who reads the horizon and then blocks: the other way
            # round each would wait for the other.
            horizon.advance(conn, forgotten=partition.end_moment)
            rows = partitions.drop(conn, partition)
        yield Purged("rollup", partition.name, rows)
