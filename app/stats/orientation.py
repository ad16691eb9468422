"""Does a confusion matrix stand the wrong way round?

One that was sent with rows and columns exchanged passes every check of its own: its row sums are
taken for predictions and its column sums for true labels. But a classifier that predicts some label
too often makes the two differ, and an earlier sample shows in which direction.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import xlogy

from app.stats.moments import Counts

# Transposed, the distance must be at most this part of the distance as given. Between two samples
# of one classifier, both the right way round, it cannot be: let their label mixes differ by `u`,
# and let `A` be the conditional confusion matrix and `a` its least recall. As given the distance is
# `|u| + |A u| <= 2 |u|`, and transposed at least `|u + A u| >= 2 a |u|`, whatever the bias. So with
# recalls above one half, only sampling error or another classifier raises a suspicion.
CLOSER = 0.5
# Twice the difference of the log likelihoods: 20 is odds of 22,000 to one, which a few records
# never give.
LEAST_GAIN = 20.0


@dataclass(frozen=True, slots=True)
class Mixes:
    """Counts by label of a sample: of its true labels, where they are known, and of predictions."""

    predicted: Counts
    actual: Counts | None = None


def transposed_suspected(
    confusion: Counts, earlier: Sequence[Mixes], traffic: Mixes | None = None
) -> bool:
    """Whether a matrix (rows predicted) fits earlier samples clearly better when transposed.

    Some earlier sample must say so, and neither another one nor the predictions of late may clearly
    say the opposite. Predictions alone are not enough: their mix changes.

    >>> before = np.array([[880, 10], [20, 90]])
    >>> known = [Mixes(before.sum(axis=1), before.sum(axis=0))]
    >>> after = np.array([[8800, 100], [500, 600]])
    >>> transposed_suspected(after, known), transposed_suspected(after.T, known)
    (False, False)
    >>> biased = np.array([[8500, 30], [1000, 470]])
    >>> known = [Mixes(biased.sum(axis=1), biased.sum(axis=0))]
    >>> transposed_suspected(biased, known), transposed_suspected(biased.T, known)
    (False, True)
    """
    found = {_better(confusion, one) for one in earlier}
    against = set() if traffic is None else {_better(confusion, traffic)}
    return 1 in found and -1 not in found | against


def _better(confusion: Counts, known: Mixes) -> int:
    """1 if a matrix fits what is known clearly better transposed, -1 if as it is, else 0."""
    given = Mixes(confusion.sum(axis=1), confusion.sum(axis=0))
    turned = Mixes(confusion.sum(axis=0), confusion.sum(axis=1))
    distance, misfit = _apart(given, known)
    distance_turned, misfit_turned = _apart(turned, known)
    if misfit - misfit_turned >= LEAST_GAIN and distance_turned <= CLOSER * distance:
        return 1
    if misfit_turned - misfit >= LEAST_GAIN and distance <= CLOSER * distance_turned:
        return -1
    return 0


def _apart(one: Mixes, known: Mixes) -> tuple[float, float]:
    """The distance of shares, and the likelihood-ratio statistic of their being equal."""
    pairs = [(one.predicted, known.predicted)]
    if one.actual is not None and known.actual is not None:
        pairs.append((one.actual, known.actual))
    distances = (float(np.abs(a / a.sum() - b / b.sum()).sum()) for a, b in pairs)
    return sum(distances), sum(_misfit(a, b) for a, b in pairs)


def _misfit(one: Counts, other: Counts) -> float:
    apart = _log_likelihood(one) + _log_likelihood(other)
    return 2.0 * (apart - _log_likelihood(one + other))


def _log_likelihood(counts: Counts) -> float:
    """Of a multinomial sample under its own shares."""
    return float(xlogy(counts, counts / counts.sum()).sum())
