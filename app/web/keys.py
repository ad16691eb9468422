"""Keys: who may do what, and what happens when one of them ends."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.storage.keys import ApiKey, Scope

DONE = {"revoked": "Revoked: the key is refused from now on, and its sessions are over."}

SCOPES = {
    Scope.INGEST: "send predictions, nothing else",
    Scope.READ: "look at everything, here and through the API",
    Scope.ADMIN: "everything, keys included",
}

LOCKED_OUT = (
    "This would be the first key. From then on everybody needs one, and this one could not make "
    "others: only `shiftwatch key create` on the server could. Choose admin, or say that you know."
)


@dataclass(frozen=True, slots=True)
class Row:
    """A key, and what to know before it is revoked."""

    key: ApiKey
    consequence: str

    @property
    def is_revoked(self) -> bool:
        return self.key.revoked_at is not None


def rows(found: Sequence[ApiKey], own_id: int | None) -> list[Row]:
    """Those that are good first, the newest first."""
    admins = [one.id for one in found if one.allows(Scope.ADMIN)]
    newest = sorted(found, key=lambda one: (one.revoked_at is not None, -one.id))
    return [Row(one, _consequence(one, own_id, admins)) for one in newest]


def _consequence(key: ApiKey, own_id: int | None, admins: Sequence[int]) -> str:
    said = ["Whatever uses it is refused at once, for good."]
    if key.id == own_id:
        said.append("You are signed in with it: this signs you out.")
    if list(admins) == [key.id]:
        said.append(
            "It is the last key that may make others: after this, only `shiftwatch key create` "
            "on the server can."
        )
    return " ".join(said)


def locks_out(first: bool, scopes: Sequence[Scope]) -> bool:
    """Whether nobody could make another key from the page after this one."""
    return first and Scope.ADMIN not in scopes
