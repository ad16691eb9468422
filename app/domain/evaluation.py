"""An evaluation: what one look at one window found, in plain numbers that can be kept."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

import numpy as np

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
class GroupShare:
    """Labels that cannot be told apart, by position, and their share together."""

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
        "labels": _by_label(found.labels, model),
        "groups": [_group(group, model) for group in found.groups],
        "tests": [asdict(test) for test in found.tests],
        "effect": {"total_variation": found.total_variation},
        "accuracy": None if found.accuracy is None else asdict(found.accuracy),
        "assumption": None if found.assumption is None else asdict(found.assumption),
        "effective_window": None if found.effective is None else asdict(found.effective),
        "evidence": None if found.evidence is None else asdict(found.evidence),
        "alarm": alarm,
    }


def _by_label(columns: LabelColumns, model: Model) -> list[dict[str, Any]]:
    """A row for each label, which names it: nobody can mix up columns."""
    names = [column.name for column in fields(columns)]
    unknown: Known = (None,) * model.k
    values = [getattr(columns, name) or unknown for name in names]
    return [
        {"label": label, **dict(zip(names, row, strict=True))}
        for label, *row in zip(model.labels, *values, strict=True)
    ]


def _group(group: GroupShare, model: Model) -> dict[str, Any]:
    return asdict(group) | {"labels": [model.labels[label] for label in group.labels]}
