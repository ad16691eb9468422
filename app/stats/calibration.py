"""Softmax rows turned into probabilities that can be believed, with respect to the reference.

The likelihood of a label mix reads a softmax row as `p(label | input)`. Neural networks rarely give
that, and without repair such estimates are worse than inverting a confusion matrix (Alexandari,
Kundaje and Shrikumar, 2020). The repair here is matrix scaling (Guo and others, 2017) with a strong
pull towards leaving the rows alone, so that a few hundred records are enough.
"""

from dataclasses import dataclass

import numpy as np
from scipy import optimize

from app.stats.moments import Counts, Floats
from app.stats.ranking import Rows

# float32 softmax underflows to zero; no classifier is surer than this of a label's absence.
LEAST_PROBABILITY = 1e-6

# Weight, in records, of the wish to keep each entry off the diagonal at zero. Chosen between 10 and
# 100, which measured the same; 1 overfits references of 500 records (docs/statistics.md).
OFF_DIAGONAL = 30.0

# The least variance that logs of probabilities are taken to have.
LEAST_SPREAD = 0.01

# With more labels than this, one slope per label: a full matrix has k^2 entries to learn and store.
MATRIX_LABELS = 64

# A fit needs no more numbers than this to be steady, or as many records of each label. A larger
# reference is thinned, evenly, so that the time of a fit and its memory are bounded.
MOST_NUMBERS = 1_500_000
RECORDS_PER_LABEL = 20

# The fit ends when a step gains less than this part of the log-likelihood: a thousandth of a record
# in a reference of ten thousand.
CONVERGED = 1e-8


@dataclass(frozen=True, slots=True)
class Calibration:
    """`softmax(x W + bias)` of `x = log p - centre`, over the labels `present`.

    `slope` is the matrix W, or its diagonal for many labels. Labels that are not present have too
    few records to learn from; their calibrated probability is zero.
    """

    present: Counts
    slope: Floats
    bias: Floats
    centre: Floats

    @property
    def k(self) -> int:
        return len(self.present)


