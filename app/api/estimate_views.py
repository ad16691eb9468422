"""Estimates as the API shows them."""

from typing import Self

from pydantic import BaseModel, Field

from app.api.schemas import Moment
from app.domain.alarm import Alarm, AlarmKind, AlarmState, at_a_glance
from app.domain.evaluation import Evaluation, described
from app.domain.model import Model
from app.domain.verdict import Verdict


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


class EffectiveWindowView(BaseModel):
    """How much of its history an adaptive window took.

    `stopped_by` is the p-value of a difference between the window and what lies before it.
    """

    panes: int
    seconds: float
    stopped_by: float | None


class EvidenceView(BaseModel):
    """The detector's log evidence of a change, and from how much on it raises the alarm."""

    statistic: float
    threshold: float


class AlarmGlance(BaseModel):
    id: int
    kind: AlarmKind
    state: AlarmState
    since: Moment
    onset: Moment | None


class EstimateView(BaseModel):
    """What a window says of the label mix. What cannot be known is null, and `status` says why.

    `verdict` goes by the detectors that watch the stream as soon as they are armed (until then
    `status` has `calibrating`), and by one look at this window before. `evidence` is theirs as it
    was when the worker looked; null before they are armed, and of a look that was taken for this
    answer alone.
    """

    model: str
    version: str
    window: str | None
    start: Moment = Field(alias="from")
    end: Moment = Field(alias="to")
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
    effective_window: EffectiveWindowView | None
    evidence: EvidenceView | None
    alarm: AlarmGlance | None

    @classmethod
    def of(cls, evaluation: Evaluation, model: Model, alarm: Alarm | None) -> Self:
        glance = None if alarm is None else at_a_glance(alarm)
        return cls.model_validate(described(evaluation, model, glance))


class EvaluationPage(BaseModel):
    items: list[EstimateView]
    next: str | None
