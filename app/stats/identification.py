"""Which labels a reference can tell apart, and which only together, however long a window is.

A label's *floor* is the half-length that its interval would have for a window without end: what is
left is the reference's own noise, and bias where labels look alike. Labels with a high floor often
trade off against each other only, so that the sum of their shares is known although the parts are
not: such groups are found here, once for each reference.
"""

from dataclasses import dataclass

import numpy as np

from app.stats import intervals
from app.stats.estimator import Operator
from app.stats.intervals import Design
from app.stats.moments import Floats

# Floors from which on a label is weakly identified, or not at all.
WEAK_FLOOR = 0.1
UNKNOWN_FLOOR = 0.4


@dataclass(frozen=True, slots=True)
class Identification:
    """By position among the model's labels; `floor` is NaN for labels that are not estimated.

    `groups` are sets of labels of which at least one is not or weakly identified, and the sum is.
    """

    floor: Floats
    not_identified: tuple[int, ...]
    weakly_identified: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]

    @property
    def together(self) -> tuple[tuple[int, ...], ...]:
        """Sets of labels of which no more than the sum is known: groups, and all that is left."""
        grouped = {label for group in self.groups for label in group}
        left = tuple(label for label in self.not_identified if label not in grouped)
        return (*self.groups, left) if left else self.groups

    @property
    def anything(self) -> bool:
        """Whether any label's share, or any group's, can be known."""
        return bool((self.floor <= UNKNOWN_FLOOR).any()) or bool(self.groups)


def identify(on: Operator) -> Identification:
    """Floors of all labels, and the groups to report beside them.

    >>> from app.stats import cells, estimator
    >>> N = np.array([[180, 20, 20], [10, 90, 90], [10, 90, 90]])
    >>> found = identify(estimator.prepare(cells.of_confusion(N, np.arange(3))))
    >>> found.not_identified, found.groups
    ((1, 2), ((1, 2),))
    """
    at = intervals.endless(on)
    floor = intervals.expected_half_lengths(at)
    groups = _groups(at, floor)
    present = on.table.present
    return Identification(
        floor=on.spread(floor),
        not_identified=tuple(present[floor > UNKNOWN_FLOOR].tolist()),
        weakly_identified=tuple(present[(floor > WEAK_FLOOR) & (floor <= UNKNOWN_FLOOR)].tolist()),
        groups=tuple(tuple(present[list(group)].tolist()) for group in groups),
    )


def nothing(k: int) -> Identification:
    """Of a reference with fewer than two labels to tell apart."""
    return Identification(np.full(k, np.nan), tuple(range(k)) if k > 1 else (), (), ())


# A sum of more labels than this tells nobody anything, and looking for it takes long where hundreds
# of labels look alike.
MOST_TOGETHER = 12
MOST_SEARCHES = 100


def _groups(at: Design, floor: Floats) -> list[tuple[int, ...]]:
    """Sets of labels whose sum is identified: grown from the worst labels, one partner at a time.

    The partner is the one that makes the variance of the sum smallest: labels that look alike trade
    off, so that errors cancel. All labels together say nothing.
    """
    weak = np.argsort(-floor, kind="stable")[: int((floor > WEAK_FLOOR).sum())].tolist()
    if at.on.size < 3 or not weak:
        return []
    V, found, taken = _covariance(at), list[tuple[int, ...]](), set[int]()
    for label in weak[:MOST_SEARCHES]:
        group = None if label in taken else _known_with(at, V, label, taken)
        if group is not None:
            found.append(group)
            taken.update(group)
    return sorted(found)


def _known_with(at: Design, V: Floats, label: int, taken: set[int]) -> tuple[int, ...] | None:
    """The smallest set grown from a label whose sum is known."""
    chain, group = [], [label]
    gain = np.diag(V) + 2.0 * V[label]
    gain[list(taken)] = np.inf
    most = min(MOST_TOGETHER, at.on.size - 1)
    while len(group) < most:
        gain[group] = np.inf
        partner = int(gain.argmin())
        if not np.isfinite(gain[partner]):
            break
        group.append(partner)
        gain = gain + 2.0 * V[partner]
        chain.append(tuple(sorted(group)))
    if not chain:
        return None
    halves = intervals.expected_half_lengths(at, intervals.memberships(at.on.size, chain))
    known = np.flatnonzero(halves <= WEAK_FLOOR)
    return chain[int(known[0])] if len(known) else None


def _covariance(at: Design) -> Floats:
    """Of the shares, if all that was known of them before is that a record could tell as much.

    Of changes that the reference may only seem to see, that is still all.
    """
    V = np.linalg.inv(at.weighing.H + np.eye(at.on.size)) + at.doubted @ at.doubted.T
    ones = V.sum(axis=1)
    return np.asarray(V - np.outer(ones, ones) / ones.sum())
