"""Everything one window says, in one call: what the API's estimate is made of.

`basis` does what depends on the reference only, once; `analyse` is then quick, and its cost does
not depend on how many predictions the window holds.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.special import ndtri

from app.stats import accuracy as accuracies
from app.stats import assumption as assumptions
from app.stats import bbsd, bbse, combined, diagnosis, intervals
from app.stats.accuracy import Accuracy, Rates
from app.stats.assumption import Assumption
from app.stats.bbsd import Evidence
from app.stats.bbse import Estimate, Prepared
from app.stats.diagnosis import Diagnosis
from app.stats.moments import Bools, Floats, Sums
from app.stats.reference import Reference

ENOUGH = 50

# A raw share this improbably far below zero, all labels considered, cannot be noise: three
# standard errors for a single label.
IMPLAUSIBLE = 0.00135

Method = Literal["bbse-hard", "bbse-soft"]


@dataclass(frozen=True, slots=True)
class Basis:
    """A reference prepared for windows of hard predictions, and of softmax rows if it has them.

    `check` is what the test of the assumption needs of it, `overall` its sums over all labels.
    """

    hard: Prepared
    soft: Prepared | None
    check: assumptions.Check
    overall: Sums

    def for_window(self, sums: Sums) -> Prepared:
        return self.hard if sums.soft is None or self.soft is None else self.soft


@dataclass(frozen=True, slots=True)
class Labels:
    """Per label of the model: NaN where a number cannot be known.

    `p` is the reference's mix and `predicted` the share of predictions. `q` is the estimated mix,
    `raw` the same before it was put on the simplex, `w = q / p`. Intervals are for one label at a
    time; `moved` says whose weight differs from 1 with all labels considered together. Labels
    merged into a group share its estimate as in the reference and are only known to lie between
    none and all of it.
    """

    p: Floats
    predicted: Floats
    q: Floats
    q_lower: Floats
    q_upper: Floats
    w: Floats
    w_lower: Floats
    w_upper: Floats
    raw: Floats
    moved: Bools
    recall: Rates
    precision: Rates | None


@dataclass(frozen=True, slots=True)
class Group:
    """Labels that can only be estimated together, and their joint share of the window.

    `bias` is the most that a changed mix inside the group can move the mean prediction.
    """

    labels: tuple[int, ...]
    q: float
    lower: float
    upper: float
    bias: float


@dataclass(frozen=True, slots=True)
class Analysis:
    """One window against its reference. Without predictions all but the status is None.

    `reference_share` is the part of the estimate's variance that more predictions cannot remove,
    `guaranteed_error` the worst-case bound on the weights (None where there is no finite one).
    """

    n: int
    status: tuple[str, ...]
    method: Method
    labels: Labels | None = None
    groups: tuple[Group, ...] = ()
    tests: tuple[Evidence, ...] = ()
    total_variation: float | None = None
    accuracy: Accuracy | None = None
    assumption: Assumption | None = None
    reference_share: float | None = None
    guaranteed_error: float | None = None


def basis(reference: Reference, decided: Diagnosis | None = None) -> Basis:
    """What depends on the reference only: two decompositions and two inverses.

    `decided` is the diagnosis that was made when the reference came in; what was merged then stays
    merged, so that series keep their meaning.
    """
    counts = Reference(reference.counts)
    own = decided if decided is not None and reference.soft is None else diagnosis.diagnose(counts)
    hard = bbse.prepare(counts, own)
    if reference.soft is None:
        check = assumptions.prepare(counts, hard.diagnosis)
        return Basis(hard, None, check, combined.overall(counts))
    found = decided or diagnosis.diagnose(reference)
    soft = bbse.prepare(reference, found) if found.moments == "soft" else None
    return Basis(hard, soft, assumptions.prepare(reference, found), combined.overall(reference))


def analyse(
    on: Basis, sums: Sums, *, level: float = 0.95, phi: float = 1.0, seed: int | None = None
) -> Analysis:
    """The analysis of one window; `seed` makes small windows' resampled p-values repeatable.

    >>> from app.stats import reference
    >>> on = basis(reference.from_confusion(np.array([[900, 200], [100, 800]])))
    >>> found = analyse(on, Sums(np.array([270, 730])))
    >>> found.labels.q.round(6).tolist(), round(found.accuracy.estimate, 6), found.status
    ([0.1, 0.9], 0.81, ('ok', 'assumption_untestable_hard_only'))
    """
    prepared = on.for_window(sums)
    method: Method = "bbse-soft" if prepared.soft else "bbse-hard"
    if not sums.n:
        return Analysis(0, ("no_data", *prepared.diagnosis.status), method)
    estimate = bbse.estimate(prepared, sums, phi)
    tests = _tests(on, sums, phi, seed)
    known = estimate if prepared.estimates_like(on.check.hard) else None
    assumption = assumptions.assess(on.check, sums, phi=phi, known=known)
    if estimate.fallback:
        return Analysis(
            n=sums.n,
            status=_status(prepared, sums, assumption, degenerate_w1=True),
            method=method,
            labels=_not_estimated(prepared, estimate, sums),
            tests=tests,
            assumption=assumption,
        )
    noise = intervals.noise(prepared, estimate, sums, phi)
    of_q = intervals.score(prepared, estimate, sums, level=level, phi=phi)
    return Analysis(
        n=sums.n,
        status=_status(
            prepared,
            sums,
            assumption,
            interval_vacuous=bool(of_q.vacuous.any()),
            A1_or_A2_violated=_implausible(estimate, noise),
        ),
        method=method,
        labels=_labels(prepared, estimate, sums, of_q, level, phi),
        groups=_groups(prepared, estimate, of_q),
        tests=tests,
        total_variation=bbsd.total_variation(prepared.nu, estimate.q),
        accuracy=accuracies.accuracy(prepared, estimate, sums, level=level, phi=phi),
        assumption=assumption,
        reference_share=noise.reference_share,
        guaranteed_error=_guaranteed_error(prepared, estimate, sums.n / phi, level),
    )


def widened(found: Analysis, recent: Analysis) -> Analysis:
    """The analysis of an adaptive window, its intervals reaching over those of its newest quarter.

    A drift too small or too slow to shorten the window would otherwise leave the moving label's
    interval behind.
    """
    if found.labels is None or recent.labels is None:
        return found
    own, new = found.labels, recent.labels
    labels = replace(
        own,
        q_lower=np.fmin(own.q_lower, new.q_lower),
        q_upper=np.fmax(own.q_upper, new.q_upper),
        w_lower=np.fmin(own.w_lower, new.w_lower),
        w_upper=np.fmax(own.w_upper, new.w_upper),
    )
    groups = tuple(
        replace(one, lower=min(one.lower, other.lower), upper=max(one.upper, other.upper))
        for one, other in zip(found.groups, recent.groups, strict=True)
    )
    return replace(found, labels=labels, groups=groups)


def _labels(
    prepared: Prepared,
    estimate: Estimate,
    sums: Sums,
    of_q: intervals.Intervals,
    level: float,
    phi: float,
) -> Labels:
    of_w = intervals.weights(prepared, estimate, of_q)
    alone = np.array([len(column) == 1 for column in prepared.columns])
    return Labels(
        p=prepared.diagnosis.nu,
        predicted=sums.counts / sums.n,
        q=prepared.spread(estimate.q),
        q_lower=prepared.repeat(np.where(alone, of_q.lower, 0.0)),
        q_upper=prepared.repeat(of_q.upper),
        w=prepared.repeat(estimate.w),
        w_lower=prepared.repeat(np.where(alone, of_w.lower, 0.0)),
        w_upper=_upper_weights(prepared, of_q.upper),
        raw=prepared.spread(estimate.raw),
        moved=_moved(prepared, estimate, sums, level, phi),
        recall=accuracies.recall(prepared, level=level),
        precision=accuracies.precision(prepared, estimate, sums, level=level, phi=phi),
    )


def _not_estimated(prepared: Prepared, estimate: Estimate, sums: Sums) -> Labels:
    """Algorithm 1's answer to a reference that separates nothing: `w = 1`, and no intervals."""
    unknown = np.full(prepared.k, np.nan)
    return Labels(
        p=prepared.diagnosis.nu,
        predicted=sums.counts / sums.n,
        q=prepared.spread(estimate.q),
        q_lower=unknown,
        q_upper=unknown,
        w=prepared.repeat(estimate.w),
        w_lower=unknown,
        w_upper=unknown,
        raw=unknown,
        moved=np.zeros(prepared.k, dtype=np.bool_),
        recall=accuracies.recall(prepared),
        precision=None,
    )


