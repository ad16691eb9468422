"""Black-box shift estimation: the label mix of a window from what was predicted in it.

Under label shift `p(prediction | label)` stays put, so the mean `mu` of the moment map over a
window is `A q`, and `q = A^+ mu` recovers the label mix from predictions alone (Lipton, Wang and
Smola, 2018, section 4). The paper's weights are `w = q / nu`; its `C^-1 mu` is the same number.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import lapack, solve_triangular
from scipy.optimize import nnls

from app.stats import reference as references
from app.stats.diagnosis import Columns, Diagnosis
from app.stats.moments import Bools, Counts, Floats, Sums
from app.stats.reference import Conditionals, Reference

# Strength of the smoothing of reference covariances: enough that an empty cell of the confusion
# matrix does not claim to be known exactly (the design study, section b).
SMOOTHING = 0.3
WINDOW_SMOOTHING_HARD = 1.0
WINDOW_SMOOTHING_SOFT = 0.25

REWEIGHTINGS = 2
# Guesses of which shares are positive: one or two do, and what takes more may go in circles.
MOST_GUESSES = 10


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything an analysis needs of a reference, computed once and used by every window.

    Estimates live on L *columns*: the labels that can be estimated one by one, and groups that
    can only be estimated together; absent labels are in none. `spread` takes numbers per column
    to the model's k labels. The moment map has d = k rows, hard (one-hot) or soft (softmax).

    - `reference`, `diagnosis`: what it was prepared from.
    - `soft`: whether the moment map is the softmax; then windows must have soft sums. For windows
      of hard predictions prepare `Reference(reference.counts)`, with its own diagnosis.
    - `columns`: L tuples of labels. `owner[y]` is the column of label y (-1 if absent), and
      `share[y]` its part of that column in the reference (0 if absent).
    - `given`: `given.A` (d x L), `given.n_j` (L) and the second moments: mean and covariance of the
      moment map given each column.
    - `nu`: (L) shares of the columns among the reference records of all columns.
    - `inverse`: (L x d) the left inverse `A^+`; rows of the identity where A is one. It weighs
      row i by `1 / (A nu)_i`, so that `1' A^+ = 1'` (estimates sum to one) also when A is tall.
    - `smoothing`: (L) added to the diagonal of each column's covariance, in variances only.
    - `variance[r, j]`: (L x L) `a Cov_j a'` with `a` row r of `inverse`, smoothed.
    """

    reference: Reference
    diagnosis: Diagnosis
    soft: bool
    columns: Columns
    owner: Counts
    share: Floats
    given: Conditionals
    nu: Floats
    inverse: Floats
    smoothing: Floats
    variance: Floats

    @property
    def k(self) -> int:
        return self.reference.k

    @property
    def n(self) -> int:
        """Reference records in some column."""
        return int(self.given.n_j.sum())

    @property
    def estimable(self) -> bool:
        """Whether there is anything to estimate; if not, estimates are the reference's own mix."""
        return self.diagnosis.estimable

    def estimates_like(self, other: "Prepared") -> bool:
        """Whether estimates of any window are the same by both; of one and the same reference."""
        return (self.soft, self.columns, self.estimable) == (
            other.soft,
            other.columns,
            other.estimable,
        )

    def mean(self, sums: Sums) -> Floats:
        """`mu`, the mean of the moment map over a window that has at least one prediction."""
        if not sums.n:
            raise ValueError("a window without predictions has no mean")
        if not self.soft:
            return sums.counts / sums.n
        if sums.soft is None:
            raise ValueError("soft moments were prepared, but the window has hard predictions")
        return sums.soft.prob / sums.n

    def second_moment(self, sums: Sums) -> Floats:
        """The mean of `g g'` over a window, or, for softmax over many labels, a bound on it.

        The bound is the one of `Conditionals`: `E[p p'] <= diag(E p)`.
        """
        if not self.soft or sums.soft is None or self.given.outer is None:
            return np.diag(self.mean(sums))
        return references.unpacked(self.k, sums.soft.outer / sums.n)

    def second_moment_along(self, sums: Sums, rows: Floats) -> Floats:
        """`E[(a.g)^2]` over a window for each of `rows` a."""
        if self.given.outer is None or sums.soft is None:
            return np.asarray(rows**2 @ self.mean(sums))
        return np.asarray(references.packed_squares(rows) @ sums.soft.outer / sums.n)

    def window_noise(self, sums: Sums, phi: float = 1.0) -> Floats:
        """`Cov(g) / m`, the window's part of the covariance of `mu - A q`, smoothed.

        `m` is the number of predictions over `phi`, the overdispersion of the stream.
        """
        m = sums.n / phi
        mu = self.mean(sums)
        noise = (self.second_moment(sums) - np.outer(mu, mu)) / m
        noise[np.diag_indices(len(noise))] += self.window_smoothing / m**2
        return noise

    @property
    def window_smoothing(self) -> float:
        return WINDOW_SMOOTHING_SOFT if self.soft else WINDOW_SMOOTHING_HARD

    def reference_noise(self, q: Floats) -> Floats:
        """`sum_j q_j^2 Cov_j / n_j`, the reference's part of the covariance of `mu - A q`."""
        weights = q**2 / self.given.n_j
        noise = self.given.covariance(weights)
        noise[np.diag_indices(len(noise))] += weights @ self.smoothing
        return noise

    def spread(self, per_column: Floats) -> Floats:
        """Numbers per column split over labels as in the reference; NaN for absent labels."""
        per_label = np.append(per_column, np.nan)[self.owner] * self.share
        return np.asarray(per_label)

    def repeat(self, per_column: Floats) -> Floats:
        """Numbers per column given to each of its labels; NaN for absent labels."""
        return np.asarray(np.append(per_column, np.nan)[self.owner])


