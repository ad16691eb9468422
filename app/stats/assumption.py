"""Is it label shift? What the softmax rows of a window say beyond their predicted labels.

Estimates of a label mix hold if `p(x | y)` stayed put. Hard predictions alone can hardly refute
that: k shares are always explained by k label frequencies, unless some come out negative. Softmax
rows carry more numbers than a label mix can explain, and two tests look at the excess: one at the
model's confidence (easy to read, strong against the usual corruptions), one at the whole joint
histogram of predictions and confidence (Hansen's J). STATISTICS.md, section e.

A change that makes the outputs of one label look exactly like those of another cannot be told from
a change of the label mix by anything computed from outputs.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.linalg import lu_factor, lu_solve
from scipy.special import ndtr
from scipy.stats import chi2

from app.stats import bbse, diagnosis, sequential
from app.stats import reference as references
from app.stats.bbse import Prepared
from app.stats.diagnosis import Columns, Diagnosis
from app.stats.moments import CONFIDENCE_BINS, Counts, Floats, SoftSums, Sums
from app.stats.reference import Reference, SoftReference

Verdict = Literal["label_shift_consistent", "label_shift_doubtful", "not_label_shift", "untestable"]

# Below this many predictions the normal and chi-square approximations are not to be trusted.
LEAST_PREDICTIONS = 50
VIOLATED_BELOW = 0.01
DOUBTFUL_BELOW = 0.05

# With enough predictions any misfit is significant: smaller ones than these do not matter.
LEAST_GAP = 0.01
LEAST_MISFIT = 0.02

CELLS_PER_LABEL = 5
RECORDS_PER_CELL = 50
MOST_CELLS = 1000
ITERATIONS = 3
UNSEEN_BELOW = 0.001


@dataclass(frozen=True, slots=True)
class Scores:
    """`h`, the confidence each prediction stands for, and the variance of `s - h` given each
    column of the hard moments."""

    h: Floats
    variance: Floats


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
class Check:
    """What a reference fixes: hard moments for both, and each test's own part, where there is."""

    hard: Prepared
    scores: Scores | None
    cells: Cells | None


@dataclass(frozen=True, slots=True)
class ScoreGap:
    """Observed mean confidence minus the one that label shift implies."""

    gap: float
    error: float
    p_value: float


@dataclass(frozen=True, slots=True)
class Misfit:
    """Hansen's J over its degrees of freedom; `size` is the misfit per degree and prediction."""

    statistic: float
    df: int
    p_value: float
    size: float


@dataclass(frozen=True, slots=True)
class Assumption:
    """The tests that could be made, their combined p-value, and what to make of them.

    `status` says why a test is missing. `unseen` are predictions that the reference never saw, in
    numbers that chance does not explain.
    """

    verdict: Verdict
    p_value: float | None
    gap: ScoreGap | None = None
    misfit: Misfit | None = None
    negativity: Misfit | None = None
    unseen: tuple[int, ...] = ()
    status: tuple[str, ...] = ()


def prepare(reference: Reference, found: Diagnosis) -> Check:
    """The reference-only part of the check; `found` is the reference's diagnosis."""
    bare = Reference(reference.counts)
    hard = bbse.prepare(bare, diagnosis.diagnose(bare))
    if reference.soft is None:
        return Check(hard, None, None)
    scores = _scores(reference.soft, hard) if hard.estimable else None
    cells = _cells(reference.k, reference.soft, reference.support, found.columns)
    return Check(hard, scores, cells if cells.A.shape[0] > cells.rank else None)


def assess(check: Check, sums: Sums, *, phi: float = 1.0) -> Assumption:
    """Whether the window's predictions can be the reference's with another label mix.

    The two tests on softmax rows are combined by Bonferroni. A violation must be significant and
    large enough to matter. Hard predictions are tested for negative frequencies only.
    """
    unseen = unseen_predictions(check.hard.reference.predicted, sums.counts)
    if sums.n < LEAST_PREDICTIONS:
        return Assumption("untestable", None, unseen=unseen, status=("insufficient_data",))
    if sums.soft is None or (check.scores is None and check.cells is None):
        return _assess_hard(check.hard, sums, unseen, phi)
    gap = score_gap(check.hard, check.scores, sums, phi=phi) if check.scores else None
    misfit = _cell_misfit(check.cells, sums.soft, phi) if check.cells else None
    p_values = [test.p_value for test in (gap, misfit) if test is not None]
    p = min(1.0, len(p_values) * min(p_values))
    return Assumption(_verdict(p, gap, misfit), p, gap=gap, misfit=misfit, unseen=unseen)


def score_gap(hard: Prepared, scores: Scores, sums: Sums, *, phi: float = 1.0) -> ScoreGap:
    """How much surer or less sure the model is than any label mix can make it (E1).

    With `s` the largest probability, `h = A^-T E[s | y]` and `v = s - h[predicted]`, the mean of
    `v` is zero given every true label. `gap` is its mean in the window, with the variance
    `Var(v) / m + sum_j q_j^2 Var_j(v) / n_j`.
    """
    if sums.soft is None:
        raise ValueError("hard predictions have no scores")
    m = sums.n / phi
    mu = sums.counts / sums.n
    gap = sums.soft.score / sums.n - float(scores.h @ mu)
    square = sums.soft.score_squared - 2.0 * scores.h @ sums.soft.score_by_label
    spread = max(float(square / sums.n + scores.h**2 @ mu) - gap**2, 0.0)
    q = bbse.clipped(hard.inverse @ mu)
    error = np.sqrt(spread / m + q**2 @ (scores.variance / hard.given.n_j))
    return ScoreGap(gap, float(error), float(2.0 * ndtr(-abs(gap) / error)) if error else 1.0)