def _groups(prepared: Prepared, estimate: Estimate, of_q: intervals.Intervals) -> tuple[Group, ...]:
    if not prepared.diagnosis.groups:
        return ()
    per_column = zip(
        prepared.columns,
        estimate.q.tolist(),
        of_q.lower.tolist(),
        of_q.upper.tolist(),
        intervals.merge_bias(prepared, estimate).tolist(),
        strict=True,
    )
    return tuple(Group(*row) for row in per_column if len(row[0]) > 1)


def _upper_weights(prepared: Prepared, upper: Floats) -> Floats:
    """A label may hold all of its group, which is more than the group's weight on its share."""
    share = np.where(prepared.owner >= 0, prepared.share, np.nan)
    return np.asarray(prepared.repeat(upper / prepared.nu) / share)


def _moved(prepared: Prepared, estimate: Estimate, sums: Sums, level: float, phi: float) -> Bools:
    of_q = intervals.score(prepared, estimate, sums, level=level, simultaneous=True, phi=phi)
    joint = 1.0 - (1.0 - level) / len(prepared.nu)
    of_w = intervals.weights(prepared, estimate, of_q, population=True, level=joint)
    outside = (of_w.lower > 1.0) | (of_w.upper < 1.0)
    return np.append(outside, False)[prepared.owner]


