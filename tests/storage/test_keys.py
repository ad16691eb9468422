"""API keys in the database."""

from datetime import UTC, datetime, timedelta

import pytest

from app.errors import NotFound
from app.storage import keys
from app.storage.db import Connection
from app.storage.keys import Scope
from tests.factories import NOW

LATER = NOW + timedelta(hours=1)


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
