"""The label mix of a window: least squares over cells, weighed by the noise of both samples.

Under label shift the shares `mu` of cells in a window are `A q`, with `A[b, j]` the probability of
cell `b` given label `j` and `q` the label mix. This is the paper's estimator with cells for its
black box. Cells are more than labels, so they are weighed: each by the inverse of its noise, in the
window and in the reference. The result `raw` is linear in `mu`, unbiased and may leave the simplex;
`q` pulls it towards the reference's own mix as strongly as the window permits. No labels are
merged: those that look alike have a wide interval (`app.stats.intervals`).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import optimize, special
from scipy.linalg import lapack

from app.stats import cells
from app.stats.cells import CellTable
from app.stats.moments import Counts, Floats

# Strength of the pull on the pilot, and the least that is tried for the estimate, in records a
# label. Then four times as strong, and again: the window's evidence chooses.
PULL = 0.025
STRONGER = 4.0 ** np.arange(6)
# Centres that differ by less than this part of an even share are as good as one.
ALIKE = 0.1
# No label is pulled to less than this part of an even share.
LEAST_CENTRE = 0.05
# Evidence that has fallen so far below its best (in logs) does not come back.
EVIDENCE_FALLEN = 3.0

# Directions of the mix with less than this part of the largest eigenvalue are not identified, and
# the inverse leaves them out.
NULL_EIGENVALUE = 1e-12
LEAST_VARIANCE = 1e-10
# Matrices of a worse (reciprocal) condition number may be singular: Cholesky does not see it.
LEAST_CONDITION = 1e-8

# Calibration can be worth between nothing and everything, in records per cell. The log-evidence
# may fall this far below its maximum: the lower end of a 95% interval for the worth.
LEAST_WORTH, MOST_WORTH = 1.0, 1e6
EVIDENCE_DROP = 1.92

# Above this many labels the search for the pull is coarser: time grows with their cube.
MANY_LABELS = 256


@dataclass(frozen=True)
class Operator:
    """A reference as estimates use it, prepared once. L labels are present, in B cells.

    `A` (B x L) is `p(cell | label)`, `n_j` the records of each label, `nu` their shares, `mix` the
    cells' shares of the reference. `worth` is how many labelled records the calibrated rows of a
    cell count for. `stray` (L) is the share of a label's records that may stray into any cell.
    `twins` are sets of labels that no cell tells apart at all.
    """

    table: CellTable
    A: Floats
    n_j: Floats
    nu: Floats
    mix: Floats
    stray: Floats
    worth: float
    twins: tuple[Counts, ...]

    @property
    def k(self) -> int:
        """Labels of the model."""
        return self.table.k

    @property
    def size(self) -> int:
        """Labels that are estimated."""
        return len(self.nu)

    @cached_property
    def even(self) -> Floats:
        """Halfway between the reference's mix and equal shares: no label is ruled out."""
        return (self.nu + 1.0 / self.size) / 2.0

    @cached_property
    def centres(self) -> list[Floats]:
        """The mixes that estimates are pulled to: the reference's, or half towards equal shares."""
        centres = [_floored(self.nu), _floored(self.even)]
        if np.abs(centres[0] - centres[1]).max() * self.size < ALIKE:
            return centres[:1]
        return centres

    @cached_property
    def doubted(self) -> Floats:
        """What is doubted at a mix between even and the reference's, in a window without end."""
        return doubted(self, weighing(self, self.even, ENDLESS))

    @cached_property
    def suspect(self) -> bool:
        """Whether a window's own mix may leave anything in doubt."""
        close = CLOSE_SOFT if self.table.soft else CLOSE_HARD
        return doubted(self, weighing(self, self.even, ENDLESS), close).size > 0

    @cached_property
    def hits(self) -> tuple[Counts, Counts]:
        """The cells that predict an estimated label, and which label that is."""
        return cells.own_labels(self.k, self.table.first, self.table.present)

    @cached_property
    def recall(self) -> Floats:
        """How probable a prediction of each label is, given that label, as the cells have it."""
        return self.predicting(self.A[self.hits])

    def predicting(self, weights: Floats) -> Floats:
        """Numbers of the cells that predict an estimated label, added up by label."""
        total = np.bincount(self.hits[1], weights=weights, minlength=self.size)
        return np.asarray(total, dtype=np.float64)

    def spread(self, values: Floats) -> Floats:
        """Numbers per estimated label as numbers per label of the model; NaN for absent ones."""
        spread = np.full(self.k, np.nan)
        spread[self.table.present] = values
        return spread


