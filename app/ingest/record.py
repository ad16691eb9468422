"""Count batches into panes, each exactly once: the work of one transaction, for many requests.

What sources say of whole panes shares it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from app.domain.model import Model
from app.ingest import contributions
from app.ingest.contributions import Contradicted, Contributions, Settled, TooManySources
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


class Submission(Struct, frozen=True, eq=False):
    """A batch on its way to the database; without a `key` a repeat cannot be told."""

    reduced: Reduced
    key: str | None = None
    fingerprint: bytes = b""
    trace: str | None = None

    @property
    def model(self) -> Model:
        return self.reduced.model

    @property
    def nbytes(self) -> int:
        return sum(sums.nbytes for sums in self.reduced.panes.values())

    @property
    def starts(self) -> list[datetime]:
        return [key.start for key in self.reduced.panes]

    def since(self, first: datetime) -> "Submission":
        """The same, with what falls into panes that begin before `first` as late."""
        return replace(self, reduced=self.reduced.since(first))


# What a request may ask to be recorded.
Entry = Submission | Contributions


class Receipt(Struct, frozen=True):
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


Outcome = Receipt | Stale | KeyReused | Settled | Contradicted | TooManySources


def record(conn: Connection, entries: Sequence[Entry], shard: int, now: datetime) -> list[Outcome]:
    """Count what was not counted before; an outcome for each entry."""
    entries = _without_closed(conn, entries, now)
    held = models.hold(conn, {one.model.id for one in entries}, now)
    current = [one for one in entries if _is_current(one, held)]
    # Every transaction takes its locks in this order: sources, keys, panes, what is late, models.
    # Panes of sources are locked with their source.
    sent = [one for one in current if isinstance(one, Contributions)]
    settlement = contributions.settle(conn, sent, now)
    submissions = [one for one in current if isinstance(one, Submission)]
    fresh, outcomes = _told_apart(conn, submissions, now)
    counted = _count(conn, [one.reduced for one in fresh], _traces(fresh), shard, now)
    _count_late(conn, fresh, settlement.late, shard, now)
    undue = {id for id in counted | settlement.changed if not held[id].due}
    if undue:
        models.mark_due(conn, undue, now)
    outcomes |= zip(sent, settlement.outcomes, strict=True)
    return [outcomes.get(one, Stale()) for one in entries]


def _told_apart(
    conn: Connection, submissions: Sequence[Submission], now: datetime
) -> tuple[list[Submission], dict[Entry, Outcome]]:
    """The batches that were not counted before, and what to answer to each."""
    claims = _claims(submissions)
    before = batches.claim(conn, [_batch(*claim) for claim in claims.items()], now)
    fresh = [one for one in submissions if one.key is None or _is_first(one, claims, before)]
    outcomes: dict[Entry, Outcome] = {one: _receipt(one.reduced) for one in fresh}
    for one in submissions:
        if one not in outcomes:
            outcomes[one] = _repeat(one, claims, before)
    return fresh, outcomes


def needed_partitions(entries: Sequence[Entry], now: datetime) -> set[Partition]:
    """Where the rows of these entries will live."""
    # Most batches of a moment lie in one pane, so the panes are told apart first.
    starts = {start for one in entries for start in one.starts}
    needed = {partitions.containing("pane", start) for start in starts}
    said = {start for one in entries if isinstance(one, Contributions) for start in one.starts}
    needed |= {partitions.containing("contribution", start) for start in said}
    submissions = [one for one in entries if isinstance(one, Submission)]
    if any(one.key is not None for one in submissions):
        needed |= {partitions.containing("batch", day) for day in batches.days(now)}
    for one in submissions:
        if one.reduced.kept is not None:
            needed |= partitions.covering("prediction", one.reduced.kept.at)
    return needed


def _without_closed(conn: Connection, entries: Sequence[Entry], now: datetime) -> Sequence[Entry]:
    """What is to be counted into panes that are closed has come too late, whatever we thought.

    Asked in the transaction that counts: they stay open until it ends, or are closed already.
    """
    oldest = min((start for one in entries for start in one.starts), default=now)
    if oldest >= now - ALWAYS_OPEN:
        return entries
    closed = horizon.get(conn).closed
    if oldest >= closed:
        return entries
    return [one.since(closed) for one in entries]


def _is_current(one: Entry, held: Mapping[int, Held]) -> bool:
    found = held.get(one.model.id)
    return found is not None and found.revision == one.model.revision


def _id(one: Submission) -> BatchKey:
    return BatchKey(one.model.id, one.key or "")


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
    # Locks are taken in this order of tables, and sorted within each.
    sums = _merged(fresh)
    if sums:
        panes.add(conn, sums, shard, now)
        arrivals.add(conn, sums, now, traces)
    for (model_id, version), kept in sorted(_kept(fresh).items()):
        predictions.keep(conn, model_id, version, predictions.joined(kept))
    return {key.model_id for key in sums}


def _count_late(
    conn: Connection,
    fresh: Iterable[Submission],
    more: Mapping[tuple[int, str], int],
    shard: int,
    now: datetime,
) -> None:
    late = Counter(more)
    for one in fresh:
        late[one.model.id, one.reduced.version] += one.reduced.late
    if late := +late:
        predictions.count_late(conn, late, shard, now)


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
