"""What a labelled, held-out sample says of one version of a classifier.

In the paper's words (Lipton, Wang and Smola, 2018, section 3): the joint confusion matrix
`C[i, j] = p(predicted i, true j)`, the conditional one `A[i, j] = p(predicted i | true j)` and
the label distribution `nu[j] = p(true j)`, so that `C = A diag(nu)`. All come from sums, so a
confusion matrix of counts is a full reference for hard predictions; softmax rows add the soft
moments, in which row `i` averages the probability given to label `i`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.stats import moments
from app.stats.moments import Counts, Floats


@dataclass(frozen=True, slots=True)
class SoftReference:
    """Sums of softmax rows by true label, which is the last axis everywhere.

    `outer[:, j]` is packed like `SoftSums.outer`; `code_counts[b, j]` belongs to `codes[b]`.
    """

    prob: Floats
    outer: Floats
    cells: Counts
    codes: Counts
    code_counts: Counts
    score: Floats
    score_squared: Floats
    score_by_label: Floats


@dataclass(frozen=True, slots=True)
class Reference:
    """`counts[i, j]`: how many records of true label `j` were predicted `i`."""

    counts: Counts
    soft: SoftReference | None = None

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

    def second_moments(self, label: int, *, soft: bool = False) -> Floats:
        """`sum g g'` over the records of one true label."""
        if not soft:
            return np.diag(self.counts[:, label].astype(np.float64))
        if self.soft is None:
            raise ValueError("a reference of hard predictions has no soft moments")
        return moments.outer_matrix(self.k, self.soft.outer[:, label])


def from_confusion(counts: Counts) -> Reference:
    """A reference from counts alone: rows predicted, columns true.

    >>> from_confusion(np.array([[9, 1], [1, 9]])).conditional().tolist()
    [[0.9, 0.1], [0.1, 0.9]]
    """
    return Reference(counts)


def from_sample(k: int, predicted: Counts, actual: Counts, rows: Floats | None = None) -> Reference:
    """A reference from labelled predictions, with softmax rows where there are any.

    >>> from_sample(2, np.array([0, 1, 1]), np.array([0, 0, 1])).counts.tolist()
    [[1, 0], [1, 1]]
    """
    by_label = moments.sums_by_group(k, predicted, rows, actual, k)
    counts = np.stack([part.counts for part in by_label], axis=1)
    soft = [part.soft for part in by_label if part.soft is not None]
    return Reference(counts, _soft_reference(soft) if soft else None)


def _soft_reference(by_label: Sequence[moments.SoftSums]) -> SoftReference:
    codes = np.unique(np.concatenate([part.codes for part in by_label]))
    code_counts = np.zeros((len(codes), len(by_label)), dtype=np.int64)
    for label, part in enumerate(by_label):
        code_counts[np.searchsorted(codes, part.codes), label] = part.code_counts
    return SoftReference(
        prob=np.stack([part.prob for part in by_label], axis=1),
        outer=np.stack([part.outer for part in by_label], axis=1),
        cells=np.stack([part.cells for part in by_label], axis=1),
        codes=codes,
        code_counts=code_counts,
        score=np.array([part.score for part in by_label]),
        score_squared=np.array([part.score_squared for part in by_label]),
        score_by_label=np.stack([part.score_by_label for part in by_label], axis=1),
    )
