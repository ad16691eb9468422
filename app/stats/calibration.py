"""Softmax rows turned into probabilities that can be believed, with respect to the reference.

Maximum-likelihood estimates of the label mix read a softmax row as `p(label | input)`. Neural
networks rarely give that, and without repair such estimates are worse than inverting a confusion
matrix (Alexandari, Kundaje and Shrikumar, 2020).
"""

from dataclasses import dataclass

import numpy as np
from scipy import optimize

from app.stats.moments import Counts, Floats

# float32 softmax underflows to zero; no classifier is surer than this of a label's absence.
LEAST_PROBABILITY = 1e-12

# The weight, in records, of the wish to leave the rows as they are. It keeps the fit finite when
# a classifier makes no mistake on its reference, and is nothing beside a thousand records.
PRIOR_RECORDS = 1.0


@dataclass(frozen=True, slots=True)
class Calibration:
    """Bias-corrected temperature scaling: `softmax(scale * log p + bias)`, k + 1 numbers.

    `bias` is -inf for labels the reference does not have; their calibrated probability is zero.
    """

    scale: float
    bias: Floats


def fit(rows: Floats, actual: Counts) -> Calibration:
    """The calibration that makes the true labels of a reference most likely.

    It minimises `-sum_i log softmax(a log p_i + b)[y_i]`, a convex function of `(a, b)`, so that
    the calibrated probabilities of a label sum to its number of records. There must be a record.

    >>> rows = np.repeat([[0.9, 0.1], [0.1, 0.9]], 1000, axis=0)
    >>> actual = np.repeat([0, 1, 1, 0], [700, 300, 700, 300])
    >>> fitted = fit(rows, actual)
    >>> calibrated(fitted, rows[:1]).round(2).tolist()
    [[0.7, 0.3]]
    """
    k = rows.shape[1]
    present = np.flatnonzero(np.bincount(actual, minlength=k))
    logs = _logs(rows[:, present])
    truth = np.searchsorted(present, actual)
    start = np.append(1.0, np.zeros(len(present)))
    found = optimize.minimize(
        _loss,
        start,
        args=(logs, truth, start),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 500, "ftol": 1e-13, "gtol": 1e-6},
    )
    bias = np.full(k, -np.inf)
    bias[present] = found.x[1:]
    return Calibration(float(found.x[0]), bias)


def calibrated(calibration: Calibration, rows: Floats) -> Floats:
    """`softmax(scale * log p + bias)` of every row `p`.

    >>> calibrated(Calibration(1.0, np.log([1.0, 3.0])), np.array([[0.5, 0.5]])).tolist()
    [[0.25, 0.75]]
    """
    z = calibration.scale * _logs(rows) + calibration.bias
    z -= z.max(axis=1, keepdims=True)
    np.exp(z, out=z)
    return np.asarray(z / z.sum(axis=1, keepdims=True))


def _logs(rows: Floats) -> Floats:
    return np.asarray(np.log(np.maximum(rows, LEAST_PROBABILITY)), dtype=np.float64)


def _loss(theta: Floats, logs: Floats, truth: Counts, start: Floats) -> tuple[float, Floats]:
    """Negative log-likelihood plus the pull towards `start`, and the gradient of both."""
    z = theta[0] * logs + theta[1:]
    z -= z.max(axis=1, keepdims=True)
    records = np.arange(len(z))
    fit_of_truth = z[records, truth].sum()
    np.exp(z, out=z)
    total = z.sum(axis=1)
    z /= total[:, None]
    z[records, truth] -= 1.0
    away = theta - start
    loss = np.log(total).sum() - fit_of_truth + PRIOR_RECORDS * (away @ away) / 2.0
    gradient = np.append(np.einsum("ij,ij->", z, logs), z.sum(axis=0)) + PRIOR_RECORDS * away
    return float(loss), gradient
