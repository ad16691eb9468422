"""Whether a reference can tell its labels apart, decided once and frozen with it.

Everything rests on two things: that every label of production is there (assumption A.2 of Lipton,
Wang and Smola, 2018), and that the black box separates them (A.3). Labels with too few records are
left out of estimates. Labels that look alike stay, with intervals as wide as that makes them; how
wide at least is known from the reference alone. The paper's own measure, the smallest singular
value of the confusion matrix, is reported beside that.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from app.stats import bbse, cells, estimator, identification
from app.stats.estimator import Operator
from app.stats.identification import Identification, identify
from app.stats.moments import FULL_OUTER_LABELS, Bools, Counts, Floats
from app.stats.reference import ABSENT_BELOW, Reference, SoftReference

LOW_SUPPORT_BELOW = 30


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


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a reference can and cannot support.

    `recall` is NaN for labels without records, `precision` for labels never predicted, `accuracy`
    without any record. `absent` labels have fewer than 5 records and are left out of every
    estimate (`missing` are those of them with none at all); `low_support` labels have 5 to 29.
    `moments` says which predictions tell more. `identified` says which labels those tell apart.
    `before` is set of a reference that an earlier release diagnosed: its status then, and the
    labels that were merged.
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
    identified: Identification
    status: tuple[str, ...]
    before: "Before | None" = None

    @property
    def spectrum(self) -> Spectrum:
        """Of the moments that tell more."""
        return self.hard if self.soft is None or self.moments == "hard" else self.soft

    @property
    def estimable(self) -> bool:
        """Whether there is anything to estimate: two labels or more, some of which can be known."""
        return self.n > 0 and self.identified.anything


@dataclass(frozen=True, slots=True)
class Before:
    """What an earlier release made of a reference."""

    status: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Records:
    """What the labelled records alone say, at no cost: their shares and rates, and status words."""

    nu: Floats
    recall: Floats
    accuracy: float
    words: tuple[str, ...]


def of_records(reference: Reference) -> Records:
    words = {
        "trivial": reference.k == 1,
        "A2_class_absent": bool((reference.support < ABSENT_BELOW).any()) and reference.k > 1,
        "low_support": bool(_low(reference).any()) and reference.k > 1,
    }
    return Records(
        nu=_ratio(reference.support, reference.n),
        recall=_ratio(np.diag(reference.counts), reference.support),
        accuracy=float(_ratio(np.trace(reference.counts), reference.n)),
        words=tuple(word for word, holds in words.items() if holds),
    )


def _low(reference: Reference) -> Bools:
    few = (reference.support >= ABSENT_BELOW) & (reference.support < LOW_SUPPORT_BELOW)
    return np.asarray(few, dtype=np.bool_)


def diagnose(reference: Reference) -> Diagnosis:
    """What the reference can support, by its softmax rows if it has them.

    >>> from app.stats.reference import from_confusion
    >>> found = diagnose(from_confusion(np.array([[90, 5, 5], [5, 50, 50], [5, 45, 45]])))
    >>> found.status, found.identified.groups
    (('not_identified',), ((1, 2),))
    """
    present = reference.present
    hard, soft = operators(reference)
    best = soft or hard
    identified = identification.nothing(reference.k) if best is None else identify(best)
    facts = of_records(reference)
    words = {
        "weakly_identified": bool(identified.weakly_identified),
        "not_identified": bool(identified.not_identified),
    }
    status = (*facts.words, *(word for word, holds in words.items() if holds))
    if reference.k == 1:
        status = facts.words
    return Diagnosis(
        n=reference.n,
        nu=facts.nu,
        support=reference.support,
        recall=facts.recall,
        precision=_ratio(np.diag(reference.counts), reference.predicted),
        accuracy=facts.accuracy,
        absent=_labels(reference.support < ABSENT_BELOW),
        missing=_labels(reference.support == 0),
        low_support=_labels(_low(reference)),
        hard=_spectrum(reference, present, soft=None),
        soft=None if reference.soft is None else _spectrum(reference, present, reference.soft),
        moments="hard" if reference.table is None else "soft",
        identified=identified,
        status=status or ("ok",),
    )


def operators(reference: Reference) -> tuple[Operator | None, Operator | None]:
    """What estimates of hard predictions use, and of softmax rows; None where nothing can be."""
    present = reference.present
    if len(present) < 2:
        return None, None
    hard = estimator.prepare(cells.of_confusion(reference.counts, present))
    return hard, None if reference.table is None else estimator.prepare(reference.table)


def _spectrum(reference: Reference, present: Counts, soft: SoftReference | None) -> Spectrum:
    """Of `C` and `A` over the labels that are present."""
    if not len(present):
        return Spectrum(0.0, 0.0, np.inf, 0.0, np.inf)
    n_j = reference.support[present]
    A = reference.conditional(soft=soft is not None)[:, present]
    sigma, error = _joint_singular_values(A, n_j, soft, present)
    conditional = _without_rounding(np.asarray(np.linalg.svd(A, compute_uv=False)))
    return Spectrum(
        sigma_min=float(sigma[-1]),
        sigma_min_error=error,
        condition_number=_condition(sigma),
        conditional_sigma_min=float(conditional[-1]),
        conditional_condition_number=_condition(conditional),
    )


def _joint_singular_values(
    A: Floats, n_j: Counts, soft: SoftReference | None, present: Counts
) -> tuple[Floats, float]:
    """The singular values of `C = A diag(nu)`, and the standard error of the smallest.

    With `u, v` its singular vectors, `u' C v` is a mean over the n records of `v_y u.g`.
    """
    n = n_j.sum()
    nu = n_j / n
    U, sigma, Vt = np.linalg.svd(A * nu, full_matrices=False)
    second = _second_moment(U[:, -1], A, n_j, soft, present)
    mean_square = float(second @ (nu * Vt[-1] ** 2))
    return _without_rounding(sigma), float(
        np.sqrt(max(mean_square - float(sigma[-1]) ** 2, 0.0) / n)
    )


def _without_rounding(sigma: Floats) -> Floats:
    """Singular values with zeros for those that are nothing else."""
    return np.where(bbse.is_zero(sigma), 0.0, sigma)


def _second_moment(
    u: Floats, A: Floats, n_j: Counts, soft: SoftReference | None, present: Counts
) -> Floats:
    """`E_j[(u.g)^2]`. Where sums of products were not kept, for many labels, it is a bound:
    `(u.p)^2 <= sum_i p_i u_i^2` for every softmax row by Jensen's inequality.
    """
    if soft is None or len(u) > FULL_OUTER_LABELS:
        return np.asarray(u**2 @ A)
    first, second = np.triu_indices(len(u))
    times = np.where(first == second, 1.0, 2.0)
    return np.asarray((u[first] * u[second] * times) @ (soft.outer[:, present] / n_j))


def _condition(sigma: Floats) -> float:
    return float(sigma[0] / sigma[-1]) if sigma[-1] > 0.0 else np.inf


def _labels(chosen: Bools) -> tuple[int, ...]:
    return tuple(int(j) for j in np.flatnonzero(chosen))


def _ratio(part: Counts, whole: Counts | int) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(part / np.asarray(whole, dtype=np.float64))
