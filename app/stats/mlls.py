"""Maximum-likelihood estimates of the label mix, from counts alone.

Saerens, Latinne and Decaestecker (2002) find the most likely mix by expectation-maximisation over
calibrated softmax rows. Rows need not be kept for that: counting them by code (argmax, runner-up,
coarse confidence; see `moments`) loses little, once the reference has said how probable each code
is under each label. That table is made once per reference, from its rows.
"""

from dataclasses import dataclass

import numpy as np

from app.stats import calibration as calibrations
from app.stats import moments
from app.stats import reference as references
from app.stats.calibration import Calibration
from app.stats.diagnosis import Columns
from app.stats.moments import Counts, Floats, Sums

# A code with fewer labelled records than this shares a cell with the other rare codes of its
# argmax. Smaller cells know nothing of their own, larger ones mix what differs; more labels ask
# for larger cells only to keep the table small (see docs/statistics-sharp.md).
CELL_RECORDS = 5

# Stop when the log-likelihood of the window is surely this close to its maximum.
LIKELIHOOD_GAP = 1e-6
MOST_STEPS = 500
LEAST_SHARE = 1e-9

# How many standard errors the two estimates may differ before calibration is doubted.
SUSPECT_GAP = 4.0


@dataclass(frozen=True, slots=True)
class CodeTable:
    """What labelled softmax rows say of each cell of codes; small enough to store.

    `cell[b]` is the cell of `codes[b]` (sorted); codes the reference has not seen go to the cell
    `rest[i]` of their argmax `i`, which is -1 where the reference has no such argmax. `counts`
    (cells x labels) counts records by true label, `calibrated` sums their calibrated rows, so
    that both have the same row sums.
    """

    codes: Counts
    cell: Counts
    rest: Counts
    counts: Counts
    calibrated: Floats
    calibration: Calibration

    @property
    def k(self) -> int:
        return len(self.rest)


@dataclass(frozen=True, slots=True)
class CellCounts:
    """A window's predictions by cell, and the shares of it that have no cell or no known code."""

    counts: Floats
    dropped: float
    unseen: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far the likelihood's estimate is from the confusion matrix's, in standard errors.

    When they are far apart the calibration no longer fits, and the confusion matrix is right.
    """

    largest_gap: float
    calibration_suspect: bool


def code_table(rows: Floats, actual: Counts) -> CodeTable:
    """The table of a reference, from its softmax rows and true labels; at least one record.

    >>> rows = np.repeat([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], [30, 20, 10], axis=0)
    >>> table = code_table(rows, np.repeat([0, 1], [40, 20]))
    >>> table.counts.tolist(), table.rest.tolist()
    ([[10, 10], [0, 10], [30, 0]], [0, 1])
    """
    k = rows.shape[1]
    codes, place = np.unique(moments.row_codes(rows), return_inverse=True)
    cell, rest = _cells(k, codes, np.bincount(place))
    calibration = calibrations.fit(rows, actual)
    counts = np.zeros((cell.max() + 1, k), dtype=np.int64)
    np.add.at(counts, (cell[place], actual), 1)
    calibrated = np.zeros(counts.shape)
    np.add.at(calibrated, cell[place], calibrations.calibrated(calibration, rows))
    return CodeTable(codes, cell, rest, counts, calibrated, calibration)


def cell_counts(table: CodeTable, sums: Sums) -> CellCounts:
    """A window's code counts in the cells of the table."""
    if sums.soft is None:
        raise ValueError("a window of hard predictions has no codes")
    codes, counts = sums.soft.codes, sums.soft.code_counts
    place = np.minimum(np.searchsorted(table.codes, codes), len(table.codes) - 1)
    seen = table.codes[place] == codes
    cell = np.where(seen, table.cell[place], table.rest[moments.decode(table.k, codes)[0]])
    kept = cell >= 0
    in_cells = np.bincount(cell[kept], weights=counts[kept], minlength=len(table.counts))
    m = max(1, int(counts.sum()))
    return CellCounts(
        counts=np.asarray(in_cells, dtype=np.float64),
        dropped=float(counts[~kept].sum() / m),
        unseen=float(counts[~seen].sum() / m),
    )


def likelihood(table: CodeTable, columns: Columns) -> Floats:
    """`p(cell | column)` with each record spread over labels as its calibrated row says.

    `A_bj = sum of p(j | x_i) over reference records i in cell b / (n nu_j)`: the expectation of
    counting true labels, given the rows (Rao and Blackwell), hence less noisy than counting.
    """
    joint = references.by_column(table.calibrated, columns)
    return np.asarray(joint / joint.sum(axis=0))


