"""Count batches into panes, each exactly once: the work of one transaction, for many requests."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from app.ingest.reduce import Reduced
from app.stats import moments
from app.stats.moments import Sums
from app.storage import arrivals, batches, horizon, models, panes, partitions, predictions
from app.storage.batches import Batch, BatchKey
from app.storage.db import Connection
from app.storage.horizon import ALWAYS_OPEN
from app.storage.models import Held
from app.storage.panes import PaneKey
from app.storage.partitions import Partition
from app.storage.predictions import KeptPredictions


@dataclass(frozen=True, slots=True, eq=False)
class Submission:
    """A batch on its way to the database; without a `key` a repeat cannot be told."""

    reduced: Reduced
    key: str | None = None
    fingerprint: bytes = b""
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """What was counted: now or, for a duplicate, the first time."""

    version: str
    accepted: int
    rejected: int
    late: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Stale:
    """The model has changed since the batch was reduced; nothing was counted."""


@dataclass(frozen=True, slots=True)
class KeyReused:
    """The key came before, with other content; nothing was counted."""


Outcome = Receipt | Stale | KeyReused


def record(
    conn: Connection, submissions: Sequence[Submission], shard: int, now: datetime
) -> list[Outcome]:
    """Count what was not counted before; an outcome for each submission."""
    submissions = _without_closed(conn, submissions, now)
    held = models.hold(conn, {one.reduced.model.id for one in submissions}, now)
    current = [one for one in submissions if _is_current(one, held)]
    claims = _claims(current)
    before = batches.claim(conn, [_batch(*claim) for claim in claims.items()], now)
    fresh = [one for one in current if one.key is None or _is_first(one, claims, before)]
    counted = _count(conn, [one.reduced for one in fresh], _traces(fresh), shard, now)
    undue = {id for id in counted if not held[id].due}
    if undue:
        models.mark_due(conn, undue, now)
    outcomes: dict[Submission, Outcome] = {one: _receipt(one.reduced) for one in fresh}
    for one in current:
        if one not in outcomes:
            outcomes[one] = _repeat(one, claims, before)
    return [outcomes.get(one, Stale()) for one in submissions]


def needed_partitions(submissions: Sequence[Submission], now: datetime) -> set[Partition]:
    """Where the rows of these submissions will live."""
    # Most batches of a moment lie in one pane, so the panes are told apart first.
    starts = {key.start for one in submissions for key in one.reduced.panes}
    needed = {partitions.containing("pane", start) for start in starts}
    if any(one.key is not None for one in submissions):
        needed |= {partitions.containing("batch", day) for day in batches.days(now)}
    for one in submissions:
        if one.reduced.kept is not None:
            needed |= partitions.covering("prediction", one.reduced.kept.at)
    return needed


def _without_closed(
    conn: Connection, submissions: Sequence[Submission], now: datetime
) -> Sequence[Submission]:
    """What is to be counted into panes that are closed has come too late, whatever we thought.

    Asked in the transaction that counts: they stay open until it ends, or are closed already.
    """
    oldest = min((key.start for one in submissions for key in one.reduced.panes), default=now)
    if oldest >= now - ALWAYS_OPEN:
        return submissions
    closed = horizon.get(conn).closed
    if oldest >= closed:
        return submissions
    return [replace(one, reduced=one.reduced.since(closed)) for one in submissions]


def _is_current(one: Submission, held: Mapping[int, Held]) -> bool:
    found = held.get(one.reduced.model.id)
    return found is not None and found.revision == one.reduced.model.revision


def _id(one: Submission) -> BatchKey:
    return BatchKey(one.reduced.model.id, one.key or "")


def _claims(submissions: Iterable[Submission]) -> dict[BatchKey, Submission]:
    """The first submission with each key: repeats may well be in the same transaction."""
    claims: dict[BatchKey, Submission] = {}
    for one in submissions:
        if one.key is not None:
            claims.setdefault(_id(one), one)
    return claims


def _is_first(
    one: Submission, claims: Mapping[BatchKey, Submission], before: Mapping[BatchKey, Batch]
) -> bool:
    return claims[_id(one)] is one and _id(one) not in before


def _batch(id: BatchKey, one: Submission) -> Batch:
    reduced = one.reduced
    return Batch(
        id, one.fingerprint, reduced.version, reduced.accepted, reduced.rejected, reduced.late
    )


def _receipt(reduced: Reduced) -> Receipt:
    return Receipt(reduced.version, reduced.accepted, reduced.rejected, reduced.late)


def _repeat(
    one: Submission, claims: Mapping[BatchKey, Submission], before: Mapping[BatchKey, Batch]
) -> Outcome:
    """The answer to a batch whose key has been counted, by another or in this transaction."""
    counted = before.get(_id(one)) or _batch(_id(one), claims[_id(one)])
    if counted.fingerprint != one.fingerprint:
        return KeyReused()
    return Receipt(
        counted.version, counted.accepted, counted.rejected, counted.late, duplicate=True
    )


def _count(
    conn: Connection,
    fresh: Sequence[Reduced],
    traces: Mapping[PaneKey, str],
    shard: int,
    now: datetime,
) -> set[int]:
    """Add to panes and the like; returns the models whose panes have changed."""
    # Every transaction takes its locks in this order of tables, and sorted within each.
    sums = _merged(fresh)
    if sums:
        panes.add(conn, sums, shard, now)
        arrivals.add(conn, sums, now, traces)
    for (model_id, version), kept in sorted(_kept(fresh).items()):
        predictions.keep(conn, model_id, version, predictions.joined(kept))
    late = _late(fresh)
    if late:
        predictions.count_late(conn, late, shard, now)
    return {key.model_id for key in sums}


def _traces(fresh: Iterable[Submission]) -> dict[PaneKey, str]:
    """For each pane the trace of the last batch that has one."""
    return {key: one.trace for one in fresh if one.trace is not None for key in one.reduced.panes}


def _merged(fresh: Iterable[Reduced]) -> dict[PaneKey, Sums]:
    """The sums of all batches together: a pane that many touch is written once."""
    parts: defaultdict[PaneKey, list[Sums]] = defaultdict(list)
    for one in fresh:
        for key, sums in one.panes.items():
            parts[key].append(sums)
    return {key: moments.total(some) for key, some in parts.items()}


def _kept(fresh: Iterable[Reduced]) -> dict[tuple[int, str], list[KeptPredictions]]:
    kept: defaultdict[tuple[int, str], list[KeptPredictions]] = defaultdict(list)
    for one in fresh:
        if one.kept is not None:
            kept[one.model.id, one.version].append(one.kept)
    return dict(kept)


def _late(fresh: Iterable[Reduced]) -> dict[tuple[int, str], int]:
    late: defaultdict[tuple[int, str], int] = defaultdict(int)
    for one in fresh:
        if one.late:
            late[one.model.id, one.version] += one.late
    return dict(late)
