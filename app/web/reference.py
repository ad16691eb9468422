"""A reference: its confusion matrix in colours, and what it can and cannot show, in words."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.domain.words import alike
from app.stats.diagnosis import LOW_SUPPORT_BELOW, Diagnosis
from app.stats.moments import Counts
from app.stats.reference import ABSENT_BELOW
from app.web import words

# A heat map of more labels is a grey square.
MOST_LABELS = 24
# From which share of a true label on a cell gets the next colour.
HEATS = (0.0, 0.01, 0.05, 0.15, 0.3, 0.5, 0.7)


@dataclass(frozen=True, slots=True)
class Cell:
    """Records of one true label that were predicted as another or the same, and their share."""

    n: int
    share: float | None
    heat: int
    correct: bool


@dataclass(frozen=True, slots=True)
class HeatMap:
    """A row for each predicted label, a column for each true one; `others` are merged."""

    labels: list[str]
    rows: list[tuple[str, list[Cell]]]
    others: int


def heat_map(labels: Sequence[str], counts: Counts) -> HeatMap:
    """The confusion matrix by shares of each true label; of many labels the commonest."""
    if len(labels) <= MOST_LABELS:
        names, small, others = list(labels), counts, 0
    else:
        common = np.argsort(-counts.sum(axis=0), kind="stable")[:MOST_LABELS]
        others = len(labels) - MOST_LABELS
        names = [*(labels[label] for label in common), f"{others:,} others"]
        small = _merged(counts, common)
    truly = small.sum(axis=0)
    rows = [
        (
            name,
            [
                _cell(int(n), int(of), i == j)
                for j, (n, of) in enumerate(zip(row, truly, strict=True))
            ],
        )
        for i, (name, row) in enumerate(zip(names, small, strict=True))
    ]
    return HeatMap(names, rows, others)


def heat(share: float | None) -> int:
    """The step of colour for a share.

    >>> [heat(share) for share in (None, 0.0, 0.005, 0.02, 0.49, 0.5, 0.99)]
    [0, 0, 1, 2, 5, 6, 7]
    """
    return 0 if not share else sum(share >= at for at in HEATS)


def _merged(counts: Counts, common: Counts) -> Counts:
    """The matrix of the `common` labels, with all others as one more."""
    place = np.full(len(counts), len(common))
    place[common] = np.arange(len(common))
    merged = np.zeros((len(common) + 1, len(common) + 1), dtype=np.int64)
    np.add.at(merged, (place[:, None], place[None, :]), counts)
    return merged


def _cell(n: int, of: int, correct: bool) -> Cell:
    share = n / of if of else None
    return Cell(n, share, heat(share), correct)


def separation(found: Diagnosis) -> str:
    """What sigma_min means for this reference, in a sentence or two."""
    own = found.spectrum
    if own.sigma_min <= 0.0:
        return (
            "sigma_min is 0: some mixes of labels look exactly alike, and nothing tells them apart."
        )
    said = (
        f"sigma_min is {words.number(own.sigma_min)} ± {words.number(own.sigma_min_error)}: "
        "weights that change by 1 in the way that is hardest to see "
        "move the predictions by this much. "
    )
    times = own.sigma_min / own.sigma_min_error if own.sigma_min_error > 0.0 else None
    return said + (
        "" if times is None else f"It is {words.number(times)} times its own sampling error."
    )


DOUBTS = {
    "transposed_suspected": (
        "Rows and columns of this confusion matrix seem to be exchanged: transposed, it fits the "
        "mix of labels and of predictions in earlier references clearly better. Rows must be "
        "predicted labels; a matrix with true labels as rows (scikit-learn) needs the orientation "
        "actual-rows. If it was an earlier one that stood the wrong way round, replace that."
    ),
}


def doubts(notes: Sequence[str]) -> list[str]:
    """What is to be checked about a reference, as sentences."""
    return [DOUBTS[word] for word in notes if word in DOUBTS]


def verdict(found: Diagnosis) -> str:
    """Whether the labels can be told apart, in a sentence."""
    if found.status == ("trivial",):
        return "There is one label only, so there is nothing to tell apart."
    if not found.estimable:
        return "The reference cannot tell its labels apart, so no mix can be estimated from it."
    if found.identified.not_identified:
        return "The reference tells most labels apart, but not all of them."
    if found.identified.weakly_identified:
        return "The reference tells its labels apart, some of them only roughly."
    if found.absent:
        return "The reference tells the labels apart that it has records of."
    return "The reference tells all of its labels apart."


def look_alikes(labels: Sequence[str], found: Diagnosis) -> list[str]:
    """Labels whose share stays uncertain however long a window is, as sentences."""
    identified = found.identified
    grouped = {label for group in identified.groups for label in group}
    said = [
        f"{alike(labels, group, found.low_support)}: how they share what they have together is "
        "unknown, but together they are known."
        for group in identified.groups
    ]
    unknown = [label for label in identified.not_identified if label not in grouped]
    if unknown and found.estimable:
        said.append(f"The share of these cannot be known: {_names(labels, unknown)}.")
    weak = [label for label in identified.weakly_identified if label not in grouped]
    if weak:
        said.append(
            f"Only roughly known, however long a window is: {_names(labels, weak)}. More labelled "
            "records would help."
        )
    return said


def renewed(labels: Sequence[str], found: Diagnosis) -> str | None:
    """What has changed for a reference that an earlier release had prepared."""
    if found.before is None:
        return None
    merged = "; ".join(_names(labels, group) for group in found.before.groups)
    if not merged:
        return "Prepared anew since it came in: estimates are sharper, their meaning is the same."
    return (
        f"Prepared anew since it came in. An earlier release had merged {merged}; now every label "
        "has an interval of its own."
    )


def little_support(labels: Sequence[str], found: Diagnosis) -> list[str]:
    """Labels that the reference knows too little of, as sentences."""
    said = []
    if found.absent:
        names = _names(labels, found.absent)
        said.append(f"Fewer than {ABSENT_BELOW} records, so left out of every estimate: {names}.")
    if found.low_support:
        names = _names(labels, found.low_support)
        said.append(f"Fewer than {LOW_SUPPORT_BELOW} records, so rough intervals: {names}.")
    return said


def _names(labels: Sequence[str], some: Sequence[int], most: int = 20) -> str:
    shown = ", ".join(labels[label] for label in some[:most])
    return f"{shown} and {len(some) - most:,} more" if len(some) > most else shown


@dataclass(frozen=True, slots=True)
class Growth:
    """How far a label's share must grow to be seen; None if it never is."""

    label: str
    growth: float | None


