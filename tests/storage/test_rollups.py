"""Rollups: a shorter way to the same sums, and never to others."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from sqlalchemy import func, select, update

from app.stats import moments
from app.stats.moments import Sums
from app.storage import panes, partitions, rollups
from app.storage.db import Connection
from app.storage.horizon import Horizon
from app.storage.panes import Kind, PaneKey
from app.storage.rollups import Keep, Stream
from app.storage.tables import rollup

START = datetime(2026, 11, 17, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
STREAM = Stream(model_id=1, version="v1", k=3, pane=MINUTE)
ALL = Keep(START - 30 * DAY, START + 30 * DAY)
SEED = 20261118


@pytest.fixture
def stored(conn: Connection) -> Connection:
    """Where panes can be added and blocks kept."""
    partitions.ensure(conn, rollups.needed_partitions(ALL))
    partitions.ensure(conn, partitions.covering("pane", [ALL.after, ALL.before]))
    return conn


def add(conn: Connection, *at: datetime, label: int = 0, shard: int = 0) -> None:
    """One prediction in each of these panes."""
    one = Sums(np.eye(3, dtype=np.int64)[label])
    panes.add(conn, {PaneKey(1, "v1", start, "hard"): one for start in at}, shard, START)


def total(
    conn: Connection,
    start: datetime,
    end: datetime,
    keep: Keep | None = None,
    pending: tuple[datetime, ...] = (),
) -> dict[Kind, Sums]:
    stream = Stream(1, "v1", 3, MINUTE, frozenset(pending))
    return rollups.total(conn, stream, start, end, keep=keep)


def n(conn: Connection, start: datetime, end: datetime, *pending: datetime) -> int:
    return sum(sums.n for sums in total(conn, start, end, pending=pending).values())


def kept(conn: Connection) -> set[tuple[int, datetime]]:
    """The blocks that are there, as panes and start."""
    return {tuple(row) for row in conn.execute(select(rollup.c.panes, rollup.c.start))}


@contextmanager
def no_panes_read() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panes, "pieces", lambda *_: pytest.fail("a pane was read"))
        yield


def assert_equal(found: Mapping[Kind, Sums], plain: Mapping[Kind, Sums]) -> None:
    """Counts to the last one, sums of probabilities to rounding."""
    # A block that was empty when it was kept adds no predictions, of the kind `hard`.
    found = {kind: one for kind, one in found.items() if one.n}
    assert found.keys() == plain.keys()
    for kind, one in found.items():
        assert one.counts.tolist() == plain[kind].counts.tolist()
        ours, theirs = one.soft, plain[kind].soft
        if ours is None or theirs is None:
            assert ours is theirs
            continue
        assert ours.cells.tolist() == theirs.cells.tolist()
        assert ours.codes.tolist() == theirs.codes.tolist()
        assert ours.code_counts.tolist() == theirs.code_counts.tolist()
        for name in ("prob", "outer", "score", "score_squared", "score_by_label"):
            assert np.allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-12, atol=1e-12)


def random_stream(conn: Connection, rng: np.random.Generator, days: int) -> None:
    """Bursts of panes with hard and soft predictions, on two shards, and gaps between them."""
    for _ in range(40):
        begin = int(rng.integers(0, days * 1440 - 60))
        sums = {}
        for minute in begin + rng.permutation(60)[:12]:
            rows = rng.dirichlet(np.full(3, 0.3), 4)
            kind: Kind = "soft" if rng.random() < 0.5 else "hard"
            predicted = moments.argmax(rows)
            key = PaneKey(1, "v1", START + int(minute) * MINUTE, kind)
            sums[key] = moments.sums(3, predicted, rows if kind == "soft" else None)
        panes.add(conn, sums, int(rng.integers(2)), START)


@pytest.mark.parametrize("seed", range(3))
def test_kept_or_not_the_total_of_any_span_is_the_plain_sum(stored: Connection, seed: int) -> None:
    rng = np.random.default_rng([SEED, seed])
    random_stream(stored, rng, days=4)
    edges = rng.integers(0, 4 * 1440 + 1, size=(40, 2))
    whole_blocks = [(0, 2880), (1440, 1500), (1439, 2881), (60, 4320)]

    for first, last in [*np.sort(edges, axis=1).tolist(), *whole_blocks]:
        span = (START + first * MINUTE, START + last * MINUTE)
        plain = panes.added_up(panes.pieces(stored, 1, "v1", *span))
        pending = tuple(START + minute * MINUTE for minute in rng.integers(0, 4 * 1440, 3).tolist())
        before_any_was_kept = total(stored, *span)
        while_keeping = total(stored, *span, ALL, pending)
        from_kept = total(stored, *span)
        for found in (before_any_was_kept, while_keeping, from_kept):
            assert_equal(found, plain)

    assert {size for size, _ in kept(stored)} == {60, 1440}


def test_a_day_is_read_from_one_row_once_it_was_kept(stored: Connection) -> None:
    add(stored, START + HOUR, START + 5 * HOUR)
    first = total(stored, START, START + DAY, ALL)

    with no_panes_read():
        again = total(stored, START, START + DAY)

    assert_equal(again, first)
    hours = {(60, START + hour * HOUR) for hour in range(24)}
    assert kept(stored) == {(1440, START), *hours}


def test_nothing_is_kept_unless_asked_for(stored: Connection) -> None:
    add(stored, START)

    total(stored, START, START + DAY)

    assert kept(stored) == set()


def test_a_span_that_begins_with_a_block_uses_it(stored: Connection) -> None:
    add(stored, START + MINUTE)

    total(stored, START, START + HOUR, ALL)

    assert kept(stored) == {(60, START)}


def test_part_of_a_block_is_not_kept(stored: Connection) -> None:
    add(stored, START + MINUTE)

    total(stored, START + MINUTE, START + HOUR, ALL)
    total(stored, START, START + HOUR - MINUTE, ALL)

    assert kept(stored) == set()


def test_a_block_with_pending_arrivals_is_not_used(stored: Connection) -> None:
    add(stored, START)
    total(stored, START, START + DAY, ALL)
    late = START + 90 * MINUTE
    add(stored, late)

    found = n(stored, START, START + DAY, late)

    assert found == 2
    # The control: who does not know of the arrival is told the old sums.
    assert n(stored, START, START + DAY) == 1


def test_a_block_with_pending_arrivals_is_not_kept_at_either_level(stored: Connection) -> None:
    add(stored, START)

    total(stored, START, START + DAY, ALL, pending=(START + 90 * MINUTE,))

    hours = {(60, START + hour * HOUR) for hour in range(24)}
    assert kept(stored) == hours - {(60, START + HOUR)}


def test_an_arrival_in_one_block_spoils_no_other(stored: Connection) -> None:
    add(stored, START)
    total(stored, START, START + 2 * HOUR, ALL)

    with no_panes_read():
        found = total(stored, START, START + HOUR, pending=(START + HOUR,))

    assert found["hard"].n == 1


def test_dropping_forgets_the_blocks_of_both_levels_around_a_pane(stored: Connection) -> None:
    add(stored, START)
    total(stored, START, START + 2 * DAY, ALL)
    before = kept(stored)

    rollups.drop(stored, STREAM, [START + 90 * MINUTE])

    assert before - kept(stored) == {(1440, START), (60, START + HOUR)}


def test_after_a_drop_late_predictions_are_in_the_total(stored: Connection) -> None:
    add(stored, START)
    total(stored, START, START + DAY, ALL)
    late = [START + 90 * MINUTE, START + 3 * HOUR]
    add(stored, *late, label=2)

    rollups.drop(stored, STREAM, late)

    for keep in (ALL, None):
        assert total(stored, START, START + DAY, keep)["hard"].counts.tolist() == [1, 0, 2]


def test_dropping_nothing_or_for_others_changes_nothing(stored: Connection) -> None:
    add(stored, START)
    total(stored, START, START + DAY, ALL)
    before = kept(stored)

    rollups.drop(stored, STREAM, [])
    rollups.drop(stored, Stream(2, "v1", 3, MINUTE), [START])
    rollups.drop(stored, Stream(1, "v2", 3, MINUTE), [START])

    assert kept(stored) == before


def test_only_blocks_within_the_time_to_keep_are_kept(stored: Connection) -> None:
    add(stored, START)
    keep = Keep(START + 2 * HOUR, START + 5 * HOUR + 59 * MINUTE)

    total(stored, START, START + 2 * DAY, keep)

    assert kept(stored) == {(60, START + hour * HOUR) for hour in (2, 3, 4)}


def test_a_block_that_is_there_may_be_used_however_old_it_is(stored: Connection) -> None:
    add(stored, START)
    total(stored, START, START + HOUR, ALL)

    with no_panes_read():
        found = total(stored, START, START + HOUR, Keep(START + DAY, START + 2 * DAY))

    assert found["hard"].n == 1


def test_empty_blocks_are_kept_and_not_looked_for_again(stored: Connection) -> None:
    first = total(stored, START, START + DAY, ALL)

    with no_panes_read():
        again = total(stored, START, START + DAY)

    assert sum(one.n for one in first.values()) == 0
    assert again["hard"].counts.tolist() == [0, 0, 0]


def test_an_empty_block_beside_softmax_rows_takes_nothing_away(stored: Connection) -> None:
    rows = np.array([[0.7, 0.2, 0.1]])
    soft = moments.sums(3, np.array([0]), rows)
    panes.add(stored, {PaneKey(1, "v1", START, "soft"): soft}, 0, START)
    total(stored, START, START + 2 * HOUR, ALL)

    found = total(stored, START, START + 2 * HOUR)

    assert_equal({"soft": found["soft"]}, {"soft": soft})
    assert found["hard"].n == 0


def test_versions_and_models_have_blocks_of_their_own(stored: Connection) -> None:
    add(stored, START)
    total(stored, START, START + HOUR, ALL)

    others = [Stream(1, "v2", 3, MINUTE), Stream(2, "v1", 3, MINUTE)]

    for other in others:
        assert rollups.total(stored, other, START, START + HOUR) == {}


def test_an_empty_span_has_no_sums(stored: Connection) -> None:
    add(stored, START)

    assert total(stored, START, START, ALL) == {}
    assert total(stored, START + HOUR, START, ALL) == {}


def test_longer_panes_have_longer_blocks(stored: Connection) -> None:
    stream = Stream(1, "v1", 3, timedelta(minutes=2))
    add(stored, START, START + 2 * MINUTE)

    rollups.total(stored, stream, START, START + 4 * HOUR, keep=ALL)

    assert kept(stored) == {(60, START), (60, START + 2 * HOUR)}


def test_a_total_is_what_was_kept_and_what_is_next_to_it(stored: Connection) -> None:
    # The control of all the above: a block is really what the total is read from.
    add(stored, START, START + HOUR)
    total(stored, START, START + HOUR, ALL)
    stored.execute(update(rollup).values(counts=np.array([7, 0, 0])))

    found = n(stored, START, START + 2 * HOUR)

    assert found == 7 + 1
    assert stored.execute(select(func.count()).select_from(rollup)).scalar_one() == 1


def behind(coarse: datetime, closed: datetime) -> Stream:
    return replace(STREAM, horizon=Horizon(closed=closed, coarse=coarse))


def test_nothing_is_kept_of_panes_that_are_being_made_into_blocks(stored: Connection) -> None:
    add(stored, START)
    stream = behind(START + 2 * HOUR, START + 4 * HOUR)

    rollups.total(stored, stream, START, START + 6 * HOUR, keep=ALL)

    assert kept(stored) == {(60, START + 4 * HOUR), (60, START + 5 * HOUR)}


def test_panes_are_not_read_where_blocks_are_all_there_is(stored: Connection) -> None:
    add(stored, START, START + HOUR)
    total(stored, START, START + 2 * HOUR, ALL)
    add(stored, START + MINUTE)
    stream = behind(START + HOUR, START + HOUR)

    found = rollups.total(stored, stream, START, START + 2 * HOUR)

    assert found["hard"].n == 2


def test_days_are_kept_of_blocks_that_are_all_there_is(stored: Connection) -> None:
    total(stored, START, START + 2 * DAY, ALL)
    stored.execute(rollup.delete().where(rollup.c.panes == 1440))
    stream = behind(START + DAY, START + DAY)

    rollups.total(stored, stream, START, START + DAY, keep=ALL)

    assert (1440, START) in kept(stored)


def test_the_newest_are_panes_and_then_blocks_of_both_kinds(stored: Connection) -> None:
    soft = moments.sums(3, np.array([0]), np.array([[0.7, 0.2, 0.1]]))
    add(stored, START, START + HOUR, START + 2 * HOUR, START + 2 * HOUR + MINUTE)
    panes.add(stored, {PaneKey(1, "v1", START, "soft"): soft}, 0, START)
    total(stored, START, START + 2 * HOUR, ALL)
    stream = behind(START + 2 * HOUR, START + 2 * HOUR)

    found = rollups.newest(stored, stream, START + 3 * HOUR, 4)

    starts = [START + 2 * HOUR + MINUTE, START + 2 * HOUR, START + HOUR, START]
    assert [start for start, _ in found] == starts
    assert {kind: one.n for kind, one in found[-1][1].items()} == {"hard": 1, "soft": 1}
    for limit in (1, 3):
        fewer = rollups.newest(stored, stream, START + 3 * HOUR, limit)
        assert [start for start, _ in fewer] == starts[:limit]


@pytest.mark.parametrize(("count", "minute"), [(1, 121), (2, 120), (3, 60), (4, 0), (9, 0)])
def test_the_last_predictions_begin_with_a_pane_or_a_block(
    stored: Connection, count: int, minute: int
) -> None:
    add(stored, START + 5 * MINUTE, START + 65 * MINUTE, START + 120 * MINUTE, START + 121 * MINUTE)
    total(stored, START - 3 * HOUR, START + 2 * HOUR, ALL)
    stream = behind(START + 2 * HOUR, START + 2 * HOUR)

    found = rollups.start_of_last(stored, stream, count, START + 3 * HOUR)

    assert found == START + minute * MINUTE


def soft(*labels: int) -> Sums:
    """A softmax row for each of these labels."""
    rows = np.array([0.7 * np.eye(3)[label] + 0.1 for label in labels])
    return moments.sums(3, moments.argmax(rows), rows)


def without_codes(conn: Connection) -> None:
    """As the release before codes were kept would have left the blocks."""
    conn.execute(update(rollup).values(codes=None, code_counts=None))


def codes_kept(conn: Connection) -> list[bool]:
    rows = conn.execute(select(rollup.c.codes).where(rollup.c.kind == "soft")).scalars()
    return [codes is not None for codes in rows]


def test_a_block_that_has_lost_its_codes_is_made_anew_while_its_panes_are_there(
    stored: Connection,
) -> None:
    panes.add(stored, {PaneKey(1, "v1", START, "soft"): soft(0, 1, 1)}, 0, START)
    first = total(stored, START, START + DAY, ALL)
    without_codes(stored)

    again = total(stored, START, START + DAY, ALL)

    assert first["soft"].soft is not None
    assert first["soft"].soft.coded
    assert moments.same(again["soft"], first["soft"])
    assert all(codes_kept(stored))


@pytest.mark.parametrize("lost", [False, True])
def test_what_is_added_to_a_block_without_codes_has_none_either(
    stored: Connection, *, lost: bool
) -> None:
    stream = replace(STREAM, horizon=Horizon(coarse=START + 30 * MINUTE))
    rollups.coarsen(stored, STREAM, START, START)
    panes.add(stored, {PaneKey(1, "v1", START, "soft"): soft(0)}, 0, START)
    rollups.coarsen(stored, STREAM, START, START + 30 * MINUTE)
    if lost:
        without_codes(stored)
    later = START + 30 * MINUTE
    panes.add(stored, {PaneKey(1, "v1", later, "soft"): soft(1, 2)}, 0, START)

    rollups.coarsen(stored, stream, later, START + HOUR)

    found = rollups.total(
        stored, replace(STREAM, horizon=Horizon(coarse=START + HOUR)), START, START + HOUR
    )["soft"]
    assert found.n == 3
    assert found.soft is not None
    assert found.soft.coded is not lost
    assert codes_kept(stored) == [not lost]
