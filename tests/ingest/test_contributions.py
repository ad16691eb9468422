"""The last word of a source on a pane counts, whatever order words come in."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest

from app.domain.model import Model
from app.errors import Unavailable
from app.ingest import contributions
from app.ingest.contributions import (
    Contradicted,
    Contribution,
    Contributions,
    Fate,
    Settled,
    TooManySources,
    Word,
    fate,
    increases,
)
from app.ingest.record import Receipt, Submission, needed_partitions, record
from app.ingest.reduce import Reduced
from app.stats import coherence, moments
from app.stats.moments import Sums
from app.storage import models, panes, partitions, sources
from app.storage.arrivals import Increase
from app.storage.db import Connection, Database
from app.storage.panes import Kind, PaneKey
from app.storage.sources import SourceKey
from tests.factories import NOW, VERSION, settings

SEED = 20261118
START = NOW.replace(second=0)
MINUTE = timedelta(minutes=1)

Parts = Mapping[Kind, Sums]


def hard(*counts: int) -> Sums:
    return Sums(np.array(counts))


def soft(size: int, seed: int = SEED) -> Sums:
    rows = np.random.default_rng(seed).dirichlet(np.ones(3), size)
    return moments.sums(3, moments.argmax(rows), rows)


FIRST, MORE = soft(20), moments.total([soft(20), soft(5, seed=1)])


def word(sequence: int, *counts: int) -> Word:
    return Word(sequence, {"hard": hard(*counts)})


@pytest.mark.parametrize(
    ("sequence", "late", "before", "expected"),
    [
        (1, False, None, Fate.STORED),
        (0, False, None, Fate.STORED),
        (1, True, None, Fate.LATE),
        (2, False, word(1, 9, 0, 0), Fate.REPLACED),
        (2, False, word(1, 5, 0, 0), Fate.REPLACED),
        (2, True, word(1, 9, 0, 0), Fate.LATE),
        (2, False, word(2, 5, 0, 0), Fate.DUPLICATE),
        (2, True, word(2, 5, 0, 0), Fate.DUPLICATE),
        (2, False, word(2, 9, 0, 0), None),
        (2, False, Word(2, {}), None),
        (2, True, Word(2, {}), Fate.LATE),
        (2, False, word(3, 5, 0, 0), Fate.STALE),
        (2, True, word(3, 9, 0, 0), Fate.STALE),
    ],
)
def test_what_becomes_of_a_pane(
    sequence: int, late: bool, before: Word | None, expected: Fate | None
) -> None:
    one = Contribution(VERSION, START, sequence, {"hard": hard(5, 0, 0)}, late)

    assert fate(one, before) == expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, {"hard": hard(1, 2, 3)}, {"hard": 6}),
        ({"hard": hard(1, 2, 3)}, {"hard": hard(1, 4, 3)}, {"hard": 2}),
        ({"hard": hard(1, 2, 3)}, {"hard": hard(1, 2, 3)}, {}),
        ({"hard": hard(1, 2, 3)}, {"hard": hard(0, 9, 9)}, None),
        ({"hard": hard(1, 2, 3)}, {}, None),
        ({"soft": FIRST}, {"soft": MORE}, {"soft": 5}),
        ({"soft": FIRST}, {"soft": FIRST, "hard": hard(0, 0, 4)}, {"hard": 4}),
        ({"soft": MORE}, {"soft": FIRST}, None),
        ({"soft": FIRST, "hard": hard(0, 0, 4)}, {"soft": FIRST}, None),
        # As many as before, but not the same ones.
        ({"soft": FIRST}, {"soft": Sums(FIRST.counts, soft(20, seed=1).soft)}, None),
    ],
)
def test_detectors_are_fed_what_a_pane_has_grown_by_if_it_has(
    before: Parts, after: Parts, expected: dict[str, int] | None
) -> None:
    found = increases(before, after)

    sizes = None if found is None else {kind: one.counts.sum() for kind, one in found.items()}
    assert sizes == expected


def test_what_is_coherent_enough_to_be_taken_is_fed_to_detectors() -> None:
    assert FIRST.soft is not None
    n, by_label = float(FIRST.n), FIRST.counts.astype(float)
    sure = replace(FIRST.soft, score=n + 0.9 * coherence.TOLERANCE * n, score_by_label=by_label)

    found = increases({}, {"soft": Sums(FIRST.counts, sure)})

    assert found is not None
    assert found["soft"].counts.tolist() == FIRST.counts.tolist()


def test_the_confidence_of_what_a_pane_has_grown_by_is_that_of_the_new_rows() -> None:
    found = increases({"soft": FIRST}, {"soft": MORE})

    new = soft(5, seed=1)
    assert found is not None
    assert new.soft is not None
    assert found["soft"].counts.tolist() == new.counts.tolist()
    assert found["soft"].score == pytest.approx(new.soft.score)


@pytest.fixture
def own(clone: Callable[[], str]) -> Iterator[Database]:
    database = Database(clone(), pool_size=12)
    yield database
    database.close()


@pytest.fixture
def model(own: Database) -> Model:
    with own.begin() as conn:
        found, _ = models.put(conn, "fraud", settings(), NOW)
        return found


def sent(
    model: Model, *words: tuple[int, Parts], source: str = "a", start: datetime = START
) -> Contributions:
    """Words on one pane after the other."""
    some = [
        Contribution(VERSION, start + i * MINUTE, sequence, parts)
        for i, (sequence, parts) in enumerate(words)
    ]
    return Contributions(model, source, VERSION, some, most_sources=3)


def say(database: Database, *group: Any) -> list[Any]:
    """In one transaction."""
    with database.begin() as conn:
        partitions.ensure(conn, needed_partitions(group, NOW))
    with database.begin() as conn:
        return list(record(conn, group, 0, NOW))


def stored(database: Database, model: Model) -> dict[datetime, list[int]]:
    with database.begin() as conn:
        found = panes.between(conn, model.id, START, START + 60 * MINUTE)
    return {one.start: one.counts.tolist() for one in found}


def settled(*fates: Fate, added: Sequence[int]) -> Settled:
    return Settled(tuple(fates), tuple(added))


def test_words_of_one_transaction_are_heard_in_the_order_they_came(
    own: Database, model: Model
) -> None:
    outcomes = say(
        own,
        *(
            sent(model, (sequence, {"hard": hard(n, 0, 0)}))
            for sequence, n in [(2, 20), (1, 10), (2, 20), (2, 21), (5, 15), (3, 30)]
        ),
    )

    assert outcomes == [
        settled(Fate.STORED, added=[20]),
        settled(Fate.STALE, added=[0]),
        settled(Fate.DUPLICATE, added=[0]),
        Contradicted(0),
        settled(Fate.REPLACED, added=[0]),
        settled(Fate.STALE, added=[0]),
    ]
    assert stored(own, model) == {START: [15, 0, 0]}


def test_of_a_request_that_contradicts_nothing_counts(own: Database, model: Model) -> None:
    say(own, sent(model, (1, {}), (1, {"hard": hard(1, 0, 0)})))
    contradicting = sent(model, (2, {"hard": hard(7, 0, 0)}), (1, {"hard": hard(2, 0, 0)}))

    outcomes = say(own, contradicting, sent(model, (1, {"hard": hard(3, 0, 0)}), source="b"))

    assert outcomes == [Contradicted(1), settled(Fate.STORED, added=[3])]
    assert stored(own, model) == {START: [3, 0, 0], START + MINUTE: [1, 0, 0]}


def test_batches_and_sources_share_a_transaction(own: Database, model: Model) -> None:
    batch = {PaneKey(model.id, VERSION, START, "hard"): hard(0, 0, 4)}
    submission = Submission(Reduced(model, VERSION, batch, 4))

    outcomes = say(own, submission, sent(model, (1, {"hard": hard(5, 0, 0)})), submission)

    assert [type(one) for one in outcomes] == [Receipt, Settled, Receipt]
    assert stored(own, model) == {START: [5, 0, 8]}


def test_a_source_too_many_does_not_trouble_the_others(own: Database, model: Model) -> None:
    words = [sent(model, (1, {"hard": hard(1, 0, 0)}), source=name) for name in "abcd"]

    outcomes = say(own, *words)

    assert outcomes == [*[settled(Fate.STORED, added=[1])] * 3, TooManySources()]
    assert stored(own, model) == {START: [3, 0, 0]}


# Many at once.

REPLICAS, WORDS, PANES = 4, 12, 3


def words_of(source: str, sequence: int) -> Parts:
    """Something else for each sequence, of which some lack a kind, and some say nothing."""
    rng = np.random.default_rng([SEED, ord(source), sequence])
    parts: dict[Kind, Sums] = {}
    if sequence % 4:
        parts["hard"] = hard(*rng.integers(1, 50, 3).tolist())
    if sequence % 3:
        parts["soft"] = soft(10, seed=int(rng.integers(1000)))
    return parts


def storm(own: Database, model: Model) -> list[Exception]:
    """Every replica says everything, each in an order of its own, at the same time."""
    errors: list[Exception] = []

    def live(replica: int) -> None:
        rng = np.random.default_rng([SEED, replica])
        everything = [(source, sequence) for source in "ab" for sequence in range(WORDS)]
        for i in rng.permutation(len(everything)):
            source, sequence = everything[i]
            words = [(sequence, words_of(source, sequence))] * PANES
            try:
                say(own, sent(model, *words, source=source))
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=live, args=[replica]) for replica in range(REPLICAS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def expected() -> list[int]:
    last = [part for source in "ab" for part in words_of(source, WORDS - 1).values()]
    return list(np.sum([part.counts for part in last], axis=0))


def test_whatever_the_order_the_highest_sequence_counts_in_the_end(
    own: Database, model: Model
) -> None:
    errors = storm(own, model)

    assert errors == []
    assert stored(own, model) == {START + i * MINUTE: expected() for i in range(PANES)}


def test_the_control_without_the_sequence_the_last_to_come_counts(
    own: Database, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contributions, "fate", lambda *_: Fate.REPLACED)

    for sequence in (WORDS - 1, 1):
        for source in "ab":
            say(own, sent(model, (sequence, words_of(source, sequence)), source=source))

    assert stored(own, model) != {START: expected()}


def overtaken(own: Database, model: Model) -> dict[datetime, list[int]]:
    """What is there after a lower sequence came while a higher one, of nothing, was under way."""
    say(own, sent(model, (0, {}), source="a"))
    lower = sent(model, (1, {"hard": hard(5, 0, 0)}))
    thread = threading.Thread(target=say, args=[own, lower])
    with own.engine.connect() as first:
        record(first, [sent(model, (2, {}))], 0, NOW)
        thread.start()
        thread.join(0.3)
        first.commit()
    thread.join()
    return stored(own, model)


def test_a_lower_sequence_waits_for_the_higher_one_and_is_stale(
    own: Database, model: Model
) -> None:
    assert overtaken(own, model) == {}


def test_the_control_without_holding_the_source_the_lower_one_counts(
    own: Database, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_held(conn: Connection, newest: Mapping[SourceKey, datetime], _: int) -> Any:
        return dict.fromkeys(newest, sources.FIRST_SHARD)

    monkeypatch.setattr(sources, "hold", not_held)

    assert overtaken(own, model) == {START: [5, 0, 0]}


def test_new_sources_of_many_replicas_get_numbers_of_their_own(own: Database, model: Model) -> None:
    barrier = threading.Barrier(3)

    def add(names: str) -> None:
        barrier.wait()
        say(own, *(sent(model, (1, {"hard": hard(1, 0, 0)}), source=name) for name in names))

    threads = [threading.Thread(target=add, args=[names]) for names in ("abc", "cba", "bca")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert stored(own, model) == {START: [3, 0, 0]}


def test_a_source_that_is_forgotten_as_it_speaks_is_tried_again(
    own: Database, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_known", lambda _, keys: set(keys))

    with pytest.raises(Unavailable, match="forgotten at this very moment"):
        say(own, sent(model, (1, {"hard": hard(1, 0, 0)})))


def test_a_change_that_is_no_increase_is_noted_without_predictions() -> None:
    key = panes.OwnPane(1, VERSION, START, sources.FIRST_SHARD)

    ((place, increase),) = contributions._arrivals(key, {"soft": MORE}, {"soft": FIRST})

    assert place == PaneKey(1, VERSION, START, "hard")
    assert isinstance(increase, Increase)
    assert (increase.counts.tolist(), increase.score) == ([0, 0, 0], 0.0)
