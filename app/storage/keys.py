"""API keys: who may do what. Only a digest of the secret is stored."""

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy import Connection, Row, insert, select, update

from app.errors import NotFound
from app.storage.tables import api_key

PREFIX = "sw_"


class Scope(StrEnum):
    INGEST = "ingest"
    READ = "read"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """`hint` is the beginning of the secret: enough to tell keys apart, too little to use."""

    id: int
    name: str
    scopes: frozenset[Scope]
    hint: str
    created_at: datetime
    revoked_at: datetime | None

    def allows(self, scope: Scope) -> bool:
        return self.revoked_at is None and bool(self.scopes & {scope, Scope.ADMIN})


def digest(secret: str) -> bytes:
    # A plain hash is enough: the secret is 256 random bits, nothing that could be guessed.
    return hashlib.sha256(secret.encode()).digest()


def create(
    conn: Connection, name: str, scopes: Iterable[Scope], now: datetime
) -> tuple[ApiKey, str]:
    """A new key and its secret, which nobody can ask for again."""
    secret = PREFIX + secrets.token_urlsafe(32)
    row = conn.execute(
        insert(api_key)
        .values(
            name=name,
            scopes=sorted(set(scopes)),
            hint=secret[: len(PREFIX) + 6],
            digest=digest(secret),
            created_at=now,
        )
        .returning(api_key)
    ).one()
    return of_row(row), secret


def all_keys(conn: Connection) -> Sequence[ApiKey]:
    return [of_row(row) for row in conn.execute(select(api_key).order_by(api_key.c.id))]


def by_digest(conn: Connection) -> dict[bytes, ApiKey]:
    """Every key ever made, revoked ones too."""
    return {bytes(row.digest): of_row(row) for row in conn.execute(select(api_key))}


def revoke(conn: Connection, key_id: int, now: datetime) -> ApiKey:
    """End a key for good; ending it again changes nothing."""
    conn.execute(
        update(api_key)
        .where(api_key.c.id == key_id, api_key.c.revoked_at.is_(None))
        .values(revoked_at=now)
    )
    row = conn.execute(select(api_key).where(api_key.c.id == key_id)).one_or_none()
    if row is None:
        raise NotFound(f"there is no key {key_id}")
    return of_row(row)


def of_row(row: Row[tuple[object, ...]]) -> ApiKey:
    return ApiKey(
        id=row.id,
        name=row.name,
        scopes=frozenset(Scope(scope) for scope in row.scopes),
        hint=row.hint,
        created_at=row.created_at,
        revoked_at=row.revoked_at,
    )
