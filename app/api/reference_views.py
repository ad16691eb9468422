"""References as the API shows them."""

from collections.abc import Sequence
from typing import Any, Self

from pydantic import BaseModel

from app.api.schemas import Kind, Moment, known
from app.domain.model import Model
from app.domain.reference import ReferenceSummary
from app.stats.diagnosis import Before, Diagnosis
from app.web import reference as web


class BeforeView(BaseModel):
    """What an earlier release said of the reference, and which labels it had merged."""

    status: list[str]
    groups: list[list[str]]


class ReferenceSummaryView(BaseModel):
    """`sigma_min` is the least singular value of the joint confusion matrix, as in the paper.

    `conditional_sigma_min` does not depend on how common the labels are. `not_identified` are
    labels whose share no window can tell, `weakly_identified` those whose interval stays wide;
    `groups` are sets of such labels whose share together is known. `notes` has the words of the
    statistics, and `transposed_suspected` if rows and columns of the confusion matrix seem to be
    exchanged; `warnings` says in sentences what to check. `status` is the gravest word about what
    can be estimated. `before` is set where an earlier release had merged labels.
    """

    version: str
    active: bool
    n: int
    kind: Kind
    status: str
    notes: list[str]
    warnings: list[str]
    sigma_min: float
    sigma_min_error: float
    condition_number: float | None
    conditional_sigma_min: float
    conditional_condition_number: float | None
    not_identified: list[str]
    weakly_identified: list[str]
    groups: list[list[str]]
    before: BeforeView | None
    accuracy: float | None
    created_at: Moment
    activated_at: Moment | None

    @classmethod
    def of(cls, summary: ReferenceSummary, model: Model) -> Self:
        return cls(**_summary(summary, model))


class LabelView(BaseModel):
    """`p` is the label's share of the reference; recall and precision are null where unknown.

    `floor` is the half-length that the interval of its share has for an endless window; null if the
    label is not estimated.
    """

    label: str
    support: int
    p: float
    recall: float | None
    precision: float | None
    floor: float | None


class ReferenceView(ReferenceSummaryView):
    labels: list[LabelView]

    @classmethod
    def of(cls, summary: ReferenceSummary, model: Model) -> Self:
        return cls(**_summary(summary, model), labels=_labels(summary.diagnosis, model))


class ReferencePage(BaseModel):
    items: list[ReferenceSummaryView]
    next: str | None


def _summary(summary: ReferenceSummary, model: Model) -> dict[str, Any]:
    found = summary.diagnosis
    spectrum = found.spectrum
    return {
        "version": summary.version,
        "active": summary.version == model.active_version,
        "n": found.n,
        "kind": summary.kind,
        "status": _status(found),
        "notes": [*found.status, *summary.notes],
        "warnings": web.doubts(summary.notes),
        "sigma_min": spectrum.sigma_min,
        "sigma_min_error": spectrum.sigma_min_error,
        "condition_number": known(spectrum.condition_number),
        "conditional_sigma_min": spectrum.conditional_sigma_min,
        "conditional_condition_number": known(spectrum.conditional_condition_number),
        "not_identified": _names(model, found.identified.not_identified),
        "weakly_identified": _names(model, found.identified.weakly_identified),
        "groups": [_names(model, group) for group in found.identified.groups],
        "before": None if found.before is None else _before(found.before, model),
        "accuracy": known(found.accuracy),
        "created_at": summary.created_at,
        "activated_at": summary.activated_at,
    }


def _labels(found: Diagnosis, model: Model) -> list[LabelView]:
    return [
        LabelView(
            label=label,
            support=int(found.support[i]),
            p=float(found.nu[i]),
            recall=known(found.recall[i]),
            precision=known(found.precision[i]),
            floor=known(found.identified.floor[i]),
        )
        for i, label in enumerate(model.labels)
    ]


def _names(model: Model, labels: Sequence[int]) -> list[str]:
    return [model.labels[label] for label in labels]


def _before(before: Before, model: Model) -> BeforeView:
    groups = [_names(model, group) for group in before.groups]
    return BeforeView(status=list(before.status), groups=groups)


def _status(found: Diagnosis) -> str:
    if not found.estimable and found.status != ("trivial",):
        return "degenerate"
    return "labels_absent" if found.absent else found.status[-1]
