"""What sources say of whole panes: the last word on each counts, and takes the place of the others.

Everything is decided while the sources are held, so that nobody else can say anything for them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

import numpy as np

from app.domain.model import Model
from app.stats import coherence, moments
from app.stats.moments import Sums
from app.storage import arrivals, panes, sources
from app.storage.arrivals import Increase
from app.storage.db import Connection
from app.storage.panes import Kind, OwnPane, PaneKey
from app.storage.sources import SourceKey


@dataclass(frozen=True, slots=True)
class Contribution:
    """All that a source has counted in one pane; `late` if that is too old to be counted here."""

    version: str
    start: datetime
    sequence: int
    sums: Mapping[Kind, Sums]
    late: bool = False

    @property
    def n(self) -> int:
        return _size(self.sums)


@dataclass(frozen=True, slots=True, eq=False)
class Contributions:
    """What a source says of some panes, on its way to the database: all of it counts, or none.

    `version` is that of panes which name none. `most_sources` is how many a model may have.
    """

    model: Model
    source: str
    version: str
    panes: Sequence[Contribution]
    most_sources: int
    trace: str | None = None

    @property
    def nbytes(self) -> int:
        return sum(sums.nbytes for one in self.panes for sums in one.sums.values())

    @property
    def key(self) -> SourceKey:
        return SourceKey(self.model.id, self.source)

    @property
    def starts(self) -> list[datetime]:
        """Of the panes that may be counted."""
        return [one.start for one in self.panes if not one.late]

    def since(self, first: datetime) -> "Contributions":
        """The same, with panes that begin before `first` as late."""
        return replace(
            self, panes=[replace(one, late=one.late or one.start < first) for one in self.panes]
        )


class Fate(StrEnum):
    """What became of a pane that was sent."""

    STORED = "stored"
    REPLACED = "replaced"
    DUPLICATE = "duplicate"
    STALE = "stale"
    LATE = "late"


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of each pane, and by how many predictions each has grown."""

    fates: tuple[Fate, ...]
    added: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Contradicted:
    """The pane in this place came before with the same sequence and other content."""

    place: int


@dataclass(frozen=True, slots=True)
class TooManySources:
    """The model has as many as it may have, and this is another."""


@dataclass(frozen=True, slots=True)
class Word:
    """The last word of a source on a pane."""

    sequence: int
    sums: Mapping[Kind, Sums]


@dataclass(frozen=True, slots=True)
class Settlement:
    """What becomes of everything that several sources say, and what follows from it.

    `outcomes` are in the order of what was sent. `late` are predictions that came too late, by
    model and version; `changed` the models whose panes are others now.
    """

    outcomes: Sequence[Settled | Contradicted | TooManySources] = ()
    late: Mapping[tuple[int, str], int] = field(default_factory=dict)
    changed: Set[int] = frozenset()


def settle(conn: Connection, sent: Sequence[Contributions], now: datetime) -> Settlement:
    """Let the last word on each pane count, in the order in which they came."""
    if not sent:
        return Settlement()
    shards = sources.hold(conn, _newest(sent), max(one.most_sources for one in sent))
    before = _words(conn, sent, shards)
    words = dict(before)
    outcomes = [_hear(one, words, shards.get(one.key)) for one in sent]
    changed = {key: word for key, word in words.items() if word is not before.get(key)}
    if changed:
        _store(conn, before, changed, _traces(sent), now)
    return Settlement(outcomes, _late(sent, outcomes), {key.model_id for key in changed})


def fate(one: Contribution, before: Word | None) -> Fate | None:
    """What is to become of a pane; None if it contradicts what its source said before."""
    if before is None or one.sequence > before.sequence:
        if one.late:
            return Fate.LATE
        return Fate.STORED if before is None else Fate.REPLACED
    if one.sequence < before.sequence:
        return Fate.STALE
    if _same(one.sums, before.sums):
        return Fate.DUPLICATE
    # Where panes are only blocks by now, there is nothing left to compare with.
    return Fate.LATE if one.late else None


def increases(
    before: Mapping[Kind, Sums], after: Mapping[Kind, Sums]
) -> dict[Kind, Increase] | None:
    """What there is more of, by kind; None if the change is another than that predictions came."""
    found: dict[Kind, Increase] = {}
    for kind in sorted(before.keys() | after.keys()):
        grown = _grown(before.get(kind), after.get(kind))
        if grown is None:
            return None
        if grown.counts.any():
            found[kind] = grown
    return found


def _grown(before: Sums | None, after: Sums | None) -> Increase | None:
    if after is None:
        return None
    counts = after.counts - (0 if before is None else before.counts)
    score = _score(after) - (0.0 if before is None else _score(before))
    if counts.min() < 0:
        return None
    # Predictions that were added have largest entries between 1/k and 1; otherwise some of those
    # that were there have become others.
    more, slack = int(counts.sum()), coherence.TOLERANCE * max(1, after.n)
    if after.soft is not None and not more / len(counts) - slack <= score <= more + slack:
        return None
    return Increase(counts, max(0.0, score))


