"""Hansen's J: does any label mix explain the histogram of predictions and confidence?

k shares of predictions are always explained by k label frequencies (but for their signs). Finer
cells, each prediction split by how sure the model was of it, outnumber the labels: what no label
mix can explain of them contradicts label shift (E2 in docs/statistics-sequential.md).
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import lstsq, lu_factor, lu_solve
from scipy.stats import chi2

from app.stats import bbse
from app.stats import reference as references
from app.stats.bbse import Prepared
from app.stats.diagnosis import Columns
from app.stats.moments import CONFIDENCE_BINS, Counts, Floats, SoftSums
from app.stats.reference import Reference, SoftReference

CELLS_PER_LABEL = 5
RECORDS_PER_CELL = 50
MOST_CELLS = 1000
ITERATIONS = 3


@dataclass(frozen=True, slots=True)
class Cells:
    """The histogram of prediction and confidence, coarse enough that its cells are well filled.

    `place` takes the fine cells of `SoftSums.cells` to coarse ones (-1: no reference record);
    `A[b, j]` is the share of cell `b` among the `n_j` records of column `j`.
    """

    place: Counts
    A: Floats
    n_j: Counts
    rank: int


@dataclass(frozen=True, slots=True)
class Misfit:
    """Hansen's J over its degrees of freedom; `size` is the misfit per degree and prediction."""

    statistic: float
    df: int
    p_value: float
    size: float


def cells(reference: Reference, soft: SoftReference, columns: Columns) -> Cells:
    """The reference-only part: the coarse histogram of each column."""
    fine = references.by_column(soft.cells, columns)
    place = coarsening(fine.sum(axis=1).reshape(reference.k, CONFIDENCE_BINS))
    A = np.zeros((place.max() + 1, len(columns)))
    known = place >= 0
    np.add.at(A, place[known], fine[known])
    n_j = references.by_column(reference.support, columns)
    A /= n_j
    return Cells(place, A, n_j, int(np.linalg.matrix_rank(A)))


def cell_misfit(of: Cells, soft: SoftSums, *, phi: float = 1.0) -> Misfit | None:
    """`over_identification` of a window; None if the reference has none of its predictions."""
    known = of.place >= 0
    counts = np.bincount(of.place[known], weights=soft.cells[known], minlength=len(of.A))
    if not counts.any():
        return None
    return over_identification(of.A, of.n_j, counts, rank=of.rank, phi=phi)


def prediction_misfit(hard: Prepared, counts: Counts, *, phi: float = 1.0) -> Misfit | None:
    """The same of hard predictions, where merged or absent labels are fewer than predictions.

    None where they are not, or where the reference has made none of the predictions.
    """
    seen = hard.given.A.any(axis=1)
    A = hard.given.A[seen]
    if A.shape[0] <= A.shape[1] or not counts[seen].any():
        return None
    return over_identification(A, hard.given.n_j, counts[seen], rank=A.shape[1], phi=phi)


def over_identification(
    A: Floats, n_j: Counts, counts: Counts | Floats, *, rank: int, phi: float = 1.0
) -> Misfit:
    """Hansen's J: how badly the best label mix explains counts in more cells than labels (E2).

    `J = min_{1'q = 1} (mu - A q)' Om(q)^- (mu - A q)` with both samples' noise in
    `Om(q) = (diag(p) - p p') / m + sum_j (q_j^2 / n_j) (diag(A_j) - A_j A_j')`, `p = A q`. The sign
    of `q` is left free, which keeps the chi-square law with `cells - rank(A)` degrees of freedom
    valid where some label is gone.

    >>> A = np.array([[0.6, 0.1], [0.3, 0.2], [0.1, 0.7]])
    >>> explained = over_identification(A, np.array([500, 500]), np.array([350, 250, 400]), rank=2)
    >>> round(explained.statistic, 6), explained.df, round(explained.p_value, 6)
    (0.0, 1, 1.0)
    """
    m = counts.sum() / phi
    mu = counts / counts.sum()
    nu = n_j / n_j.sum()
    q, J = nu, 0.0
    for _ in range(ITERATIONS):
        # The least bit of the reference's mix keeps every cell possible.
        likely = (m * bbse.clipped(q) + nu) / (m + 1.0)
        q, J = _generalised_least_squares(A, mu, likely, m, n_j)
    df = A.shape[0] - rank
    if df < 1:
        return Misfit(0.0, 0, 1.0, 0.0)
    size = np.sqrt(max(0.0, J - df) / (df * m))
    return Misfit(J, df, float(chi2.sf(J, df)), float(size))