@dataclass(frozen=True, slots=True)
class Estimate:
    """The label mix of a window, by column of the `Prepared` it was made with.

    `raw` is `A^+ mu`, unbiased to first order and possibly negative: intervals and tests build on
    it. `q` is the estimate to show, on the simplex. `w` is `q / nu`, the paper's weights.
    `fallback` says that nothing could be estimated, and all of these are the reference's own mix.
    """

    mu: Floats
    raw: Floats
    q: Floats
    w: Floats
    fallback: bool = False

    @property
    def negative(self) -> float:
        """Mass of the negative entries of `raw`: what the simplex took away."""
        return float(np.maximum(-self.raw, 0.0).sum())


def prepare(reference: Reference, diagnosis: Diagnosis) -> Prepared:
    """The reference-only part of every analysis; at least one label must have records.

    >>> from app.stats import diagnosis, reference
    >>> two = reference.from_confusion(np.array([[90, 20], [10, 80]]))
    >>> prepare(two, diagnosis.diagnose(two)).inverse.round(3).tolist()
    [[1.143, -0.286], [-0.143, 1.286]]
    """
    soft = diagnosis.moments == "soft"
    given = references.conditionals(reference, diagnosis.columns, soft=soft)
    nu = given.n_j / max(1, given.n_j.sum())
    inverse = _left_inverse(given.A, nu)
    smoothing = _smoothing(given)
    owner = np.full(reference.k, -1)
    for column, labels in enumerate(diagnosis.columns):
        owner[list(labels)] = column
    share = np.where(owner >= 0, reference.support / np.append(given.n_j, 1)[owner], 0.0)
    return Prepared(
        reference=reference,
        diagnosis=diagnosis,
        soft=soft,
        columns=diagnosis.columns,
        owner=owner,
        share=share,
        given=given,
        nu=nu,
        inverse=inverse,
        smoothing=smoothing,
        variance=given.variance(inverse) + np.outer((inverse**2).sum(axis=1), smoothing),
    )


def _left_inverse(A: Floats, nu: Floats) -> Floats:
    """`(A' W A)^-1 A' W` with `W = diag(1 / A nu)`; the plain inverse when A is square.

    `nu' A' W = 1'` wherever a row is ever predicted, so the normal equations contain
    `1' mu = 1' A q = 1' q`. These are also the weights of minimum chi-square at `q = nu`.
    """
    d, columns = A.shape
    if d == columns:
        return np.asarray(np.linalg.solve(A, np.eye(d)), dtype=np.float64)
    p = A @ nu
    root = np.zeros(d)
    root[p > 0.0] = p[p > 0.0] ** -0.5
    return np.asarray(np.linalg.lstsq(A * root[:, None], np.diag(root), rcond=None)[0])


def _smoothing(given: Conditionals) -> Floats:
    """How much to add to each column's variances: `lam (n_j tr(Cov_j) / 2 + 1) / ((d-1) n_j)`."""
    trace = given.entry_variance().sum(axis=0)
    return np.asarray(SMOOTHING * (trace / 2.0 + 1.0 / given.n_j) / max(1, len(given.A) - 1))


def estimate(prepared: Prepared, sums: Sums, phi: float = 1.0) -> Estimate:
    """The label mix of a window with at least one prediction.

    `q` minimises `(mu - A q)' Om(q)^-1 (mu - A q)` over the simplex, `Om` being the covariance of
    the residual from both samples; inside the simplex, with A square, that is `A^-1 mu` itself.
    Where nothing can be estimated, because the reference separates nothing or the window holds
    only predictions it has never seen, the answer is `w = 1` (the paper's Algorithm 1).

    >>> from app.stats import diagnosis, reference
    >>> two = reference.from_confusion(np.array([[90, 20], [10, 80]]))
    >>> prepared = prepare(two, diagnosis.diagnose(two))
    >>> found = estimate(prepared, Sums(np.array([270, 730])))
    >>> found.q.round(6).tolist(), found.w.round(6).tolist()
    ([0.1, 0.9], [0.2, 1.8])
    """
    mu = prepared.mean(sums)
    raw = prepared.inverse @ mu
    if not prepared.estimable or raw.max() <= 0.0:
        return Estimate(mu, prepared.nu, prepared.nu, np.ones(len(prepared.nu)), fallback=True)
    q = _on_simplex(prepared, sums, raw, phi)
    return Estimate(mu, raw, q, q / prepared.nu)


