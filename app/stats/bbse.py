"""Black-box shift estimation as printed: Lipton, Wang and Smola (2018), section 4 and Algorithm 1.

With `C[i, j] = p(predicted i, true j)` and `mu` the window's mean prediction, the weights are
`w = C^-1 mu` and the label mix is `q = w nu`: for hard predictions or the mean softmax. The
service's own estimate (`app.stats.estimator`) is the same idea with cells for the black box and
weights for their noise; the paper's numbers stand beside it.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from app.stats.moments import Bools, Floats, Sums
from app.stats.reference import Reference

Moments = Literal["hard", "soft"]


@dataclass(frozen=True, slots=True)
class Singular:
    """Why a confusion matrix has no inverse, and which labels it is due to."""

    why: Literal["missing", "never_predicted", "alike"]
    labels: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Paper:
    """A reference as the paper uses it. `inverse` is None where `C` is singular.

    Then `flattest` is the pseudo-inverse of `A`, which has an answer to everything.
    """

    moments: Moments
    nu: Floats
    sigma_min: float
    inverse: Floats | None
    flattest: Floats | None = None
    singular: Singular | None = None


@dataclass(frozen=True, slots=True)
class PaperEstimate:
    """`w = C^-1 mu` and `q = w nu`, which may be negative; None where there is no inverse.

    `minimum_norm` is the flattest mix that explains the window best, where there is none.
    """

    moments: Moments
    sigma_min: float
    q: Floats | None
    w: Floats | None
    singular: Singular | None = None
    minimum_norm: Floats | None = None


def prepare(reference: Reference, *, soft: bool) -> Paper:
    """The inverse of `C`, if it has one.

    >>> from app.stats.reference import from_confusion
    >>> prepare(from_confusion(np.array([[9, 1], [0, 0]])), soft=False).singular
    Singular(why='never_predicted', labels=(1,))
    """
    if not reference.n:
        unknown, labels = np.full(reference.k, np.nan), tuple(range(reference.k))
        return Paper("hard", unknown, 0.0, None, None, Singular("missing", labels))
    C = reference.joint(soft=soft)
    nu = reference.nu
    sigma = np.asarray(np.linalg.svd(C, compute_uv=False), dtype=np.float64)
    kind: Moments = "soft" if soft else "hard"
    singular = _singular(reference, C, sigma)
    if singular is None:
        return Paper(kind, nu, float(sigma[-1]), np.asarray(np.linalg.inv(C), dtype=np.float64))
    A = np.nan_to_num(reference.conditional(soft=soft))
    flattest = np.asarray(np.linalg.pinv(A), dtype=np.float64)
    return Paper(kind, nu, float(sigma[-1]), None, flattest, singular)


def estimate(paper: Paper, sums: Sums) -> PaperEstimate:
    """The paper's numbers for a window of at least one prediction.

    >>> from app.stats.reference import from_confusion
    >>> two = prepare(from_confusion(np.array([[90, 20], [10, 80]])), soft=False)
    >>> found = estimate(two, Sums(np.array([270, 730])))
    >>> found.q.round(6).tolist(), found.w.round(6).tolist()
    ([0.1, 0.9], [0.2, 1.8])
    """
    mu = mean(paper.moments, sums)
    if paper.inverse is None:
        flattest = None if paper.flattest is None else np.asarray(paper.flattest @ mu)
        return PaperEstimate(paper.moments, paper.sigma_min, None, None, paper.singular, flattest)
    w = paper.inverse @ mu
    return PaperEstimate(paper.moments, paper.sigma_min, w * paper.nu, w)


def mean(moments: Moments, sums: Sums) -> Floats:
    """`mu`, the mean of the predictions, or of their softmax rows."""
    if moments == "hard":
        return sums.counts / sums.n
    if sums.soft is None:
        raise ValueError("a window of hard predictions has no mean softmax")
    return sums.soft.prob / sums.n


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


def is_zero(sigma: Floats) -> Bools:
    """Which singular values of a square matrix are zero but for rounding."""
    return np.asarray(sigma <= len(sigma) * np.finfo(np.float64).eps * sigma[0])


def _singular(reference: Reference, C: Floats, sigma: Floats) -> Singular | None:
    """Why `C` cannot be inverted; None if it can."""
    if not is_zero(sigma)[-1]:
        return None
    missing = np.flatnonzero(reference.support == 0)
    if len(missing):
        return Singular("missing", tuple(missing.tolist()))
    silent = np.flatnonzero(~C.any(axis=1))
    if len(silent):
        return Singular("never_predicted", tuple(silent.tolist()))
    return Singular("alike")
