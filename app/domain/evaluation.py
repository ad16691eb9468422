"""An evaluation: what one look at one window found, in plain numbers that can be kept."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from datetime import datetime
from typing import Any

import numpy as np

from app.domain import words
from app.domain.model import Model
from app.domain.times import rfc_3339
from app.domain.verdict import Attention, Verdict
from app.stats.analysis import Analysis
from app.stats.moments import Floats

Known = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class LabelColumns:
    """A number for each label, in the model's order; None where it cannot be known."""

    p: Known
    predicted: Known | None = None
    q: Known | None = None
    q_lower: Known | None = None
    q_upper: Known | None = None
    w: Known | None = None
    w_lower: Known | None = None
    w_upper: Known | None = None
    q_raw: Known | None = None


@dataclass(frozen=True, slots=True)
class LabelRates:
    """How often each label is recognised, and how often a prediction of it is right, on the window.

    `moved` says whose share differs from the reference's by more than both samples' noise.
    """

    recall: Known
    recall_lower: Known
    recall_upper: Known
    precision: Known
    precision_lower: Known
    precision_upper: Known
    moved: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class PaperNumbers:
    """The paper's own estimate, `w = C^-1 mu` and `q = w p`, which may be negative.

    Where `C` is singular there are neither: `singular` says why, `labels` due to which, and
    `minimum_norm` is the flattest mix that explains the window best.
    """

    moments: str
    sigma_min: float
    q: Known | None
    w: Known | None
    singular: str | None = None
    labels: tuple[int, ...] = ()
    minimum_norm: Known | None = None


@dataclass(frozen=True, slots=True)
class Identified:
    """Labels whose share the reference cannot tell, or only roughly, by position.

    `few_records` are those that it has few records of, which may be why.
    """

    not_identified: tuple[int, ...] = ()
    weakly_identified: tuple[int, ...] = ()
    few_records: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupShare:
    """Labels that look alike, by position, and their share together."""

    labels: tuple[int, ...]
    q: float
    q_lower: float
    q_upper: float


@dataclass(frozen=True, slots=True)
class Significance:
    test: str
    statistic: float
    df: int | None
    p_value: float


@dataclass(frozen=True, slots=True)
class AccuracyNow:
    estimate: float
    lower: float
    upper: float
    reference: float


@dataclass(frozen=True, slots=True)
class AssumptionFound:
    verdict: str
    p_value: float | None


@dataclass(frozen=True, slots=True)
class EffectiveWindow:
    """How much of its history an adaptive window took, and the p-value that made it stop there."""

    panes: int
    seconds: float
    stopped_by: float | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """The logarithm of what speaks for a change of the mix, and of how much raises the alarm."""

    statistic: float
    threshold: float