def plan(per_hour: float, changes: Sequence[Growth]) -> str:
    """What an hour of this traffic shows.

    >>> plan(1200, [Growth("fraud", 0.015), Growth("legit", 0.031)])
    'An hour with 1,200 predictions shows changes of 1.5 points (fraud) to 3.1 points (legit).'
    """
    known = [(one.growth, one.label) for one in changes if one.growth is not None]
    hour = f"An hour with {words.count(per_hour)} predictions shows"
    if not known:
        return f"{hour} no change of any label, however large."
    least, most = min(known), max(known)
    low, high = (f"{100 * growth:.1f} points ({label})" for growth, label in (least, most))
    if f"{100 * least[0]:.1f}" == f"{100 * most[0]:.1f}":
        return f"{hour} changes of {100 * least[0]:.1f} points or more."
    return f"{hour} changes of {low} to {high}."


@dataclass(frozen=True, slots=True)
class LabelRow:
    label: str
    support: int
    p: float
    recall: float | None
    precision: float | None
    growth: float | None
    little: bool


def label_rows(
    labels: Sequence[str], found: Diagnosis, changes: Sequence[Growth], most: int = 200
) -> list[LabelRow]:
    """All labels in the model's order; of very many, the commonest."""
    growth = {one.label: one.growth for one in changes}
    order = list(range(len(labels)))
    if len(labels) > most:
        order = sorted(np.argsort(-found.support, kind="stable")[:most].tolist())
    little = {*found.absent, *found.low_support}
    return [
        LabelRow(
            labels[label],
            int(found.support[label]),
            float(found.nu[label]),
            _known(found.recall[label]),
            _known(found.precision[label]),
            growth.get(labels[label]),
            label in little,
        )
        for label in order
    ]


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
