"""Sums against a brute-force recount, through the parser and through the database."""

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from app.domain.model import Model
from app.domain.window import pane_start
from app.errors import InvalidInput
from app.ingest import json_format
from app.ingest.record import Submission, needed_partitions, record
from app.ingest.reduce import Reduced, Watched, reduce
from app.stats import moments
from app.storage import models, panes, partitions
from app.storage.db import Connection
from app.storage.panes import Kind, PaneKey
from tests.factories import LABELS, NOW, VERSION, model, settings


@dataclass(frozen=True)
class Event:
    """A prediction as a client knows it; a row of probabilities or none."""

    label: int
    seconds_ago: int
    row: tuple[int, ...] | None


events = st.builds(
    Event,
    label=st.integers(0, 2),
    seconds_ago=st.one_of(st.integers(0, 600), st.integers(80_000, 90_000)),
    row=st.none() | st.permutations([700, 200, 100]).map(tuple),
)
batches = st.lists(st.lists(events, max_size=12), min_size=1, max_size=5)


def body(batch: Sequence[Event]) -> bytes:
    """Rows, as a client would send them: out of order, late, with softmax and without."""
    rows = [
        {
            "predicted": LABELS[one.label],
            "timestamp": (NOW - timedelta(seconds=one.seconds_ago)).isoformat(),
            **({"probabilities": [part / 1000 for part in one.row]} if one.row else {}),
        }
        for one in batch
    ]
    return json.dumps({"rows": rows}).encode()


def reduced(batch: Sequence[Event], owner: Model) -> Reduced:
    return reduce(json_format.parse(body(batch), skip=False), Watched.of(owner), NOW)


def recount(some: Sequence[Sequence[Event]]) -> dict[tuple[datetime, str], Counter[int]]:
    """Prediction by prediction, in plain Python: what the panes must hold."""
    found: defaultdict[tuple[datetime, str], Counter[int]] = defaultdict(Counter)
    for one in itertools.chain(*some):
        at = NOW - timedelta(seconds=one.seconds_ago)
        if at >= NOW - timedelta(days=1):
            kind = "soft" if one.row else "hard"
            found[pane_start(at, timedelta(minutes=1)), kind][one.label] += 1
    return dict(found)


def as_counters(sums: Any) -> dict[tuple[datetime, str], Counter[int]]:
    return {
        (key.start, key.kind): Counter(dict(enumerate(part.counts.tolist())))
        for key, part in sums.items()
    }


@given(batches)
def test_panes_hold_what_a_recount_finds(some: list[list[Event]]) -> None:
    for batch in some:
        found = reduced(batch, model())

        assert as_counters(found.panes) == recount([batch])
        assert found.accepted == sum(part.n for part in found.panes.values())
        assert found.accepted + found.late == len(batch)


@given(st.lists(events, min_size=1, max_size=30))
def test_softmax_sums_agree_with_a_loop_over_rows(batch: list[Event]) -> None:
    for (_, _, start, kind), sums in reduced(batch, model()).panes.items():
        if kind == "hard":
            assert sums.soft is None
            continue
        rows = [
            np.array(one.row) / 1000
            for one in batch
            if one.row
            and pane_start(NOW - timedelta(seconds=one.seconds_ago), timedelta(minutes=1)) == start
        ]
        assert sums.soft is not None
        np.testing.assert_allclose(sums.soft.prob, sum(rows), rtol=1e-12)
        outer = sum(np.outer(row, row) for row in rows)
        np.testing.assert_allclose(moments.outer_matrix(3, sums.soft.outer), outer, rtol=1e-12)
        assert sums.soft.score == pytest.approx(sum(row.max() for row in rows))
        assert sums.soft.cells.sum() == sums.soft.code_counts.sum() == len(rows)


@given(some=batches, order=st.randoms(use_true_random=False))
@hypothesis_settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_what_is_stored_does_not_depend_on_the_order_of_arrival(
    conn: Connection, some: list[list[Event]], order: Any
) -> None:
    shuffled = [list(batch) for batch in some]
    order.shuffle(shuffled)
    for batch in shuffled:
        order.shuffle(batch)

    assert stored_of(conn, some) == stored_of(conn, shuffled) == recount(some)


