"""A history as columns of numbers, for charts: short, in order, and with gaps where there are."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from statistics import median_high

from app.domain.evaluation import Point

Column = list[float | None]

# Two evaluations farther apart than this many steps are not joined by a line.
GAP = 2.5
# A ten-thousandth of a point more is not seen on any screen, but is sent to it.
SHARE_DIGITS = 5


@dataclass(frozen=True, slots=True)
class LabelCurve:
    """One label: its share of the reference, and what was estimated with its interval."""

    label: str
    p: float | None
    q: Column
    lower: Column
    upper: Column


@dataclass(frozen=True, slots=True)
class Band:
    estimate: Column
    lower: Column
    upper: Column
    reference: float | None


@dataclass(frozen=True, slots=True)
class Evidence:
    statistic: Column
    threshold: Column


@dataclass(frozen=True, slots=True)
class Curves:
    """Every column has an entry for each moment in `at`, in seconds since the epoch."""

    start: int
    end: int
    at: list[int]
    n: Column
    p_value: Column
    shifted_below: float
    labels: list[LabelCurve]
    accuracy: Band
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Drawn:
    """A label that is drawn: its name and its share of the reference."""

    label: str
    p: float | None


def curves(
    points: Sequence[Point],
    labels: Sequence[Drawn],
    accuracy: float | None,
    shifted_below: float,
    span: tuple[int, int],
    step: timedelta,
) -> Curves:
    """The points as columns, with an empty place wherever two of them are far apart."""
    rows = with_gaps(points, GAP * max(step, _usual(points)))
    found = [point for _, point in rows]
    sure = [None if point is None else point.accuracy for point in found]
    case = [None if point is None else point.evidence for point in found]
    return Curves(
        start=span[0],
        end=span[1],
        at=[at for at, _ in rows],
        n=[None if point is None else point.n for point in found],
        p_value=[None if point is None else _significant(point.p_value) for point in found],
        shifted_below=shifted_below,
        labels=[_label(one, i, found) for i, one in enumerate(labels)],
        accuracy=Band(
            [None if one is None else _share(one.estimate) for one in sure],
            [None if one is None else _share(one.lower) for one in sure],
            [None if one is None else _share(one.upper) for one in sure],
            _share(accuracy),
        ),
        evidence=Evidence(
            [None if one is None else _significant(one.statistic) for one in case],
            [None if one is None else _significant(one.threshold) for one in case],
        ),
    )


def _usual(points: Sequence[Point]) -> timedelta:
    """How far apart points mostly are: a backlog is looked at in larger steps than a stream."""
    apart = [after.end - before.end for before, after in pairwise(points)]
    return median_high(apart) if apart else timedelta(0)


def _label(drawn: Drawn, i: int, found: Sequence[Point | None]) -> LabelCurve:
    return LabelCurve(
        drawn.label,
        _share(drawn.p),
        [None if point is None else _share(point.q[i]) for point in found],
        [None if point is None else _share(point.q_lower[i]) for point in found],
        [None if point is None else _share(point.q_upper[i]) for point in found],
    )


def with_gaps(points: Iterable[Point], farthest: timedelta) -> list[tuple[int, Point | None]]:
    """When each window ended, and an empty place half-way between two that are far apart."""
    rows: list[tuple[int, Point | None]] = []
    before: Point | None = None
    for point in points:
        if before is not None and point.end - before.end > farthest:
            middle = before.end + (point.end - before.end) / 2
            rows.append((int(middle.timestamp()), None))
        rows.append((int(point.end.timestamp()), point))
        before = point
    return rows


def _share(value: float | None) -> float | None:
    return None if value is None else round(value, SHARE_DIGITS)


def _significant(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")
