"""References as the API shows them."""

from typing import Any, Self

from pydantic import BaseModel

from app.api.schemas import Kind, Moment, known
from app.domain.model import Model
from app.domain.reference import ReferenceSummary
from app.stats.diagnosis import Diagnosis
from app.web import reference as web


class ReferenceSummaryView(BaseModel):
    """`sigma_min` is the least singular value of the joint confusion matrix, as in the paper.

    `conditional_sigma_min` does not depend on how common the labels are. `groups` are labels that
    cannot be told apart, which are therefore estimated together. `notes` says it all in words of
    the statistics, and `transposed_suspected` if rows and columns of the confusion matrix seem to
    be exchanged; `warnings` says in sentences what to check. `status` is the gravest word about
    what can be estimated.
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
    groups: list[list[str]]
    accuracy: float | None
    created_at: Moment
    activated_at: Moment | None

    @classmethod
    def of(cls, summary: ReferenceSummary, model: Model) -> Self:
        return cls(**_summary(summary, model))


class LabelView(BaseModel):
    """`p` is the label's share of the reference; recall and precision are null where unknown."""

    label: str
    support: int
    p: float
    recall: float | None
    precision: float | None


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
    spectrum = found.soft if found.moments == "soft" and found.soft else found.hard
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
        "groups": [[model.labels[label] for label in group] for group in found.groups],
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
        )
        for i, label in enumerate(model.labels)
    ]


def _status(found: Diagnosis) -> str:
    if {"merged", "degenerate_w1"} & set(found.status):
        return "degenerate"
    return "labels_absent" if found.absent else found.status[-1]
