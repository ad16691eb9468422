"""What a labelled, held-out sample says of one version of a classifier.

In the paper's words (Lipton, Wang and Smola, 2018, section 3): the joint confusion matrix
`C[i, j] = p(predicted i, true j)`, the conditional one `A[i, j] = p(predicted i | true j)` and
the label distribution `nu[j] = p(true j)`, so that `C = A diag(nu)`. All come from sums, so a
confusion matrix of counts is a full reference for hard predictions; softmax rows add the soft
moments, in which row `i` averages the probability given to label `i`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from app.stats import moments
from app.stats.moments import Counts, Floats
from app.stats.ranking import Ranks, Rows

Number = TypeVar("Number", np.int64, np.float64)


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
class Conditionals:
    """Mean and spread of the moment map `g` given each column: a true label or a group of them.

    `outer[:, j]` is `E_j[g g']`, packed like `SoftSums.outer`. It is None for hard predictions,
    where `g` is one-hot and `E_j[g g'] = diag(A_j)` exactly, and for softmax over so many labels
    that only a diagonal was kept. There `diag(A_j)` is an upper bound, since Jensen's inequality
    gives `(u.p)^2 <= sum_i p_i u_i^2` for any softmax row `p`: variances can come out too large,
    never too small.
    """

    n_j: Counts
    A: Floats
    outer: Floats | None = None

    def second_moment(self, rows: Floats) -> Floats:
        """`E_j[(a.g)^2]` for each row `a` (first axis) and column `j`."""
        if self.outer is None:
            return np.asarray(rows**2 @ self.A)
        return np.asarray(packed_squares(rows) @ self.outer)

    def variance(self, rows: Floats) -> Floats:
        """`Var_j(a.g)` for each row `a` (first axis) and column `j`."""
        return np.maximum(self.second_moment(rows) - (rows @ self.A) ** 2, 0.0)

    def entry_variance(self) -> Floats:
        """`Var_j(g_i)` for each row i and column j: the diagonals of the covariances."""
        second = self.A if self.outer is None else self.second_moment(np.eye(len(self.A)))
        return np.maximum(second - self.A**2, 0.0)

    def covariance(self, weights: Floats) -> Floats:
        """`sum_j weights_j Cov_j(g)`, for weights of which none is negative."""
        if self.outer is None:
            total = np.diag(self.A @ weights)
        else:
            total = unpacked(len(self.A), self.outer @ weights)
        # A matrix times itself takes half the time of one times another.
        root = self.A * np.sqrt(weights)
        return np.asarray(total - root @ root.T)


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
    by_label = moments.sums_by_group(k, predicted, rows, actual, k, ranked)
    counts = np.stack([part.counts for part in by_label], axis=1)
    soft = [part.soft for part in by_label if part.soft is not None]
    return Reference(counts, _soft_reference(soft) if soft else None)


def by_column(by_label: NDArray[Number], columns: Sequence[Sequence[int]]) -> NDArray[Number]:
    """Sums by true label (the last axis) added up into columns; labels in none are left out.

    >>> by_column(np.array([[1, 2, 4]]), [(0, 2), (1,)]).tolist()
    [[5, 2]]
    """
    order = [label for column in columns for label in column]
    if len(order) == len(columns):
        return by_label[..., order]
    starts = np.cumsum([0, *(len(column) for column in columns[:-1])])
    return np.asarray(np.add.reduceat(by_label[..., order], starts, axis=-1))


def conditionals(
    reference: Reference, columns: Sequence[Sequence[int]], *, soft: bool
) -> Conditionals:
    """The moment map given each column; every column needs at least one record.

    A group's moments are those of its labels mixed as in the reference.
    """
    n_j = by_column(reference.support, columns)
    A = by_column(reference.first_moments(soft=soft), columns) / n_j
    if not soft or reference.soft is None or reference.k > moments.FULL_OUTER_LABELS:
        return Conditionals(n_j, A)
    return Conditionals(n_j, A, by_column(reference.soft.outer, columns) / n_j)


def packed_squares(rows: Floats) -> Floats:
    """Each row a as weights on a packed `sum g g'`, which take it to `sum (a.g)^2`.

    >>> (packed_squares(np.array([[1.0, 2.0]])) @ np.array([5.0, 1.0, 3.0])).tolist()
    [21.0]
    """
    first, second, times = _triangle(rows.shape[1])
    return np.asarray(rows[:, first] * rows[:, second] * times)


def unpacked(d: int, packed: Floats) -> Floats:
    """A packed `sum g g'` as a full matrix: `moments.outer_matrix`, made for use in every window.

    >>> unpacked(2, np.array([5.0, 1.0, 3.0])).tolist()
    [[5.0, 1.0], [1.0, 3.0]]
    """
    first, second, _ = _triangle(d)
    full = np.empty((d, d))
    full[first, second] = packed
    full[second, first] = packed
    return full


@cache
def _triangle(d: int) -> tuple[Counts, Counts, Floats]:
    """Row and column of each packed entry, and how often it occurs in the full matrix."""
    first, second = np.triu_indices(d)
    return first, second, np.where(first == second, 1.0, 2.0)


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
