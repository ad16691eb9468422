"""Simple estimates in a few lines: a check on other people's code, and what no estimate beats."""

import numpy as np
from scipy.optimize import nnls

from app.stats.moments import Counts, Floats
from bench.peers.drawing import Draw

TRUTH, SOFT, HARD = "true labels", "LS soft", "LS hard"

# The shares' sum is one more equation; with this weight it holds to eight digits.
HEAVY = 1e4


def estimates(draw: Draw) -> dict[str, Floats]:
    """One row for each window."""
    k = draw.reference.rows.shape[1]
    windows = [window.outputs for window in draw.windows]
    soft, hard = (_conditional(draw, means) for means in (draw.reference.rows, _one_hot(draw)))
    return {
        TRUTH: np.stack([_shares(window.labels, k) for window in windows]),
        SOFT: np.stack([least_squares(soft, window.rows.mean(axis=0)) for window in windows]),
        HARD: np.stack([least_squares(hard, _shares(window.predicted, k)) for window in windows]),
    }


def least_squares(conditional: Floats, mean: Floats) -> Floats:
    """The mix on the simplex under which predictions would be nearest to their `mean`.

    >>> least_squares(np.array([[0.9, 0.2], [0.1, 0.8]]), np.array([0.27, 0.73])).round(6).tolist()
    [0.1, 0.9]
    """
    system = np.vstack([conditional, np.full(conditional.shape[1], HEAVY)])
    q, _ = nnls(system, np.append(mean, HEAVY))
    return np.asarray(q / q.sum())


def _conditional(draw: Draw, outputs: Floats) -> Floats:
    """Mean outputs given each true label, which is the column."""
    labels = draw.reference.labels
    each = [outputs[labels == label].mean(axis=0) for label in range(outputs.shape[1])]
    return np.stack(each, axis=1)


def _one_hot(draw: Draw) -> Floats:
    return np.asarray(np.eye(draw.reference.rows.shape[1])[draw.reference.predicted])


def _shares(labels: Counts, k: int) -> Floats:
    return np.bincount(labels, minlength=k) / len(labels)
