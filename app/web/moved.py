"""Which labels have moved most: what to speak of first, and what to draw."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from app.domain.evaluation import LabelColumns


@dataclass(frozen=True, slots=True)
class Moved:
    """A label whose share has moved, and where to."""

    label: str
    p: float
    q: float
    lower: float | None
    upper: float | None


def most(labels: Sequence[str], columns: LabelColumns) -> Moved | None:
    """The label that moved most; None where nothing is known of the mix."""
    ranked = by_change(columns)
    if columns.q is None or not ranked:
        return None
    label = ranked[0]
    p, q = columns.p[label] or 0.0, columns.q[label] or 0.0
    lower = None if columns.q_lower is None else columns.q_lower[label]
    upper = None if columns.q_upper is None else columns.q_upper[label]
    return Moved(labels[label], p, q, lower, upper)


def by_change(columns: LabelColumns) -> list[int]:
    """Positions of the labels that are estimated, the one that has moved most first.

    Shares are compared by their square roots: a label that has grown from 1 to 5 % says more than
    the one that has given way to it, from 99 to 95 %.

    >>> by_change(LabelColumns(p=(0.98, 0.01, None, 0.01), q=(0.95, 0.05, None, 0.0)))
    [1, 3, 0]
    """
    if columns.q is None:
        return []
    changes = {
        label: abs(sqrt(max(q, 0.0)) - sqrt(p))
        for label, (p, q) in enumerate(zip(columns.p, columns.q, strict=True))
        if p is not None and q is not None
    }
    return sorted(changes, key=lambda label: -changes[label])
