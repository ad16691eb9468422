"""Sentences that API, page and notices have in common."""

from collections.abc import Sequence
from typing import NamedTuple


class Together(NamedTuple):
    """Labels that look alike, by position, and their share together with its interval."""

    labels: Sequence[int]
    q: float
    lower: float
    upper: float


# So many names are read; of more labels the sentence names the first, and counts the rest.
MOST_NAMES = 5


def identification(
    labels: Sequence[str],
    not_identified: Sequence[int],
    weakly_identified: Sequence[int],
    groups: Sequence[Together],
) -> list[str]:
    """What an estimate cannot know of some labels, and what it knows all the same.

    >>> group = Together((1, 2), 0.697, 0.66, 0.73)
    >>> identification(["cat", "dog", "wolf"], [1, 2], [], [group])
    ['dog and wolf look alike to this classifier: their split is unknown; together 69.7 % [66, 73]']
    """
    grouped = {label for group in groups for label in group.labels}
    alone = [label for label in not_identified if label not in grouped]
    weak = [label for label in weakly_identified if label not in grouped]
    said = [_group(labels, group, not_identified) for group in groups]
    if alone:
        said.append(
            f"{_named(labels, alone)}: this reference cannot tell the share; the estimate shown is "
            "about the reference's own"
        )
    if weak:
        said.append(
            f"{_named(labels, weak)}: weakly identified; more labelled records of these labels are "
            "needed, a longer window will not help"
        )
    return said


def _group(labels: Sequence[str], group: Together, not_identified: Sequence[int]) -> str:
    unknown = not set(not_identified).isdisjoint(group.labels)
    known = f"{100 * group.q:.1f} % [{100 * group.lower:.0f}, {100 * group.upper:.0f}]"
    how = "unknown" if unknown else "weakly identified"
    names = _named(labels, group.labels)
    return f"{names} look alike to this classifier: their split is {how}; together {known}"


def _named(labels: Sequence[str], chosen: Sequence[int]) -> str:
    """
    >>> _named(["a", "b", "c"], [0, 1, 2])
    'a, b and c'
    """
    names = [labels[label] for label in chosen[:MOST_NAMES]]
    if len(chosen) > MOST_NAMES:
        return f"{', '.join(names)} and {len(chosen) - MOST_NAMES} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def singular(labels: Sequence[str], why: str, due_to: Sequence[int]) -> str:
    """Why the paper's confusion matrix has no inverse.

    >>> singular(["cat", "dog"], "never_predicted", [1])
    'the confusion matrix is singular: dog is never predicted'
    """
    named = _named(labels, due_to) if due_to else ""
    verb = "is" if len(due_to) == 1 else "are"
    reasons = {
        "missing": f"{named} {verb} not in the reference",
        "never_predicted": f"{named} {verb} never predicted",
    }
    reason = reasons.get(why, "some labels are predicted alike")
    return f"the confusion matrix is singular: {reason}"
