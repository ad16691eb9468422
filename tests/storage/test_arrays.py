"""NumPy arrays to the database and back."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sqlalchemy import text

from app.storage.db import Connection

# The connection is shared by all examples on purpose: they only select.
shared = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50
)


def there_and_back(conn: Connection, values: Any, kind: str) -> Any:
    return conn.execute(text(f"SELECT CAST(:values AS {kind}[])"), {"values": values}).scalar_one()


@shared
@given(values=arrays.arrays(np.int64, st.integers(0, 50)))
def test_integers_come_back_as_they_went(conn: Connection, values: Any) -> None:
    found = there_and_back(conn, values, "bigint")

    assert found.dtype == np.int64
    assert np.array_equal(found, values)


@shared
@given(values=arrays.arrays(np.float64, st.integers(0, 50)))
def test_doubles_come_back_bit_by_bit(conn: Connection, values: Any) -> None:
    found = there_and_back(conn, values, "double precision")

    assert found.dtype == np.float64
    assert np.array_equal(found, values, equal_nan=True)
    assert np.array_equal(np.signbit(found), np.signbit(values)) or np.isnan(values).any()


@pytest.mark.parametrize(("kind", "dtype"), [("bigint", np.int64), ("float8", np.float64)])
def test_an_empty_array_stays_one(conn: Connection, kind: str, dtype: Any) -> None:
    found = there_and_back(conn, np.array([], dtype=dtype), kind)

    assert (found.shape, found.dtype) == ((0,), np.dtype(dtype))


@pytest.mark.parametrize(("kind", "dtype"), [("bigint", np.int64), ("float8", np.float64)])
def test_a_large_array_comes_back(conn: Connection, kind: str, dtype: Any) -> None:
    values = np.arange(200_000).astype(dtype) * 7

    assert np.array_equal(there_and_back(conn, values, kind), values)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("bigint", np.array([1, 2, 3], dtype=np.int32)),
        ("bigint", np.array([True, False])),
        ("float8", np.array([0.5, 0.25], dtype=np.float32)),
        ("bigint", np.arange(10)[::3]),
    ],
)
def test_other_layouts_are_taken_too(conn: Connection, kind: str, values: Any) -> None:
    assert there_and_back(conn, values, kind).tolist() == values.tolist()


def test_both_kinds_go_in_one_statement(conn: Connection) -> None:
    query = text("SELECT CAST(:a AS bigint[]), CAST(:b AS float8[]), CAST(:c AS bigint[])")

    a, b, c = conn.execute(
        query, {"a": np.array([1]), "b": np.array([0.5]), "c": np.array([], dtype=np.int64)}
    ).one()

    assert (a.tolist(), b.tolist(), c.tolist()) == ([1], [0.5], [])
