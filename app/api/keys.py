"""API keys: make, list, revoke. A secret is shown once."""

from datetime import datetime
from typing import Annotated, Self

from fastapi import APIRouter, Depends, Path, Request
from pydantic import BaseModel, Field, StringConstraints

from app.api.deps import Admin, Conn, Now, Services, json_body, services
from app.api.openapi import body_of
from app.api.schemas import Label, Moment, Strict
from app.storage import keys
from app.storage.keys import ApiKey, Scope

router = APIRouter(prefix="/v1/keys", tags=["keys"], dependencies=[Admin])


KeyId = Annotated[int, Path(ge=0, lt=2**31)]


class KeyBody(Strict):
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=3)]
    name: Annotated[Label, StringConstraints(max_length=100)] = "unnamed"


class KeyView(BaseModel):
    """`hint` is how the secret begins."""

    id: int
    name: str
    scopes: list[Scope]
    hint: str
    created_at: Moment
    revoked_at: Moment | None

    @classmethod
    def of(cls, key: ApiKey, **more: str) -> Self:
        return cls(
            id=key.id,
            name=key.name,
            scopes=sorted(key.scopes),
            hint=key.hint,
            created_at=key.created_at,
            revoked_at=key.revoked_at,
            **more,
        )


class NewKeyView(KeyView):
    secret: str


class KeyList(BaseModel):
    items: list[KeyView]
    next: None = None


@router.post("", status_code=201, openapi_extra=body_of({"application/json": KeyBody}))
def create_key(
    body: Annotated[KeyBody, Depends(json_body(KeyBody))], now: Now, request: Request
) -> NewKeyView:
    """A new key; its secret is in this answer and nowhere else."""
    key, secret = made(services(request), body, now)
    return NewKeyView.of(key, secret=secret)


@router.get("")
def list_keys(conn: Conn) -> KeyList:
    """Every key, revoked ones too, without secrets."""
    return KeyList(items=[KeyView.of(key) for key in keys.all_keys(conn)])


@router.delete("/{key_id}")
def revoke_key(key_id: KeyId, now: Now, request: Request) -> KeyView:
    """End a key. Other replicas learn of it within a second."""
    return KeyView.of(ended(services(request), key_id, now))


# The gate looks again only after the commit: before it, there is nothing new to see.


def made(own: Services, body: KeyBody, now: datetime) -> tuple[ApiKey, str]:
    with own.database.begin() as conn:
        key, secret = keys.create(conn, body.name, body.scopes, now)
    own.gate.forget()
    return key, secret


def ended(own: Services, key_id: int, now: datetime) -> ApiKey:
    with own.database.begin() as conn:
        revoked = keys.revoke(conn, key_id, now)
    own.gate.forget()
    return revoked
