"""A history as columns for charts."""

from datetime import UTC, datetime, timedelta

from app.domain.evaluation import AccuracyNow, Evidence, Point
from app.domain.verdict import Verdict
from app.web.curves import Curves, Drawn, curves

BEGIN = datetime(2026, 11, 17, 10, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def point(minute: int, **more: object) -> Point:
    at = BEGIN + minute * MINUTE
    known = {"q": (0.1234567, None), "q_lower": (0.1, None), "q_upper": (0.2, None), **more}
    return Point(at, at, 100, Verdict.NO_SHIFT, **known)  # type: ignore[arg-type]


def drawn(*points: Point) -> Curves:
    labels = [Drawn("fraud", 0.012), Drawn("rare", None)]
    return curves(points, labels, 0.983, 0.01, (0, 60), MINUTE)


def minutes(found: Curves) -> list[float]:
    return [(at - BEGIN.timestamp()) / 60 for at in found.at]


def test_every_column_is_as_long_as_the_time() -> None:
    found = drawn(
        point(0, p_value=0.123456, accuracy=AccuracyNow(0.9, 0.8, 1.0, 0.983)),
        point(1, evidence=Evidence(2.3456, 11.4)),
    )

    assert minutes(found) == [0, 1]
    assert (found.n, found.p_value) == ([100, 100], [0.123, None])
    assert found.labels[0].q == [0.12346, 0.12346]
    assert found.labels[1].q == [None, None]
    assert (found.accuracy.estimate, found.accuracy.reference) == ([0.9, None], 0.983)
    assert found.evidence.statistic == [None, 2.35]


def test_there_is_a_gap_where_nothing_was_looked_at() -> None:
    found = drawn(point(0), point(1), point(2), point(20), point(21))

    assert minutes(found) == [0, 1, 2, 11, 20, 21]
    assert found.n == [100, 100, 100, None, 100, 100]


def test_points_that_are_all_far_apart_are_joined() -> None:
    assert minutes(drawn(*(point(10 * i) for i in range(4)))) == [0, 10, 20, 30]


def test_no_evaluations_are_empty_columns() -> None:
    found = drawn()

    assert (found.at, found.n, found.labels[0].q) == ([], [], [])
