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

from app.stats import over_identification, sequential
from app.stats.moments import Bools, Counts, Floats, SoftSums, Sums
from app.stats.over_identification import Cells, Fit, Misfit
from app.stats.reference import Reference, SoftReference

Verdict = Literal["label_shift_consistent", "label_shift_doubtful", "not_label_shift", "untestable"]

# Below this many predictions the normal and chi-square approximations are not to be trusted.
LEAST_PREDICTIONS = 50
VIOLATED_BELOW = 0.01
DOUBTFUL_BELOW = 0.05

# With enough predictions any misfit is significant: smaller ones than these do not matter.
LEAST_GAP = 0.01
LEAST_MISFIT = 0.02

# Half of the hard windows of a single label lie beyond the simplex: their level is all in the tail.
HARD_VIOLATED_BELOW = 0.001
UNSEEN_BELOW = 0.001

# Records of the overall mix beside a label's own, in the variance of its scores: with none, levels
# with labels of 50 records were .08 to .15, with three .03 to .06.
STRAYED = 3.0

# How much of a label's own mean confidence `h` gives up for less noise, and the size of the window
# that it is chosen for.
RIDGES = (0.0, 1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
TYPICAL_WINDOW = 1000


@dataclass(frozen=True, slots=True)
class Scores:
    """`h`, the confidence each prediction stands for, and what `v = s - h[predicted]` then is.

    `bias` and `variance` are the mean and the variance of `v` given each label that has records,
    `noise` the variance of its mean in the reference, `spread` the variance of all of the
    reference. Predictions that the reference has not `seen` are left out.
    """

    h: Floats
    seen: Bools
    bias: Floats
    variance: Floats
    noise: Floats
    spread: float


@dataclass(frozen=True, slots=True)
class Check:
    """What a reference fixes: how it was predicted, and with softmax rows how surely."""

    predicted: Counts
    predictions: Cells
    cells: Cells | None
    scores: Scores | None


@dataclass(frozen=True, slots=True)
class ScoreGap:
    """Observed mean confidence minus the closest to it that a label mix can make."""

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
    unseen: tuple[int, ...] = ()
    status: tuple[str, ...] = ()


def prepare(reference: Reference) -> Check:
    """The reference-only part of the check; at least one label must have records.

    Every label with a record takes part, also those with too few to be estimated: they are in the
    traffic, and without them traffic just like the reference would not be explained.
    """
    labels = np.flatnonzero(reference.support).tolist()
    predictions = over_identification.prediction_cells(reference, labels)
    if reference.soft is None:
        return Check(reference.predicted, predictions, None, None)
    cells = over_identification.confidence_cells(reference, reference.soft, labels)
    scores = _scores(predictions, reference.soft, labels)
    return Check(reference.predicted, predictions, cells, scores)


def assess(check: Check, sums: Sums, *, phi: float = 1.0) -> Assumption:
    """Whether the window's predictions can be the reference's with another label mix.

    The two tests on softmax rows are combined by Bonferroni. A violation must be significant and
    large enough to matter. Hard predictions are tested for what no mix explains of them, which is
    next to nothing unless a label is missing from the reference.
    """
    unseen = unseen_predictions(check.predicted, sums.counts)
    if sums.n < LEAST_PREDICTIONS:
        return Assumption("untestable", None, unseen=unseen, status=("insufficient_data",))
    if not sums.counts[check.predictions.place >= 0].any():
        return Assumption("untestable", None, unseen=unseen, status=("unseen_prediction",))
    if sums.soft is None or check.cells is None or check.scores is None:
        return _assess_hard(check.predictions, sums.counts, unseen, phi)
    best = over_identification.fit(check.cells, check.cells.of(sums.soft.cells), phi=phi)
    gap = score_gap(check.scores, best, sums.counts, sums.soft, phi=phi)
    misfit = best.misfit
    p = _combined(gap, misfit)
    return Assumption(_verdict(p, gap, misfit), p, gap=gap, misfit=misfit, unseen=unseen)


def score_gap(
    scores: Scores, best: Fit, counts: Counts, soft: SoftSums, *, phi: float = 1.0
) -> ScoreGap:
    """How much surer or less sure the model is than any label mix can make it (E1).

    With `s` the largest probability and `v = s - h[predicted]`, the mean of `v` under a mix q is
    `sum_j q_j bias_j`. It lies between two ends, as there can be no more than `best.most` of any
    label; the gap is how far the window's mean of `v` lies outside, and the p-value is the largest
    for any bias in between. The variance is as if both samples were of one kind: that of `v`, from
    both together, times `1 / m + t`. The reference's part is `t = sum_j r_j Var_j(v) / n_j`
    relative to `Var(v)`, with `r_j = best.square`, which is `q_j^2` where labels are told apart.
    """
    n = float(counts[scores.seen].sum())
    mean, spread = _window_moments(scores, counts, soft, n)
    low, high = bias_range(scores.bias, best.most)
    gap = float(mean - np.clip(mean, low, high))
    within = float(best.q @ scores.variance)
    t = float(best.square @ scores.noise) / within if within > 0.0 else 0.0
    m = n / phi
    both = (m * t * spread + within) / (m * t + 1.0)
    error = float(np.sqrt(both * (1.0 / m + t)))
    return ScoreGap(gap, error, _p_value(gap, error, high - low))


def bias_range(bias: Floats, most: Floats) -> tuple[float, float]:
    """The least and the largest mean bias of a mix of which no share is above `most`.

    >>> [round(end, 6) for end in bias_range(np.array([0.0, 0.1, 1.0]), np.array([0.5, 0.9, 0.3]))]
    [0.05, 0.37]
    """
    order = np.argsort(bias)
    return _filled(bias, most, order), _filled(bias, most, order[::-1])


def unseen_predictions(reference: Counts, window: Counts) -> tuple[int, ...]:
    """Labels predicted in the window, never in the reference, too often for chance.

    If nothing changed, which of the `n + m` records are the reference's is random; that all `t`
    records of a label are among the window's has probability `prod_{s<t} (m - s) / (n + m - s)`.

    >>> unseen_predictions(np.array([50, 50, 0]), np.array([10, 30, 9]))
    (2,)
    >>> unseen_predictions(np.array([50, 50, 0]), np.array([19, 30, 1]))
    ()
    """
    new = np.flatnonzero((reference == 0) & (window > 0))
    if not len(new):
        return ()
    n, m = float(reference.sum()), float(window.sum())
    t = window[new].astype(np.float64)
    log_p = sequential.log_rising(m - t + 1.0, t) - sequential.log_rising(n + m - t + 1.0, t)
    return tuple(int(label) for label in new[log_p < np.log(UNSEEN_BELOW)])


def _assess_hard(
    predictions: Cells, counts: Counts, unseen: tuple[int, ...], phi: float
) -> Assumption:
    if not predictions.tells_apart:
        return Assumption("untestable", None, unseen=unseen, status=("degenerate",))
    misfit = over_identification.fit(predictions, predictions.of(counts), phi=phi).misfit
    p = None if misfit is None else misfit.p_value
    violated = misfit is not None and misfit.size > LEAST_MISFIT
    violated &= p is not None and p < HARD_VIOLATED_BELOW
    return Assumption(
        "not_label_shift" if violated else "untestable",
        p,
        misfit=misfit,
        unseen=unseen,
        status=("A1_or_A2_violated" if violated else "assumption_untestable_hard_only",),
    )


def _combined(*tests: ScoreGap | Misfit | None) -> float:
    p_values = [test.p_value for test in tests if test is not None]
    return min(1.0, len(p_values) * min(p_values))


def _verdict(p: float, gap: ScoreGap, misfit: Misfit | None) -> Verdict:
    large = abs(gap.gap) > LEAST_GAP or (misfit is not None and misfit.size > LEAST_MISFIT)
    if not large or p >= DOUBTFUL_BELOW:
        return "label_shift_consistent"
    return "not_label_shift" if p < VIOLATED_BELOW else "label_shift_doubtful"


def _p_value(gap: float, error: float, width: float) -> float:
    """Of a gap beyond one end of the biases, were the bias at that end."""
    if error == 0.0:
        return 1.0 if gap == 0.0 else 0.0
    return float(ndtr(-abs(gap) / error) + ndtr(-(abs(gap) + width) / error))


def _window_moments(
    scores: Scores, counts: Counts, soft: SoftSums, n: float
) -> tuple[float, float]:
    """Mean and variance of `v` over the `n` predictions that the reference has seen."""
    h, seen = scores.h, scores.seen
    mean = float(soft.score_by_label[seen].sum() - h @ counts) / n
    # Squares are known in total only: those of the other predictions are at least their mean's.
    others = float(counts[~seen].sum())
    left_out = float(soft.score_by_label[~seen].sum()) ** 2 / others if others else 0.0
    square = soft.score_squared - left_out - 2.0 * h @ soft.score_by_label + h**2 @ counts
    return mean, max(float(square) / n - mean**2, 0.0)


def _filled(bias: Floats, most: Floats, order: Counts) -> float:
    """The mean bias of the mix that takes as much of each label as there can be, in this order."""
    taken = np.minimum(np.cumsum(most[order]), 1.0)
    return float(np.diff(taken, prepend=0.0) @ bias[order])


def _scores(predictions: Cells, soft: SoftReference, labels: list[int]) -> Scores:
    """The `h` that errs least, of a row of them from no bias to the least variance.

    `h = A^-T E[s | y]` has no bias under any mix, and a huge variance where labels look alike. A
    ridge draws it towards the mean confidence of each prediction, whose variance is the least:
    `min sum_j bias_j^2 + ridge sum_i p_i (h_i - mean_i)^2`. Chosen is the ridge with the shortest
    `half the biases' range + 1.96 errors` at the reference's own mix.
    """
    n_j, nu, A = predictions.n_j, predictions.nu, predictions.A
    p = A @ nu
    mean = soft.score_by_label[predictions.place >= 0][:, labels].sum(axis=1) / (p * n_j.sum())
    root = np.sqrt(p)
    U, singular, V = np.linalg.svd(A / root[:, None], full_matrices=False)
    along = V @ (soft.score[labels] / n_j - mean @ A)
    most = over_identification.most(predictions, nu, TYPICAL_WINDOW)
    kept = singular > 1e-9 * singular[0]
    found = []
    for ridge in RIDGES:
        step = U[:, kept] @ (along[kept] * singular[kept] / (singular[kept] ** 2 + ridge)) / root
        found.append(_scored(mean + step, predictions, soft, labels))
    return min(found, key=lambda scores: _typical_error(scores, nu, most))


def _scored(h: Floats, predictions: Cells, soft: SoftReference, labels: list[int]) -> Scores:
    n_j, nu, A = predictions.n_j, predictions.nu, predictions.A
    seen = predictions.place >= 0
    product = soft.score_by_label[seen][:, labels] / n_j
    square = soft.score_squared[labels] / n_j - 2.0 * h @ product + h**2 @ A
    bias = soft.score[labels] / n_j - h @ A
    own = np.maximum(square - bias**2, 0.0)
    mean = float(bias @ nu)
    # Some records from anywhere, as in the noise of cells: rare predictions have the largest `v`.
    about = np.maximum(square @ nu - 2.0 * bias * mean + bias**2, 0.0)
    variance = (n_j * own + STRAYED * about) / (n_j + STRAYED - 1.0)
    full = np.zeros(len(seen))
    full[seen] = h
    spread = max(float(square @ nu) - mean**2, 0.0)
    return Scores(full, seen, bias, variance, variance / n_j, spread)


def _typical_error(scores: Scores, nu: Floats, most: Floats) -> float:
    low, high = bias_range(scores.bias, most)
    variance = scores.spread / TYPICAL_WINDOW + (nu * most) @ scores.noise
    return float((high - low) / 2.0 + 1.96 * np.sqrt(variance))
