"""Predictions reduced to sums that add up: what a pane stores and a reference is made of.

Everything the service computes later is a function of these sums, and none of them depends on
the reference, so a pane is written once and read by any version of the statistics. Merging two
sets of predictions is adding their sums.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from app.stats.ranking import Ranks, Rows, ranks

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Edges of the confidence (largest probability) bins: 14 per argmax label. Fine near one, where
# modern classifiers live. Every reference coarsens this same grid, so panes need not know it.
CONFIDENCE_EDGES = np.array(
    [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999]
)
CONFIDENCE_BINS = len(CONFIDENCE_EDGES) + 1
CODE_EDGES = np.array([0.5, 0.75, 0.95])
CODE_BINS = len(CODE_EDGES) + 1

# Above this many labels only the diagonal of the sum of outer products is kept: the full one
# costs k(k+1)/2 numbers a pane, and its use (soft covariances) can fall back on the diagonal.
FULL_OUTER_LABELS = 64

NEGATIVE_TOLERANCE = 1e-6
SUM_TOLERANCE = 1e-3
# So that both ends of the tolerance are within it, whatever adding up does to the last digit.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class SoftSums:
    """Sums over softmax rows `p`, with `s` the largest entry of a row.

    `outer` is the upper triangle of `sum p p'`, row by row, up to `FULL_OUTER_LABELS` labels and
    its diagonal beyond. `cells` counts rows by argmax and confidence bin, `codes` (sorted) and
    `code_counts` by argmax, runner-up and coarse confidence bin.
    """

    prob: Floats
    outer: Floats
    cells: Counts
    codes: Counts
    code_counts: Counts
    score: float
    score_squared: float
    score_by_label: Floats

    @property
    def coded(self) -> bool:
        """Whether the rows are counted by code. Sums of panes that an early release added up have
        lost their codes, and so has every sum with one of them in it."""
        return len(self.codes) > 0 or not self.cells.any()

    @property
    def nbytes(self) -> int:
        wide = self.outer.nbytes + self.cells.nbytes + self.codes.nbytes + self.code_counts.nbytes
        return self.prob.nbytes + self.score_by_label.nbytes + wide


@dataclass(frozen=True, slots=True)
class Sums:
    """Predictions per label, and the sums over their softmax rows where every one had a row."""

    counts: Counts
    soft: SoftSums | None = None

    @property
    def n(self) -> int:
        return int(self.counts.sum())

    @property
    def nbytes(self) -> int:
        """Memory that the sums take."""
        return self.counts.nbytes + (0 if self.soft is None else self.soft.nbytes)


def normalised(rows: Floats) -> tuple[Floats, Bools]:
    """Softmax rows clipped at zero and scaled to sum to one, and which of them were acceptable.

    A row is acceptable when it is finite, no entry is below -1e-6 and its sum is within 1e-3 of
    one: what float32 and printing to a few digits do to a softmax, and no more.

    >>> rows, good = normalised(np.array([[0.9, 0.1004], [0.5, 0.6], [np.nan, 1.0]]))
    >>> good.tolist(), rows[0].round(4).tolist()
    ([True, False, False], [0.8996, 0.1004])
    """
    # By column: sums and extremes of short rows are ten times as fast across long columns, and one
    # large array that is changed in place costs less than several that are made.
    columns = np.array(rows.T, order="C")
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        total = columns.sum(axis=0)
        good = np.abs(total - 1.0) <= SUM_TOLERANCE + ROUNDING
        # Mostly there is nothing below zero anywhere, and no NaN.
        if not columns.min(initial=0.0) >= 0:
            good &= columns.min(axis=0) >= -NEGATIVE_TOLERANCE
            np.maximum(columns, 0.0, out=columns)
            total = columns.sum(axis=0)
        columns /= total
    return columns.T, good


def argmax(rows: Floats) -> Counts:
    """The label of each softmax row; the lowest index wins a tie, in reference and stream alike."""
    return ranks(rows).first


def sums(k: int, predicted: Counts, rows: Rows | None = None, ranked: Ranks | None = None) -> Sums:
    """The sums of one set of predictions over `k` labels.

    `ranked` are the ranks of the rows, where somebody has found them already.

    >>> sums(3, np.array([0, 2, 2])).counts.tolist()
    [1, 0, 2]
    """
    counts = np.bincount(predicted, minlength=k)
    if rows is None:
        return Sums(counts)
    return Sums(counts, _soft_sums(k, predicted, rows, ranked or ranks(rows)))


def sums_by_group(
    k: int,
    predicted: Counts,
    rows: Rows | None,
    group: Counts,
    groups: int,
    ranked: Ranks | None = None,
) -> list[Sums]:
    """One `Sums` for each of `groups` groups; `group[i]` says where prediction `i` belongs.

    Panes are groups of a batch by time; a reference is a sample grouped by true label.
    """
    if groups == 1:
        return [sums(k, predicted, rows, ranked)]
    counts = np.bincount(group * k + predicted, minlength=groups * k).reshape(groups, k)
    if rows is None:
        return [Sums(row) for row in counts]
    ranked = ranked or ranks(rows)
    order = np.argsort(group, kind="stable")
    ends = np.cumsum(np.bincount(group, minlength=groups))
    return [
        Sums(row, _soft_sums(k, predicted[part], rows[part], ranked.of(part)))
        for row, part in zip(counts, np.split(order, ends[:-1]), strict=True)
    ]


def total(parts: Sequence[Sums]) -> Sums:
    """The sums of all parts together; at least one, all with softmax rows or all without.

    >>> total([Sums(np.array([1, 2])), Sums(np.array([3, 0]))]).counts.tolist()
    [4, 2]
    """
    if len(parts) == 1:
        return parts[0]
    counts = np.sum([part.counts for part in parts], axis=0)
    soft = [part.soft for part in parts if part.soft is not None]
    if not soft:
        return Sums(counts)
    if len(soft) < len(parts):
        raise ValueError("sums with softmax rows and sums without do not add up")
    return Sums(counts, _soft_total(soft))


def same(one: Sums, other: Sums) -> bool:
    """Whether two sums are equal to the last digit.

    >>> same(Sums(np.array([1, 2])), Sums(np.array([1, 2]))), same(
    ...     Sums(np.array([1, 2])), Sums(np.array([2, 1])))
    (True, False)
    """
    if one.soft is None or other.soft is None:
        return one.soft is other.soft and np.array_equal(one.counts, other.counts)
    pairs = zip(astuple(one.soft), astuple(other.soft), strict=True)
    return np.array_equal(one.counts, other.counts) and all(np.array_equal(*pair) for pair in pairs)


def empty(k: int, *, soft: bool) -> Sums:
    """The sums of no predictions at all."""
    none = np.zeros(0, dtype=np.int64)
    return sums(k, none, np.zeros((0, k)) if soft else None)


def outer_size(k: int) -> int:
    """How many numbers `SoftSums.outer` holds."""
    return k * (k + 1) // 2 if k <= FULL_OUTER_LABELS else k


def outer_matrix(k: int, packed: Floats) -> Floats:
    """`sum p p'` as a symmetric matrix, from its packed form (a diagonal one for many labels).

    >>> outer_matrix(2, np.array([5.0, 1.0, 3.0])).tolist()
    [[5.0, 1.0], [1.0, 3.0]]
    """
    if k > FULL_OUTER_LABELS:
        return np.diag(packed)
    full = np.empty((k, k))
    above, right = _triangle(k)
    full[above, right] = packed
    full[right, above] = packed
    return full


def row_codes(rows: Floats) -> Counts:
    """The code of each softmax row.

    >>> [part.tolist() for part in decode(3, row_codes(np.array([[0.1, 0.6, 0.3]])))]
    [[1], [2], [1]]
    """
    return codes_of(rows.shape[1], ranks(rows))


def codes_of(k: int, ranked: Ranks) -> Counts:
    """The codes of rows with these ranks."""
    first, second, score = ranked
    return encode(k, first, second, _bins(CODE_EDGES, score))


def encode(
    k: int,
    first: NDArray[np.integer],
    second: NDArray[np.integer],
    confidence: NDArray[np.integer],
) -> Counts:
    """The codes of these; the inverse of `decode`.

    >>> encode(3, np.array([2]), np.array([1]), np.array([3])).tolist()
    [31]
    """
    return np.asarray((first * k + second) * CODE_BINS + confidence, dtype=np.int64)


def decode(k: int, codes: Counts) -> tuple[Counts, Counts, Counts]:
    """Argmax, runner-up and coarse confidence bin of each code.

    >>> [part.tolist() for part in decode(3, np.array([(2 * 3 + 1) * 4 + 3]))]
    [[2], [1], [3]]
    """
    pair, confidence = np.divmod(codes, CODE_BINS)
    first, second = np.divmod(pair, k)
    return first, second, confidence


def _soft_sums(k: int, predicted: Counts, rows: Rows, ranked: Ranks) -> SoftSums:
    if not len(rows):
        return _no_soft_sums(k)
    # By column, whoever calls: it is quicker, and the last digit depends on the order of adding up.
    columns = np.ascontiguousarray(rows.T, dtype=np.float64)
    score = np.asarray(ranked.score, dtype=np.float64)
    cells, codes, code_counts = _tally(k, ranked)
    return SoftSums(
        prob=columns.sum(axis=1),
        outer=_outer(k, columns),
        cells=cells,
        codes=codes,
        code_counts=code_counts,
        score=float(score.sum()),
        score_squared=float(score @ score),
        score_by_label=np.asarray(
            np.bincount(predicted, weights=score, minlength=k), dtype=np.float64
        ),
    )


def _tally(k: int, ranked: Ranks) -> tuple[Counts, Counts, Counts]:
    """How many rows are in each cell, the codes that occur, and how many rows have each."""
    cell = ranked.first * CONFIDENCE_BINS + _bins(CONFIDENCE_EDGES, ranked.score)
    cells = np.bincount(cell, minlength=k * CONFIDENCE_BINS)
    return cells, *_counted(codes_of(k, ranked))


def _counted(codes: Counts, counts: Counts | None = None) -> tuple[Counts, Counts]:
    """The codes that occur, sorted, and how often; with `counts`, the sum of the counts of each."""
    most = int(codes.max(initial=-1)) + 1
    if most > len(codes):
        found, place = np.unique(codes, return_inverse=True)
        return found, _summed(place, counts, len(found))
    # To count all that there could be is quicker than to sort those that there are.
    tally = _summed(codes, counts, most)
    found = np.flatnonzero(tally)
    return found, tally[found]


def _summed(places: Counts, counts: Counts | None, size: int) -> Counts:
    if counts is None:
        return np.bincount(places, minlength=size)
    found = np.zeros(size, dtype=np.int64)
    np.add.at(found, places, counts)
    return found


def _bins(edges: Floats, score: Floats) -> NDArray[np.uint8]:
    """Which bin each score is in: as many edges as it has reached. With few edges, comparing with
    all of them takes half the time of searching."""
    reached = (score >= edges[:, None]).view(np.uint8)
    return np.asarray(reached.sum(axis=0, dtype=np.uint8))


def _no_soft_sums(k: int) -> SoftSums:
    none = np.zeros(0, dtype=np.int64)
    cells = np.zeros(k * CONFIDENCE_BINS, dtype=np.int64)
    return SoftSums(np.zeros(k), np.zeros(outer_size(k)), cells, none, none, 0.0, 0.0, np.zeros(k))


def _outer(k: int, columns: Floats) -> Floats:
    if k > FULL_OUTER_LABELS:
        return np.asarray(np.einsum("ij,ij->i", columns, columns))
    # In two parts, because of a whole NumPy sees that its factors are the same and takes a routine
    # for that, which for so few columns was seen to take twice the time.
    half = k // 2
    product = np.concatenate([columns[:half] @ columns.T, columns[half:] @ columns.T])
    return np.asarray(product[_triangle(k)])


@lru_cache
def _triangle(k: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Row and column of each packed entry; making them takes longer than using them."""
    above, right = np.triu_indices(k)
    return above, right


def without_codes(sums: Sums) -> Sums:
    """The same sums, as if their codes had not been counted."""
    if sums.soft is None:
        return sums
    return replace(sums, soft=replace(sums.soft, codes=_NONE, code_counts=_NONE))


_NONE = np.zeros(0, dtype=np.int64)


def _soft_total(parts: Sequence[SoftSums]) -> SoftSums:
    codes, code_counts = _NONE, _NONE
    if all(part.coded for part in parts):
        codes, code_counts = _counted(
            np.concatenate([part.codes for part in parts]),
            np.concatenate([part.code_counts for part in parts]),
        )
    return SoftSums(
        prob=np.sum([part.prob for part in parts], axis=0),
        outer=np.sum([part.outer for part in parts], axis=0),
        cells=np.sum([part.cells for part in parts], axis=0),
        codes=codes,
        code_counts=code_counts,
        score=sum(part.score for part in parts),
        score_squared=sum(part.score_squared for part in parts),
        score_by_label=np.sum([part.score_by_label for part in parts], axis=0),
    )
