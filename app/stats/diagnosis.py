"""Whether a reference can tell its labels apart, decided once and frozen with it.

Black-box estimation inverts the confusion matrix, so everything downstream rests on its smallest
singular value (assumption A.3 of Lipton, Wang and Smola, 2018) and on every label being there
(A.2). What cannot be told apart is merged; what is not there is left out and said so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from app.stats import reference as references
from app.stats.moments import Bools, Counts, Floats
from app.stats.reference import Conditionals, Reference

Columns = tuple[tuple[int, ...], ...]

# Fewer records than this and a column of the confusion matrix is hearsay: the label is left out.
ABSENT_BELOW = 5
LOW_SUPPORT_BELOW = 30

# A direction of the confusion matrix must stand out of its own sampling error by this factor.
# The relative error of w along it is the inverse: beyond 1/5 the delta method, and with it every
# interval, stops being trustworthy. At 3 the warning comes too late (the design study, section a).
ERRORS_NEEDED = 5.0


@dataclass(frozen=True, slots=True)
class Spectrum:
    """How well one moment map separates the labels: singular values of `C` and of `A`.

    `sigma_min` and `condition_number` are the paper's, of the joint matrix `C`; `sigma_min` is at
    most the rarest label's share, however good the classifier. The conditional ones, of `A`, do
    not depend on prevalence. `sigma_min_error` is the standard error of `sigma_min`. A condition
    number is infinite where the smallest singular value is zero.
    """

    sigma_min: float
    sigma_min_error: float
    condition_number: float
    conditional_sigma_min: float
    conditional_condition_number: float
    degenerate: bool


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a reference can and cannot support.

    `recall` is NaN for labels without records, `precision` for labels never predicted, `accuracy`
    without any record. `absent` labels have fewer than 5 records and are left out of every
    estimate (`missing` are those of them with none at all); `low_support` labels have 5 to 29.
    `moments` says which moment map estimates use. `columns` are what can be estimated, in label
    order: single labels and groups that can only be estimated together (also in `groups`).
    """

    n: int
    nu: Floats
    support: Counts
    recall: Floats
    precision: Floats
    accuracy: float
    absent: tuple[int, ...]
    missing: tuple[int, ...]
    low_support: tuple[int, ...]
    hard: Spectrum
    soft: Spectrum | None
    moments: Literal["hard", "soft"]
    columns: Columns
    status: tuple[str, ...]

    @property
    def groups(self) -> Columns:
        """Labels merged because they cannot be told apart: the columns of two labels or more."""
        return tuple(column for column in self.columns if len(column) > 1)

    @property
    def estimable(self) -> bool:
        """Whether there is anything to estimate: at least two columns that differ."""
        return len(self.columns) > 1


def diagnose(reference: Reference, delta: float = 0.0) -> Diagnosis:
    """What the reference can support; soft moments are preferred where they are sound.

    `delta` is the paper's threshold on `sigma_min` (Algorithm 1): an override, since no fixed
    value suits every number of labels.

    >>> confusion = np.array([[90, 5, 5], [5, 50, 50], [5, 45, 45]])
    >>> found = diagnose(references.from_confusion(confusion))
    >>> found.status, found.groups
    (('merged',), ((1, 2),))
    """
    present = tuple((int(j),) for j in np.flatnonzero(reference.support >= ABSENT_BELOW))
    hard = _spectrum(reference, present, delta, soft=False)
    soft = _spectrum(reference, present, delta, soft=True) if reference.soft else None
    moments: Literal["hard", "soft"] = _moments(hard, soft)
    columns, word = _columns(reference, present, delta, hard, soft)
    low = (reference.support >= ABSENT_BELOW) & (reference.support < LOW_SUPPORT_BELOW)
    absent = _labels(reference.support < ABSENT_BELOW)
    return Diagnosis(
        n=reference.n,
        nu=_ratio(reference.support, reference.n),
        support=reference.support,
        recall=_ratio(np.diag(reference.counts), reference.support),
        precision=_ratio(np.diag(reference.counts), reference.predicted),
        accuracy=float(_ratio(np.trace(reference.counts), reference.n)),
        absent=absent,
        missing=_labels(reference.support == 0),
        low_support=_labels(low),
        hard=hard,
        soft=soft,
        moments=moments,
        columns=columns,
        status=(
            word,
            *(["A2_class_absent"] if absent else []),
            *(["low_support"] if low.any() else []),
        ),
    )


def _moments(hard: Spectrum, soft: Spectrum | None) -> Literal["hard", "soft"]:
    if soft is None or (soft.degenerate and not hard.degenerate):
        return "hard"
    return "soft"


def _columns(
    reference: Reference, present: Columns, delta: float, hard: Spectrum, soft: Spectrum | None
) -> tuple[Columns, str]:
    """What can be estimated, and the status word that says how it came about."""
    if reference.k == 1:
        return present, "trivial"
    if len(present) < 2:
        return present, "degenerate_w1"
    if not hard.degenerate:
        return present, "ok"
    if soft is not None and not soft.degenerate:
        return present, "ok_soft_fallback"
    columns = _merge(reference, present, delta, soft=soft is not None)
    return columns, "merged" if len(columns) > 1 else "degenerate_w1"


