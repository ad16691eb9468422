"""Hansen's J: does any label mix explain the histogram of predictions and confidence?

k shares of predictions are always explained by k label frequencies, unless some would have to be
negative. Finer cells, each prediction split by how sure the model was of it, outnumber the labels:
what no label mix can explain of them contradicts label shift (E2 in docs/statistics-sequential.md).
Labels that the cells hardly tell apart are welcome: they make the best mix uncertain, not how badly
it fits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import lapack
from scipy.optimize import nnls
from scipy.special import chdtrc

from app.stats.moments import CONFIDENCE_BINS, Bools, Counts, Floats
from app.stats.reference import Reference, SoftReference

CELLS_PER_LABEL = 5
RECORDS_PER_CELL = 50
MOST_CELLS = 1000
# Beyond, the best mix takes longer to find than a window may take; it is then searched for roughly.
MOST_LABELS = 256
ITERATIONS = 3
ROUGH_ITERATIONS = 10

# How far a share may well be from its estimate: two standard errors.
ERRORS_SQUARED = 4.0

# Records of the overall mix beside a label's own: a cell that the label has never been in may yet
# be one of its cells. With one instead of four, levels reached .10 where a label rose to .9.
STRAYED = 4.0

# Guesses of which shares are positive: few do, and what takes many may go in circles.
MOST_GUESSES = 30


@dataclass(frozen=True)
class Cells:
    """The histogram of a reference, given each of its labels.

    `place` takes what a window counts to cells (-1: no reference record); `A[b, j]` is the share of
    cell `b` among the `n_j` records of label `j`, one of those that have any.
    """

    place: Counts
    A: Floats
    n_j: Counts

    @property
    def tells_apart(self) -> bool:
        """Whether there are two labels that any cell tells apart."""
        return len(self.A) > 1 and bool((np.ptp(self.A, axis=1) > 0.0).any())

    @cached_property
    def nu(self) -> Floats:
        """The label mix of the reference."""
        return np.asarray(self.n_j / self.n_j.sum())

    @cached_property
    def strayed(self) -> Floats:
        """`A`, had some records of each label come from anywhere."""
        stray = STRAYED / (self.n_j + STRAYED)
        return np.asarray(self.A * (1.0 - stray) + np.outer(self.A @ self.nu, stray))

    @cached_property
    def strayed_squares(self) -> Floats:
        """Its squares, with a row for each label."""
        return np.ascontiguousarray(self.strayed.T**2)

    def of(self, counts: Counts) -> Floats:
        """A window's counts by cell, without what the reference has never seen."""
        known = self.place >= 0
        found = np.bincount(self.place[known], weights=counts[known], minlength=len(self.A))
        return np.asarray(found, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Misfit:
    """Hansen's J over its degrees of freedom; `size` is the misfit per degree and prediction."""

    statistic: float
    df: int
    p_value: float
    size: float


@dataclass(frozen=True, slots=True)
class Fit:
    """The label mix that explains a window best, and `most`: as much as could be of each label.

    `square` is as much as `q^2` could well be. The misfit is None where there were too many labels
    for an exact minimum.
    """

    q: Floats
    most: Floats
    square: Floats
    misfit: Misfit | None


@dataclass(frozen=True, slots=True)
class _Minimum:
    """A step towards the minimum of J: the mix, whose share it takes to be positive, how uncertain
    shares are (variances), J, in how many directions those labels can move the cells, and how much
    more J varies than the chi-square law says."""

    q: Floats
    positive: Bools
    variance: Floats
    J: float
    rank: int
    heavy: float


def confidence_cells(reference: Reference, soft: SoftReference, labels: Sequence[int]) -> Cells:
    """Predictions split by confidence, coarsely enough that cells are well filled."""
    fine = soft.cells[:, labels]
    place = coarsening(fine.sum(axis=1).reshape(reference.k, CONFIDENCE_BINS))
    return _cells(place, fine, reference.support[list(labels)])


def prediction_cells(reference: Reference, labels: Sequence[int]) -> Cells:
    """Predictions alone: a cell for each that the reference has made."""
    counts = reference.counts[:, labels]
    made = counts.any(axis=1)
    place = np.where(made, np.cumsum(made) - 1, -1)
    return _cells(place, counts, reference.support[list(labels)])


def fit(of: Cells, counts: Floats, *, phi: float = 1.0) -> Fit:
    """Hansen's J and the label mix at its minimum; `counts` by cell, not all zero (E2).

    `J = min_q sum_b (mu_b - (A q)_b)^2 / D_b` over the simplex. `D_b` is the variance of a cell
    from both samples. The covariances between cells that it leaves out are `-A M A'` for some M,
    which changes neither the minimum nor where it is. Given which labels have a share there, J has
    the chi-square law with `cells - labels with a share` degrees of freedom: exactly, if the noise
    is normal and the others are truly gone, and otherwise J is smaller.

    >>> A = np.array([[0.6, 0.1], [0.3, 0.2], [0.1, 0.7]])
    >>> found = fit(Cells(np.arange(3), A, np.array([500, 500])), np.array([350.0, 250.0, 400.0]))
    >>> found.q.round(6).tolist(), round(found.misfit.statistic, 6), found.misfit.df
    ([0.5, 0.5], 0.0, 1)
    """
    m = float(counts.sum()) / phi
    mu = counts / counts.sum()
    q = _rough_mix(of, mu)
    possible = most(of, q, m)
    if len(of.n_j) > MOST_LABELS:
        return Fit(q, possible, q * possible, None)
    found = _Minimum(q, q > 0.0, np.zeros(len(q)), 0.0, 0, 0.0)
    for _ in range(ITERATIONS):
        found = _minimum(of, mu, found, possible, m)
        possible = most(of, found.q, m)
    square = _square(found.q, found.variance, possible)
    return Fit(found.q, possible, square, _misfit(found, len(mu) - found.rank, m))


def most(of: Cells, q: Floats, m: float) -> Floats:
    """As much as there could be of each label: `1 / sum_b A_bj^2 / p_b`, never less than its share.

    Since `p_b >= q_j A_bj`, no label can have more. It is the label's own share where its cells are
    its own, and the sum of shares of labels that look alike. What one prediction more would make
    possible counts as possible, and so do cells of other labels where a label has few records.
    """
    return np.clip(1.0 / (of.strayed_squares @ (1.0 / (of.A @ q + 1.0 / m))), q, 1.0)


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


def _cells(place: Counts, counts: Counts, n_j: Counts) -> Cells:
    A = np.zeros((place.max(initial=-1) + 1, counts.shape[1]))
    known = place >= 0
    np.add.at(A, place[known], counts[known])
    return Cells(place, A / n_j, n_j)


def _minimum(of: Cells, mu: Floats, last: _Minimum, possible: Floats, m: float) -> _Minimum:
    """The minimum of J with the noise of the last mix."""
    square = _square(last.q, last.variance, possible)
    noise, heavy = _noise(of, mu, last.q, square, m)
    weight = 1.0 / np.sqrt(noise)
    X, y = of.A * weight[:, None], mu * weight
    gram = X.T @ X
    x, positive = _non_negative(X, y, gram, last.positive)
    J = float(((y - X @ x) ** 2).sum())
    variance, rank = _precision(gram, positive)
    return _Minimum(x / x.sum(), positive, variance, J, rank, heavy)


def _square(q: Floats, variance: Floats, possible: Floats) -> Floats:
    """As much as `q^2` could well be: shares of labels that look alike may be one label's.

    Two standard errors more, but no more than if all that a label could have were its own.
    """
    return np.asarray(q**2 + np.minimum(ERRORS_SQUARED * variance, q * (possible - q)))


def _noise(of: Cells, mu: Floats, q: Floats, square: Floats, m: float) -> tuple[Floats, float]:
    """The variance of `mu - A q` in each cell, as in a test that two samples are of one kind.

    The reference's part is as if `1 / t` of its records had been drawn from the mix:
    `t = sum_j q_j^2 A_bj / n_j / (A q)_b`. If both samples are of one kind, the cell's probability
    is best known from both together: `p = (m mu + A q / t) / (m + 1 / t)`, and the variance is
    `p (1 / m + t)`. With `A q` alone for p, a cell that a label happened to miss in the reference
    would claim no noise. `square` stands for `q_j^2`, being larger where labels look alike. Also
    returned is by how much the squares of Poisson counts vary more than those of
    normal ones, for the reference: where it expects a tenth of a record, one makes a square of 8.
    """
    likely = (m * q + of.nu) / (m + 1.0)
    expected = of.strayed @ likely
    t = of.strayed @ (np.maximum(square, likely**2) / of.n_j) / expected
    p = (m * mu + expected / t) / (m + 1.0 / t)
    heavy = float((t**3 / (p * (1.0 / m + t) ** 2)).sum())
    return np.asarray(p * (1.0 / m + t)), heavy


def _misfit(found: _Minimum, df: int, m: float) -> Misfit:
    """With the p-value of the chi-square law, or of one stretched to the variance that J has.

    The larger one counts, since a law that is stretched far has nearly all of its mass at zero.
    """
    if df < 1:
        return Misfit(0.0, 0, 1.0, 0.0)
    stretch = 1.0 + found.heavy / (2.0 * df)
    p = float(max(chdtrc(df, found.J), chdtrc(df / stretch, found.J / stretch)))
    return Misfit(found.J, df, p, float(np.sqrt(max(0.0, found.J - df) / (df * m))))


def _non_negative(X: Floats, y: Floats, gram: Floats, positive: Bools) -> tuple[Floats, Bools]:
    """`argmin |X q - y|` over `q >= 0` and what is positive there, from a guess of the latter.

    NNLS finds positive entries one at a time, which takes long for many labels. Least squares on
    the right ones is the solution, and no other satisfies its conditions: positive where it was
    guessed to be, and no descent elsewhere. All that contradict a guess change sides.
    """
    b = X.T @ y
    tolerance = 1e-9 * np.abs(b).max()
    for _ in range(MOST_GUESSES):
        q = _least_squares(gram, b, positive)
        wrong = np.where(positive, q < 0.0, b - gram @ q > tolerance)
        if not wrong.any():
            return q, positive
        positive = positive ^ wrong
    q, _ = nnls(X, y)
    return q, q > 0.0


def _least_squares(gram: Floats, b: Floats, positive: Bools) -> Floats:
    """With zeros everywhere else. A trace of the diagonal keeps labels that look alike regular."""
    q = np.zeros(len(b))
    if positive.any():
        part = gram[positive][:, positive]
        part[np.diag_indices(len(part))] *= 1.0 + 1e-10
        _, q[positive], _ = lapack.dposv(part, b[positive])
    return q


def _precision(gram: Floats, positive: Bools) -> tuple[Floats, int]:
    """Variances of the shares, zero for labels without one, and the rank of the others' columns."""
    part = gram[positive][:, positive]
    scale = 1.0 / np.sqrt(np.diag(part))
    part *= np.outer(scale, scale)
    _, _, rank, _ = lapack.dpstrf(part, tol=1e-9)
    part[np.diag_indices(len(part))] += 1e-8
    factors, _ = lapack.dpotrf(part, lower=1)
    root, _ = lapack.dtrtri(factors, lower=1)
    variance = np.zeros(len(gram))
    variance[positive] = (np.tril(root) ** 2).sum(axis=0) * scale**2
    return variance, int(rank)


def _rough_mix(of: Cells, mu: Floats) -> Floats:
    """Some steps of expectation and maximisation towards the most likely mix."""
    q, seen = of.nu, mu > 0.0
    A, share = of.A[seen], mu[seen]
    for _ in range(ROUGH_ITERATIONS):
        q = q * (share / (A @ q) @ A)
    return np.asarray(q / q.sum())
