"""Is it label shift? What the softmax rows of a window say beyond their predicted labels.

Estimates of a label mix hold if `p(x | y)` stayed put. Hard predictions alone can hardly refute
that: k shares are always explained by k label frequencies, unless some come out negative. Softmax
rows carry more numbers than a label mix can explain, and two tests look at the excess: one at the
model's confidence (easy to read, strong against the usual corruptions), one at the whole joint
histogram of predictions and confidence (Hansen's J). See docs/statistics-sequential.md.

A change that makes the outputs of one label look exactly like those of another cannot be told from
a change of the label mix by anything computed from outputs.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtr
from scipy.stats import chi2

from app.stats import bbse, diagnosis, over_identification, sequential
from app.stats import reference as references
from app.stats.bbse import Estimate, Prepared
from app.stats.diagnosis import Diagnosis
from app.stats.moments import Counts, Floats, SoftSums, Sums
from app.stats.over_identification import Cells, Misfit
from app.stats.reference import Reference, SoftReference

Verdict = Literal["label_shift_consistent", "label_shift_doubtful", "not_label_shift", "untestable"]

# Below this many predictions the normal and chi-square approximations are not to be trusted.
LEAST_PREDICTIONS = 50
VIOLATED_BELOW = 0.01
DOUBTFUL_BELOW = 0.05

# With enough predictions any misfit is significant: smaller ones than these do not matter.
LEAST_GAP = 0.01
LEAST_MISFIT = 0.02

# Hard predictions that outnumber the labels they are explained by, some being merged or absent.
TALL_VIOLATED_BELOW = 0.001
UNSEEN_BELOW = 0.001


@dataclass(frozen=True, slots=True)
class Scores:
    """`h`, the confidence each prediction stands for.

    `variance` is that of `s - h[predicted]` given each column of the hard moments.
    """

    h: Floats
    variance: Floats


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
    cells = over_identification.cells(reference, reference.soft, found.columns)
    return Check(hard, scores, cells if cells.A.shape[0] > cells.rank else None)


def assess(
    check: Check, sums: Sums, *, phi: float = 1.0, known: Estimate | None = None
) -> Assumption:
    """Whether the window's predictions can be the reference's with another label mix.

    The two tests on softmax rows are combined by Bonferroni. A violation must be significant and
    large enough to matter. Hard predictions are tested for negative frequencies only; `known` is
    the estimate by the check's own hard moments, if somebody has it already.
    """
    unseen = unseen_predictions(check.hard.reference.predicted, sums.counts)
    if sums.n < LEAST_PREDICTIONS:
        return Assumption("untestable", None, unseen=unseen, status=("insufficient_data",))
    gap, misfit = _soft_tests(check, sums, phi)
    if gap is None and misfit is None:
        return _assess_hard(check.hard, sums, unseen, phi, known)
    p = _combined(gap, misfit)
    return Assumption(_verdict(p, gap, misfit), p, gap=gap, misfit=misfit, unseen=unseen)


def score_gap(
    hard: Prepared, scores: Scores, counts: Counts, soft: SoftSums, *, phi: float = 1.0
) -> ScoreGap:
    """How much surer or less sure the model is than any label mix can make it (E1).

    With `s` the largest probability, `h = A^-T E[s | y]` and `v = s - h[predicted]`, the mean of
    `v` is zero given every true label. `gap` is its mean in the window, with the variance
    `Var(v) / m + sum_j q_j^2 Var_j(v) / n_j`.
    """
    n = counts.sum()
    mu = counts / n
    gap = float(soft.score / n - scores.h @ mu)
    square = (soft.score_squared - 2.0 * scores.h @ soft.score_by_label) / n
    spread = max(float(square + scores.h**2 @ mu) - gap**2, 0.0)
    q = bbse.clipped(hard.inverse @ mu)
    error = np.sqrt(spread * phi / n + q**2 @ (scores.variance / hard.given.n_j))
    return ScoreGap(gap, float(error), float(2.0 * ndtr(-abs(gap) / error)) if error else 1.0)


def negativity(
    hard: Prepared, sums: Sums, *, phi: float = 1.0, known: Estimate | None = None
) -> Misfit:
    """Whether hard predictions need negative label frequencies (E3): all they can contradict.

    `T` is the misfit of the best label mix on the simplex; its p-value, half from each of two
    neighbouring chi-square laws, is conservative, and the test has next to no power.
    """
    found = known or bbse.estimate(hard, sums, phi)
    expected = hard.given.A @ found.q
    residual = found.mu - expected
    # At the mix that is tested: a window of one label alone would have next to no noise of its own.
    m = sums.n / phi
    noise = (np.diag(expected + 1.0 / m) - np.outer(expected, expected)) / m
    noise += hard.reference_noise(found.q)
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


def _soft_tests(check: Check, sums: Sums, phi: float) -> tuple[ScoreGap | None, Misfit | None]:
    soft, gap, misfit = sums.soft, None, None
    if soft is not None and check.scores is not None:
        gap = score_gap(check.hard, check.scores, sums.counts, soft, phi=phi)
    if soft is not None and check.cells is not None:
        misfit = over_identification.cell_misfit(check.cells, soft, phi=phi)
    return gap, misfit


def _assess_hard(
    hard: Prepared, sums: Sums, unseen: tuple[int, ...], phi: float, known: Estimate | None
) -> Assumption:
    if not hard.estimable:
        return Assumption("untestable", None, unseen=unseen, status=("degenerate",))
    negative = negativity(hard, sums, phi=phi, known=known)
    misfit = over_identification.prediction_misfit(hard, sums.counts, phi=phi)
    p = _combined(negative, misfit)
    violated = _verdict(p, None, negative) == "not_label_shift" or (
        misfit is not None and misfit.p_value < TALL_VIOLATED_BELOW and misfit.size > LEAST_MISFIT
    )
    return Assumption(
        "not_label_shift" if violated else "untestable",
        p,
        misfit=misfit,
        negativity=negative,
        unseen=unseen,
        status=("A1_or_A2_violated" if violated else "assumption_untestable_hard_only",),
    )


def _combined(*tests: ScoreGap | Misfit | None) -> float:
    p_values = [test.p_value for test in tests if test is not None]
    return min(1.0, len(p_values) * min(p_values))


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
