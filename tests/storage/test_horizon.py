"""The horizon: three edges that only move forward, and not under anybody's feet."""

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from app.storage import db, horizon
from app.storage.db import Connection, Contention, Database
from app.storage.horizon import NOTHING_FORGOTTEN, Horizon
from tests.factories import NOW

DAY = timedelta(days=1)


@pytest.fixture
def own(clone: Callable[[], str]) -> Iterator[Database]:
    """A database in which transactions truly commit."""
    database = Database(clone())
    yield database
    database.close()


def test_at_first_nothing_is_forgotten(conn: Connection) -> None:
    assert horizon.get(conn) == NOTHING_FORGOTTEN


def test_what_is_coarse_is_closed_and_what_is_forgotten_is_both(conn: Connection) -> None:
    horizon.advance(conn, closed=NOW)
    closed = horizon.get(conn)
    horizon.advance(conn, coarse=NOW - DAY)
    coarse = horizon.get(conn)
    horizon.advance(conn, forgotten=NOW + DAY)

    assert closed == Horizon(closed=NOW)
    assert coarse == Horizon(closed=NOW, coarse=NOW - DAY)
    assert horizon.get(conn) == Horizon(NOW + DAY, NOW + DAY, NOW + DAY)


def test_no_edge_moves_back(conn: Connection) -> None:
    horizon.advance(conn, closed=NOW, coarse=NOW - DAY, forgotten=NOW - 9 * DAY)
    before = horizon.get(conn)

    horizon.advance(conn, closed=NOW - DAY, coarse=NOW - 2 * DAY, forgotten=NOW - 99 * DAY)

    assert horizon.get(conn) == before


def test_it_does_not_move_while_somebody_goes_by_it(
    own: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db, "PAUSES", (0.01,))
    with own.begin() as reader:
        before = horizon.get(reader)
        with pytest.raises(Contention), own.begin() as conn:
            horizon.advance(conn, closed=NOW)
        again = horizon.get(reader)

    with own.begin() as conn:
        horizon.advance(conn, closed=NOW)

    assert before == again == NOTHING_FORGOTTEN
    with own.begin() as conn:
        assert horizon.get(conn).closed == NOW
