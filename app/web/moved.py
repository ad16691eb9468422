"""Which labels have moved most: what to speak of first, and what to draw."""

from collections.abc import Iterator, Sequence

from app.domain import moved
from app.domain.evaluation import GroupShare, Identified, LabelColumns
from app.domain.moved import Moved
from app.domain.words import named


def most(
    labels: Sequence[str],
    columns: LabelColumns,
    identified: Identified,
    groups: Sequence[GroupShare],
) -> Moved | None:
    """What moved most; None where nothing is known of the mix."""
    if columns.q is None:
        return None
    doubtful = {*identified.not_identified, *identified.weakly_identified}
    return moved.most(
        _singly(labels, columns),
        _together(labels, columns, groups),
        {labels[label] for label in doubtful},
    )


def _singly(labels: Sequence[str], columns: LabelColumns) -> Iterator[Moved]:
    unknown = (None,) * len(labels)
    lowers, uppers = columns.q_lower or unknown, columns.q_upper or unknown
    rows = zip(labels, columns.p, columns.q or unknown, lowers, uppers, strict=True)
    for label, p, q, lower, upper in rows:
        if p is not None and q is not None:
            yield Moved(label, p, q, lower, upper)


def _together(
    labels: Sequence[str], columns: LabelColumns, groups: Sequence[GroupShare]
) -> Iterator[Moved]:
    for group in groups:
        p = sum(columns.p[label] or 0.0 for label in group.labels)
        name = named([labels[label] for label in group.labels], "or")
        yield Moved(name, p, group.q, group.q_lower, group.q_upper)


def by_change(columns: LabelColumns) -> list[int]:
    """Positions of the labels that are estimated, the one that has moved most first.

    >>> by_change(LabelColumns(p=(0.98, 0.01, None, 0.01), q=(0.95, 0.05, None, 0.0)))
    [1, 3, 0]
    """
    if columns.q is None:
        return []
    changes = {
        label: moved.change(p, q)
        for label, (p, q) in enumerate(zip(columns.p, columns.q, strict=True))
        if p is not None and q is not None
    }
    return sorted(changes, key=lambda label: -changes[label])
