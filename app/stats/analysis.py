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
from app.stats import bbsd, bbse, cells, combined, diagnosis, estimator, identification, intervals
from app.stats.accuracy import Accuracy, Rates
from app.stats.assumption import Assumption
from app.stats.bbsd import Evidence
from app.stats.bbse import Paper, PaperEstimate
from app.stats.estimator import Estimate, Operator
from app.stats.identification import Identification
from app.stats.intervals import Design
from app.stats.moments import Bools, Counts, Floats, Sums
from app.stats.reference import ABSENT_BELOW, Reference

ENOUGH = 50

# A raw share this improbably far below zero, all labels considered, cannot be noise: three
# standard errors for a single label.
IMPLAUSIBLE = 0.00135

Method = Literal["bbse-cells", "bbse-hard", "bbse-soft"]
# The share that an estimate gives: the default's, or the paper's.
Estimator = Literal["default", "bbse-hard", "bbse-soft"]


@dataclass(frozen=True, slots=True)
class Solver:
    """What estimates use of a reference, for one kind of prediction.

    `operator` is None where fewer than two labels can be told apart.
    """

    operator: Operator | None
    identified: Identification
    paper: Paper


@dataclass(frozen=True, slots=True)
class Basis:
    """A reference prepared for windows of hard predictions, and of softmax rows if it has them.

    `support` and `nu` are the labels' records and shares, `accuracy` how often predictions were
    right. `check` is what the test of the assumption needs, `overall` the sums over all labels.
    """

    support: Counts
    nu: Floats
    recall: Floats
    accuracy: float
    words: tuple[str, ...]
    hard: Solver
    soft: Solver | None
    check: assumptions.Check
    overall: Sums

    @property
    def k(self) -> int:
        return len(self.nu)

    @property
    def few_records(self) -> tuple[int, ...]:
        """Labels that are estimated from few records."""
        few = (self.support >= ABSENT_BELOW) & (self.support < diagnosis.LOW_SUPPORT_BELOW)
        return tuple(np.flatnonzero(few).tolist())

    def for_window(self, sums: Sums) -> Solver:
        """What to estimate a window with: by codes if it and the reference have them."""
        return self.soft if self.soft is not None and has_codes(sums) else self.hard

    def paper(self, sums: Sums, wanted: Estimator) -> Paper:
        """The paper's solution to show for a window: soft, if that is possible and wanted."""
        if self.soft is None or sums.soft is None or wanted == "bbse-hard":
            return self.hard.paper
        return self.soft.paper