@dataclass(frozen=True, slots=True)
class Estimate:
    """The label mix of a window by estimated label.

    `mu` are the window's shares of cells and `m` its (effective) number of predictions. `raw` is
    unbiased and may leave the simplex; `q` is the estimate to show. `pull` says how strongly it was
    pulled towards the reference's mix, in records: large if nothing in the window speaks against.
    `weighing` is that of `raw`.
    """

    mu: Floats
    m: float
    raw: Floats
    q: Floats
    pull: float
    weighing: "Weighing"


@dataclass(frozen=True, slots=True)
class Weighing:
    """Generalised least squares at one mix: `H = A' D A` with `D` the inverse noise of cells."""

    D: Floats
    H: Floats


def prepare(table: CellTable) -> Operator:
    """Mix counted and calibrated labels of every cell, then read off `p(cell | label)`.

    The labels of the `n_b` records of cell b have the prior `Dirichlet(a p_b)`, `p_b` their mean
    calibrated row, hence the posterior mean `(N_b + a p_b) / (n_b + a)`; `a` is the worth of
    calibration. Hard predictions have nothing but counts.
    """
    N = table.counts.astype(np.float64)
    n_j, n_b = N.sum(axis=0), N.sum(axis=1)
    a = 0.0
    if table.believed is not None:
        a = worth(table.counts, table.believed)
        N = (N + table.believed * (a / n_b)[:, None]) * (n_b / (n_b + a))[:, None]
    stray = np.full(len(n_j), STRAY) if table.soft else np.maximum(STRAY, 1.0 / n_j)
    A = N / N.sum(axis=0)
    return Operator(table, A, n_j, n_j / n_j.sum(), n_b / n_b.sum(), stray, a, _twins(A))


def _twins(A: Floats) -> tuple[Counts, ...]:
    """Sets of equal columns.

    >>> _twins(np.array([[0.5, 0.1, 0.5], [0.5, 0.9, 0.5]]))
    (array([0, 2]),)
    """
    _, place, sizes = np.unique(A.round(12), axis=1, return_inverse=True, return_counts=True)
    return tuple(np.flatnonzero(place.ravel() == twin) for twin in np.flatnonzero(sizes > 1))


# A direction of the mix in which labels differ by less than this multiple of counting noise is
# doubted, unless they do not differ at all. Softmax differs in dozens of cells, and calibration
# takes away noise; chosen between .8 and 1.2 for the coverage of labels that look alike
# (docs/statistics.md). Hard predictions differ in a few cells only, where noise alone often looks
# like more. Without doubt, intervals of 60 labels with 60 records each and an accuracy of .31 held
# .78; with 3.84, the 95 % point of a cell, a poor classifier's are twice as wide.
DOUBTED_SOFT, DOUBTED_HARD = 0.8, 1.5
# A reference that comes this much closer, times, to leaving something in doubt may do so in a
# window of another mix.
CLOSE_SOFT, CLOSE_HARD = 1.5, 1.0
NO_DIFFERENCE = 1e-9
# A window that leaves no noise of its own.
ENDLESS = 1e9


def doubted(on: Operator, at: Weighing, times: float = 1.0) -> Floats:
    """Changes of the mix (L x r, orthonormal) that the reference may only seem to see.

    Along a direction v of the mix, cells differ by `v' H v`, of which counting noise alone makes
    `v' N v` with `N = diag(sum_b D_b A_bl / n_l)`. Where the ratio is low, the difference may be
    noise, or what calibration took for granted, and an estimate that rests on it is too sure.
    """
    root = np.sqrt((at.D @ on.A) / on.n_j)
    ratio = at.H / np.outer(root, root)
    least = times * (DOUBTED_SOFT if on.table.soft else DOUBTED_HARD)
    _, info = lapack.dpotrf(_plus_diagonal(ratio, np.full(on.size, -least)))
    if not info:  # All ratios are above, and Cholesky says so in a tenth of the time.
        return np.zeros((on.size, 0))
    values, vectors = np.linalg.eigh(ratio)
    weak = (values > NO_DIFFERENCE) & (values < least)
    return np.asarray(np.linalg.qr(vectors[:, weak] / root[:, None])[0])


