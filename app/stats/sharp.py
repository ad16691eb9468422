"""The sharp estimate: the most of the label mix that mergeable counts can tell, with an interval.

Inverting a confusion matrix looks at argmaxes or mean scores; the likelihood of code counts also
sees runner-up and confidence. It needs `p(code | label)`, of which two sources know: counting the
reference's labels is unbiased but noisy, calibrated rows are steady but only as right as their
calibration. The reference itself says how much the second is worth.
"""

from dataclasses import dataclass

import numpy as np
from scipy import linalg, optimize, special

from app.stats import intervals, mlls
from app.stats import reference as references
from app.stats.diagnosis import Columns
from app.stats.intervals import Intervals
from app.stats.mlls import CodeTable
from app.stats.moments import Counts, Floats, Sums

# Calibration can be worth between nothing and everything, in records per cell. The log-evidence
# may fall this far below its maximum: the lower end of a 95% interval for the worth.
LEAST_WORTH, MOST_WORTH = 1.0, 1e6
EVIDENCE_DROP = 1.92

# Variances are taken as if this share of each label's records had strayed into cells at random:
# a cell where none of a label's records fell is not known to stay free of them. Chosen by
# simulation for coverage (docs/statistics-sharp.md); it does not touch the estimate.
STRAY = 0.003


@dataclass(frozen=True, slots=True)
class Prepared:
    """A code table as the sharp estimate uses it: reference-only work, done once.

    `A` (cells x columns) is `p(cell | column)`, `n_j` the records of each column, and `mix` the
    cells' shares of the reference. `worth` is how many labelled records the calibrated rows of a
    cell count for.
    """

    table: CodeTable
    columns: Columns
    A: Floats
    n_j: Floats
    mix: Floats
    worth: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """The label mix of a window by column: `q` on the simplex, with an interval for each.

    `raw` is the linear version of `q`, which may leave the simplex and on which `error`, its
    standard error, and the intervals rest. `m` predictions were used; `dropped` is the share of
    the window whose argmax the reference never saw, `unseen` the share whose code it never saw.
    """

    m: int
    q: Floats
    raw: Floats
    error: Floats
    intervals: Intervals
    dropped: float
    unseen: float


@dataclass(frozen=True, slots=True)
class _Variance:
    """Of each `raw_j`, if its truth were `t` and the other columns kept their proportions."""

    constant: Floats
    linear: Floats
    square: Floats

    def at(self, t: Floats) -> Floats:
        return np.maximum(self.constant + self.linear * t + self.square * t**2, 0.0)


def prepare(table: CodeTable, columns: Columns) -> Prepared:
    """Mix counted and calibrated labels of every cell, then read off `p(cell | column)`.

    The labels of the `n_b` records of cell b have the prior `Dirichlet(a p_b)`, `p_b` their mean
    calibrated row, hence posterior mean `(N_b + a p_b) / (n_b + a)`; `a` is the worth of
    calibration.
    """
    size = table.counts.sum(axis=1)
    a = worth(table.counts, table.calibrated)
    labels = table.counts + table.calibrated * (a / size)[:, None]
    joint = references.by_column(labels * (size / (size + a))[:, None], columns)
    n_j = joint.sum(axis=0)
    return Prepared(table, columns, joint / n_j, n_j, size / size.sum(), a)


def worth(counts: Counts, calibrated: Floats) -> float:
    """How many labelled records the calibrated rows of a cell are worth, cautiously.

    Under `prepare`'s prior the label counts of a cell are Dirichlet-multinomial. Their evidence
    peaks at a large worth if counts scatter around the calibrated sums as sampling alone would
    make them, and at a small one if calibration is wrong (empirical Bayes). The answer is the
    least worth that the evidence does not speak against.

    >>> expected = np.array([[60.0, 40.0], [20.0, 80.0]])
    >>> round(worth(np.array([[61, 39], [20, 80]]), expected))
    17
    >>> worth(np.array([[90, 10], [60, 40]]), expected) < 3
    True
    """
    size = counts.sum(axis=1)
    seen = counts > 0
    N = counts[seen]
    p = np.maximum(calibrated / size[:, None], 1e-12)[seen]

    def surprise(log_a: float) -> float:
        a = np.exp(log_a)
        of_cells = special.gammaln(size + a) - special.gammaln(a)
        of_labels = special.gammaln(N + a * p) - special.gammaln(a * p)
        return float(of_cells.sum() - of_labels.sum())

    low, high = np.log(LEAST_WORTH), np.log(MOST_WORTH)
    best = optimize.minimize_scalar(surprise, bounds=(low, high), method="bounded")
    limit = best.fun + EVIDENCE_DROP
    if surprise(low) <= limit:
        return LEAST_WORTH
    return float(np.exp(optimize.brentq(lambda x: surprise(x) - limit, low, best.x, xtol=1e-6)))