@dataclass(frozen=True, slots=True)
class Labels:
    """Per label of the model: NaN where a number cannot be known.

    `p` is the reference's mix and `predicted` the share of predictions. `q` is the estimated mix,
    `raw` the same before it was put on the simplex, `w = q / p`. Intervals are for one label at a
    time; `moved` says whose weight differs from 1 with all labels considered together.
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
    precision: Rates


@dataclass(frozen=True, slots=True)
class Group:
    """Labels that look alike, and their share of the window together, which is known."""

    labels: tuple[int, ...]
    q: float
    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class Analysis:
    """One window against its reference. Without predictions all but the status is None.

    `total_variation` is how far `mix` is from the reference's: the default's estimate, whichever is
    shown. Labels of which only the sum is known (`together`) count as one there, so that it is the
    least that has moved. `reference_share` is the part of the estimate's variance that more
    predictions cannot remove. `pull` is how many records strong the pull towards the reference's
    mix was, `unseen_share` the part of the window that was left out of the estimate, as the
    reference never predicts so. `not_identified` and `weakly_identified` are labels that the
    reference cannot tell apart well, `few_records` those that it has few records of.
    """

    n: int
    status: tuple[str, ...]
    method: Method
    labels: Labels | None = None
    groups: tuple[Group, ...] = ()
    tests: tuple[Evidence, ...] = ()
    mix: Floats | None = None
    total_variation: float | None = None
    together: tuple[tuple[int, ...], ...] = ()
    accuracy: Accuracy | None = None
    assumption: Assumption | None = None
    reference_share: float | None = None
    pull: float | None = None
    unseen_share: float | None = None
    paper: PaperEstimate | None = None
    not_identified: tuple[int, ...] = ()
    weakly_identified: tuple[int, ...] = ()
    few_records: tuple[int, ...] = ()


def basis(reference: Reference) -> Basis:
    """What depends on the reference only."""
    hard, soft = diagnosis.operators(reference)
    facts = diagnosis.of_records(reference)
    return Basis(
        support=reference.support,
        nu=facts.nu,
        recall=facts.recall,
        accuracy=facts.accuracy,
        words=facts.words,
        hard=_solver(reference, hard, soft=False),
        soft=None if soft is None else _solver(reference, soft, soft=True),
        check=assumptions.prepare(reference),
        overall=combined.overall(reference),
    )


def _solver(reference: Reference, on: Operator | None, *, soft: bool) -> Solver:
    identified = identification.nothing(reference.k) if on is None else identification.identify(on)
    return Solver(on, identified, bbse.prepare(reference, soft=soft))


def has_codes(sums: Sums) -> bool:
    """Whether every prediction of a window is counted by code; sums of old panes may not be."""
    return sums.soft is not None and sums.soft.coded


def analyse(
    on: Basis,
    sums: Sums,
    *,
    level: float = 0.95,
    phi: float = 1.0,
    seed: int | None = None,
    wanted: Estimator = "default",
    delta: float = 0.0,
) -> Analysis:
    """The analysis of one window; `seed` makes small windows' resampled p-values repeatable.

    `wanted` chooses what `q` and `w` are. The paper's are Algorithm 1's: ones where `sigma_min` is
    at most `delta`. Intervals are for the shares themselves, whatever estimated them.

    >>> from app.stats import reference
    >>> on = basis(reference.from_confusion(np.array([[900, 200], [100, 800]])))
    >>> found = analyse(on, Sums(np.array([270, 730])))
    >>> found.labels.q.round(3).tolist(), round(found.accuracy.estimate, 3), found.status
    ([0.1, 0.9], 0.81, ('ok', 'assumption_untestable_hard_only'))
    """
    solver = on.for_window(sums)
    nothing = Analysis(
        n=sums.n,
        status=("no_data", *of_reference(on, solver)),
        method="bbse-cells",
        not_identified=solver.identified.not_identified,
        weakly_identified=solver.identified.weakly_identified,
        few_records=on.few_records,
    )
    if not sums.n:
        return nothing
    seen = replace(
        nothing,
        status=(),
        tests=_tests(on, sums, phi, seed),
        assumption=assumptions.assess(on.check, sums, phi=phi),
        paper=bbse.estimate(on.paper(sums, wanted), sums),
    )
    seen = _estimated(seen, on, solver, sums, level, phi)
    if wanted != "default":
        seen = _as_printed(seen, on, delta)
    return replace(seen, status=_status(on, solver, sums, seen))


def _estimated(
    seen: Analysis, on: Basis, solver: Solver, sums: Sums, level: float, phi: float
) -> Analysis:
    """With the default's numbers, as far as there are any."""
    if solver.operator is None:
        return replace(seen, labels=_not_estimated(on, sums, level))
    found = cells.in_window(solver.operator.table, sums)
    if not found.counts.any():
        unknown = _not_estimated(on, sums, level)
        return replace(seen, labels=unknown, status=("unseen_prediction",), unseen_share=1.0)
    estimate = estimator.estimate(solver.operator, found.counts, phi)
    at = intervals.design(solver.operator, estimate)
    mix, together = at.on.spread(estimate.q), solver.identified.together
    return replace(
        seen,
        status=_of_window(at, estimate),
        labels=_labels(on, at, estimate, sums, level),
        groups=_groups(at, estimate, solver.identified, level),
        mix=mix,
        total_variation=_effect(on, mix, together) if solver.identified.anything else None,
        together=together,
        accuracy=accuracies.accuracy(at, estimate, on.accuracy, level=level),
        reference_share=intervals.reference_share(at),
        pull=estimate.pull,
        unseen_share=found.dropped,
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
    others = {one.labels: one for one in recent.groups}
    groups = tuple(_hull(one, others.get(one.labels, one)) for one in found.groups)
    return replace(found, labels=labels, groups=groups)


def _hull(one: Group, other: Group) -> Group:
    return replace(one, lower=min(one.lower, other.lower), upper=max(one.upper, other.upper))


def _labels(on: Basis, at: Design, estimate: Estimate, sums: Sums, level: float) -> Labels:
    spread, p = at.on.spread, on.nu
    of_q = intervals.shares(at, estimate, level=level)
    of_precision = accuracies.precision(at, estimate, of_q, level=level)
    q, lower, upper = spread(estimate.q), spread(of_q.lower), spread(of_q.upper)
    with np.errstate(divide="ignore", invalid="ignore"):
        w, w_lower, w_upper = q / p, lower / p, upper / p
    return Labels(
        p=p,
        predicted=sums.counts / sums.n,
        q=q,
        q_lower=lower,
        q_upper=upper,
        w=w,
        w_lower=w_lower,
        w_upper=w_upper,
        raw=spread(estimate.raw),
        moved=_moved(at, estimate, level),
        recall=accuracies.recall(on.support, on.recall, level=level),
        precision=Rates(
            spread(of_precision.estimate), spread(of_precision.lower), spread(of_precision.upper)
        ),
    )


def _not_estimated(on: Basis, sums: Sums, level: float) -> Labels:
    """Of a reference with nothing to tell apart, or a window of nothing it has seen."""
    unknown = np.full(on.k, np.nan)
    rates = Rates(unknown, unknown, unknown)
    # One label is all there is.
    q = np.ones(1) if on.k == 1 else unknown
    return Labels(
        p=on.nu,
        predicted=sums.counts / sums.n,
        q=q,
        q_lower=unknown,
        q_upper=unknown,
        w=q,
        w_lower=unknown,
        w_upper=unknown,
        raw=unknown,
        moved=np.zeros(on.k, dtype=np.bool_),
        recall=accuracies.recall(on.support, on.recall, level=level),
        precision=rates,
    )


def _as_printed(seen: Analysis, on: Basis, delta: float) -> Analysis:
    """With the paper's `w` and `q` for the default's: Algorithm 1, put on the simplex.

    What the window means does not depend on what is shown: all else stays the default's.
    """
    paper = seen.paper
    assert paper is not None
    assert seen.labels is not None
    method: Method = "bbse-soft" if paper.moments == "soft" else "bbse-hard"
    if paper.q is None or paper.sigma_min <= delta:
        ones = np.where(on.support > 0, 1.0, np.nan)
        unknown = np.full(on.k, np.nan)
        labels = replace(seen.labels, q=on.nu * ones, w=ones, raw=unknown)
        status = (*seen.status, "degenerate_w1")
        return replace(seen, method=method, status=status, labels=labels)
    q = bbse.clipped(paper.q)
    labels = replace(seen.labels, q=q, w=q / on.nu, raw=paper.q)
    return replace(seen, method=method, labels=labels)


def _groups(
    at: Design, estimate: Estimate, identified: Identification, level: float
) -> tuple[Group, ...]:
    if not identified.groups:
        return ()
    place = np.full(at.on.k, -1)
    place[at.on.table.present] = np.arange(at.on.size)
    rows = intervals.memberships(
        at.on.size, [place[list(group)].tolist() for group in identified.groups]
    )
    found = intervals.shares(at, estimate, rows, level=level)
    numbers = zip(
        identified.groups,
        (rows @ estimate.q).tolist(),
        found.lower.tolist(),
        found.upper.tolist(),
        strict=True,
    )
    return tuple(Group(*row) for row in numbers)


def _effect(on: Basis, q: Floats, together: tuple[tuple[int, ...], ...]) -> float:
    """How far a mix is from the reference's, over the labels that are estimated."""
    p = np.where(np.isfinite(q), on.nu, 0.0)
    return bbsd.total_variation(p / p.sum(), np.nan_to_num(q), together)


def _moved(at: Design, estimate: Estimate, level: float) -> Bools:
    """Whose share is beyond what the reference's own mix can be, all labels together."""
    on = at.on
    found = intervals.shares(at, estimate, level=level, simultaneous=True)
    # The reference's mix is an estimate, too. The arms of both intervals add in squares (MOVER).
    lower, upper = intervals.wilson(on.nu, on.n_j.sum(), intervals.quantile(level, on.size))
    grown = estimate.q - on.nu > np.hypot(estimate.q - found.lower, upper - on.nu)
    shrunk = on.nu - estimate.q > np.hypot(found.upper - estimate.q, on.nu - lower)
    moved = np.zeros(on.k, dtype=np.bool_)
    moved[on.table.present] = grown | shrunk
    return moved


def _of_window(at: Design, estimate: Estimate) -> tuple[str, ...]:
    """What the estimate itself says of the window."""
    raw, sd = intervals.unbiased_estimates(at, estimate)
    improbable = len(raw) > 0 and float((raw / sd).min()) < float(ndtri(IMPLAUSIBLE / len(raw)))
    return ("A1_or_A2_violated",) if improbable else ()


def _tests(on: Basis, sums: Sums, phi: float, seed: int | None) -> tuple[Evidence, ...]:
    reference = on.overall.counts
    counts = bbsd.chi_square(reference, sums.counts, phi=phi, seed=seed)
    on_labels = (counts, bbsd.ks_labels(reference, sums.counts))
    if sums.soft is None or on.overall.soft is None:
        return on_labels
    return (combined.combined(on.overall, sums, counts, phi=phi), *on_labels)


def of_reference(on: Basis, solver: Solver) -> tuple[str, ...]:
    """What the reference alone says of every window of one kind of prediction."""
    words = {
        "not_identified": bool(solver.identified.not_identified),
        "weakly_identified": bool(solver.identified.weakly_identified),
    }
    found = (*on.words, *(word for word, holds in words.items() if holds))
    return found or ("ok",)


def _status(on: Basis, solver: Solver, sums: Sums, seen: Analysis) -> tuple[str, ...]:
    """The words for this window, then the reference's, then the assumption's, each once."""
    assumption, labels = seen.assumption, seen.labels
    assert assumption is not None
    vacuous = labels is not None and ((labels.q_lower == 0.0) & (labels.q_upper == 1.0)).any()
    holds = {
        "insufficient_data": sums.n < ENOUGH,
        "unseen_prediction": bool(assumption.unseen),
        "interval_vacuous": bool(vacuous),
        # Panes of an earlier release, or sums that nobody counted by code.
        "codes_missing": on.soft is not None and sums.soft is not None and not has_codes(sums),
    }
    words = [word for word, is_so in holds.items() if is_so]
    return tuple(
        dict.fromkeys((*words, *seen.status, *of_reference(on, solver), *assumption.status))
    )
