"""How far an estimated label mix may be off, counting the noise of both samples.

From `q_hat - q = A_hat^+ [(mu_hat - mu) - (A_hat - A) q]` the error has two independent parts: the
window's, which shrinks with more predictions, and the reference's, which does not. Leaving out
the second is the usual mistake; at a thousand labelled records it halves the coverage.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from app.stats.bbse import Estimate, Prepared
from app.stats.moments import Bools, Floats, Sums

# An estimate close to one leaves nearly nothing to the other columns; their mix, which the
# interval moves mass to and from, is then not taken from less than this share.
LEAST_REMAINDER = 0.02

# The constants of the paper's Theorem 1 as printed, and as its own proof gives them: squaring
# the sum of two errors doubles each (which the reference's term lost), and Hoeffding's inequality
# for the window's term is off by two the other way.
PRINTED = (80.0, 80.0)
PROVED = (160.0, 40.0)


@dataclass(frozen=True, slots=True)
class Intervals:
    """One interval for each column; `vacuous` ones are all of [0, 1], as nothing is known."""

    lower: Floats
    upper: Floats
    vacuous: Bools


@dataclass(frozen=True, slots=True)
class Noise:
    """Variance of each column's raw estimate, by the sample it comes from."""

    window: Floats
    reference: Floats

    @property
    def total(self) -> Floats:
        return self.window + self.reference

    @property
    def reference_share(self) -> float:
        """Above a half a longer window hardly helps: more labelled records would."""
        return float(self.reference.sum() / self.total.sum())


def score(
    prepared: Prepared,
    estimate: Estimate,
    sums: Sums,
    *,
    level: float = 0.95,
    simultaneous: bool = False,
    phi: float = 1.0,
) -> Intervals:
    """Wilson's interval carried over to `q = A^+ mu`: every t that a score test does not reject.

    The variance is taken at the candidate t instead of at the estimate, moving mass between the
    column and the rest in proportion, and solves
    `(t - raw)^2 = z^2 ([s0 + s1 (t - raw) - t^2] / m + r_own t^2 + r_oth (1 - t)^2)`,
    a quadratic in t. Where every t passes the reference is too small to say anything.
    `simultaneous` intervals hold for all columns at once (Bonferroni).

    >>> from app.stats import bbse, diagnosis, reference
    >>> two = reference.from_confusion(np.array([[900, 200], [100, 800]]))
    >>> prepared = bbse.prepare(two, diagnosis.diagnose(two))
    >>> window = Sums(np.array([270, 730]))
    >>> found = score(prepared, bbse.estimate(prepared, window), window)
    >>> found.lower.round(3).tolist(), found.upper.round(3).tolist()
    ([0.047, 0.847], [0.153, 0.953])
    """
    z2 = quantile(level, len(prepared.nu) if simultaneous else 1) ** 2
    m = sums.n / phi
    raw, q = estimate.raw, estimate.q
    rest = np.maximum(1.0 - q, LEAST_REMAINDER)
    s0 = (
        prepared.second_moment_along(sums, prepared.inverse)
        + prepared.window_smoothing * _squares(prepared) / m
    )
    s1 = (_own_second_moment(prepared) - s0) / rest
    noise = prepared.variance / prepared.given.n_j
    r_own = np.diag(noise)
    r_oth = (noise @ q**2 - r_own * q**2) / rest**2
    a2 = 1.0 + z2 / m - z2 * (r_own + r_oth)
    a1 = -2.0 * raw - z2 * s1 / m + 2.0 * z2 * r_oth
    a0 = raw**2 - z2 * (s0 - s1 * raw) / m - z2 * r_oth
    return _solved(a2, a1, a0, q)


def wald(
    prepared: Prepared, estimate: Estimate, sums: Sums, *, level: float = 0.95, phi: float = 1.0
) -> Intervals:
    """`raw +- z se` within [0, 1]: the textbook interval, a little short for small windows."""
    half = quantile(level) * np.sqrt(noise(prepared, estimate, sums, phi).total)
    lower = np.clip(estimate.raw - half, 0.0, 1.0)
    upper = np.clip(estimate.raw + half, 0.0, 1.0)
    return Intervals(lower, upper, np.zeros(len(half), dtype=np.bool_))


def noise(prepared: Prepared, estimate: Estimate, sums: Sums, phi: float = 1.0) -> Noise:
    """The variances on the diagonal of `covariance`, without forming it."""
    m = sums.n / phi
    spread = prepared.second_moment_along(sums, prepared.inverse) - estimate.raw**2
    window = np.maximum(spread, 0.0) / m + prepared.window_smoothing * _squares(prepared) / m**2
    return Noise(window, prepared.variance @ (estimate.q**2 / prepared.given.n_j))


def covariance(prepared: Prepared, estimate: Estimate, sums: Sums, phi: float = 1.0) -> Floats:
    """`A^+ Om A^+'`: the covariance of the raw estimate, with
    `Om = Cov(g) / m + sum_j q_j^2 Cov_j / n_j`.
    """
    om = prepared.window_noise(sums, phi) + prepared.reference_noise(estimate.q)
    return np.asarray(prepared.inverse @ om @ prepared.inverse.T)


