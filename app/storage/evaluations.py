"""Evaluations: what each look at each window found, and what late predictions made of it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, exists, func, or_, select, text, true, tuple_, update
from sqlalchemy.dialects.postgresql import insert

from app.domain.evaluation import (
    AccuracyNow,
    AssumptionFound,
    EffectiveWindow,
    Evaluation,
    Evidence,
    GroupShare,
    Identified,
    LabelColumns,
    LabelRates,
    PaperNumbers,
    Point,
    Result,
    Significance,
)
from app.domain.verdict import Attention, Verdict
from app.domain.window import Slices
from app.storage.tables import evaluation


def put(conn: Connection, model_id: int, some: Sequence[Evaluation]) -> None:
    """Keep evaluations; one of the same slot and revision takes the place of the one before."""
    if not some:
        return
    new = insert(evaluation)
    changing = ("start", "end", "n", "verdict", "evaluated_at", "outdated", "result")
    conn.execute(
        new.on_conflict_do_update(
            index_elements=["model_id", "version", "window", "slot", "revision"],
            set_={name: new.excluded[name] for name in changing},
        ),
        [{"model_id": model_id, **_values(one)} for one in some],
    )
    for one in some:
        if one.revision > 1:
            _supersede(conn, model_id, one)


def _supersede(conn: Connection, model_id: int, by: Evaluation) -> None:
    """What has been revised needs no second revision."""
    conn.execute(
        update(evaluation)
        .where(
            evaluation.c.model_id == model_id,
            evaluation.c.version == by.version,
            evaluation.c.window == by.window,
            evaluation.c.slot == by.slot,
            evaluation.c.revision < by.revision,
            evaluation.c.outdated,
        )
        .values(outdated=False)
    )


def latest(conn: Connection, model_id: int, version: str, window: str) -> Evaluation | None:
    """The newest evaluation of a window."""
    row = conn.execute(
        select(evaluation)
        .where(
            evaluation.c.model_id == model_id,
            evaluation.c.version == version,
            evaluation.c.window == window,
        )
        .order_by(evaluation.c.slot.desc(), evaluation.c.revision.desc())
        .limit(1)
    ).one_or_none()
    return None if row is None else _evaluation(row)


def page(
    conn: Connection,
    model_id: int,
    version: str,
    window: str,
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    before: tuple[datetime, int] | None = None,
    all_revisions: bool = False,
    limit: int = 50,
) -> list[Evaluation]:
    """Up to `limit` evaluations whose window ended in a span of time, newest first."""
    place = tuple_(evaluation.c.slot, evaluation.c.revision)
    query = select(evaluation).where(
        evaluation.c.model_id == model_id,
        evaluation.c.version == version,
        evaluation.c.window == window,
    )
    if start is not None:
        query = query.where(evaluation.c.end > start)
    if end is not None:
        query = query.where(evaluation.c.end <= end)
    if before is not None:
        query = query.where(place < before)
    if not all_revisions:
        query = query.where(_is_last_revision())
    rows = conn.execute(
        query.order_by(evaluation.c.slot.desc(), evaluation.c.revision.desc()).limit(limit)
    )
    return [_evaluation(row) for row in rows]


def _is_last_revision() -> Any:
    other = evaluation.alias()
    newest = (
        select(func.max(other.c.revision))
        .where(
            other.c.model_id == evaluation.c.model_id,
            other.c.version == evaluation.c.version,
            other.c.window == evaluation.c.window,
            other.c.slot == evaluation.c.slot,
        )
        .scalar_subquery()
    )
    return evaluation.c.revision == newest


# The newest evaluation of each slice of time is looked for by its key, so that a month costs what
# an hour does. What is stored is unpacked twice for each point, not once for each number of it.
SERIES = """
SELECT coalesce(json_agg(json_build_object(
    'slot', slot, 'end', "end", 'n', n, 'verdict', verdict, 'q', chosen.q,
    'q_lower', chosen.q_lower, 'q_upper', chosen.q_upper,
    'p_value', rest -> 'tests' -> 0 -> 'p_value',
    'accuracy', rest -> 'accuracy', 'evidence', rest -> 'evidence'
) ORDER BY slot), '[]')::text
FROM generate_series(CAST(:first AS timestamptz), :last, :every) AS slice
CROSS JOIN LATERAL (
    SELECT slot, "end", n, verdict, result -> 'labels' AS labels, result - 'labels' AS rest
    FROM evaluation
    WHERE model_id = :model_id AND version = :version AND "window" = :window
      AND slot >= slice AND slot < slice + :every
    ORDER BY slot DESC, revision DESC LIMIT 1
) AS newest
CROSS JOIN LATERAL (
    SELECT coalesce(json_agg(labels -> 'q' -> i ORDER BY place), '[]') AS q,
           coalesce(json_agg(labels -> 'q_lower' -> i ORDER BY place), '[]') AS q_lower,
           coalesce(json_agg(labels -> 'q_upper' -> i ORDER BY place), '[]') AS q_upper
    FROM unnest(CAST(:labels AS integer[])) WITH ORDINALITY AS asked(i, place)
) AS chosen
"""
_series = text(SERIES)
_points = msgspec.json.Decoder(list[Point])


def series(
    conn: Connection,
    model_id: int,
    version: str,
    window: str,
    within: Slices,
    labels: Sequence[int] = (),
) -> list[Point]:
    """The newest evaluation of each slice of time; of the labels, those at these positions."""
    found = conn.execute(
        _series,
        {
            "model_id": model_id,
            "version": version,
            "window": window,
            "first": within.first,
            "last": within.last,
            "every": within.every,
            "labels": list(labels),
        },
    )
    return _points.decode(found.scalar_one())


def first_since(
    conn: Connection, model_id: int, version: str, window: str, start: datetime
) -> datetime | None:
    """When the oldest evaluation of a window since then was made, by its slot."""
    query = select(func.min(evaluation.c.slot)).where(
        evaluation.c.model_id == model_id,
        evaluation.c.version == version,
        evaluation.c.window == window,
        evaluation.c.slot >= start,
    )
    found: datetime | None = conn.execute(query).scalar_one()
    return found


@dataclass(frozen=True, slots=True)
class Touched:
    """Evaluations of a window that new predictions may belong to: those from a slot on.

    One that counts predictions back from its end may come to begin later, so that it is touched by
    what lies before its beginning as well: `reaches_back`.
    """

    window: str
    slot: datetime
    reaches_back: bool


def outdate(
    conn: Connection,
    model_id: int,
    version: str,
    touched: Sequence[Touched],
    first: datetime,
    last: datetime,
) -> None:
    """Mark the evaluations that looked at panes between these two: more has been added to some.

    Naming the slots keeps the search short however long the history is.
    """
    own = (
        (evaluation.c.window == one.window)
        & (evaluation.c.slot >= one.slot)
        & (true() if one.reaches_back else evaluation.c.start <= last)
        for one in touched
    )
    conn.execute(
        update(evaluation)
        .where(
            evaluation.c.model_id == model_id,
            evaluation.c.version == version,
            or_(*own),
            evaluation.c.end > first,
            _is_last_revision(),
        )
        .values(outdated=True)
    )


def versions_outdated(conn: Connection, model_id: int) -> set[str]:
    """The versions that have evaluations to be looked at again."""
    rows = conn.execute(
        select(evaluation.c.version)
        .where(evaluation.c.model_id == model_id, evaluation.c.outdated)
        .distinct()
    )
    return set(rows.scalars())


def outdated(conn: Connection, model_id: int, version: str, limit: int) -> list[Evaluation]:
    """Evaluations that came to look at fewer predictions than there are, the newest first."""
    rows = conn.execute(
        select(evaluation)
        .where(
            evaluation.c.model_id == model_id,
            evaluation.c.version == version,
            evaluation.c.outdated,
            _is_last_revision(),
        )
        .order_by(evaluation.c.slot.desc())
        .limit(limit)
    )
    return [_evaluation(row) for row in rows]


def any_outdated_before(conn: Connection, when: datetime) -> bool:
    """Whether a window that ended before then is still to be looked at again."""
    waiting = exists().where(evaluation.c.outdated, evaluation.c.end <= when)
    return bool(conn.execute(select(waiting)).scalar_one())


def _values(one: Evaluation) -> dict[str, Any]:
    plain = asdict(one.result)
    return {
        "version": one.version,
        "window": one.window,
        "slot": one.slot,
        "revision": one.revision,
        "start": one.start,
        "end": one.end,
        "n": plain.pop("n"),
        "verdict": plain.pop("verdict"),
        "evaluated_at": one.evaluated_at,
        "outdated": False,
        "result": plain,
    }


def _evaluation(row: Row[Any]) -> Evaluation:
    return Evaluation(
        version=row.version,
        window=row.window,
        start=row.start,
        end=row.end,
        evaluated_at=row.evaluated_at,
        result=_result(row.n, row.verdict, row.result),
        slot=row.slot,
        revision=row.revision,
        outdated=row.outdated,
    )


def _result(n: int, verdict: str, stored: Mapping[str, Any]) -> Result:
    accuracy, assumption = stored["accuracy"], stored["assumption"]
    effective = stored["effective"]
    # Evaluations from before these were kept have none.
    evidence, rates, paper = (stored.get(name) for name in ("evidence", "rates", "paper"))
    return Result(
        n=n,
        verdict=Verdict(verdict),
        attention=Attention(stored["attention"]),
        status=tuple(stored["status"]),
        method=stored["method"],
        labels=LabelColumns(**_tuples(stored["labels"])),
        groups=tuple(
            GroupShare(tuple(one["labels"]), one["q"], one["q_lower"], one["q_upper"])
            for one in stored["groups"]
        ),
        tests=tuple(Significance(**one) for one in stored["tests"]),
        total_variation=stored["total_variation"],
        accuracy=None if accuracy is None else AccuracyNow(**accuracy),
        assumption=None if assumption is None else AssumptionFound(**assumption),
        effective=None if effective is None else EffectiveWindow(**effective),
        evidence=None if evidence is None else Evidence(**evidence),
        rates=None if rates is None else LabelRates(**_tuples(rates)),
        paper=None if paper is None else PaperNumbers(**_tuples(paper)),
        identified=Identified(**_tuples(stored.get("identified", {}))),
        reference_share=stored.get("reference_share"),
        pull=stored.get("pull"),
        unseen_share=stored.get("unseen_share"),
    )


def _tuples(stored: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has lists only."""
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()
    }