@dataclass(frozen=True, slots=True)
class Result:
    """What was found in a span of panes; `evidence` is what the detector had at the time."""

    n: int
    verdict: Verdict
    attention: Attention
    status: tuple[str, ...]
    method: str
    labels: LabelColumns
    groups: tuple[GroupShare, ...] = ()
    tests: tuple[Significance, ...] = ()
    total_variation: float | None = None
    accuracy: AccuracyNow | None = None
    assumption: AssumptionFound | None = None
    effective: EffectiveWindow | None = None
    evidence: Evidence | None = None
    rates: LabelRates | None = None
    paper: PaperNumbers | None = None
    identified: Identified = Identified()
    reference_share: float | None = None
    pull: float | None = None
    unseen_share: float | None = None

    @property
    def at_least(self) -> bool:
        """Whether the mix may have moved more than is known: within labels that look alike."""
        return bool(self.groups or self.identified.not_identified)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A result with its place in the history: of which window, when, and for the how many-th time.

    `slot` is the time that the evaluation stands for; while that lasts, a new look takes the place
    of the one before. The `revision` grows when late predictions change what was found; until it
    was looked at again, it is `outdated`.
    """

    version: str
    window: str | None
    start: datetime
    end: datetime
    evaluated_at: datetime
    result: Result
    slot: datetime | None = None
    revision: int = 1
    outdated: bool = False

    @property
    def content(self) -> tuple[object, ...]:
        """What it looked at: equal for the same predictions, whatever was made of them."""
        return self.start, self.result.n, self.result.labels.predicted


@dataclass(frozen=True, slots=True)
class Point:
    """An evaluation as one point of a curve: of some labels only, in the order asked for."""

    slot: datetime
    end: datetime
    n: int
    verdict: Verdict
    q: Known
    q_lower: Known
    q_upper: Known
    p_value: float | None = None
    accuracy: AccuracyNow | None = None
    evidence: Evidence | None = None


def result(
    analysis: Analysis,
    p: Floats,
    verdict: Verdict,
    attention: Attention,
    *,
    more_status: Sequence[str] = (),
    effective: EffectiveWindow | None = None,
    evidence: Evidence | None = None,
) -> Result:
    """What an analysis found; if more than the label mix moved, not what that would mean."""
    trusted = verdict is not Verdict.NOT_LABEL_SHIFT
    return Result(
        n=analysis.n,
        verdict=verdict,
        attention=attention,
        status=(*analysis.status, *more_status),
        method=analysis.method,
        labels=_columns(analysis, p, trusted=trusted),
        groups=_groups(analysis) if trusted else (),
        tests=tuple(
            Significance(one.test, one.statistic, one.df, one.p_value) for one in analysis.tests
        ),
        total_variation=analysis.total_variation if trusted else None,
        accuracy=_accuracy(analysis) if trusted else None,
        assumption=_assumption(analysis),
        effective=effective,
        evidence=evidence,
        rates=_rates(analysis) if trusted else None,
        paper=_paper(analysis),
        identified=Identified(
            analysis.not_identified, analysis.weakly_identified, analysis.few_records
        ),
        reference_share=analysis.reference_share,
        pull=analysis.pull,
        unseen_share=analysis.unseen_share,
    )


def _rates(analysis: Analysis) -> LabelRates | None:
    found = analysis.labels
    if found is None:
        return None
    recall, precision = found.recall, found.precision
    return LabelRates(
        recall=_known(recall.estimate),
        recall_lower=_known(recall.lower),
        recall_upper=_known(recall.upper),
        precision=_known(precision.estimate),
        precision_lower=_known(precision.lower),
        precision_upper=_known(precision.upper),
        moved=tuple(found.moved.tolist()),
    )


def _paper(analysis: Analysis) -> PaperNumbers | None:
    found = analysis.paper
    if found is None:
        return None
    columns = (found.q, found.w, found.minimum_norm)
    q, w, flattest = (None if column is None else _known(column) for column in columns)
    why = found.singular
    return PaperNumbers(
        moments=found.moments,
        sigma_min=found.sigma_min,
        q=q,
        w=w,
        singular=None if why is None else why.why,
        labels=() if why is None else why.labels,
        minimum_norm=flattest,
    )


def _columns(analysis: Analysis, p: Floats, *, trusted: bool) -> LabelColumns:
    found = analysis.labels
    columns: dict[str, Floats] = {"p": p}
    if found is not None:
        columns |= {"predicted": found.predicted, "q_raw": found.raw}
    if found is not None and trusted:
        names = ("q", "q_lower", "q_upper", "w", "w_lower", "w_upper")
        columns |= {name: getattr(found, name) for name in names}
    return LabelColumns(**{name: _known(values) for name, values in columns.items()})


def _known(values: Floats) -> Known:
    finite = np.isfinite(values)
    if finite.all():
        return tuple(values.tolist())
    return tuple(value if ok else None for value, ok in zip(values.tolist(), finite, strict=True))


def _groups(analysis: Analysis) -> tuple[GroupShare, ...]:
    return tuple(GroupShare(one.labels, one.q, one.lower, one.upper) for one in analysis.groups)


def _accuracy(analysis: Analysis) -> AccuracyNow | None:
    found = analysis.accuracy
    if found is None or not np.isfinite(found.estimate):
        return None
    return AccuracyNow(found.estimate, found.lower, found.upper, found.reference)


def _assumption(analysis: Analysis) -> AssumptionFound | None:
    found = analysis.assumption
    return None if found is None else AssumptionFound(found.verdict, found.p_value)


def described(one: Evaluation, model: Model, alarm: Mapping[str, Any] | None) -> dict[str, Any]:
    """An evaluation as everybody is shown it: by `GET estimate`, the history and notices alike."""
    found = one.result
    return {
        "model": model.name,
        "version": one.version,
        "window": one.window,
        "from": rfc_3339(one.start),
        "to": rfc_3339(one.end),
        "n": found.n,
        "revision": one.revision,
        "evaluated_at": rfc_3339(one.evaluated_at),
        "verdict": found.verdict,
        "status": list(found.status),
        "method": found.method,
        "labels": _by_label(found.labels, found.rates, model),
        "groups": [_group(group, model) for group in found.groups],
        "not_identified": [model.labels[label] for label in found.identified.not_identified],
        "weakly_identified": [model.labels[label] for label in found.identified.weakly_identified],
        "notes": notes(found, model),
        "tests": [asdict(test) for test in found.tests],
        "effect": {"total_variation": found.total_variation, "at_least": found.at_least},
        "accuracy": None if found.accuracy is None else asdict(found.accuracy),
        "assumption": None if found.assumption is None else asdict(found.assumption),
        "effective_window": None if found.effective is None else asdict(found.effective),
        "evidence": None if found.evidence is None else asdict(found.evidence),
        "reference_share": found.reference_share,
        "pull": found.pull,
        "unseen_share": found.unseen_share,
        "bbse": None if found.paper is None else _bbse(found.paper, model),
        "alarm": alarm,
    }


def _by_label(
    columns: LabelColumns, rates: LabelRates | None, model: Model
) -> list[dict[str, Any]]:
    """A row for each label, which names it: nobody can mix up columns."""
    unknown = (None,) * model.k
    values = {
        column.name: (None if of is None else getattr(of, column.name)) or unknown
        for kind, of in ((LabelColumns, columns), (LabelRates, rates))
        for column in fields(kind)
    }
    return [
        {"label": label, **dict(zip(values, row, strict=True))}
        for label, *row in zip(model.labels, *values.values(), strict=True)
    ]


def notes(found: Result, model: Model) -> list[str]:
    """What is known and unknown of labels that look alike, in sentences; none without estimates."""
    if found.labels.q is None:
        return []
    groups = [words.Together(*astuple(group)) for group in found.groups]
    identified = found.identified
    return words.identification(
        model.labels,
        identified.not_identified,
        identified.weakly_identified,
        groups,
        identified.few_records,
    )


def _bbse(paper: PaperNumbers, model: Model) -> dict[str, Any]:
    """As the paper has it, beside the estimate that is shown."""
    reason = None
    if paper.singular is not None:
        reason = words.singular(model.labels, paper.singular, paper.labels)
    labels = None
    if paper.q is not None and paper.w is not None:
        labels = [
            {"label": label, "q": q, "w": w}
            for label, q, w in zip(model.labels, paper.q, paper.w, strict=True)
        ]
    return {
        "moments": paper.moments,
        "sigma_min": paper.sigma_min,
        "labels": labels,
        "reason": reason,
        "minimum_norm": paper.minimum_norm
        and [
            {"label": label, "q": q}
            for label, q in zip(model.labels, paper.minimum_norm, strict=True)
        ],
    }


def _group(group: GroupShare, model: Model) -> dict[str, Any]:
    return asdict(group) | {"labels": [model.labels[label] for label in group.labels]}
