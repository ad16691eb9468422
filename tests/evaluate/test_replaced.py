"""Panes that are replaced: what was made of them is made of what they are now."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.domain.model import AlarmPolicy
from app.domain.window import Window, WindowKind
from app.evaluate import look
from app.ingest import contributions
from app.stats import moments
from app.stats.moments import Sums
from app.stats.reference import from_confusion, from_sample
from app.storage import detectors, horizon, rollups
from app.storage.db import Database
from app.storage.panes import OwnPane, PaneKey
from app.storage.rollups import Stream
from app.storage.tables import rollup
from tests.evaluate.simulation import BEGIN, MINUTE, Life, life

SEED = 20261118
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
REFERENCE = from_confusion(np.array([[900, 60], [100, 940]]))
# Nobody is told that predictions are missing: in these lives they often are.
PATIENT = AlarmPolicy(no_data_after=None, ingest_stopped_after=None)
WINDOWS = (
    Window("10m", WindowKind.SLIDING, length=10 * MINUTE),
    Window("each-10m", WindowKind.TUMBLING, length=10 * MINUTE),
    Window("last-100", WindowKind.LAST, count=100),
)


def own_life(database: Database, name: str = "m", **more: Any) -> Life:
    return life(database, REFERENCE, name, windows=WINDOWS, alarm=PATIENT, **more)


def minute(number: int) -> datetime:
    return BEGIN + number * MINUTE


def hard(*counts: int) -> Sums:
    return Sums(np.array(counts))


def settle(own: Life) -> None:
    """Let the worker take what has come in, and then redo what that has changed."""
    for _ in range(2):
        own.now += 2 * SECOND
        own.evaluate()


def history(client: TestClient, name: str, window: str) -> list[Any]:
    query = {"window": window, "limit": "1000"}
    found: list[Any] = client.get(f"/v1/models/{name}/evaluations", params=query).json()["items"]
    return found


def apart(evaluation: dict[str, Any]) -> dict[str, Any]:
    """An evaluation without what depends on when it was made."""
    own = ("model", "evaluated_at", "revision")
    return {name: value for name, value in evaluation.items() if name not in own}


@pytest.fixture
def one_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models resample alike."""
    monkeypatch.setattr(look, "seed", lambda *_: SEED)


@pytest.mark.usefixtures("one_seed")
def test_evaluations_after_a_replacement_are_those_of_a_model_that_never_had_anything_else(
    database: Database, client: TestClient
) -> None:
    rng = np.random.default_rng(SEED)
    first = rng.integers(1, 20, (30, 2))
    # Some grow, some shrink, one goes; most stay.
    last = first.copy()
    last[3], last[11], last[12], last[19] = (30, 30), (2, 1), (0, 0), (0, 25)
    corrected, fresh = own_life(database, "corrected"), own_life(database, "fresh")
    for i in range(30):
        for own, counts in ((corrected, first), (fresh, last)):
            own.now = minute(i) + 59 * SECOND
            own.contribute(1, [(minute(i), hard(*counts[i]))])
            own.evaluate()

    for i in (3, 11, 12, 19):
        corrected.contribute(2, [(minute(i), hard(*last[i]))])
    settle(corrected)
    settle(fresh)

    for window in WINDOWS:
        found, wanted = (history(client, name, window.name) for name in ("corrected", "fresh"))
        assert [apart(one) for one in found] == [apart(one) for one in wanted]
        assert max(one["revision"] for one in found) > 1
    # Ten minutes of one, and the ten of the next that begin while they last.
    revised = [one for one in history(client, "corrected", "10m") if one["revision"] > 1]
    assert len(revised) == len({*range(3, 13), *range(11, 22), *range(19, 29)})


def total(own: Life, pending: bool) -> int:
    """What the life's first three hours hold, by rollups where there are any."""
    with own.database.begin() as conn:
        known = horizon.get(conn)
        stream = look.stream_of(conn, own.model, "v1", known)
        if not pending:
            stream = Stream(own.model.id, "v1", 2, MINUTE, horizon=known)
        return sum(one.n for one in rollups.total(conn, stream, BEGIN, BEGIN + 3 * HOUR).values())


