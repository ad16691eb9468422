"""Estimates as the API shows them."""

from typing import Literal, Self

from pydantic import BaseModel, Field

from app.api.schemas import Moment
from app.domain.alarm import Alarm, AlarmKind, AlarmState, at_a_glance
from app.domain.evaluation import Evaluation, described
from app.domain.model import Model
from app.domain.verdict import Verdict


class LabelEstimate(BaseModel):
    """A label's share of the reference (`p`), of the predictions, and as estimated (`q`).

    `w` is `q / p`. The bounds are of 95 % intervals, for one label at a time. `q_raw` is the
    estimate before it was made a distribution; it may lie below zero. `recall` is how often the
    label is recognised, `precision` how often a prediction of it is right on this window. `moved`
    says whether its share differs from `p` by more than both samples' noise, all labels together.
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
    recall: float | None = None
    recall_lower: float | None = None
    recall_upper: float | None = None
    precision: float | None = None
    precision_lower: float | None = None
    precision_upper: float | None = None
    moved: bool | None = None


class PaperLabel(BaseModel):
    label: str
    q: float
    w: float


class MinimumNorm(BaseModel):
    label: str
    q: float


class PaperView(BaseModel):
    """Black-box shift estimation as Lipton, Wang and Smola printed it: `w = C^-1 mu`, `q = w p`.

    Both may be negative; Algorithm 1 takes `max(w, 0)`. Where the confusion matrix is singular,
    `labels` is null and `reason` says why; `minimum_norm` then is the flattest mix that explains
    the window best, by the pseudo-inverse.
    """

    moments: Literal["hard", "soft"]
    sigma_min: float
    labels: list[PaperLabel] | None
    reason: str | None
    minimum_norm: list[MinimumNorm] | None


class Significance(BaseModel):
    test: str
    statistic: float
    df: int | None
    p_value: float


class Effect(BaseModel):
    """Half the sum of |q - p|: the share of predictions that would have to change their label.

    Where labels look alike only their sums are compared, and it may be more: `at_least`.
    """

    total_variation: float | None
    at_least: bool


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
    """Labels that look alike, and their share together: known, although its parts are not."""

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
    answer alone. Labels that the reference cannot tell apart are named in `not_identified` and
    `weakly_identified`, and `notes` says in words what is known of them. `reference_share` is the
    part of the estimate's variance that a longer window would not remove, `pull` how strongly `q`
    was pulled towards the reference's mix, in records, and `unseen_share` the part of the window
    whose label the reference never predicts. `bbse` has the paper's numbers.
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
    not_identified: list[str]
    weakly_identified: list[str]
    notes: list[str]
    tests: list[Significance]
    effect: Effect
    accuracy: AccuracyView | None
    assumption: AssumptionView | None
    effective_window: EffectiveWindowView | None
    evidence: EvidenceView | None
    reference_share: float | None
    pull: float | None
    unseen_share: float | None
    bbse: PaperView | None
    alarm: AlarmGlance | None

    @classmethod
    def of(cls, evaluation: Evaluation, model: Model, alarm: Alarm | None) -> Self:
        glance = None if alarm is None else at_a_glance(alarm)
        return cls.model_validate(described(evaluation, model, glance))


class EvaluationPage(BaseModel):
    items: list[EstimateView]
    next: str | None