def clipped(raw: Floats) -> Floats:
    """The paper's `max(w, 0)`, scaled to sum to one: the simple way onto the simplex.

    Equal shares if nothing is positive, as when all predictions are new to the reference.

    >>> clipped(np.array([-0.25, 0.5, 0.75])).tolist()
    [0.0, 0.4, 0.6]
    """
    positive = np.maximum(raw, 0.0)
    total = positive.sum()
    return np.asarray(positive / total if total > 0.0 else np.full(len(raw), 1.0 / len(raw)))


def algorithm_1(C: Floats, mu: Floats, delta: float) -> Floats:
    """The paper's Algorithm 1, steps 3 and 4: `max(C^-1 mu, 0)`, or ones if C is near singular.

    >>> algorithm_1(np.array([[0.4, 0.1], [0.1, 0.4]]), np.array([0.8, 0.2]), delta=0.1).round(6)
    array([2., 0.])
    >>> algorithm_1(np.array([[0.4, 0.1], [0.1, 0.4]]), np.array([0.8, 0.2]), delta=0.4)
    array([1., 1.])
    """
    if np.linalg.svd(C, compute_uv=False)[-1] <= delta:
        return np.ones(len(mu))
    return np.asarray(np.maximum(np.linalg.solve(C, mu), 0.0), dtype=np.float64)


def minimum_norm(A: Floats, mu: Floats) -> Floats:
    """The flattest `q` that explains `mu` best (pseudo-inverse): a diagnostic, not an estimate.

    Where labels cannot be told apart it splits their mass evenly, which no data asked for, and
    it has no sampling distribution to put an interval on.

    >>> minimum_norm(np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]), np.array([0.4, 0.6])).round(6)
    array([0.4, 0.3, 0.3])
    """
    return np.asarray(np.linalg.pinv(A) @ mu, dtype=np.float64)


def _on_simplex(prepared: Prepared, sums: Sums, raw: Floats, phi: float) -> Floats:
    A = prepared.given.A
    if A.shape[0] == A.shape[1] and raw.min() >= 0.0:
        return raw
    mu = prepared.mean(sums)
    window = prepared.window_noise(sums, phi)
    q = clipped(raw)
    for _ in range(REWEIGHTINGS):
        q = _simplex_least_squares(A, mu, window + prepared.reference_noise(q), q > 0.0)
    return q


def _simplex_least_squares(A: Floats, mu: Floats, noise: Floats, positive: Bools) -> Floats:
    """`argmin (mu - A q)' noise^-1 (mu - A q)` over the simplex, by non-negative least squares.

    With `D` the whitened `A - mu 1'`, the residual of a `q` on the simplex is `D q`. Along a ray
    `x = t q` the least value of `|D x|^2 + (1'x - 1)^2` over t is `|D q|^2 / (1 + |D q|^2)`, which
    grows with `|D q|^2`: minimising over `x >= 0` and scaling to sum one is exact. `positive` is a
    guess of which entries are.
    """
    D = solve_triangular(np.linalg.cholesky(noise), A - mu[:, None], lower=True)
    D /= np.abs(D).max()
    M = np.vstack([D, np.ones(D.shape[1])])
    x = _non_negative(M, np.append(np.zeros(len(D)), 1.0), positive)
    return np.asarray(x / x.sum())


def _non_negative(M: Floats, y: Floats, positive: Bools) -> Floats:
    """`argmin |M x - y|` over `x >= 0`, from a guess of which entries are positive.

    M has at least as many rows as columns. NNLS finds the positive entries one at a time, which
    takes long for many labels. Least squares on the right ones is the solution, and no other
    satisfies its conditions: positive where it was guessed to be, and no descent elsewhere. All
    entries that contradict a guess change sides (block pivoting).
    """
    tolerance = 10.0 * max(M.shape) * np.finfo(np.float64).eps * np.abs(M).sum(axis=0).max()
    for _ in range(MOST_GUESSES):
        x = _least_squares(M, y, positive)
        descent = M.T @ (y - M @ x)
        if np.abs(descent[positive]).max(initial=0.0) > tolerance:
            break  # some of these columns are next to dependent
        wrong = np.where(positive, x <= 0.0, descent > tolerance)
        if not wrong.any():
            return x
        positive = positive ^ wrong
    return np.asarray(nnls(M, y)[0])


def _least_squares(M: Floats, y: Floats, columns: Bools) -> Floats:
    """`argmin |M x - y|` with zeros everywhere else."""
    x = np.zeros(M.shape[1])
    if columns.any():
        _, solution, _ = lapack.dgels(M[:, columns], y)
        x[columns] = solution[: np.count_nonzero(columns)]
    return x