def fit(rows: Rows, actual: Counts, present: Counts) -> Calibration:
    """The calibration that makes the true labels of a reference most likely, within its pull.

    It minimises `-sum_i log softmax(z_i)[y_i]` plus `lambda v_l W_lj^2 / 2` off the diagonal (`v_l`
    the variance of `x_l`), `(W_jj - 1)^2 / 2` and `|b - centre|^2 / 2`: a convex function that
    starts from "leave the rows alone". Records of labels that are not `present` are left out.

    >>> rows = np.repeat([[0.9, 0.1], [0.1, 0.9]], 1000, axis=0)
    >>> actual = np.repeat([0, 1, 1, 0], [700, 300, 700, 300])
    >>> fitted = fit(rows, actual, np.array([0, 1]))
    >>> calibrated(fitted, rows[:1]).round(2).tolist()
    [[0.7, 0.3]]
    """
    place = np.full(rows.shape[1], -1)
    place[present] = np.arange(len(present))
    kept = np.flatnonzero(place[actual] >= 0)
    most = max(MOST_NUMBERS // len(present), RECORDS_PER_LABEL * len(present))
    kept = kept[:: -(-len(kept) // most)]
    x = _logs(rows[kept], present)
    centre = x.mean(axis=0)
    x -= centre
    problem = _Problem(x, place[actual[kept]], centre, full=len(present) <= MATRIX_LABELS)
    solved = optimize.minimize(
        problem.loss,
        np.zeros(len(problem.start)),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 500, "maxcor": 30, "ftol": CONVERGED, "gtol": 1e-9},
    )
    slope, bias = problem.unpacked(problem.at(solved.x))
    return Calibration(present, slope, bias, centre)


def calibrated(calibration: Calibration, rows: Rows) -> Floats:
    """Every row as probabilities of the model's labels, zero for those not present.

    >>> as_they_are = Calibration(np.array([0, 1]), np.eye(2), np.log([1.0, 3.0]), np.zeros(2))
    >>> calibrated(as_they_are, np.array([[0.5, 0.5]])).tolist()
    [[0.25, 0.75]]
    """
    believed = np.zeros(rows.shape)
    believed[:, calibration.present] = of_present(calibration, rows)
    return believed


def of_present(calibration: Calibration, rows: Rows) -> Floats:
    """The same of the labels that are present only."""
    x = _logs(rows, calibration.present)
    x -= calibration.centre
    z = x @ calibration.slope if calibration.slope.ndim == 2 else x * calibration.slope
    z += calibration.bias
    return _softmax(z)


def _logs(rows: Rows, present: Counts) -> Floats:
    chosen = rows if len(present) == rows.shape[1] else rows[:, present]
    # Rows may come in single precision, in which they are stored.
    logs = np.maximum(chosen, LEAST_PROBABILITY, dtype=np.float64)
    return np.log(logs, out=logs)


def _softmax(z: Floats) -> Floats:
    """In place."""
    z -= z.max(axis=1, keepdims=True)
    np.exp(z, out=z)
    z /= z.sum(axis=1, keepdims=True)
    return z


class _Problem:
    """The convex function that `fit` minimises; its parameters are one flat array.

    They are counted from the start, each in the unit that makes the function equally curved there:
    without that, logs of tiny probabilities take three times as many steps.
    """

    def __init__(self, x: Floats, truth: Counts, centre: Floats, *, full: bool) -> None:
        self._x = x
        self._truth = truth
        self._k = x.shape[1]
        self._full = full
        slope = np.eye(self._k) if full else np.ones(self._k)
        self.start = np.concatenate([slope.ravel(), centre])
        pull = np.ones(slope.shape)
        if full:
            # An entry that never varies has nothing to say, and is kept from it.
            pull[:] = OFF_DIAGONAL * np.maximum(x.var(axis=0), LEAST_SPREAD)[:, None]
            np.fill_diagonal(pull, 1.0)
        self._pull = np.concatenate([pull.ravel(), np.ones(self._k)])
        self._unit = 1.0 / np.sqrt(self._curvature() + self._pull)

    def at(self, steps: Floats) -> Floats:
        return np.asarray(self.start + self._unit * steps)

    def unpacked(self, theta: Floats) -> tuple[Floats, Floats]:
        slope, bias = theta[: -self._k], theta[-self._k :]
        return (slope.reshape(self._k, self._k) if self._full else slope), bias

    def _scores(self, theta: Floats) -> Floats:
        slope, bias = self.unpacked(theta)
        z = self._x @ slope if self._full else self._x * slope
        z += bias
        return np.asarray(z)

    def _curvature(self) -> Floats:
        """The diagonal of the Hessian of the likelihood at the start."""
        p = _softmax(self._scores(self.start))
        p *= 1.0 - p
        square = self._x**2
        of_slope = square.T @ p if self._full else np.einsum("ij,ij->j", square, p)
        return np.concatenate([of_slope.ravel(), p.sum(axis=0)])

    def loss(self, steps: Floats) -> tuple[float, Floats]:
        theta = self.at(steps)
        z = self._scores(theta)
        z -= z.max(axis=1, keepdims=True)
        records = np.arange(len(z))
        fit_of_truth = z[records, self._truth].sum()
        np.exp(z, out=z)
        total = z.sum(axis=1)
        z /= total[:, None]
        z[records, self._truth] -= 1.0
        of_slope = self._x.T @ z if self._full else np.einsum("ij,ij->j", self._x, z)
        away = theta - self.start
        pulled = self._pull * away
        gradient = np.concatenate([of_slope.ravel(), z.sum(axis=0)]) + pulled
        loss = np.log(total).sum() - fit_of_truth + pulled @ away / 2.0
        return float(loss), gradient * self._unit
