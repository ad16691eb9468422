"""References of an earlier release: read, prepared anew once, and said to be so."""

import io
import json
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select, update

from app.domain.model import Model
from app.domain.reference import LabelledRows, diagnosed
from app.stats import analysis, moments
from app.stats import reference as statistics
from app.storage import models, references
from app.storage.db import Connection
from app.storage.tables import reference
from tests import fashion
from tests.factories import settings

NOW = datetime(2026, 11, 17, 10, tzinfo=UTC)
LABELS = tuple(f"label-{i}" for i in range(10))
OLD_SPECTRUM = {
    "sigma_min": 0.01,
    "sigma_min_error": 0.001,
    "condition_number": 30.0,
    "conditional_sigma_min": 0.1,
    "conditional_condition_number": 9.0,
    "degenerate": True,
}


def old_diagnosis() -> dict[str, Any]:
    """As it was written before labels had floors: pullovers and coats were merged."""
    return {
        "n": 2000,
        "nu": [0.1] * 10,
        "support": [200] * 10,
        "recall": [0.8] * 10,
        "precision": [0.8] * 10,
        "accuracy": 0.8,
        "absent": [],
        "missing": [],
        "low_support": [],
        "hard": OLD_SPECTRUM,
        "soft": OLD_SPECTRUM,
        "moments": "soft",
        "columns": [[0], [1], [2, 4], [3], [5], [6], [7], [8], [9]],
        "status": ["merged"],
        "notes": ["transposed_suspected"],
    }


def aged(conn: Connection, model: Model) -> None:
    """Make the reference look as the earlier release would have left it."""
    row = conn.execute(select(reference.c.soft)).one()
    with np.load(io.BytesIO(row.soft)) as packed:
        content = dict(packed)
    content |= {"codes": np.arange(3), "code_counts": np.ones((3, 10), dtype=np.int64)}
    soft = io.BytesIO()
    np.savez_compressed(soft, **content)
    conn.execute(
        update(reference)
        .where(reference.c.model_id == model.id)
        .values(diagnosis=old_diagnosis(), soft=soft.getvalue(), cells=None)
    )


@pytest.fixture
def model(conn: Connection) -> Model:
    """A model with a reference of 2,000 softmax rows."""
    sample = fashion.outputs("good", "validation")
    rows, actual = sample.rows[:2000].astype(np.float32), sample.labels[:2000]
    predicted = np.asarray(rows.argmax(axis=1))
    models.put(conn, "shop", settings(labels=LABELS), NOW)
    new = diagnosed("v1", statistics.from_sample(10, predicted, actual, rows), NOW)
    kept = references.packed(new, LabelledRows(rows, actual, predicted))
    references.put(conn, models.get(conn, "shop", lock=True), kept)
    return models.get(conn, "shop")


def estimated(conn: Connection, model: Model) -> list[float]:
    basis = analysis.basis(references.get(conn, model, "v1").statistics)
    window = fashion.outputs("good", "test").rows[:1000]
    found = analysis.analyse(basis, moments.sums(10, moments.argmax(window), window))
    assert found.labels is not None
    return [float(share) for share in found.labels.q]


def test_a_reference_of_an_earlier_release_is_prepared_anew(conn: Connection, model: Model) -> None:
    as_new = estimated(conn, model)
    aged(conn, model)

    found = references.summary(conn, model, "v1")

    assert found.diagnosis.before is not None
    assert (found.diagnosis.before.status, found.diagnosis.before.groups) == (
        ("merged",),
        ((2, 4),),
    )
    assert (found.diagnosis.status, found.notes) == (("ok",), ("transposed_suspected",))
    assert found.created_at == NOW
    assert estimated(conn, model) == as_new


def test_it_is_prepared_once(
    conn: Connection, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    aged(conn, model)
    (first,) = references.page(conn, model, None, 10)

    monkeypatch.setattr(references, "_renewed", lambda *_: pytest.fail("prepared again"))

    assert references.summary(conn, model, "v1").diagnosis.before == first.diagnosis.before
    assert references.get(conn, model, "v1").statistics.table is not None


def test_a_reference_that_is_replaced_meanwhile_is_left_alone(
    conn: Connection, model: Model
) -> None:
    aged(conn, model)
    row = conn.execute(select(reference)).one()
    other = diagnosed("v1", statistics.from_confusion(np.eye(10, dtype=np.int64) * 50), NOW)
    references.put(conn, model, references.packed(other, None))

    references._renewed(conn, model, row)

    stored = references.get(conn, model, "v1")
    assert stored.summary.kind == "hard"
    assert stored.summary.diagnosis.before is None


def test_the_release_before_can_read_what_this_one_writes(conn: Connection, model: Model) -> None:
    row = conn.execute(select(reference.c.diagnosis, reference.c.soft)).one()

    with np.load(io.BytesIO(row.soft)) as packed:
        assert {"codes", "code_counts"} <= set(packed)
    assert set(old_diagnosis()) <= set(row.diagnosis)
    assert row.diagnosis["columns"] == [[label] for label in range(10)]
    assert row.diagnosis["hard"]["degenerate"] is False
    assert json.dumps(row.diagnosis)