# Variances are taken as if this share of a label's records had strayed into cells at random: a cell
# where none of them fell is not known to stay free of them. Hard predictions are taken to have
# strayed by at least one record. Chosen by simulation for coverage (docs/statistics.md).
STRAY = 0.003


def worth(counts: Counts, believed: Floats) -> float:
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
    p = np.maximum(believed / size[:, None], 1e-12)[seen]

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


def estimate(on: Operator, counts: Floats, phi: float = 1.0) -> Estimate:
    """The label mix behind a window's counts of cells, of which there must be one.

    `phi` is the stream's overdispersion: the window counts for `sum(counts) / phi` predictions.

    >>> from app.stats import cells
    >>> N = np.array([[180, 30, 10], [15, 150, 60], [5, 20, 130]])
    >>> on = prepare(cells.of_confusion(N, np.arange(3)))
    >>> found = estimate(on, np.array([90.0, 200.0, 210.0]))
    >>> found.q.round(4).tolist(), found.raw.round(4).tolist()
    ([0.1211, 0.283, 0.5958], [0.1198, 0.2821, 0.5981])
    """
    total = float(counts.sum())
    m, mu = total / phi, counts / total
    pilot_mix = pilot(on, counts / phi)
    at = weighing(on, pilot_mix, m)
    inverse, _ = inverted(at.H)
    raw = inverse @ ((at.D * mu) @ on.A)
    V = inverse - np.outer(pilot_mix, pilot_mix) / m
    V[np.diag_indices(on.size)] -= pilot_mix**2 / on.n_j
    q, pull = _shrunken(on, raw, V)
    for twins in on.twins:
        # Nothing but the reference's mix says how to split them.
        q[twins] = q[twins].sum() * on.nu[twins] / on.nu[twins].sum()
    return Estimate(mu, m, raw, q, pull, at)


def weighing(on: Operator, q: Floats, m: float) -> Weighing:
    """The weights of cells at a mix.

    The covariance of `mu - A q` is `diag(omega)` minus terms `A (.) A'`, which do not change
    generalised least squares; so a diagonal is enough: `omega_b = (A q)_b / m + sum_j A_bj q_j^2 /
    n_j`.
    """
    D = 1.0 / (on.A @ (q / m + q**2 / on.n_j))
    scaled = on.A * np.sqrt(D)[:, None]
    return Weighing(D, scaled.T @ scaled)


def inverted(H: Floats) -> tuple[Floats, bool]:
    """The pseudo-inverse of a Gram matrix, whatever the scale of its columns; is it the inverse?"""
    scale = 1.0 / np.sqrt(np.diag(H))
    unit = H * np.outer(scale, scale)
    by_cholesky = _inverse(unit)
    if by_cholesky is not None:
        return by_cholesky * np.outer(scale, scale), True
    values, vectors = np.linalg.eigh(unit)
    kept = values > NULL_EIGENVALUE * values[-1]
    root = (vectors[:, kept] / np.sqrt(values[kept])) * scale[:, None]
    return np.asarray(root @ root.T), bool(kept.all())


def _inverse(positive: Floats) -> Floats | None:
    """By Cholesky, a tenth of the time of eigenvalues; None if the matrix is next to singular."""
    factor, info = lapack.dpotrf(positive)
    if info or lapack.dpocon(factor, np.abs(positive).sum(axis=0).max())[0] < LEAST_CONDITION:
        return None
    # The other half of the answer is left as it was: the zeros that the factor has there.
    whole, _ = lapack.dpotri(factor)
    diagonal = whole.diagonal().copy()
    whole += whole.T
    whole.ravel(order="K")[:: len(whole) + 1] = diagonal
    return np.asarray(whole)


def pilot(on: Operator, counts: Floats) -> Floats:
    """The most likely mix, with a slight pull that keeps every share positive.

    Maximises `sum_b c_b log (A q)_b + .025 k sum_j pi_j log q_j` over the simplex, `pi` halfway
    between the reference's mix and equal shares.
    """
    pull = PULL * on.size * on.even
    seen = counts > 0.0
    A, c = on.A[seen], counts[seen]
    q = on.even
    for _ in range(EM_STEPS):
        q = _em(A, c, pull, q)
    if on.size > MANY_LABELS:
        return _by_squarem(A, c, pull, q)
    for _ in range(MOST_STEPS):
        better = _newton_on_simplex(A, c, pull, q)
        moved, q = np.abs(better - q), better
        # Next to the boundary steps are short because they are cut, too.
        if moved.max() < CONVERGED and (moved < CUT_SHORT * q).all():
            break
    return q