def over_identification(
    A: Floats, n_j: Counts, counts: Counts, *, rank: int, phi: float = 1.0
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
        q, J = _generalised_least_squares(A, mu, likely, m, n_j, full=rank == A.shape[1])
    df = A.shape[0] - rank
    if df < 1:
        return Misfit(0.0, 0, 1.0, 0.0)
    size = np.sqrt(max(0.0, J - df) / (df * m))
    return Misfit(J, df, float(chi2.sf(J, df)), float(size))


def negativity(hard: Prepared, sums: Sums, *, phi: float = 1.0) -> Misfit:
    """Whether hard predictions need negative label frequencies (E3): all they can contradict.

    `T` is the misfit of the best label mix on the simplex; its p-value, half from each of two
    neighbouring chi-square laws, is conservative, and the test has next to no power.
    """
    found = bbse.estimate(hard, sums, phi)
    residual = found.mu - hard.given.A @ found.q
    noise = hard.window_noise(sums, phi) + hard.reference_noise(found.q)
    T = float(residual @ np.linalg.solve(noise, residual))
    df = len(hard.nu) - 1
    if df < 1 or T < 1e-9:
        return Misfit(0.0, df, 1.0, 0.0)
    p = float(chi2.sf(T, df) + (chi2.sf(T, df - 1) if df > 1 else 0.0)) / 2.0
    return Misfit(T, df, p, float(np.sqrt(max(0.0, T - df) * phi / (df * sums.n))))


def unseen_predictions(reference: Counts, window: Counts) -> tuple[int, ...]:
    """Labels predicted in the window, never in the reference, too often for chance.

    If nothing changed, which of the `n + m` records are the reference's is random; that all `t`
    records of a label are among the window's has probability `prod_{s<t} (m - s) / (n + m - s)`.

    >>> unseen_predictions(np.array([50, 50, 0]), np.array([10, 30, 9]))
    (2,)
    >>> unseen_predictions(np.array([50, 50, 0]), np.array([19, 30, 1]))
    ()
    """
    n, m = float(reference.sum()), float(window.sum())
    new = np.flatnonzero((reference == 0) & (window > 0))
    t = window[new].astype(np.float64)
    log_p = sequential.log_rising(m - t + 1.0, t) - sequential.log_rising(n + m - t + 1.0, t)
    return tuple(int(label) for label in new[log_p < np.log(UNSEEN_BELOW)])


def _assess_hard(hard: Prepared, sums: Sums, unseen: tuple[int, ...], phi: float) -> Assumption:
    if not hard.estimable:
        return Assumption("untestable", None, unseen=unseen, status=("degenerate",))
    found = negativity(hard, sums, phi=phi)
    violated = found.p_value < VIOLATED_BELOW and found.size > LEAST_MISFIT
    return Assumption(
        "not_label_shift" if violated else "untestable",
        found.p_value,
        negativity=found,
        unseen=unseen,
        status=("assumption_untestable_hard_only",),
    )


def _verdict(p: float, gap: ScoreGap | None, misfit: Misfit | None) -> Verdict:
    large = gap is not None and abs(gap.gap) > LEAST_GAP
    large |= misfit is not None and misfit.size > LEAST_MISFIT
    if not large or p >= DOUBTFUL_BELOW:
        return "label_shift_consistent"
    return "not_label_shift" if p < VIOLATED_BELOW else "label_shift_doubtful"


def _scores(soft: SoftReference, hard: Prepared) -> Scores:
    n_j = hard.given.n_j
    mean = references.by_column(soft.score, hard.columns) / n_j
    h = hard.inverse.T @ mean
    square = references.by_column(soft.score_squared, hard.columns) / n_j
    product = references.by_column(soft.score_by_label, hard.columns) / n_j
    variance = square - 2.0 * h @ product + h**2 @ hard.given.A
    return Scores(h, np.maximum(variance, 0.0))


def _cells(k: int, soft: SoftReference, support: Counts, columns: Columns) -> Cells:
    fine = references.by_column(soft.cells, columns)
    place = coarsening(fine.sum(axis=1).reshape(k, CONFIDENCE_BINS))
    A = np.zeros((place.max() + 1, len(columns)))
    known = place >= 0
    np.add.at(A, place[known], fine[known])
    n_j = references.by_column(support, columns)
    A /= n_j
    return Cells(place, A, n_j, int(np.linalg.matrix_rank(A)))


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


def _cell_misfit(cells: Cells, soft: SoftSums, phi: float) -> Misfit | None:
    known = cells.place >= 0
    counts = np.bincount(cells.place[known], weights=soft.cells[known], minlength=len(cells.A))
    if not counts.any():
        return None
    return over_identification(cells.A, cells.n_j, counts, rank=cells.rank, phi=phi)


def _generalised_least_squares(
    A: Floats, mu: Floats, likely: Floats, m: float, n_j: Counts, *, full: bool
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
    q = _constrained(gram[:-1, :-1], gram[:-1, -1], full=full)
    x = np.append(-q, 1.0)
    return q, max(0.0, float(x @ gram @ x))


def _constrained(gram: Floats, b: Floats, *, full: bool) -> Floats:
    """`argmin q' gram q - 2 b'q` with `1'q = 1`, by Lagrange's equations."""
    scale = np.abs(gram).max()
    ones = np.ones((len(b), 1))
    system = np.block([[gram / scale, ones], [ones.T, np.zeros((1, 1))]])
    right = np.append(b / scale, 1.0)
    if full:
        return np.asarray(np.linalg.solve(system, right), dtype=np.float64)[:-1]
    return np.asarray(np.linalg.lstsq(system, right, rcond=None)[0])[:-1]
