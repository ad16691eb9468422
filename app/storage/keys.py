"""API keys: who may do what. Only a digest of the secret is stored."""

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy import Connection, Row, select, update
from sqlalchemy.dialects.postgresql import insert

from app.errors import Conflict, InvalidInput, NotFound
from app.storage.tables import api_key

PREFIX = "sw_"
# What a secret that was made elsewhere must have. 32 random hexadecimal digits, which are 128 bits,
# have fewer than 8 different ones four times in a hundred million; a word over and over does.
SHORTEST, FEWEST_DIFFERENT = 32, 8


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
    key, _ = _insert(conn, name, scopes, secret, now)
    return key, secret


def adopt(
    conn: Connection, name: str, scopes: Iterable[Scope], secret: str, now: datetime
) -> tuple[ApiKey, bool]:
    """The key of a secret that was made elsewhere, and whether it is new; again changes nothing."""
    _refuse_weak(secret)
    wanted = frozenset(scopes)
    key, new = _insert(conn, name, wanted, secret, now)
    known = f"the secret is that of key {key.id} ({key.name})"
    if key.revoked_at is not None:
        raise Conflict(f"{known}, which was revoked: make another secret")
    if key.scopes != wanted:
        has, wants = ", ".join(sorted(key.scopes)), ", ".join(sorted(wanted))
        raise Conflict(f"{known}, which has the scopes {has}, not {wants}: make another secret")
    return key, new


def _insert(
    conn: Connection, name: str, scopes: Iterable[Scope], secret: str, now: datetime
) -> tuple[ApiKey, bool]:
    """The secret's key, and whether it was made just now; of two who ask at once, one makes it."""
    made = conn.execute(
        insert(api_key)
        .values(
            name=name,
            scopes=sorted(set(scopes)),
            hint=secret[: len(PREFIX) + 6],
            digest=digest(secret),
            created_at=now,
        )
        .on_conflict_do_nothing(index_elements=[api_key.c.digest])
        .returning(api_key)
    ).one_or_none()
    if made is not None:
        return of_row(made), True
    found = select(api_key).where(api_key.c.digest == digest(secret))
    return of_row(conn.execute(found).one()), False


def _refuse_weak(secret: str) -> None:
    """A digest without salt keeps only what cannot be guessed; and a header must carry it."""
    if any(not "!" <= letter <= "~" for letter in secret):
        raise InvalidInput("a secret is one word of ASCII letters, digits and signs")
    if len(secret) < SHORTEST:
        raise InvalidInput(f"a secret has at least {SHORTEST} characters, not {len(secret)}")
    if len(set(secret)) < FEWEST_DIFFERENT:
        raise InvalidInput("a secret must be random; this one repeats a few characters")


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