EM_STEPS = 3
MOST_STEPS = 100
# The size of a last step: Newton's leave an error of its square.
CONVERGED = 1e-6
# A share that moved by more than this part of itself may not have arrived.
CUT_SHORT = 0.1
# Near enough for the evidence, which is flat at the mode.
NEAR = 1e-3
# For very many labels: strides of EM, and the part of an even share that ends them.
MOST_STRIDES = 12
MOVED_LITTLE = 0.003


def _em(A: Floats, c: Floats, pull: Floats, q: Floats) -> Floats:
    gained = q * ((c / (A @ q)) @ A) + pull
    return np.asarray(gained / gained.sum())


def _by_squarem(A: Floats, c: Floats, pull: Floats, q: Floats) -> Floats:
    """EM in strides (Varadhan and Roland, 2008): a step of Newton's takes longer than all of them.

    Each stride goes on along what two steps moved, as far as their lengths suggest.
    """
    for _ in range(MOST_STRIDES):
        one = _em(A, c, pull, q)
        two = _em(A, c, pull, one)
        r, v = one - q, two - 2.0 * one + q
        length = max(1.0, float(np.sqrt((r @ r) / max(float(v @ v), 1e-300))))
        far = q + 2.0 * length * r + length**2 * v
        moved = np.abs(two - q).max()
        q = _em(A, c, pull, np.maximum(far, 0.1 * two)) if length > 1.0 else two
        if moved < MOVED_LITTLE / len(q):
            break
    return q


def _newton_on_simplex(A: Floats, c: Floats, pull: Floats, q: Floats) -> Floats:
    """A step of Newton's, cut short of the boundary, or of EM where that does not get higher."""
    p = A @ q
    R = A * (np.sqrt(c) / p)[:, None]
    gradient = (c / p) @ A + pull / q
    step = _on_plane(_plus_diagonal(R.T @ R, pull / q**2), gradient)
    reach = _within(q, step)
    least = c @ np.log(p) + pull @ np.log(q)
    for part in (1.0, 0.3, 0.1):
        far = q + part * reach * step
        if c @ np.log(A @ far) + pull @ np.log(far) >= least:
            return far
    return _em(A, c, pull, q)


def _on_plane(system: Floats, gradient: Floats) -> Floats:
    """The step `d` that maximises `g'd - d' X d / 2` with `1'd = 0`; `system` is X, and used up."""
    solved, _ = _solved(system, gradient)
    along, ones = solved[:, 0], solved[:, 1]
    along -= ones * (along.sum() / ones.sum())
    return along


def _log_det_on_plane(system: Floats) -> float:
    """`log det` of a matrix restricted to `1'd = 0`: `det(X) (1' X^-1 1) / k`, without the k."""
    solved, factor = _solved(system, system[0])
    return 2.0 * float(np.log(factor.diagonal()).sum()) + float(np.log(solved[:, 1].sum()))


def _solved(system: Floats, gradient: Floats) -> tuple[Floats, Floats]:
    """`X^-1` times a gradient and times ones, and the factor of Cholesky that did it."""
    both = np.ones((len(gradient), 2), order="F")
    both[:, 0] = gradient
    factor, solved, info = lapack.dposv(system, both, overwrite_b=1)
    if info:
        # Next to singular in some direction: what is left of it decides nothing.
        values, vectors = np.linalg.eigh(system)
        values = np.maximum(values, values[-1] * np.finfo(np.float64).eps)
        inverse = (vectors / values) @ vectors.T
        return np.asarray(inverse @ both), np.diag(np.sqrt(values))
    return solved, factor


def _plus_diagonal(matrix: Floats, diagonal: Floats) -> Floats:
    total = matrix.copy()
    total.ravel()[:: len(total) + 1] += diagonal
    return total


def _within(q: Floats, step: Floats) -> float:
    """How much of a step can be taken: all, or .95 of the way to the boundary."""
    steepest = float((step / q).min())
    return 1.0 if steepest > -0.95 else 0.95 / -steepest