def _spectrum(reference: Reference, columns: Columns, delta: float, *, soft: bool) -> Spectrum:
    if not columns:
        return Spectrum(0.0, 0.0, np.inf, 0.0, np.inf, degenerate=True)
    given = references.conditionals(reference, columns, soft=soft)
    sigma, error = _joint_singular_values(given)
    conditional = np.asarray(np.linalg.svd(given.A, compute_uv=False), dtype=np.float64)
    return Spectrum(
        sigma_min=float(sigma[-1]),
        sigma_min_error=error,
        condition_number=_condition(sigma),
        conditional_sigma_min=float(conditional[-1]),
        conditional_condition_number=_condition(conditional),
        degenerate=_weak_directions(given, delta).shape[1] > 0,
    )


def _joint_singular_values(given: Conditionals) -> tuple[Floats, float]:
    """The singular values of `C = A diag(nu)`, and the standard error of the smallest.

    With `u, v` its singular vectors, `u' C v` is a mean over the n records of `v_y u.g`.
    """
    n = given.n_j.sum()
    nu = given.n_j / n
    U, sigma, Vt = np.linalg.svd(given.A * nu, full_matrices=False)
    mean_square = float(given.second_moment(U[:, -1:].T)[0] @ (nu * Vt[-1] ** 2))
    return sigma, float(np.sqrt(max(mean_square - float(sigma[-1]) ** 2, 0.0) / n))


def _weak_directions(given: Conditionals, delta: float) -> Floats:
    """Changes of `q` (columns of the answer) that the reference cannot tell from no change.

    They are sought in `B = A diag(sqrt(nu))`, whose columns are about equally noisy however rare
    the labels, with the label counts held fixed: a rare label that is never confused has a small
    and noisy `sigma_min(C)`, yet is perfectly estimable. A singular value of B must exceed five
    standard errors of its own, and what noise alone makes of an empty matrix (Weyl's inequality),
    which grows with the number of labels. `sigma_min(C)` must exceed `delta`.
    """
    n = given.n_j.sum()
    root = np.sqrt(given.n_j / n)
    U, sigma, Vt = np.linalg.svd(given.A * root, full_matrices=False)
    error = np.sqrt((given.variance(U.T) * Vt**2).sum(axis=1) / n)
    weak = sigma <= np.maximum(ERRORS_NEEDED * error, max(_noise_norm(given), 1.0 / n))
    if delta > 0.0:
        weak[-1] |= np.linalg.svd(given.A * root**2, compute_uv=False)[-1] <= delta
    return np.asarray(root[:, None] * Vt[weak].T)


def _noise_norm(given: Conditionals) -> float:
    """About the largest singular value that sampling noise has in `A diag(sqrt(nu))`.

    A random matrix with independent columns has a norm near the largest column's plus the
    largest row's standard deviation.
    """
    spread = given.entry_variance() / given.n_j.sum()
    return float(np.sqrt(spread.sum(axis=0).max()) + np.sqrt(spread.sum(axis=1).max()))


def _merge(reference: Reference, columns: Columns, delta: float, *, soft: bool) -> Columns:
    """Columns merged until no direction is weak, or one column is left."""
    while len(columns) > 1:
        given = references.conditionals(reference, columns, soft=soft)
        weak = _weak_directions(given, delta)
        if not weak.shape[1]:
            break
        columns = _united(columns, _pairs(given.A, weak))
    return columns


def _pairs(A: Floats, weak: Floats) -> list[tuple[int, int]]:
    """The columns to merge next: those that trade off against each other most.

    Along a weak direction x the estimate can slide unnoticed, so columns that x pushes opposite
    ways are confused. Summing `x_a x_b` over all weak directions does not depend on the basis
    chosen in their span. Each column is paired with its strongest trade-off; of these pairs the
    strongest are taken, none faint beside the first, and no more than there are weak directions.
    Pairs overlap only where most directions are weak: merging a crowd pair by pair takes for ever.
    """
    trade = weak @ weak.T
    heaviest = int(np.diag(trade).argmax())
    np.fill_diagonal(trade, np.inf)
    if trade.min() >= 0.0:
        return [(heaviest, _closest(A, heaviest))]
    partner, strength = trade.argmin(axis=1), trade.min(axis=1)
    pairs = {
        (min(a, b), max(a, b)): strength[a]
        for a, b in enumerate(partner.tolist())
        if strength[a] <= trade.min() / 4.0
    }
    chosen = sorted(pairs, key=lambda pair: (pairs[pair], pair))
    if 2 * weak.shape[1] <= len(trade):
        chosen = _disjoint(chosen)
    return chosen[: weak.shape[1]]


def _disjoint(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    taken: set[int] = set()
    disjoint = []
    for pair in pairs:
        if taken.isdisjoint(pair):
            taken.update(pair)
            disjoint.append(pair)
    return disjoint


def _closest(A: Floats, column: int) -> int:
    distance = np.abs(A - A[:, [column]]).sum(axis=0)
    distance[column] = np.inf
    return int(distance.argmin())


def _united(columns: Columns, pairs: Sequence[tuple[int, int]]) -> Columns:
    """The columns after merging each pair; pairs that share a column make one group."""
    first, second = np.array(pairs).T
    graph = coo_array((np.ones(len(pairs)), (first, second)), shape=(len(columns), len(columns)))
    groups: dict[int, list[int]] = {}
    for group, column in zip(connected_components(graph)[1].tolist(), columns, strict=True):
        groups.setdefault(group, []).extend(column)
    return tuple(sorted(tuple(sorted(group)) for group in groups.values()))


def _condition(sigma: Floats) -> float:
    return float(sigma[0] / sigma[-1]) if sigma[-1] > 0.0 else np.inf


def _labels(chosen: Bools) -> tuple[int, ...]:
    return tuple(int(j) for j in np.flatnonzero(chosen))


def _ratio(part: Counts, whole: Counts | int) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(part / np.asarray(whole, dtype=np.float64))
