"""A history thinned out by the database."""

from datetime import timedelta

import numpy as np
from sqlalchemy import text

from app.domain.window import slices
from app.stats.moments import Sums
from app.stats.reference import from_confusion
from app.storage import evaluations
from app.storage.db import Database
from tests.evaluate.simulation import BEGIN, Life, life, quiet
from tests.factories import CONFUSION

REFERENCE = from_confusion(np.array(CONFUSION))
MINUTE = timedelta(minutes=1)


def lived(database: Database, minutes: int = 60) -> Life:
    one = life(database, REFERENCE)
    for counts in quiet(REFERENCE, 100, minutes, np.random.default_rng(1)):
        one.live([counts])
    return one


def test_of_each_slice_the_newest_evaluation_is_taken(database: Database) -> None:
    one = lived(database)

    with database.begin() as conn:
        cut = slices(BEGIN, one.now, 6)
        found = evaluations.series(conn, one.model.id, "v1", "1h", cut, [2, 0])
        every = evaluations.page(conn, one.model.id, "v1", "1h", limit=100)

    assert cut.every == 10 * MINUTE
    ends = [BEGIN + minutes * MINUTE for minutes in (10, 20, 30, 40, 50, 60, 61)]
    assert [point.end for point in found] == ends[: len(found)]
    assert len(found) >= 6
    stored = {one.slot: one.result for one in every}
    for point in found:
        full = stored[point.slot]
        assert full.labels.q is not None
        assert point.q == (full.labels.q[2], full.labels.q[0])
        assert (point.n, point.verdict) == (full.n, full.verdict)
        assert (point.accuracy, point.evidence) == (full.accuracy, full.evidence)
        assert point.p_value == full.tests[0].p_value


def test_evaluations_from_before_evidence_was_kept_have_none(database: Database) -> None:
    one = lived(database, 3)

    with database.begin() as conn:
        conn.execute(text("UPDATE evaluation SET result = result - 'evidence'"))
        found = evaluations.series(conn, one.model.id, "v1", "1h", slices(BEGIN, one.now, 3))
        latest = evaluations.latest(conn, one.model.id, "v1", "1h")

    assert [point.evidence for point in found] == [None] * len(found)
    assert latest is not None
    assert latest.result.evidence is None


def test_a_revision_stands_for_what_it_revises(database: Database) -> None:
    one = lived(database, 20)
    one.now += MINUTE
    with database.begin() as conn:
        before = evaluations.latest(conn, one.model.id, "v1", "1h")
    one.count([(BEGIN + 10 * MINUTE, Sums(np.array([500, 0, 0])))])
    one.evaluate()
    one.now += 2 * MINUTE
    one.evaluate()

    with database.begin() as conn:
        cut = slices(BEGIN, BEGIN + 20 * MINUTE, 20)
        found = evaluations.series(conn, one.model.id, "v1", "1h", cut)
        kept = evaluations.page(conn, one.model.id, "v1", "1h", end=BEGIN + 21 * MINUTE)

    assert before is not None
    assert {point.slot: point.n for point in found} == {
        one.slot: one.result.n for one in kept if one.slot
    }
    assert max(one.revision for one in kept) == 2