def _shrunken(on: Operator, raw: Floats, V: Floats) -> tuple[Floats, float]:
    """`raw` pulled towards the reference's mix, or half towards equal shares.

    As strongly as makes the window most likely: a Dirichlet prior whose centre and strength are
    chosen by Laplace's approximation of their evidence (empirical Bayes).
    """
    S = _precision(V)
    if on.size > MANY_LABELS:
        return _shrunken_at_once(on, S, raw, V)
    best, chosen, strength, near = -np.inf, on.nu, 0.0, on.nu
    for centre in on.centres:
        highest, q = -np.inf, _inside(raw, centre)
        for pull in PULL * on.size * STRONGER:
            q = _mode(S, raw, 1.0 + pull * centre, q, NEAR)
            evidence = _evidence(S, raw, pull * centre, q)
            if evidence > best:
                best, chosen, strength, near = evidence, centre, float(pull), q
            highest = max(highest, evidence)
            if evidence < highest - EVIDENCE_FALLEN:
                break
    return _mode(S, raw, strength * chosen, near, CONVERGED), strength


def _shrunken_at_once(on: Operator, S: Floats, raw: Floats, V: Floats) -> tuple[Floats, float]:
    """The same for very many labels, where a search takes too long: by the method of moments.

    A Dirichlet prior of strength `a` spreads shares by `pi_j (1 - pi_j) / (a + 1)` around its
    centre; that is what the estimates scatter beyond their own noise.
    """
    centre = on.centres[0]
    noise = np.maximum(np.diag(V), LEAST_VARIANCE)
    scatter = float((((raw - centre) ** 2 - noise) / noise).sum())
    spread = float((centre * (1.0 - centre) / noise).sum())
    least, most = PULL * on.size, PULL * on.size * STRONGER[-1]
    pull = most if scatter <= 0.0 else min(max(spread / scatter - 1.0, least), most)
    # Each share by itself, which is next to the answer.
    trust = centre / (centre + pull * noise)
    start = _inside(trust * raw + (1.0 - trust) * centre, centre)
    return _mode(S, raw, pull * centre, start, 0.1 * NEAR / on.size), float(pull)


def _floored(mix: Floats) -> Floats:
    floored = np.maximum(mix, LEAST_CENTRE / len(mix))
    return np.asarray(floored / floored.sum())


def _inside(raw: Floats, centre: Floats) -> Floats:
    """A point of the simplex near `raw`, to start from."""
    q = np.maximum(raw, 0.01 * centre)
    return np.asarray(q / q.sum())


def _precision(V: Floats) -> Floats:
    """The inverse of the covariance on mixes, made regular along `1`, where nothing can move."""
    k = len(V)
    centred = V - V.mean(axis=0)
    centred -= centred.mean(axis=1)[:, None]
    if k > MANY_LABELS:
        raised = _plus_diagonal(centred, np.full(k, LEAST_VARIANCE)) + 1.0 / k**2
        by_cholesky = _inverse(raised)
        if by_cholesky is not None:
            return by_cholesky
    values, vectors = np.linalg.eigh((centred + centred.T) / 2.0)
    values = np.maximum(values, LEAST_VARIANCE)
    # The vector of ones is one of them, at the floor; nothing moves along it.
    return np.asarray((vectors / values) @ vectors.T)


def _mode(S: Floats, raw: Floats, weights: Floats, q: Floats, accuracy: float) -> Floats:
    """`argmax -(q - raw)' S (q - raw) / 2 + sum_j weights_j log q_j` over the simplex (Newton)."""
    for _ in range(MOST_STEPS):
        over = weights / q
        step = _on_plane(_plus_diagonal(S, over / q), S @ (raw - q) + over)
        q = q + _within(q, step) * step
        if np.abs(step).max() < accuracy:
            break
    return q


def _evidence(S: Floats, raw: Floats, weights: Floats, q: Floats) -> float:
    """How probable the window is under a prior `Dirichlet(weights)`, by Laplace in `log q`.

    The curvature there is `Q (S + (sum(weights) + k) diag(1 / q)) Q` with `Q = diag(q) - q q'`,
    whose determinant on the plane is the product of the squared `q` times that of the middle.
    """
    total, away = float(weights.sum()) + len(q), q - raw
    log_det = _log_det_on_plane(_plus_diagonal(S, total / q))
    fit = float(weights @ np.log(q)) - float(away @ S @ away) / 2.0
    prior = float(special.gammaln(total)) - float(special.gammaln(1.0 + weights).sum())
    return fit + prior - log_det / 2.0
