"""Whether sums can be those of softmax rows at all, for sums that somebody else has added up.

Every row `p` is non-negative and sums to one, so `sum p` sums to `n`, the rows of `sum p p'` sum to
`sum p`, and `sum p p' - (sum p)(sum p)'/n` has no negative eigenvalue. The same rows are counted by
argmax and confidence on two grids, which must agree where they have an edge in common.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from app.stats import moments
from app.stats.moments import (
    CODE_BINS,
    CODE_EDGES,
    CONFIDENCE_BINS,
    CONFIDENCE_EDGES,
    Counts,
    Floats,
    SoftSums,
    Sums,
)

# What adding up doubles may do to a sum of rows that were scaled to one, for each of them.
TOLERANCE = 1e-6

# Of each confidence bin, the least and the largest that an entry in it can be.
LEAST = np.concatenate([[0.0], CONFIDENCE_EDGES])
LARGEST = np.concatenate([CONFIDENCE_EDGES, [1.0]])
# The cells below and above the edges that both grids have.
BELOW = int(np.searchsorted(CONFIDENCE_EDGES, CODE_EDGES[0])) + 1
ABOVE = int(np.searchsorted(CONFIDENCE_EDGES, CODE_EDGES[-1])) + 1


@dataclass(frozen=True, slots=True)
class Incoherence:
    """Which sum cannot be right, and why."""

    field: str
    detail: str


def incoherence(sums: Sums) -> Incoherence | None:
    """The first thing that shows that no softmax rows have these sums; None if nothing does.

    >>> rows = np.array([[0.9, 0.1], [0.3, 0.7]])
    >>> incoherence(moments.sums(2, moments.argmax(rows), rows))
    """
    return None if sums.soft is None else next(_incoherences(sums.counts, sums.soft), None)


def _incoherences(counts: Counts, soft: SoftSums) -> Iterator[Incoherence]:
    n, slack = int(counts.sum()), TOLERANCE * max(1, int(counts.sum()))
    cells = soft.cells.reshape(len(counts), CONFIDENCE_BINS)
    if soft.cells.sum() != n:
        detail = f"`cells` count {soft.cells.sum()} rows, but `counts` {n} predictions"
        yield Incoherence("labels", detail)
    yield from _of_codes(cells, soft)
    yield from _of_probabilities(n, soft.prob, slack)
    yield from _of_outer(n, soft, slack)
    yield from _of_scores(counts, cells, soft, slack)


def _of_codes(cells: Counts, soft: SoftSums) -> Iterator[Incoherence]:
    k = len(cells)
    first, _, confidence = moments.decode(k, soft.codes)
    found = np.zeros((k, CODE_BINS), dtype=np.int64)
    np.add.at(found, (first, confidence), soft.code_counts)
    pairs = (
        (found.sum(axis=1), cells.sum(axis=1), "by their largest entry"),
        (found[:, 0], cells[:, :BELOW].sum(axis=1), f"below {CODE_EDGES[0]:g}"),
        (found[:, -1], cells[:, ABOVE:].sum(axis=1), f"from {CODE_EDGES[-1]:g} on"),
    )
    for ours, theirs, which in pairs:
        if not np.array_equal(ours, theirs):
            yield Incoherence("codes", f"count other rows {which} than `cells` do")


def _of_probabilities(n: int, prob: Floats, slack: float) -> Iterator[Incoherence]:
    if prob.min() < 0:
        yield Incoherence("labels", "a sum of `probability` is negative")
    if not abs(prob.sum() - n) <= slack:
        detail = f"the sums of `probability` add up to {prob.sum():.10g}, not to {n}"
        yield Incoherence("labels", f"{detail}: scale each row to one first")


def _of_outer(n: int, soft: SoftSums, slack: float) -> Iterator[Incoherence]:
    prob, k = soft.prob, len(soft.prob)
    matrix = moments.outer_matrix(k, soft.outer)
    diagonal = np.diagonal(matrix)
    if soft.outer.min() < 0:
        yield Incoherence("outer", "has a negative entry")
    least = prob**2 / max(1, n)
    if not ((least - slack <= diagonal) & (diagonal <= prob + slack)).all():
        yield Incoherence("outer", "has squares that no such `probability` can have")
    if k > moments.FULL_OUTER_LABELS:
        return
    if not (np.abs(matrix.sum(axis=1) - prob) <= slack).all():
        yield Incoherence("outer", "its rows do not add up to the sums of `probability`")
    elif not _is_positive(matrix - np.outer(prob, prob) / max(1, n) + slack * np.eye(k)):
        yield Incoherence("outer", "is no sum of products of rows with themselves")


def _is_positive(matrix: Floats) -> bool:
    """Whether all eigenvalues are positive; trying Cholesky is far cheaper than to have them."""
    try:
        np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return False
    return True


def _of_scores(
    counts: Counts, cells: Counts, soft: SoftSums, slack: float
) -> Iterator[Incoherence]:
    own, n, k = soft.score_by_label, int(counts.sum()), len(counts)
    if not ((counts / k - slack <= own) & (own <= counts + slack)).all():
        detail = f"a `score` is not between 1/{k} of its label's count and all of it"
        yield Incoherence("labels", detail)
    if not abs(own.sum() - soft.score) <= slack:
        yield Incoherence("score", f"is not what the labels' add up to, {own.sum():.10g}")
    bins = cells.sum(axis=0)
    if not bins @ LEAST - slack <= soft.score <= bins @ LARGEST + slack:
        yield Incoherence("score", "is not what rows in these `cells` can add up to")
    if not soft.score**2 / max(1, n) - slack <= soft.score_squared <= soft.score + slack:
        yield Incoherence("score_squared", "is not what rows with this `score` can add up to")