def stored_of(
    conn: Connection, some: Sequence[Sequence[Event]]
) -> dict[tuple[datetime, str], Counter[int]]:
    """The panes of a new model after recording the batches one by one."""
    outer = conn.begin_nested()
    models.put(conn, "fresh", settings(), NOW)
    owner = models.get(conn, "fresh")
    known = Model(owner.id, owner.name, owner.settings, owner.revision, {VERSION: NOW}, VERSION)
    for shard, batch in enumerate(some):
        one = Submission(reduced(batch, known))
        partitions.ensure(conn, needed_partitions([one], NOW))
        record(conn, [one], shard % 3, NOW)
    found = panes.between(conn, owner.id, NOW - timedelta(days=2), NOW + timedelta(days=1))
    outer.rollback()
    return {
        (pane.start, kind): Counter(dict(enumerate(sums.counts.tolist())))
        for pane in found
        for kind, sums in pane.sums.items()
    }


def test_a_pane_begins_at_its_first_microsecond() -> None:
    edge = NOW.replace(second=0)
    times = [edge, edge - timedelta(microseconds=1), edge + timedelta(seconds=59.999999)]
    content = json.dumps(
        {"predicted": [0, 1, 2], "timestamps": [time.isoformat() for time in times]}
    )

    found = reduce(json_format.parse(content.encode(), skip=False), Watched.of(model()), NOW)

    starts = {key.start: part.counts.tolist() for key, part in found.panes.items()}
    assert starts == {edge: [1, 0, 1], edge - timedelta(minutes=1): [0, 1, 0]}


@pytest.mark.parametrize(
    ("batch", "kind"),
    [
        ({"predicted": ["legit", 1, "abuse", "abuse"]}, "hard"),
        (
            {"probabilities": [[0.45, 0.45, 0.1], [0.1, 0.8, 0.1], [0, 0, 1], [0.2, 0.3, 0.5]]},
            "soft",
        ),
    ],
)
def test_the_short_way_and_the_long_way_agree(
    batch: dict[str, Any], kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched.of(model())
    short = json_format.parse(json.dumps(batch).encode(), skip=False)
    stamped = {**batch, "timestamp": NOW.isoformat()}
    long = json_format.parse(json.dumps(stamped).encode(), skip=False)

    ((same_key, slow),) = reduce(long, watched, NOW).panes.items()
    # So that there is no other way.
    monkeypatch.delattr("app.ingest.reduce.records_of")
    ((key, quick),) = reduce(short, watched, NOW).panes.items()

    assert key == same_key == PaneKey(1, VERSION, NOW.replace(second=0), kind)
    assert quick.counts.tolist() == slow.counts.tolist() == [1, 1, 2]
    assert moments.same(quick, slow)


def test_a_timestamp_may_lie_five_minutes_ahead_and_not_more() -> None:
    watched = Watched.of(model())

    def at(ahead: timedelta) -> Reduced:
        content = json.dumps({"predicted": [0], "timestamp": (NOW + ahead).isoformat()})
        return reduce(json_format.parse(content.encode(), skip=False), watched, NOW)

    assert at(timedelta(minutes=5)).accepted == 1
    with pytest.raises(InvalidInput, match="more than 5 minutes in the future"):
        at(timedelta(minutes=5, microseconds=1))


@pytest.mark.parametrize(
    ("row", "fate"),
    [
        ([0.9, 0.1, 0.0005], "accepted"),
        ([0.9, 0.0995, 0.0], "accepted"),
        ([1.0 + 1e-9, 0.0, -1e-9], "accepted"),
        ([0.9, 0.1, 0.01], "rejected"),
        ([0.9, 0.0, 0.0], "rejected"),
        ([1.0, 1e-5, -1e-5], "rejected"),
    ],
)
def test_softmax_rows_may_be_as_wrong_as_printing_makes_them(row: list[float], fate: str) -> None:
    columns = json_format.parse(json.dumps({"probabilities": [row]}).encode(), skip=True)

    found = reduce(columns, Watched.of(model()), NOW, skip=True)

    assert getattr(found, fate) == 1


def test_ids_are_kept_only_for_models_that_ask() -> None:
    content = b'{"predicted": ["abuse", "legit"], "ids": ["a", "b"]}'
    columns = json_format.parse(content, skip=False)

    plain = reduce(columns, Watched.of(model()), NOW)
    keeping = reduce(columns, Watched.of(model(keep_ids=True)), NOW)

    assert plain.kept is None
    assert keeping.kept is not None
    assert (keeping.kept.ids, keeping.kept.predicted) == (["a", "b"], [2, 0])
    assert keeping.kept.at == [NOW, NOW]


def test_times_without_a_zone_are_compared_in_utc() -> None:
    content = b'{"predicted": [0], "timestamps": ["2026-11-17T11:00:30+01:00"]}'

    found = reduce(json_format.parse(content, skip=False), Watched.of(model()), NOW)

    assert [key.start for key in found.panes] == [datetime(2026, 11, 17, 10, 0, tzinfo=UTC)]
