"""Panes: sums that are added to, and read back whole."""

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from psycopg.errors import CheckViolation

from app.stats import moments
from app.stats.moments import SoftSums, Sums
from app.storage import panes, partitions, rollups
from app.storage.db import Connection
from app.storage.panes import Kind, Pane, PaneKey
from app.storage.rollups import Stream

START = datetime(2026, 11, 17, 10, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
STREAM = Stream(model_id=1, version="v1", k=2, pane=MINUTE)
SEED = 20261118


def key(minute: int = 0, version: str = "v1", kind: Kind = "hard", model_id: int = 1) -> PaneKey:
    return PaneKey(model_id, version, START + minute * MINUTE, kind)


def hard(*counts: int) -> Sums:
    return Sums(np.array(counts))


def sample(n: int, k: int = 3, seed: int = SEED) -> tuple[Any, Any]:
    rows = np.random.default_rng(seed).dirichlet(np.full(k, 0.3), n)
    return moments.argmax(rows), rows


def soft(n: int, k: int = 3, seed: int = SEED) -> Sums:
    return moments.sums(k, *sample(n, k, seed))


def add(conn: Connection, sums: dict[PaneKey, Sums], shard: int = 0) -> None:
    """With the partitions that the recorder would have made."""
    partitions.ensure(conn, {partitions.containing("pane", one.start) for one in sums})
    panes.add(conn, sums, shard, START)


def read(conn: Connection, **options: Any) -> list[Pane]:
    found = panes.between(conn, 1, START - 99 * MINUTE, START + 99 * MINUTE, **options)
    assert all(isinstance(one, Pane) for one in found)
    return found


def close(left: Sums, right: Sums) -> bool:
    """Equal where they count, equal to rounding where they add."""
    if not np.array_equal(left.counts, right.counts):
        return False
    if left.soft is None or right.soft is None:
        return left.soft is right.soft
    return all(
        np.allclose(getattr(left.soft, one.name), getattr(right.soft, one.name), rtol=1e-12)
        for one in fields(SoftSums)
    )


def test_a_first_sum_is_stored_as_it_is(conn: Connection) -> None:
    add(conn, {key(): hard(1, 2, 3)})

    (pane,) = read(conn)

    assert (pane.start, pane.version, pane.counts.tolist()) == (START, "v1", [1, 2, 3])


def test_more_is_added_to_what_is_there(conn: Connection) -> None:
    add(conn, {key(): hard(1, 2, 3)})

    add(conn, {key(): hard(10, 0, 5)})

    (pane,) = read(conn)
    assert pane.counts.tolist() == [11, 2, 8]


def test_soft_sums_are_stored_exactly(conn: Connection) -> None:
    wanted = soft(50)
    add(conn, {key(kind="soft"): wanted})

    (pane,) = read(conn)

    found = pane.sums["soft"].soft
    assert found is not None
    assert wanted.soft is not None
    for one in fields(SoftSums):
        assert np.array_equal(getattr(found, one.name), getattr(wanted.soft, one.name)), one.name


@pytest.mark.parametrize("k", [2, 64, 65, 1000])
def test_soft_sums_add_up_to_those_of_the_whole(conn: Connection, k: int) -> None:
    predicted, rows = sample(40, k)
    for part in np.array_split(np.arange(40), 3):
        add(conn, {key(kind="soft"): moments.sums(k, predicted[part], rows[part])})

    (pane,) = read(conn)

    assert close(pane.sums["soft"], moments.sums(k, predicted, rows))


def test_shards_are_one_pane_to_the_reader(conn: Connection) -> None:
    predicted, rows = sample(40)
    for shard, part in enumerate(np.array_split(np.arange(40), 4)):
        add(conn, {key(kind="soft"): moments.sums(3, predicted[part], rows[part])}, shard)
    add(conn, {key(): hard(1, 0, 0)}, 5)

    (pane,) = read(conn)

    assert close(pane.sums["soft"], moments.sums(3, predicted, rows))
    assert pane.counts.sum() == 41


def test_records_with_and_without_softmax_are_kept_apart(conn: Connection) -> None:
    add(conn, {key(): hard(1, 2, 3), key(kind="soft"): soft(10)})

    (pane,) = read(conn)

    assert pane.sums["hard"].counts.tolist() == [1, 2, 3]
    assert pane.sums["soft"].n == 10
    assert pane.counts.sum() == 16


def test_versions_are_kept_apart(conn: Connection) -> None:
    add(conn, {key(version="v2"): hard(0, 1), key(version="v1"): hard(1, 0)})

    found = read(conn)

    assert [(pane.version, pane.counts.tolist()) for pane in found] == [
        ("v1", [1, 0]),
        ("v2", [0, 1]),
    ]


def test_models_are_kept_apart(conn: Connection) -> None:
    add(conn, {key(model_id=1): hard(1, 0), key(model_id=2): hard(0, 1)})

    (pane,) = read(conn)

    assert pane.counts.tolist() == [1, 0]


def test_sums_of_another_number_of_labels_do_not_add_up(conn: Connection) -> None:
    add(conn, {key(): hard(1, 2, 3)})

    with pytest.raises(CheckViolation, match="pane_counts_check"):
        add(conn, {key(): hard(1, 2)})


def test_a_span_includes_its_begin_and_not_its_end(conn: Connection) -> None:
    add(conn, {key(minute): hard(1, 0) for minute in range(4)})

    found = panes.between(conn, 1, START + MINUTE, START + 3 * MINUTE)

    assert [pane.start for pane in found] == [START + MINUTE, START + 2 * MINUTE]


def test_only_one_version_is_read_if_asked(conn: Connection) -> None:
    add(conn, {key(minute, v): hard(1, 0) for minute in (0, 1) for v in ("v1", "v2")})

    found = read(conn, version="v2")

    assert [(pane.start, pane.version) for pane in found] == [
        (START, "v2"),
        (START + MINUTE, "v2"),
    ]


def test_without_panes_there_is_nothing(conn: Connection) -> None:
    assert read(conn) == []


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("version", [None, "v2"])
def test_pages_make_up_the_whole(conn: Connection, limit: int, version: str | None) -> None:
    for shard in (0, 1):
        keys = [key(minute, v) for minute in range(3) for v in ("v1", "v2")]
        add(conn, {one: hard(1, 0) for one in keys}, shard)
    found: list[Pane] = []
    after = None

    while page := read(conn, version=version, after=after, limit=limit):
        assert len(page) <= limit
        found += page
        after = (page[-1].start, page[-1].version)

    whole = read(conn, version=version)
    assert [(one.start, one.version) for one in found] == [
        (one.start, one.version) for one in whole
    ]
    assert [one.counts.tolist() for one in found] == [[2, 0]] * len(whole)


def test_panes_of_two_months_are_read_together(conn: Connection) -> None:
    last = datetime(2026, 11, 30, 23, 59, tzinfo=UTC)
    add(conn, {PaneKey(1, "v1", last + i * MINUTE, "hard"): hard(1, 0) for i in (0, 1)})

    found = panes.between(conn, 1, last, last + 2 * MINUTE)

    assert [pane.start for pane in found] == [last, last + MINUTE]


def test_pieces_are_the_rows_of_the_panes(conn: Connection) -> None:
    parts = {key(kind="soft"): soft(40), key(): hard(3, 2, 1)}
    add(conn, parts)

    found = panes.added_up(panes.pieces(conn, 1, "v1", START, START + MINUTE))

    assert found["hard"].counts.tolist() == [3, 2, 1]
    assert moments.same(found["soft"], parts[key(kind="soft")])


def test_the_newest_panes_are_read_newest_first_and_whole(conn: Connection) -> None:
    for shard in (0, 1):
        add(conn, {key(minute): hard(minute, 1) for minute in (1, 2, 4)}, shard)

    found = panes.newest(conn, 1, "v1", START, START + 4 * MINUTE, 2)

    assert [start for start, _ in found] == [START + 2 * MINUTE, START + MINUTE]
    assert [sums["hard"].counts.tolist() for _, sums in found] == [[4, 2], [2, 2]]


@pytest.mark.parametrize("reading", [1, 2, 3, 1000])
@pytest.mark.parametrize(
    ("count", "minute"), [(1, 9), (2, 9), (3, 8), (7, 6), (20, 0), (21, 0), (999, 0)]
)
def test_the_last_predictions_begin_where_enough_panes_are_together(
    conn: Connection, monkeypatch: pytest.MonkeyPatch, reading: int, count: int, minute: int
) -> None:
    monkeypatch.setattr(panes, "FIRST_READING", reading)
    for shard in (0, 1):
        add(conn, {key(minute): hard(1, 0) for minute in range(10)}, shard)

    found = rollups.start_of_last(conn, STREAM, count, START + 10 * MINUTE)

    assert found == START + minute * MINUTE


def test_the_last_predictions_of_nothing_begin_at_the_end(conn: Connection) -> None:
    assert rollups.start_of_last(conn, STREAM, 5, START) == START


def test_no_order_of_arrival_changes_a_sum(conn: Connection) -> None:
    rng = np.random.default_rng(SEED)
    parts = [hard(*rng.integers(0, 9, 3).tolist()) for _ in range(10)]
    for model_id, order in ((1, rng.permutation(10)), (2, rng.permutation(10))):
        for i in order:
            add(conn, {key(model_id=model_id): parts[i]}, int(i) % 3)

    one, two = (panes.between(conn, model_id, START, START + MINUTE) for model_id in (1, 2))

    assert one[0].counts.tolist() == two[0].counts.tolist()
    assert one[0].counts.tolist() == moments.total(parts).counts.tolist()
