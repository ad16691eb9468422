"""What is said of a key before it is revoked."""

from app.storage.keys import ApiKey, Scope
from app.web import keys
from tests.factories import NOW


def key(id: int, scope: Scope, *, revoked: bool = False) -> ApiKey:
    return ApiKey(id, f"k{id}", frozenset({scope}), "sw_abc", NOW, NOW if revoked else None)


def test_good_keys_come_first_and_the_newest_of_them_first() -> None:
    found = [
        key(1, Scope.READ, revoked=True),
        key(2, Scope.READ),
        key(3, Scope.ADMIN),
        key(4, Scope.ADMIN, revoked=True),
    ]

    assert [row.key.id for row in keys.rows(found, None)] == [3, 2, 4, 1]


def test_the_last_key_that_may_make_others_is_told_as_such() -> None:
    one, other, gone = key(1, Scope.ADMIN), key(2, Scope.ADMIN), key(3, Scope.ADMIN, revoked=True)

    alone = keys.rows([one, gone], own_id=1)
    of_two = keys.rows([one, other], own_id=None)

    assert "last key" in alone[0].consequence
    assert "signs you out" in alone[0].consequence
    assert all("last key" not in row.consequence for row in of_two)
    assert all("signs you out" not in row.consequence for row in of_two)


def test_only_a_first_key_can_lock_people_out() -> None:
    assert keys.locks_out(True, [Scope.READ])
    assert not keys.locks_out(True, [Scope.ADMIN])
    assert not keys.locks_out(False, [Scope.INGEST])