def estimate(A: Floats, counts: Floats) -> Floats:
    """The most likely mix `q` of the columns of `A` behind counts of its rows; needs a count.

    Maximises `sum_b c_b log (A q)_b` over the simplex by expectation-maximisation,
    `q_j <- q_j g_j` with `g_j = sum_b A_bj c_b / (A q)_b / m`, each step followed by one of
    Newton's where that is better still. The likelihood is concave and its maximum exceeds its
    value at `q` by at most `m (max g - 1)`, which tells when to stop.

    >>> A = np.array([[0.9, 0.2], [0.1, 0.8]])
    >>> estimate(A, np.array([55.0, 45.0])).round(6).tolist()
    [0.5, 0.5]
    """
    rows = (counts > 0.0) & A.any(axis=1)
    A, share = A[rows], counts[rows] / max(1.0, counts[rows].sum())
    q = np.full(A.shape[1], 1.0 / A.shape[1])
    for _ in range(MOST_STEPS):
        gain = _gain(A, share, q)
        if counts.sum() * (gain.max() - 1.0) <= LIKELIHOOD_GAP:
            break
        q = _better(A, share, q * gain)
    return q


def from_rows(calibration: Calibration, nu: Floats, rows: Floats) -> Floats:
    """The estimate from the window's rows themselves, for comparison: nothing is counted.

    `nu` is the label distribution of the reference that `calibration` was fitted on.
    """
    present = nu > 0.0
    q = np.zeros(len(nu))
    ratios = calibrations.calibrated(calibration, rows)[:, present] / nu[present]
    q[present] = estimate(ratios, np.ones(len(rows)))
    return q


def compare(likely: Floats, inverted: Floats, error: Floats) -> Comparison:
    """The likelihood's estimate against the confusion matrix's and its standard errors.

    >>> compare(np.array([0.5, 0.5]), np.array([0.25, 0.75]), np.array([0.05, 0.05]))
    Comparison(largest_gap=5.0, calibration_suspect=True)
    """
    gap = np.abs(likely - inverted) / np.maximum(error, np.finfo(np.float64).tiny)
    largest = float(np.nanmax(gap, initial=0.0))
    return Comparison(largest, largest > SUSPECT_GAP)


def _cells(k: int, codes: Counts, sizes: Counts) -> tuple[Counts, Counts]:
    """The cell of each code, and the cell of rare and unseen codes for each argmax.

    Rare codes of one argmax are pooled; where even the pool is rare, the smallest of the other
    codes join it, all of them if tied, so that the order of labels does not matter.
    """
    least = max(CELL_RECORDS, k // 10)
    first = moments.decode(k, codes)[0]
    own = sizes >= least
    pooled = np.bincount(first, weights=sizes * ~own, minlength=k)
    smallest = np.full(k, np.iinfo(np.int64).max)
    np.minimum.at(smallest, first[own], sizes[own])
    own &= ~((pooled[first] < least) & (sizes == smallest[first]))
    argmaxes = np.unique(first)
    rest = np.full(k, -1)
    rest[argmaxes] = np.arange(len(argmaxes))
    return np.where(own, len(argmaxes) - 1 + np.cumsum(own), rest[first]), rest


def _gain(A: Floats, share: Floats, q: Floats) -> Floats:
    """What one step multiplies `q` by: above one where the likelihood asks for more."""
    return np.asarray((share / (A @ q)) @ A)


def _better(A: Floats, share: Floats, q: Floats) -> Floats:
    """`q`, or the first point towards Newton's step from there that is more likely.

    Cutting a long step off at the simplex can spoil it; the part that just reaches the boundary
    is the last resort, and puts one label out of the mix.
    """
    step = _newton(A, share, q)
    least = _log_likelihood(A, share, q)
    inside = (q / np.maximum(-step, np.finfo(np.float64).tiny))[step < 0.0].min(initial=1.0)
    for part in (1.0, 0.3, 0.1, inside):
        far = np.maximum(q + part * step, 0.0)
        far /= far.sum()
        if _log_likelihood(A, share, far) > least:
            return far
    return q


def _newton(A: Floats, share: Floats, q: Floats) -> Floats:
    """A Newton step over the labels in the mix and the one that most asks to be; others leave.

    The likelihood less the constraint has gradient `g - 1` and Hessian `-A' diag(c / (A q)^2) A`.
    """
    gain = _gain(A, share, q)
    free = q > LEAST_SHARE
    free[gain.argmax()] = True
    R = A[:, free] * (np.sqrt(share) / (A @ q))[:, None]
    H = R.T @ R
    H[np.diag_indices(len(H))] *= 1.0 + 1e-9
    step = -q
    step[free] = np.linalg.solve(H, gain[free] - 1.0)
    return np.maximum(step, np.where(q > 0.0, -np.inf, 0.0))


def _log_likelihood(A: Floats, share: Floats, q: Floats) -> float:
    with np.errstate(divide="ignore"):
        return float(share @ np.log(A @ q))
