"""What crosses the border in JSON, apart from the hot path, which has its own parsers."""

import math
import unicodedata
from dataclasses import asdict
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
from app.domain.times import rfc_3339
from app.domain.window import DEFAULT_WINDOWS, Window, WindowKind
from app.stats.analysis import Estimator

MAX_WINDOWS = 20
SHORTEST_PANE, LONGEST_PANE = timedelta(seconds=1), timedelta(days=1)
LONGEST_WINDOW = timedelta(days=366)
LONGEST_LATENESS = timedelta(days=31)
SHORTEST_RUN = 10.0
DEFAULTS = AlarmPolicy()


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


def storable(text: str) -> str:
    """Refuses what PostgreSQL has no text for; lines and tabs are fine."""
    if any(one == "\0" or unicodedata.category(one) == "Cs" for one in text):
        raise ValueError("must be text, without null characters and halves of characters")
    return text


def _iso_8601(value: object) -> object:
    if isinstance(value, timedelta) or (isinstance(value, str) and value[:1].upper() == "P"):
        return value
    raise ValueError("must be an ISO 8601 duration such as PT1H")


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
Moment = Annotated[datetime, PlainSerializer(rfc_3339, when_used="json")]
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


LONGEST_WAIT = timedelta(days=31)
Wait = Annotated[Duration, Field(ge=timedelta(0), le=LONGEST_WAIT)]
Patience = Annotated[Duration, Field(ge=timedelta(minutes=1), le=LONGEST_WAIT)]


class AlarmBody(Strict):
    """When to raise the alarm, when to lower it, and how often to speak of it."""

    false_alarms: FalseAlarmsBody = FalseAlarmsBody()
    min_effect: Annotated[
        float,
        Field(ge=0, le=1, description="least total variation of the label mix that matters"),
    ] = 0.02
    min_duration: Wait = Field(
        default=DEFAULTS.min_duration, description="how long a shift must last before it fires"
    )
    clear_panes: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=DEFAULTS.clear_panes, description="quiet panes after which it is over"
    )
    cooldown: Wait = Field(
        default=DEFAULTS.cooldown, description="how long after its end the next one stays pending"
    )
    renotify: Patience = Field(
        default=DEFAULTS.renotify, description="how often a firing alarm is told of again"
    )
    no_data_after: Patience | None = Field(
        default=DEFAULTS.no_data_after,
        description="how long the active version may be without predictions; null: for ever",
    )
    ingest_stopped_after: Patience | None = Field(
        default=DEFAULTS.ingest_stopped_after,
        description="how long a model that had predictions may go without; null: for ever",
    )
    calibration_panes: Annotated[int, Field(ge=20, le=1_000)] = Field(
        default=DEFAULTS.calibration_panes,
        description="panes from which the overdispersion is measured before alarms are armed",
    )
    overdispersion: Annotated[float, Field(ge=1, le=1000)] | None = Field(
        default=None,
        description="predictions that come for each independent one; null: measured",
    )

    def policy(self) -> AlarmPolicy:
        own = self.model_dump(exclude={"false_alarms"})
        return AlarmPolicy(self.false_alarms.at_most, self.false_alarms.per, **own)


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
    estimator: Estimator = Field(
        "default", description="what q and w are: the default estimate, or the paper's"
    )

    @field_validator("labels")
    @classmethod
    def _no_twin_labels(cls, labels: list[str]) -> list[str]:
        _refuse_twins(labels)
        return labels

    @field_validator("alarm")
    @classmethod
    def _budget_fits_the_panes(cls, alarm: AlarmBody, info: ValidationInfo) -> AlarmBody:
        pane = info.data.get("pane")
        if pane is not None and alarm.policy().average_run_length(pane) < SHORTEST_RUN:
            raise ValueError(
                f"false_alarms allows one in fewer than {SHORTEST_RUN:g} panes, which is no alarm"
            )
        return alarm

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
            alarm=self.alarm.policy(),
            allowed_lateness=self.allowed_lateness,
            keep_ids=self.keep_ids,
            estimator=self.estimator,
        )


class WindowView(BaseModel):
    name: str
    kind: WindowKind
    length: timedelta | None
    count: int | None


BUDGET = ("at_most", "per")


class FalseAlarmsView(BaseModel):
    at_most: float
    per: timedelta


class AlarmPolicyView(BaseModel):
    false_alarms: FalseAlarmsView
    min_effect: float
    min_duration: timedelta
    clear_panes: int
    cooldown: timedelta
    renotify: timedelta
    no_data_after: timedelta | None
    ingest_stopped_after: timedelta | None
    calibration_panes: int
    overdispersion: float | None

    @classmethod
    def of(cls, policy: AlarmPolicy) -> Self:
        budget = FalseAlarmsView(at_most=policy.at_most, per=policy.per)
        own = asdict(policy)
        return cls(false_alarms=budget, **{name: own[name] for name in own if name not in BUDGET})


class ModelView(BaseModel):
    """A model as it is. It has none of the limits of a body: what is stored can always be shown."""

    name: str
    labels: list[str]
    pane: timedelta
    windows: list[WindowView]
    alarm: AlarmPolicyView
    allowed_lateness: timedelta
    keep_ids: bool
    estimator: Estimator
    active_version: str | None
    revision: int

    @classmethod
    def of(cls, model: Model) -> Self:
        settings = model.settings
        return cls(
            name=model.name,
            labels=list(settings.labels),
            pane=settings.pane,
            windows=[
                WindowView(name=one.name, kind=one.kind, length=one.length, count=one.count)
                for one in settings.windows
            ],
            alarm=AlarmPolicyView.of(settings.alarm),
            allowed_lateness=settings.allowed_lateness,
            keep_ids=settings.keep_ids,
            estimator=settings.estimator,
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
