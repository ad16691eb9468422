"""What crosses the border in JSON, apart from the hot path, which has its own parsers."""

import math
import unicodedata
from datetime import datetime, timedelta
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)

from app.domain.model import (
    MAX_LABEL_LENGTH,
    MAX_LABELS,
    MIN_LABELS,
    SLUG,
    AlarmPolicy,
    Model,
    ModelSettings,
)
from app.domain.window import DEFAULT_WINDOWS, Window, WindowKind

MAX_WINDOWS = 20
SHORTEST_PANE, LONGEST_PANE = timedelta(seconds=1), timedelta(days=1)
LONGEST_WINDOW = timedelta(days=366)
LONGEST_LATENESS = timedelta(days=31)


def _slug(text: str) -> str:
    if not SLUG.fullmatch(text):
        raise ValueError(
            "must be 1 to 100 letters, digits, '.', '_', '~' or '-', "
            "and begin and end with a letter or digit"
        )
    return text


def _label(text: str) -> str:
    # Joiners and other invisible characters belong to some scripts; controls belong to none.
    if not text.strip() or any(unicodedata.category(one) in ("Cc", "Cs") for one in text):
        raise ValueError("must have something to read, and no control characters")
    return text


def _iso_8601(value: object) -> object:
    if isinstance(value, timedelta) or (isinstance(value, str) and value[:1].upper() == "P"):
        return value
    raise ValueError("must be an ISO 8601 duration such as PT1H")


def _rfc_3339(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def known(value: float) -> float | None:
    """JSON has no NaN and no infinity: what is not known is null."""
    return float(value) if math.isfinite(value) else None


Slug = Annotated[str, AfterValidator(_slug)]
Label = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_LABEL_LENGTH),
    AfterValidator(_label),
]
Duration = Annotated[timedelta, BeforeValidator(_iso_8601)]
Moment = Annotated[datetime, PlainSerializer(_rfc_3339, when_used="json")]
Kind = Literal["hard", "soft"]


class Strict(BaseModel):
    """Nothing unknown, and no number that is not one."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class WindowBody(Strict):
    """`sliding` and `tumbling` windows have a `length`, a window of the `last` N a `count`."""

    name: Slug
    kind: WindowKind
    length: Annotated[Duration, Field(gt=timedelta(0), le=LONGEST_WINDOW)] | None = None
    count: Annotated[int, Field(ge=1, le=10**9)] | None = None

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        timed = self.kind in (WindowKind.SLIDING, WindowKind.TUMBLING)
        if timed != (self.length is not None):
            raise ValueError(f"a {self.kind} window {'needs a' if timed else 'has no'} length")
        counted = self.kind is WindowKind.LAST
        if counted != (self.count is not None):
            raise ValueError(f"a {self.kind} window {'needs a' if counted else 'has no'} count")
        return self


class FalseAlarmsBody(Strict):
    """At most this many false alarms per model in this time."""

    at_most: Annotated[float, Field(gt=0, le=1000)] = 1.0
    per: Annotated[Duration, Field(ge=timedelta(hours=1), le=timedelta(days=3660))] = timedelta(
        days=30
    )


class AlarmBody(Strict):
    false_alarms: FalseAlarmsBody = FalseAlarmsBody()
    min_effect: Annotated[float, Field(ge=0, le=1)] = 0.02


def _default_windows() -> list[WindowBody]:
    return [
        WindowBody(name=one.name, kind=one.kind, length=one.length, count=one.count)
        for one in DEFAULT_WINDOWS
    ]


class ModelBody(Strict):
    """What is to be known of a model; only `labels` has to be said."""

    labels: Annotated[list[Label], Field(min_length=MIN_LABELS, max_length=MAX_LABELS)]
    pane: Annotated[Duration, Field(ge=SHORTEST_PANE, le=LONGEST_PANE)] = timedelta(minutes=1)
    windows: Annotated[list[WindowBody], Field(min_length=1, max_length=MAX_WINDOWS)] = Field(
        default_factory=_default_windows, validate_default=True
    )
    alarm: AlarmBody = AlarmBody()
    allowed_lateness: Annotated[Duration, Field(ge=timedelta(0), le=LONGEST_LATENESS)] = timedelta(
        days=1
    )
    keep_ids: bool = Field(
        False, description="keep each prediction by its id, to be joined with its label later"
    )

    @field_validator("labels")
    @classmethod
    def _no_twin_labels(cls, labels: list[str]) -> list[str]:
        _refuse_twins(labels)
        return labels

    @field_validator("windows")
    @classmethod
    def _fit_the_panes(cls, windows: list[WindowBody], info: ValidationInfo) -> list[WindowBody]:
        _refuse_twins([window.name for window in windows])
        pane = info.data.get("pane")
        for window in windows:
            if pane is not None and window.length is not None and window.length % pane:
                raise ValueError(f"{window.name!r} is not a whole number of panes long")
        return windows

    def settings(self) -> ModelSettings:
        return ModelSettings(
            labels=tuple(self.labels),
            pane=self.pane,
            windows=tuple(
                Window(one.name, one.kind, one.length, one.count) for one in self.windows
            ),
            alarm=AlarmPolicy(
                self.alarm.false_alarms.at_most,
                self.alarm.false_alarms.per,
                self.alarm.min_effect,
            ),
            allowed_lateness=self.allowed_lateness,
            keep_ids=self.keep_ids,
        )


class WindowView(BaseModel):
    name: str
    kind: WindowKind
    length: timedelta | None
    count: int | None


class FalseAlarmsView(BaseModel):
    at_most: float
    per: timedelta


class AlarmView(BaseModel):
    false_alarms: FalseAlarmsView
    min_effect: float


class ModelView(BaseModel):
    """A model as it is. It has none of the limits of a body: what is stored can always be shown."""

    name: str
    labels: list[str]
    pane: timedelta
    windows: list[WindowView]
    alarm: AlarmView
    allowed_lateness: timedelta
    keep_ids: bool
    active_version: str | None
    revision: int

    @classmethod
    def of(cls, model: Model) -> Self:
        settings = model.settings
        budget = FalseAlarmsView(at_most=settings.alarm.at_most, per=settings.alarm.per)
        return cls(
            name=model.name,
            labels=list(settings.labels),
            pane=settings.pane,
            windows=[
                WindowView(name=one.name, kind=one.kind, length=one.length, count=one.count)
                for one in settings.windows
            ],
            alarm=AlarmView(false_alarms=budget, min_effect=settings.alarm.min_effect),
            allowed_lateness=settings.allowed_lateness,
            keep_ids=settings.keep_ids,
            active_version=model.active_version,
            revision=model.revision,
        )


class ModelPage(BaseModel):
    items: list[ModelView]
    next: str | None


def _refuse_twins(names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{name!r} stands there twice")
        seen.add(name)