def _implausible(estimate: Estimate, noise: intervals.Noise) -> bool:
    lowest = float((estimate.raw / np.sqrt(noise.total)).min())
    return lowest < float(ndtri(IMPLAUSIBLE / len(estimate.raw)))


def _guaranteed_error(
    prepared: Prepared, estimate: Estimate, m: float, level: float
) -> float | None:
    """The worst-case bound on the weights; None where it is infinite or labels were merged."""
    spectrum = prepared.diagnosis.soft if prepared.soft else prepared.diagnosis.hard
    if spectrum is None or prepared.diagnosis.groups:
        return None
    bound = intervals.guaranteed_error(
        spectrum.sigma_min, estimate.raw / prepared.nu, prepared.n, m, level=level
    )
    return bound if np.isfinite(bound) else None


def _tests(on: Basis, sums: Sums, phi: float, seed: int | None) -> tuple[Evidence, ...]:
    reference = on.overall.counts
    on_labels = (
        bbsd.chi_square(reference, sums.counts, phi=phi, seed=seed),
        bbsd.ks_labels(reference, sums.counts),
    )
    if sums.soft is None or on.overall.soft is None:
        return on_labels
    return (combined.combined(on.overall, sums, phi=phi, seed=seed), *on_labels)


def _status(
    prepared: Prepared, sums: Sums, assumption: Assumption, **found: bool
) -> tuple[str, ...]:
    """The words for this window, then the reference's, then the assumption's, each once."""
    found = {
        "insufficient_data": sums.n < ENOUGH,
        "unseen_prediction": bool(assumption.unseen),
        **found,
    }
    words = [word for word, holds in found.items() if holds]
    return tuple(dict.fromkeys((*words, *prepared.diagnosis.status, *assumption.status)))
