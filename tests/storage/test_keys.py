"""API keys in the database."""

import threading
from datetime import UTC, datetime, timedelta

import pytest

from app.errors import Conflict, InvalidInput, NotFound
from app.storage import keys
from app.storage.db import Connection, Database
from app.storage.keys import Scope
from tests.factories import NOW

LATER = NOW + timedelta(hours=1)
SECRET = "5f0c9d2b7a6e4831f0c9d2b7a6e48315"


def test_a_key_is_found_by_the_digest_of_its_secret(conn: Connection) -> None:
    key, secret = keys.create(conn, "grafana", [Scope.READ], NOW)

    assert keys.by_digest(conn) == {keys.digest(secret): key}


def test_a_key_remembers_what_it_was_made_for(conn: Connection) -> None:
    key, secret = keys.create(conn, "grafana", [Scope.READ, Scope.INGEST, Scope.READ], NOW)

    assert (key.name, key.scopes, key.created_at, key.revoked_at) == (
        "grafana",
        frozenset({Scope.READ, Scope.INGEST}),
        NOW,
        None,
    )
    assert secret.startswith(key.hint)
    assert len(key.hint) < 12


def test_keys_come_in_the_order_they_were_made(conn: Connection) -> None:
    made = [keys.create(conn, name, [Scope.READ], NOW)[0] for name in ("b", "a", "c")]

    assert list(keys.all_keys(conn)) == made


def test_every_key_has_a_secret_of_its_own(conn: Connection) -> None:
    secrets = {keys.create(conn, "same", [Scope.READ], NOW)[1] for _ in range(20)}

    assert len(secrets) == 20


@pytest.mark.parametrize(
    ("scopes", "allowed"),
    [
        ([Scope.INGEST], {Scope.INGEST}),
        ([Scope.READ], {Scope.READ}),
        ([Scope.READ, Scope.INGEST], {Scope.READ, Scope.INGEST}),
        ([Scope.ADMIN], {Scope.READ, Scope.INGEST, Scope.ADMIN}),
    ],
)
def test_a_key_allows_its_scopes_and_admin_all(
    conn: Connection, scopes: list[Scope], allowed: set[Scope]
) -> None:
    key, _ = keys.create(conn, "k", scopes, NOW)

    assert {scope for scope in Scope if key.allows(scope)} == allowed


def test_a_revoked_key_allows_nothing(conn: Connection) -> None:
    key, _ = keys.create(conn, "k", [Scope.ADMIN], NOW)

    revoked = keys.revoke(conn, key.id, LATER)

    assert revoked.revoked_at == LATER
    assert not any(revoked.allows(scope) for scope in Scope)


def test_a_revoked_key_is_still_known(conn: Connection) -> None:
    key, secret = keys.create(conn, "k", [Scope.ADMIN], NOW)

    revoked = keys.revoke(conn, key.id, LATER)

    assert keys.by_digest(conn)[keys.digest(secret)] == revoked


def test_revoking_again_changes_nothing(conn: Connection) -> None:
    key, _ = keys.create(conn, "k", [Scope.ADMIN], NOW)
    first = keys.revoke(conn, key.id, LATER)

    assert keys.revoke(conn, key.id, datetime(2030, 1, 1, tzinfo=UTC)) == first


def test_revoking_leaves_the_others_alone(conn: Connection) -> None:
    key, _ = keys.create(conn, "k", [Scope.ADMIN], NOW)
    other, _ = keys.create(conn, "other", [Scope.ADMIN], NOW)

    keys.revoke(conn, key.id, LATER)

    assert keys.all_keys(conn)[1] == other


def test_what_is_not_there_cannot_be_revoked(conn: Connection) -> None:
    with pytest.raises(NotFound, match="no key 0"):
        keys.revoke(conn, 0, NOW)


def test_a_secret_made_elsewhere_becomes_a_key(conn: Connection) -> None:
    key, new = keys.adopt(conn, "scrape", [Scope.READ], SECRET, NOW)

    assert new
    assert keys.by_digest(conn) == {keys.digest(SECRET): key}
    assert (key.name, key.scopes) == ("scrape", frozenset({Scope.READ}))
    assert SECRET.startswith(key.hint)


def test_the_same_secret_again_changes_nothing(conn: Connection) -> None:
    first, _ = keys.adopt(conn, "scrape", [Scope.READ], SECRET, NOW)

    again, new = keys.adopt(conn, "another name", [Scope.READ], SECRET, LATER)

    assert (again, new) == (first, False)
    assert list(keys.all_keys(conn)) == [first]


def test_a_known_secret_does_not_get_other_scopes(conn: Connection) -> None:
    first, _ = keys.adopt(conn, "scrape", [Scope.READ], SECRET, NOW)

    with pytest.raises(Conflict, match="which has the scopes read, not admin"):
        keys.adopt(conn, "scrape", [Scope.ADMIN], SECRET, NOW)

    assert list(keys.all_keys(conn)) == [first]


def test_a_revoked_secret_does_not_come_back(conn: Connection) -> None:
    key, _ = keys.adopt(conn, "scrape", [Scope.READ], SECRET, NOW)
    keys.revoke(conn, key.id, LATER)

    with pytest.raises(Conflict, match="which was revoked"):
        keys.adopt(conn, "scrape", [Scope.READ], SECRET, LATER)


@pytest.mark.parametrize(
    ("secret", "complaint"),
    [
        ("", "at least 32 characters, not 0"),
        (SECRET[:-1], "at least 32 characters, not 31"),
        ("changeme" * 5, "repeats a few characters"),
        (f"{SECRET} {SECRET}", "one word"),
        (f"{SECRET}\n{SECRET}", "one word"),
        (f"{SECRET}é", "one word"),
    ],
)
def test_a_weak_secret_is_refused(conn: Connection, secret: str, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        keys.adopt(conn, "k", [Scope.READ], secret, NOW)

    assert list(keys.all_keys(conn)) == []


def test_of_many_who_bring_a_secret_at_once_one_makes_the_key(database: Database) -> None:
    made: list[bool] = []
    together = threading.Barrier(8)

    def bring() -> None:
        together.wait()
        with database.begin() as conn:
            made.append(keys.adopt(conn, "scrape", [Scope.READ], SECRET, NOW)[1])

    threads = [threading.Thread(target=bring) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(made) == [False] * 7 + [True]
