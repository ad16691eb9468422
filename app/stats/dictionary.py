"""Bets that one true label becomes more or less frequent while the classifier stays as it is.

Growing label `j` of the mix `nu` to `q = (1-e) nu + e e_j` multiplies the share of prediction `i`
by `(A q)_i / (A nu)_i = 1 + e tilt[i, j]` with `tilt[i, j] = p(i | true j) / p(i) - 1`. Shrinking
it by the factor `1-d` walks the same line backwards, `e = -d nu_j / (1 - d nu_j)`.
"""

from dataclasses import dataclass

import numpy as np

from app.stats.moments import Counts, Floats
from app.stats.reference import Reference

GROWN_BY = (0.03, 0.08, 0.2, 0.4)
SHRUNK_BY = (0.5, 0.9)


@dataclass(frozen=True, slots=True)
class Dictionary:
    """One bet for each row of `strides` (how far) and each of `labels` (where to).

    `labels` are the true labels that the reference has seen, the columns of `tilt`.
    """

    labels: Counts
    tilt: Floats
    strides: Floats

    @property
    def size(self) -> int:
        return int(self.strides.shape[-2] * self.strides.shape[-1])


def dictionary(reference: Reference) -> Dictionary:
    """The bets on each label of a reference.

    >>> from app.stats.reference import from_confusion
    >>> dictionary(from_confusion(np.array([[9, 1], [1, 9]]))).tilt.round(9).tolist()
    [[0.8, -0.8], [-0.8, 0.8]]
    """
    labels = np.flatnonzero(reference.support)
    nu = reference.nu[labels]
    grow = np.outer(GROWN_BY, np.ones(len(labels)))
    shrink = np.stack([-d * nu / (1.0 - d * nu) for d in SHRUNK_BY])
    return Dictionary(labels, _tilt(reference, labels), np.concatenate([grow, shrink]))


def log_tilted(tilt: Floats, strides: Floats, counts: Floats) -> Floats:
    """`sum_i c_i log(1 + stride tilt[i, j])` for each stride (last but one axis) and label.

    Computed from the predictions that occur, so that it stays cheap for many labels.
    """
    drawn = counts.reshape(-1, counts.shape[-1]).any(axis=0)
    tilt, c = tilt[..., drawn, :], counts[..., None, drawn]
    each = np.moveaxis(strides, -2, 0)[..., None, :]
    return np.concatenate([c @ np.log1p(stride * tilt) for stride in each], axis=-2)


def moved_label(bets: Dictionary, bet: int) -> int | None:
    """The true label that a detector's bet is about; none for an adaptive one."""
    return int(bets.labels[bet % len(bets.labels)]) if bet < bets.size else None


def _tilt(reference: Reference, labels: Counts) -> Floats:
    # A prediction that the reference never saw has no known tilt: bets leave it alone.
    seen = reference.predicted > 0
    tilt = np.zeros((reference.k, len(labels)))
    conditional = reference.counts[:, labels] / reference.support[labels]
    share = reference.predicted[seen] / reference.n
    tilt[seen] = conditional[seen] / share[:, None] - 1.0
    return tilt
