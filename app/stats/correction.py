"""What to do about a label shift: correct the scores, or weigh the training data anew.

Correction by estimated weights has a price, the noise of the estimate, that is paid in full when
nothing shifted. So correct only on evidence of a shift, and even then by a shrunken amount.
"""

from dataclasses import dataclass

import numpy as np

from app.stats.moments import Counts, Floats

# A one-off window is corrected below this p-value; a watched stream when its alarm fires.
GATE = 0.01

# Weighted samples worth less than this part of their size call for a warning.
LEAST_EFFECTIVE = 0.2


@dataclass(frozen=True, slots=True)
class ClassWeights:
    """Weights for each label of a training sample, one on average over its records.

    `n_effective` is how many equally weighted records the weighted sample is worth.
    """

    weights: Floats
    n: int
    n_effective: float

    @property
    def thin(self) -> bool:
        """Whether the weights rest on so few records that retraining will be noisy."""
        return self.n_effective < LEAST_EFFECTIVE * self.n


def corrected(rows: Floats, w: Floats) -> Floats:
    """Softmax rows under the window's label mix: `p(y | x)` proportional to `w_y p(y | x)`.

    The rows must be calibrated to the reference's label mix. Labels of unknown weight (NaN) keep
    weight 1, and a row whose labels all have weight 0 is left as it is.

    >>> corrected(np.array([[0.6, 0.4], [1.0, 0.0]]), np.array([0.0, 2.0])).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    weighted = rows * np.where(np.isnan(w), 1.0, np.maximum(w, 0.0))
    total = weighted.sum(axis=1, keepdims=True)
    return np.asarray(np.where(total > 0.0, weighted / np.where(total > 0.0, total, 1.0), rows))


def class_weights(w: Floats, support: Counts) -> ClassWeights:
    """Weights for retraining on records of which `support[y]` have label y (Algorithm 1, step 4).

    `n_effective = (sum w)^2 / sum w^2` over the records. Labels of unknown weight keep weight 1.

    >>> found = class_weights(np.array([0.5, 3.0]), np.array([80, 20]))
    >>> found.weights.tolist(), round(found.n_effective, 1)
    ([0.5, 3.0], 50.0)
    """
    n = int(support.sum())
    positive = np.where(np.isnan(w), 1.0, np.maximum(w, 0.0))
    total = float(positive @ support)
    if not total:
        return ClassWeights(np.ones(len(w)), n, float(n))
    weights = positive * n / total
    return ClassWeights(weights, n, float(n**2 / (weights**2 @ support)))


def called_for(p_value: float, *, consistent: bool, alarm: bool | None = None) -> bool:
    """Whether to correct at all: on a shift, and only if it is consistent with label shift.

    For a watched stream its `alarm` decides; for a window on its own the `p_value` does.
    """
    return consistent and (p_value < GATE if alarm is None else alarm)


def shrinkage(chi_square: float, k: int) -> float:
    """How much of an estimated change to believe: James and Stein's factor.

    `(1 - (k - 3) / X2)+`, and `(1 - 1 / X2)+` for three labels or fewer: a statistic that is not
    beyond its expectation under no shift says nothing about direction.

    >>> [shrinkage(x, 10) for x in (0.0, 7.0, 14.0, 700.0)]
    [0.0, 0.0, 0.5, 0.99]
    """
    return max(0.0, 1.0 - max(1.0, k - 3.0) / chi_square) if chi_square > 0.0 else 0.0


def shrunken(w: Floats, gamma: float) -> Floats:
    """Weights moved towards one: `1 + gamma (w - 1)`."""
    return 1.0 + gamma * (w - 1.0)