def estimate(
    prepared: Prepared,
    sums: Sums,
    *,
    level: float = 0.95,
    simultaneous: bool = False,
    phi: float = 1.0,
) -> Estimate | None:
    """The sharp estimate of a window; None when no prediction of it can be used.

    `q` maximises the likelihood of the window's cells. `phi` is the stream's overdispersion.

    >>> from app.stats import moments
    >>> rows = np.repeat([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], [400, 200, 400], axis=0)
    >>> actual = np.repeat([0, 1, 0, 1, 0, 1], [380, 20, 120, 80, 20, 380])
    >>> prepared = prepare(mlls.code_table(rows, actual), ((0,), (1,)))
    >>> found = estimate(prepared, moments.sums(2, rows.argmax(axis=1), rows))
    >>> found.q.round(2).tolist(), found.intervals.lower.round(2).tolist()
    ([0.52, 0.48], [0.47, 0.44])
    """
    cells = mlls.cell_counts(prepared.table, sums)
    used = cells.counts.sum()
    if not used:
        return None
    q = mlls.estimate(prepared.A, cells.counts)
    m = used / phi
    near = (m * q + 1.0) / (m + len(q))
    K = _inverse(prepared.A, near)
    raw = K @ (cells.counts / used)
    variance = _variance(prepared, K, near, m)
    z = intervals.quantile(level, len(q) if simultaneous else 1)
    return Estimate(
        m=int(used),
        q=q,
        raw=raw,
        error=np.sqrt(variance.at(near)),
        intervals=_score(q, raw, variance, z, known=_recovered(K, prepared.A)),
        dropped=cells.dropped,
        unseen=cells.unseen,
    )


def _inverse(A: Floats, q: Floats) -> Floats:
    """`K = (A' D A)^-1 A' D` with `D = diag(1 / A q)`: the likelihood's own weights near `q`.

    `K A = I`; and where the maximum of the likelihood is inside the simplex, `K` at that point
    times the window's cell shares is the maximum itself. It is taken a record away from the
    boundary, on which it would trust single cells blindly.
    """
    weighted = (A / np.maximum(A @ q, np.finfo(np.float64).tiny)[:, None]).T
    return np.asarray(linalg.lstsq(weighted @ A, weighted, lapack_driver="gelsy")[0])


def _recovered(K: Floats, A: Floats) -> Floats:
    """How nearly each column is recovered from its own cells: 1, unless columns look alike."""
    return np.asarray(1.0 - np.abs(K @ A - np.eye(len(K))).max(axis=1))


def _variance(prepared: Prepared, K: Floats, q: Floats, m: float) -> _Variance:
    """Sampling noise of window and reference in `K mu`, as a function of the column's own share.

    With `E_l` the mean over cells given column l, the window adds
    `(sum_l q_l E_l[K_j^2] - t^2) / m` and the reference `sum_l q_l^2 Var_l(K_j) / n_l`, the noise
    of counting labels. Calibrated rows take part of that away, which is left in to pay for their
    own errors.
    """
    rest = np.maximum(1.0 - q, np.finfo(np.float64).eps)
    second = K**2 @ prepared.A
    own = np.diag(second)
    others = (second @ q - q * own) / rest
    strayed = (1.0 - STRAY) * second + STRAY * (K**2 @ prepared.mix)[:, None]
    noise = (strayed - np.eye(len(q))) / prepared.n_j
    own_noise = np.diag(noise)
    other_noise = (noise @ q**2 - q**2 * own_noise) / rest**2
    return _Variance(
        constant=others / m + other_noise,
        linear=(own - others) / m - 2.0 * other_noise,
        square=own_noise + other_noise - 1.0 / m,
    )


def _score(q: Floats, raw: Floats, variance: _Variance, z: float, *, known: Floats) -> Intervals:
    """Every `t` with `(t - raw)^2 <= z^2 variance(t)`, in [0, 1] and with the estimate in it."""
    a = 1.0 - z**2 * variance.square
    b = raw + z**2 * variance.linear / 2.0
    discriminant = b**2 - a * (raw**2 - z**2 * variance.constant)
    vacuous = (a <= 0.0) | (discriminant < 0.0) | (known < 1.0 - 1e-6)
    half = np.sqrt(np.where(vacuous, 0.0, discriminant))
    a = np.where(vacuous, 1.0, a)
    lower = np.where(vacuous, 0.0, np.clip((b - half) / a, 0.0, 1.0))
    upper = np.where(vacuous, 1.0, np.clip((b + half) / a, 0.0, 1.0))
    return Intervals(np.minimum(lower, q), np.maximum(upper, q), vacuous)
