"""Sessions of the page: only a digest is stored, and they end in time."""

from datetime import timedelta

from sqlalchemy import select

from app.storage import keys, sessions
from app.storage.db import Connection
from app.storage.keys import ApiKey, Scope
from app.storage.tables import session
from tests.factories import NOW

HOUR = timedelta(hours=1)


def key(conn: Connection) -> ApiKey:
    return keys.create(conn, "ada", [Scope.READ], NOW)[0]


def test_a_session_stands_for_its_key_until_it_is_over(conn: Connection) -> None:
    own = key(conn)

    token = sessions.create(conn, own, NOW, NOW + HOUR)

    assert sessions.find(conn, token, NOW + HOUR - timedelta(seconds=1)) == own
    assert sessions.find(conn, token, NOW + HOUR) is None


def test_what_is_stored_opens_nothing(conn: Connection) -> None:
    token = sessions.create(conn, key(conn), NOW, NOW + HOUR)

    (row,) = conn.execute(select(session)).all()

    assert bytes(row.digest) == keys.digest(token)
    assert sessions.find(conn, bytes(row.digest).hex(), NOW) is None


def test_no_two_tokens_are_alike(conn: Connection) -> None:
    own = key(conn)

    tokens = {sessions.create(conn, own, NOW, NOW + HOUR) for _ in range(5)}

    assert len(tokens) == 5
    assert min(map(len, tokens)) >= 43


def test_a_session_is_over_when_its_key_is_revoked(conn: Connection) -> None:
    own = key(conn)
    token = sessions.create(conn, own, NOW, NOW + HOUR)

    keys.revoke(conn, own.id, NOW)

    assert sessions.find(conn, token, NOW) is None


def test_a_session_that_was_ended_is_over_and_the_others_are_not(conn: Connection) -> None:
    own = key(conn)
    one, other = (sessions.create(conn, own, NOW, NOW + HOUR) for _ in range(2))

    sessions.end(conn, one)

    assert sessions.find(conn, one, NOW) is None
    assert sessions.find(conn, other, NOW) == own


def test_sessions_that_are_over_do_not_pile_up(conn: Connection) -> None:
    own = key(conn)
    sessions.create(conn, own, NOW, NOW + HOUR)

    sessions.create(conn, own, NOW + HOUR, NOW + 2 * HOUR)

    assert len(conn.execute(select(session)).all()) == 1