def coarsening(records: Counts) -> Counts:
    """A coarse cell for each fine one: runs of confidence bins with at least 50 records each.

    At most five for a prediction (fewer where there are many labels), one if it is rare, -1 if
    the reference never made it.

    >>> coarsening(np.array([[10, 60, 5, 45], [3, 0, 0, 0], [0, 0, 0, 0]])).tolist()
    [0, 0, 1, 1, 2, 2, 2, 2, -1, -1, -1, -1]
    """
    most = max(2, min(CELLS_PER_LABEL, MOST_CELLS // len(records)))
    place = np.full(records.shape, -1)
    cell = 0
    for label, row in enumerate(records):
        if not row.any():
            continue
        runs = _runs(row, max(RECORDS_PER_CELL, row.sum() / most))
        place[label] = cell + runs
        cell += int(runs[-1]) + 1
    return place.ravel()


def _runs(records: Counts, wanted: float) -> Counts:
    """Which run of neighbouring bins each bin is in; all have `wanted` but perhaps the last."""
    left = records.sum() - np.cumsum(records)
    run = np.zeros(len(records), dtype=np.int64)
    held = 0
    for bin_, count in enumerate(records[:-1]):
        held += int(count)
        closed = held >= wanted and left[bin_] >= RECORDS_PER_CELL
        run[bin_ + 1] = run[bin_] + closed
        held = 0 if closed else held
    return run


def _generalised_least_squares(
    A: Floats, mu: Floats, likely: Floats, m: float, n_j: Counts
) -> tuple[Floats, float]:
    """The constrained minimiser and minimum of the quadratic form, with `Om` taken at `likely`.

    `Om` is `D - V V'` with a diagonal `D` and as many columns in `V` as labels and one, so that it
    is inverted by Woodbury's identity at the cost of the labels, not of the cells. It takes 1 to
    0; adding `c 1 1'` makes it regular and changes nothing for residuals that sum to zero.
    """
    p = A @ likely
    weights = likely**2 / n_j
    D = p / m + A @ weights
    c = D.mean()
    U = np.column_stack([p / np.sqrt(m), A * np.sqrt(weights), np.full(len(A), np.sqrt(c))])
    signs = np.append(np.full(U.shape[1] - 1, -1.0), 1.0)
    DU = U / D[:, None]
    factors = lu_factor(np.diag(signs) + U.T @ DU)
    X = np.column_stack([A, mu])
    WX = X / D[:, None] - DU @ lu_solve(factors, DU.T @ X)
    gram = X.T @ WX
    q = _constrained(gram[:-1, :-1], gram[:-1, -1])
    x = np.append(-q, 1.0)
    return q, max(0.0, float(x @ gram @ x))


def _constrained(gram: Floats, b: Floats) -> Floats:
    """`argmin q' gram q - 2 b'q` with `1'q = 1`, by Lagrange's equations."""
    scale = np.abs(gram).max()
    ones = np.ones((len(b), 1))
    system = np.block([[gram / scale, ones], [ones.T, np.zeros((1, 1))]])
    # Columns that the cells do not tell apart leave q open, not J: any solution will do.
    solution, *_ = lstsq(system, np.append(b / scale, 1.0), lapack_driver="gelsy")
    return np.asarray(solution, dtype=np.float64)[:-1]
