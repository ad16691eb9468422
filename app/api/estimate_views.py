"""Estimates as the API shows them."""

from typing import Any, Self

import numpy as np
from pydantic import BaseModel, Field

from app.api.schemas import Moment, known
from app.domain.model import Model
from app.domain.verdict import Verdict
from app.evaluate import Evaluation
from app.stats.analysis import Analysis


class LabelEstimate(BaseModel):
    """A label's share of the reference (`p`), of the predictions, and as estimated (`q`).

    `w` is `q / p`. The bounds are of 95 % intervals, for one label at a time. `q_raw` is the
    estimate before it was made a distribution; it may lie below zero.
    """

    label: str
    p: float | None
    predicted: float | None = None
    q: float | None = None
    q_lower: float | None = None
    q_upper: float | None = None
    w: float | None = None
    w_lower: float | None = None
    w_upper: float | None = None
    q_raw: float | None = None


class Significance(BaseModel):
    test: str
    statistic: float
    df: int | None
    p_value: float


class Effect(BaseModel):
    """Half the sum of |q - p|: the share of predictions that would have to change their label."""

    total_variation: float | None


class AccuracyView(BaseModel):
    estimate: float
    lower: float
    upper: float
    reference: float


class AssumptionView(BaseModel):
    """Whether only the label mix moved; everything in an estimate rests on that."""

    verdict: str
    p_value: float | None


class GroupEstimate(BaseModel):
    """Labels that cannot be told apart, and their share together."""

    labels: list[str]
    q: float
    q_lower: float
    q_upper: float


class EstimateView(BaseModel):
    """What a window says of the label mix. What cannot be known is null, and `status` says why."""

    model: str
    version: str
    window: str | None
    start: Moment = Field(serialization_alias="from")
    end: Moment = Field(serialization_alias="to")
    n: int
    revision: int
    evaluated_at: Moment
    verdict: Verdict
    status: list[str]
    method: str
    labels: list[LabelEstimate]
    groups: list[GroupEstimate]
    tests: list[Significance]
    effect: Effect
    accuracy: AccuracyView | None
    assumption: AssumptionView | None
    alarm: None = None

    @classmethod
    def of(cls, evaluation: Evaluation, model: Model, window: str | None) -> Self:
        found = evaluation.analysis
        trusted = evaluation.verdict is not Verdict.NOT_LABEL_SHIFT
        return cls(
            model=model.name,
            version=evaluation.version,
            window=window,
            start=evaluation.start,
            end=evaluation.end,
            n=found.n,
            revision=1,
            evaluated_at=evaluation.evaluated_at,
            verdict=evaluation.verdict,
            status=list(found.status),
            method=found.method,
            labels=_labels(evaluation, model, trusted=trusted),
            groups=_groups(found, model) if trusted else [],
            tests=_tests(found),
            effect=Effect(total_variation=found.total_variation if trusted else None),
            accuracy=_accuracy(found) if trusted else None,
            assumption=_assumption(found),
        )


def _labels(evaluation: Evaluation, model: Model, *, trusted: bool) -> list[LabelEstimate]:
    """If more than the label mix moved, only what was seen is shown, not what it would mean."""
    columns: dict[str, Any] = {"p": evaluation.basis.hard.diagnosis.nu}
    found = evaluation.analysis.labels
    if found is not None:
        columns |= {"predicted": found.predicted, "q_raw": found.raw}
    if found is not None and trusted:
        names = ("q", "q_lower", "q_upper", "w", "w_lower", "w_upper")
        columns |= {name: getattr(found, name) for name in names}
    return [
        LabelEstimate(label=label, **{name: known(values[i]) for name, values in columns.items()})
        for i, label in enumerate(model.labels)
    ]


def _groups(found: Analysis, model: Model) -> list[GroupEstimate]:
    return [
        GroupEstimate(
            labels=[model.labels[label] for label in group.labels],
            q=group.q,
            q_lower=group.lower,
            q_upper=group.upper,
        )
        for group in found.groups
    ]


def _tests(found: Analysis) -> list[Significance]:
    return [
        Significance(test=one.test, statistic=one.statistic, df=one.df, p_value=one.p_value)
        for one in found.tests
    ]


def _accuracy(found: Analysis) -> AccuracyView | None:
    accuracy = found.accuracy
    if accuracy is None or not np.isfinite(accuracy.estimate):
        return None
    return AccuracyView(
        estimate=accuracy.estimate,
        lower=accuracy.lower,
        upper=accuracy.upper,
        reference=accuracy.reference,
    )


def _assumption(found: Analysis) -> AssumptionView | None:
    if found.assumption is None:
        return None
    return AssumptionView(verdict=found.assumption.verdict, p_value=found.assumption.p_value)