def weight_covariance(
    prepared: Prepared, estimate: Estimate, cov: Floats, *, population: bool = False
) -> Floats:
    """The covariance of `w = q / nu`, from that of `q`.

    `w` reweights the reference at hand, or is meant relative to the label mix of the
    `population` the reference is a random sample of; then `nu` is an estimate too.
    """
    of_sample = cov / np.outer(prepared.nu, prepared.nu)
    if not population:
        return of_sample
    w = estimate.raw / prepared.nu
    return np.asarray(of_sample + (np.diag(w**2 / prepared.nu) - np.outer(w, w)) / prepared.n)


def weights(
    prepared: Prepared,
    estimate: Estimate,
    of_q: Intervals,
    *,
    population: bool = False,
    level: float = 0.95,
) -> Intervals:
    """Intervals for `w = q / nu` from those for `q`, in either meaning of `w`.

    For the `population` meaning the noise of `nu` is added to each arm in squares, which keeps
    the arms as unequal as they are for `q`.
    """
    lower, upper = of_q.lower / prepared.nu, of_q.upper / prepared.nu
    if not population:
        return Intervals(lower, upper, of_q.vacuous)
    w = estimate.w
    extra = quantile(level) ** 2 * w**2 * (1.0 - prepared.nu) / (prepared.nu * prepared.n)
    below = np.sqrt((w - lower) ** 2 + extra)
    above = np.sqrt((upper - w) ** 2 + extra)
    return Intervals(np.maximum(w - below, 0.0), w + above, of_q.vacuous)


def merge_bias(prepared: Prepared, estimate: Estimate) -> Floats:
    """The most a changed mix inside each group can move `mu`: `q_G max |A_a - A_b|_1 / 2`.

    Zero for columns of one label.
    """
    A = prepared.reference.conditional(soft=prepared.soft)
    apart = np.array([_widest(A[:, list(labels)]) for labels in prepared.columns])
    return np.asarray(estimate.q * apart / 2.0)


def guaranteed_error(
    sigma_min: float, w: Floats, n: int, m: float, *, level: float = 0.95
) -> float:
    """A bound on `|w_hat - w|_2` that holds with probability `level` for any n and m.

    `(e(m) + e(n) |w_hat|) / (sigma_min - e(n))`, `e(n) = (1 + sqrt(log(2 / alpha))) / sqrt(n)`:
    `w_hat - w = C_hat^-1 (E2 - E1 w)`, where E1 and E2 are errors of means of unit vectors, whose
    norms McDiarmid's inequality bounds without a log n or a k. Infinite for small references.

    >>> guaranteed_error(0.08, np.ones(10), 1000, 1000)
    inf
    >>> round(guaranteed_error(0.08, np.ones(10), 10_000, 10_000), 2)
    2.39
    """
    reach = 1.0 + np.sqrt(np.log(2.0 / (1.0 - level)))
    e_n, e_m = reach / np.sqrt(n), reach / np.sqrt(m)
    if sigma_min <= e_n:
        return np.inf
    return float((e_m + e_n * np.linalg.norm(w)) / (sigma_min - e_n))


def theorem_1(
    sigma_min: float, w: Floats, n: int, m: float, constants: tuple[float, float] = PRINTED
) -> float:
    """The bound on `|w_hat - w|_2` in the paper's Theorem 1, with its constants as printed.

    `constants` belong to the reference's and the window's term; `PROVED` are what the proof
    supports. The theorem asks for `n > 80 log(n) / sigma_min^2`, which is not checked here.

    >>> round(theorem_1(0.08, np.ones(10), 10_000, 10_000), 1)
    15.2
    """
    reference = constants[0] * float(w @ w) * np.log(n) / n
    window = constants[1] * len(w) * np.log(m) / m
    return float(np.sqrt(reference + window) / sigma_min)


def quantile(level: float, of: int = 1) -> float:
    """The normal quantile for two-sided intervals, `of` of which hold together (Bonferroni)."""
    return float(-ndtri((1.0 - level) / (2.0 * of)))


def _solved(a2: Floats, a1: Floats, a0: Floats, q: Floats) -> Intervals:
    """Roots of `a2 t^2 + a1 t + a0`, cut to [0, 1] and widened to hold the estimate shown."""
    discriminant = a1**2 - 4.0 * a2 * a0
    vacuous = (a2 <= 0.0) | (discriminant < 0.0)
    root = np.sqrt(np.where(vacuous, 0.0, discriminant))
    twice = 2.0 * np.where(vacuous, 1.0, a2)
    lower = np.where(vacuous, 0.0, np.clip((-a1 - root) / twice, 0.0, 1.0))
    upper = np.where(vacuous, 1.0, np.clip((-a1 + root) / twice, 0.0, 1.0))
    return Intervals(np.minimum(lower, q), np.maximum(upper, q), vacuous)


def _own_second_moment(prepared: Prepared) -> Floats:
    """`E_j[(a.g)^2]` for each row a of the inverse in its own column, where `E_j[a.g] = 1`."""
    unsmoothed = np.diag(prepared.variance) - _squares(prepared) * prepared.smoothing
    return np.asarray(unsmoothed + 1.0)


def _squares(prepared: Prepared) -> Floats:
    return np.asarray((prepared.inverse**2).sum(axis=1))


def _widest(columns: Floats) -> float:
    apart = np.abs(columns[:, :, None] - columns[:, None, :]).sum(axis=0)
    return float(apart.max())
