"""Bias-corrected temperature scaling of softmax rows (Alexandari, Kundaje and Shrikumar, 2020).

What the literature calibrates rows by before it maximises their likelihood. The service itself uses
`app.stats.calibration`.
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
class Scaling:
    """`softmax(scale * log p + bias)`, k + 1 numbers.

    `bias` is -inf for labels the reference does not have; their calibrated probability is zero.
    """

    scale: float
    bias: Floats


def as_they_are(k: int) -> Scaling:
    """No calibration at all."""
    return Scaling(1.0, np.zeros(k))


def fit(rows: Floats, actual: Counts) -> Scaling:
    """The scaling that makes the true labels of a reference most likely.

    It minimises `-sum_i log softmax(a log p_i + b)[y_i]`, a convex function of `(a, b)`, so that
    the calibrated probabilities of a label sum to its number of records. There must be a record.
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
    return Scaling(float(found.x[0]), bias)


def scaled(scaling: Scaling, rows: Floats) -> Floats:
    """Every row, calibrated."""
    z = scaling.scale * _logs(rows) + scaling.bias
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
