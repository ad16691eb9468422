"""Which label's share has moved most: what the page, a notice and the fleet speak of first."""

from collections.abc import Container, Iterable
from dataclasses import dataclass
from math import sqrt


@dataclass(frozen=True, slots=True)
class Moved:
    """The share of a label, or of several that are known together only: what it was and is."""

    label: str
    p: float
    q: float
    lower: float | None
    upper: float | None


def most(
    labels: Iterable[Moved], groups: Iterable[Moved], doubtful: Container[str]
) -> Moved | None:
    """The share that moved most; None where nothing is known to have moved.

    A label that the reference hardly tells, one of the `doubtful`, is left out unless its interval
    says that it has moved. The group that it is in stands for it.
    """
    singly = (one for one in labels if one.label not in doubtful or _surely(one))
    moved = [one for one in (*singly, *groups) if one.p != one.q]
    return max(moved, key=lambda one: change(one.p, one.q), default=None)


def change(p: float, q: float) -> float:
    """Shares are compared by their square roots: a label that has grown from 1 to 5 % says more
    than the one that has given way to it, from 99 to 95 %.

    >>> change(0.01, 0.05) > change(0.99, 0.95)
    True
    """
    return abs(sqrt(max(q, 0.0)) - sqrt(p))


def _surely(one: Moved) -> bool:
    if one.lower is None or one.upper is None:
        return False
    return not one.lower <= one.p <= one.upper