def _score(sums: Sums) -> float:
    return 0.0 if sums.soft is None else sums.soft.score


def _size(sums: Mapping[Kind, Sums]) -> int:
    return sum(part.n for part in sums.values())


def _same(one: Mapping[Kind, Sums], other: Mapping[Kind, Sums]) -> bool:
    return one.keys() == other.keys() and all(
        moments.same(part, other[kind]) for kind, part in one.items()
    )


def _newest(sent: Iterable[Contributions]) -> dict[SourceKey, datetime]:
    newest: dict[SourceKey, datetime] = {}
    for one in sent:
        last = max(pane.start for pane in one.panes)
        newest[one.key] = max(last, newest.get(one.key, last))
    return newest


def _key(of: Contributions, one: Contribution, shard: int) -> OwnPane:
    return OwnPane(of.model.id, one.version, one.start, shard)


def _words(
    conn: Connection, sent: Iterable[Contributions], shards: Mapping[SourceKey, int]
) -> dict[OwnPane, Word]:
    """What the sources have said so far of the panes that they speak of now."""
    keys = {_key(of, one, shards[of.key]) for of in sent if of.key in shards for one in of.panes}
    sequences = sources.sequences(conn, keys) if keys else {}
    stored = panes.of_sources(conn, sequences) if sequences else {}
    return {key: Word(sequence, stored.get(key, {})) for key, sequence in sequences.items()}


def _hear(
    of: Contributions, words: dict[OwnPane, Word], shard: int | None
) -> Settled | Contradicted | TooManySources:
    """Decide about everything that one request says, and only then let it count."""
    if shard is None:
        return TooManySources()
    fates: list[Fate] = []
    for place, one in enumerate(of.panes):
        found = fate(one, words.get(_key(of, one, shard)))
        if found is None:
            return Contradicted(place)
        fates.append(found)
    added = [
        _let_count(one, _key(of, one, shard), words) if found in (Fate.STORED, Fate.REPLACED) else 0
        for one, found in zip(of.panes, fates, strict=True)
    ]
    return Settled(tuple(fates), tuple(added))


def _let_count(one: Contribution, key: OwnPane, words: dict[OwnPane, Word]) -> int:
    """By how many predictions the pane grows."""
    before = words.get(key)
    words[key] = Word(one.sequence, one.sums)
    return max(0, one.n - (0 if before is None else _size(before.sums)))


def _late(
    sent: Sequence[Contributions],
    outcomes: Sequence[Settled | Contradicted | TooManySources],
) -> Counter[tuple[int, str]]:
    late: Counter[tuple[int, str]] = Counter()
    for of, outcome in zip(sent, outcomes, strict=True):
        fates = outcome.fates if isinstance(outcome, Settled) else ()
        for one, found in zip(of.panes, fates, strict=False):
            late[of.model.id, one.version] += one.n if found is Fate.LATE else 0
    return late


def _store(
    conn: Connection,
    before: Mapping[OwnPane, Word],
    changed: Mapping[OwnPane, Word],
    traces: Mapping[tuple[int, str, datetime], str],
    now: datetime,
) -> None:
    panes.put(conn, {key: word.sums for key, word in changed.items()}, now)
    sources.note(conn, {key: word.sequence for key, word in changed.items()})
    arrived: list[tuple[PaneKey, Increase]] = []
    for key, word in changed.items():
        old = before.get(key)
        arrived += _arrivals(key, {} if old is None else old.sums, word.sums)
    if arrived:
        of_panes = {key: traces.get(key[:3]) for key, _ in arrived}
        known = {key: trace for key, trace in of_panes.items() if trace is not None}
        arrivals.note(conn, arrived, now, known)


def _arrivals(
    key: OwnPane, before: Mapping[Kind, Sums], after: Mapping[Kind, Sums]
) -> Iterator[tuple[PaneKey, Increase]]:
    """What the detectors are to be fed, and what windows and rollups are to know.

    Detectors cannot unlearn: of a change that is no increase they get nothing. But that there was
    one must be known, because what was made of the pane is true no longer.
    """
    grown = increases(before, after)
    for kind, increase in (grown or {}).items():
        yield PaneKey(*key[:3], kind), increase
    if not grown and not _same(before, after):
        some = next(iter({**before, **after}.values()))
        yield PaneKey(*key[:3], "hard"), Increase(np.zeros_like(some.counts))


def _traces(sent: Iterable[Contributions]) -> dict[tuple[int, str, datetime], str]:
    """For each pane the trace of the last request that has one."""
    return {
        (of.model.id, one.version, one.start): of.trace
        for of in sent
        if of.trace is not None
        for one in of.panes
    }
