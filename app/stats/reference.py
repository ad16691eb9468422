"""What a labelled, held-out sample says of one version of a classifier.

In the paper's words (Lipton, Wang and Smola, 2018, section 3): the joint confusion matrix
`C[i, j] = p(predicted i, true j)`, the conditional one `A[i, j] = p(predicted i | true j)` and
the label distribution `nu[j] = p(true j)`, so that `C = A diag(nu)`. All come from sums, so a
confusion matrix of counts is a full reference for hard predictions; softmax rows add the soft
moments, in which row `i` averages the probability given to label `i`, and the table of cells that
estimates rest on (`app.stats.cells`).
"""

from dataclasses import dataclass

import numpy as np

from app.stats import cells, moments
from app.stats.cells import CellTable
from app.stats.moments import Counts, Floats
from app.stats.ranking import Ranks, Rows, ranks

# Fewer records than this and a column of the confusion matrix is hearsay: the label is left out.
ABSENT_BELOW = 5


@dataclass(frozen=True, slots=True)
class SoftReference:
    """Sums of softmax rows by true label, which is the last axis everywhere.

    `outer[:, j]` is packed like `SoftSums.outer`.
    """

    prob: Floats
    outer: Floats
    cells: Counts
    score: Floats
    score_squared: Floats
    score_by_label: Floats


@dataclass(frozen=True, slots=True)
class Reference:
    """`counts[i, j]`: how many records of true label `j` were predicted `i`.

    A reference of softmax rows has their sums and their `table` of cells as well; one in which no
    label has enough records has no table.
    """

    counts: Counts
    soft: SoftReference | None = None
    table: CellTable | None = None

    @property
    def k(self) -> int:
        return len(self.counts)

    @property
    def n(self) -> int:
        return int(self.counts.sum())

    @property
    def support(self) -> Counts:
        """Records of each true label."""
        return np.asarray(self.counts.sum(axis=0))

    @property
    def predicted(self) -> Counts:
        """Records of each predicted label."""
        return np.asarray(self.counts.sum(axis=1))

    @property
    def nu(self) -> Floats:
        """The label distribution `p(y)` of the reference."""
        return self.support / self.n

    @property
    def present(self) -> Counts:
        """The labels with enough records to be estimated."""
        return np.flatnonzero(self.support >= ABSENT_BELOW)

    def first_moments(self, *, soft: bool) -> Floats:
        """Sums of the moment map by true label: counts, or softmax rows."""
        if not soft:
            return self.counts.astype(np.float64)
        if self.soft is None:
            raise ValueError("a reference of hard predictions has no soft moments")
        return self.soft.prob

    def joint(self, *, soft: bool = False) -> Floats:
        """The paper's `C`: means of the moment map, jointly with the true label."""
        return self.first_moments(soft=soft) / self.n

    def conditional(self, *, soft: bool = False) -> Floats:
        """`A`: means of the moment map given the true label; NaN in columns without support."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.first_moments(soft=soft) / self.support


def from_confusion(counts: Counts) -> Reference:
    """A reference from counts alone: rows predicted, columns true.

    >>> from_confusion(np.array([[9, 1], [1, 9]])).conditional().tolist()
    [[0.9, 0.1], [0.1, 0.9]]
    """
    return Reference(counts)


def from_sample(
    k: int,
    predicted: Counts,
    actual: Counts,
    rows: Rows | None = None,
    ranked: Ranks | None = None,
) -> Reference:
    """A reference from labelled predictions, with softmax rows where there are any.

    `ranked` are the ranks of the rows. Where the rows are in single precision they must be those of
    the rows before: 0.9 is less than the edge of a confidence bin at 0.9 once it is rounded.

    >>> from_sample(2, np.array([0, 1, 1]), np.array([0, 0, 1])).counts.tolist()
    [[1, 0], [1, 1]]
    """
    counts = np.bincount(predicted * k + actual, minlength=k * k).reshape(k, k)
    if rows is None:
        return Reference(counts)
    ranked = ranked or ranks(rows)
    bare = Reference(counts)
    table = cells.of_rows(rows, actual, bare.present, ranked) if len(bare.present) else None
    return Reference(counts, _soft_reference(k, predicted, actual, rows, ranked), table)


def _soft_reference(
    k: int, predicted: Counts, actual: Counts, rows: Rows, ranked: Ranks
) -> SoftReference:
    """Written label by label into place: sums of a thousand labels are too large to hold twice."""
    sums = SoftReference(
        prob=np.zeros((k, k)),
        outer=np.zeros((moments.outer_size(k), k)),
        cells=np.zeros((k * moments.CONFIDENCE_BINS, k), dtype=np.int64),
        score=np.zeros(k),
        score_squared=np.zeros(k),
        score_by_label=np.zeros((k, k)),
    )
    order = np.argsort(actual, kind="stable")
    ends = np.cumsum(np.bincount(actual, minlength=k))
    for label, records in enumerate(np.split(order, ends[:-1])):
        if not len(records):
            continue
        part = moments.sums(k, predicted[records], rows[records], ranked.of(records)).soft
        assert part is not None
        sums.prob[:, label] = part.prob
        sums.outer[:, label] = part.outer
        sums.cells[:, label] = part.cells
        sums.score[label] = part.score
        sums.score_squared[label] = part.score_squared
        sums.score_by_label[:, label] = part.score_by_label
    return sums
