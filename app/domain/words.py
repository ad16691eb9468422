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
    few_records: Sequence[int] = (),
) -> list[str]:
    """What an estimate cannot know of some labels, and what it knows all the same.

    >>> group = Together((1, 2), 0.697, 0.66, 0.73)
    >>> identification(["cat", "dog", "wolf"], [1, 2], [], [group])
    ['dog and wolf look alike to this classifier: their split is unknown; together 69.7 % [66, 73]']
    """
    grouped = {label for group in groups for label in group.labels}
    alone = [label for label in not_identified if label not in grouped]
    weak = [label for label in weakly_identified if label not in grouped]
    said = []
    for group in groups:
        # Evaluations of an earlier release, which merged labels, name the group only.
        rough = set(group.labels).isdisjoint(not_identified)
        rough = rough and not set(group.labels).isdisjoint(weakly_identified)
        split = "weakly identified" if rough else "unknown"
        known = f"{100 * group.q:.1f} % [{100 * group.lower:.0f}, {100 * group.upper:.0f}]"
        said.append(
            f"{alike(labels, group.labels, few_records)}: their split is {split}; together {known}"
        )
    if alone:
        said.append(f"{_named(labels, alone)}: this reference cannot tell the share")
    if weak:
        doubtful = {*not_identified, *weakly_identified}
        wanting = _named(labels, [label for label in few_records if label in doubtful] or weak)
        said.append(
            f"{_named(labels, weak)}: weakly identified; more labelled records of {wanting} are "
            "needed, a longer window will not help"
        )
    return said


def alike(labels: Sequence[str], group: Sequence[int], few_records: Sequence[int]) -> str:
    """Why some labels are known together only: the classifier's doing, or too few records.

    >>> alike(["cat", "dog", "wolf"], [1, 2], [2])
    'dog and wolf cannot be told apart with so few labelled records of wolf'
    """
    names, few = _named(labels, group), [label for label in group if label in few_records]
    if few:
        return f"{names} cannot be told apart with so few labelled records of {_named(labels, few)}"
    return f"{names} look alike to this classifier"


def _named(labels: Sequence[str], chosen: Sequence[int]) -> str:
    return named([labels[label] for label in chosen])


def named(names: Sequence[str], last: str = "and") -> str:
    """
    >>> named(["a", "b", "c"]), named(["a", "b", "c", "d", "e", "f", "g"])
    ('a, b and c', 'a, b, c, d, e and 2 more')
    """
    if len(names) > MOST_NAMES:
        return f"{', '.join(names[:MOST_NAMES])} {last} {len(names) - MOST_NAMES} more"
    return f" {last} ".join(filter(None, (", ".join(names[:-1]), names[-1])))


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