def three_hours(database: Database) -> Life:
    """Three hours of ten predictions a minute, kept as rollups."""
    day = Window("24h", WindowKind.SLIDING, length=24 * HOUR)
    own = life(database, REFERENCE, windows=(day,), alarm=PATIENT)
    own.now = BEGIN + 4 * HOUR
    own.contribute(1, [(minute(i), hard(6, 4)) for i in range(180)])
    settle(own)
    own.now += 5 * MINUTE
    own.evaluate()
    with database.begin() as conn:
        assert BEGIN in conn.execute(select(rollup.c.start)).scalars().all()
    return own


@pytest.mark.parametrize(("counts", "change"), [((1, 0), -9), ((0, 0), -10), ((4, 6), 0)])
def test_a_pane_that_shrinks_makes_its_rollups_shrink(
    database: Database, counts: tuple[int, int], change: int
) -> None:
    own = three_hours(database)

    own.contribute(2, [(minute(7), hard(*counts))])
    before_a_look = total(own, pending=True)
    settle(own)
    own.now += 5 * MINUTE
    own.evaluate()

    assert (before_a_look, total(own, pending=False)) == (1800 + change, 1800 + change)


def test_the_control_who_is_not_told_of_the_change_goes_on_with_the_old_sums(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = three_hours(database)

    def increases_only(key: OwnPane, before: Any, after: Any) -> Iterator[Any]:
        for kind, one in (contributions.increases(before, after) or {}).items():
            yield PaneKey(key.model_id, key.version, key.start, kind), one

    monkeypatch.setattr(contributions, "_arrivals", increases_only)
    own.contribute(2, [(minute(7), hard(1, 0))])
    settle(own)

    assert (total(own, pending=True), total(own, pending=False)) == (1800, 1800)


def fed(own: Life) -> list[tuple[list[int], list[int], float]]:
    """What the detectors have seen, which wait to know how far predictions depend on each other."""
    with own.database.begin() as conn:
        watch = detectors.find(conn, own.model.id, "v1")
    assert watch is not None
    return [(part.counts.tolist(), part.soft.tolist(), part.score) for part in watch.waiting]


def test_detectors_see_what_is_new_and_keep_what_they_saw(database: Database) -> None:
    own = own_life(database)
    seen = []
    for sequence, counts in enumerate([(6, 4), (6, 8), (1, 1), (2, 5), (0, 0), (3, 0)]):
        own.contribute(sequence, [(BEGIN, hard(*counts))])
        settle(own)
        seen.append(fed(own)[0][0])

    assert seen == [[6, 4], [6, 8], [6, 8], [7, 12], [7, 12], [10, 12]]


def test_detectors_see_nothing_of_rows_that_have_become_others(database: Database) -> None:
    rng = np.random.default_rng(SEED)
    truth = rng.integers(2, size=400)
    rows = np.where(np.eye(2)[truth] > 0, 0.8, 0.2)
    sample = from_sample(2, moments.argmax(rows), truth, rows)
    own = life(database, sample, windows=WINDOWS, alarm=PATIENT)
    sure = np.full((10, 2), (0.9, 0.1))
    grown = np.concatenate([sure, np.full((5, 2), (0.3, 0.7))])
    other = np.full((15, 2), (0.6, 0.4))

    for sequence, some in enumerate((sure, grown, other)):
        own.contribute(sequence, [(BEGIN, moments.sums(2, moments.argmax(some), some))])
        settle(own)

    ((counts, soft, score),) = fed(own)
    assert (counts, soft) == ([10, 5], [10, 5])
    assert score == pytest.approx(12.5)
    with own.database.begin() as conn:
        stream = look.stream_of(conn, own.model, "v1", horizon.get(conn))
        found = rollups.total(conn, stream, BEGIN, BEGIN + MINUTE)
    assert found["soft"].counts.tolist() == [15, 0]
