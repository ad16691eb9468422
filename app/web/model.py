"""One model: what to show of a version and a window, and where links lead."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

from app.domain.evaluation import Identified, Known, LabelColumns, LabelRates, Result
from app.domain.times import rfc_3339
from app.domain.window import DEFAULT_WINDOWS as DEFAULT_WINDOWS
from app.domain.window import Window
from app.web import moved

# Of this many labels the curves are drawn unless others are asked for; more at once say nothing.
FIRST_DRAWN, MOST_DRAWN = 6, 24
# A page of a thousand labels would be too long to read and to send.
MOST_ROWS, MOST_CHOICES = 50, 60
# Points of a curve: more than a small chart has room for cannot be told apart.
MOST_POINTS, POINTS_OF_ALL_LABELS = 200, 1600
SPANS = {1: "1 h", 6: "6 h", 24: "24 h", 168: "7 d", 720: "30 d"}

# How much of the past is drawn unless somebody asks for more: as many windows, or panes.
USUAL_WINDOWS, USUAL_PANES = 24, 1440
SHORTEST_SPAN, LONGEST_USUAL_SPAN = timedelta(minutes=2), timedelta(days=7)

GLYPH_WIDTH, GLYPH_MARGIN = 150.0, 4.0

# The words of `status` that somebody who looks at a model should know of, and what they mean.
REMARKS = {
    "unseen_prediction": "A label is predicted that the reference's model never predicted.",
    "A1_or_A2_violated": "No label mix explains these predictions.",
    "A2_class_absent": "Some labels are too rare in the reference to be estimated.",
    "low_support": "Some labels have few records in the reference: their intervals are rough.",
    "degenerate_w1": "The paper's weights are all one: its matrix is singular, or nearly so.",
    "not_identified": "The reference cannot tell some labels apart: see below the table.",
    "codes_missing": "Older predictions were not counted by code; the estimate is of labels only.",
    "baseline_accepted": "Another mix than the reference's was accepted as normal.",
    "beyond_reference_error": "The change is larger than any error of the reference explains.",
}


def usual_span(window: Window, pane: timedelta) -> timedelta:
    """How much of the past to draw: what fits the window, whatever its length.

    >>> hour, day = DEFAULT_WINDOWS
    >>> [str(usual_span(window, timedelta(minutes=1))) for window in (hour, day)]
    ['1 day, 0:00:00', '7 days, 0:00:00']
    """
    span = USUAL_PANES * pane if window.length is None else USUAL_WINDOWS * window.length
    return min(max(span, SHORTEST_SPAN), LONGEST_USUAL_SPAN)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a visitor has chosen to see; what he has not is left to the page."""

    model: str
    window: str | None = None
    version: str | None = None
    hours: int | None = None
    start: datetime | None = None
    to: datetime | None = None
    labels: tuple[str, ...] = ()

    def path(self, **changes: Any) -> str:
        """The page with another choice.

        >>> Asked("fraud", window="1h", labels=("a&b",)).path(hours=6)
        '/models/fraud?window=1h&hours=6&labels=a%26b'
        """
        return self._under("", changes)

    def series(self, **changes: Any) -> str:
        return self._under("/series", changes)

    def _under(self, path: str, changes: dict[str, Any]) -> str:
        own = replace(self, **changes)
        found = [
            ("window", own.window),
            ("version", own.version),
            ("hours", own.hours),
            ("from", None if own.start is None else rfc_3339(own.start)),
            ("to", None if own.to is None else rfc_3339(own.to)),
            *(("labels", label) for label in own.labels),
        ]
        query = urlencode([(name, value) for name, value in found if value is not None])
        return f"/models/{quote(own.model)}{path}" + (f"?{query}" if query else "")


@dataclass(frozen=True, slots=True)
class Glyph:
    """Where the shares of one label are on a common scale, in the units of a small drawing."""

    p: float
    predicted: float
    q: float
    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class LabelRow:
    label: str
    p: float | None
    predicted: float | None
    q: float | None
    q_lower: float | None
    q_upper: float | None
    w: float | None
    w_lower: float | None
    w_upper: float | None
    glyph: Glyph | None
    recall: float | None = None
    precision: float | None = None
    # Whether the share differs by more than both samples' noise, all labels together.
    moved: bool = False
    # How well the reference tells the label from others.
    identified: str = "well"


ALL_IDENTIFIED = Identified()


def ranked(columns: LabelColumns) -> list[int]:
    """All labels by position: those that moved most, then the commonest of the others."""
    first = moved.by_change(columns)
    shares = {label: share or 0.0 for label, share in enumerate(columns.p)}
    rest = sorted(set(shares) - set(first), key=lambda label: (-shares[label], label))
    return [*first, *rest]


def points_for(labels: int) -> int:
    """How many points a curve of so many labels may have, that all of them stay quick to send.

    >>> [points_for(labels) for labels in (1, 6, 24)]
    [200, 200, 66]
    """
    return min(MOST_POINTS, POINTS_OF_ALL_LABELS // max(1, labels))


def label_rows(
    labels: Sequence[str],
    columns: LabelColumns,
    order: Sequence[int],
    rates: LabelRates | None = None,
    identified: Identified = ALL_IDENTIFIED,
) -> list[LabelRow]:
    """The labels at these positions, with all that is known of each."""
    chosen = [{name: _at(getattr(columns, name), label) for name in _NUMBERS} for label in order]
    shares = [row[name] for row in chosen for name in _DRAWN]
    top = max((share for share in shares if share is not None), default=0.0)
    return [
        LabelRow(
            label=labels[label],
            **row,
            glyph=_glyph([row[name] for name in _DRAWN], top),
            recall=None if rates is None else rates.recall[label],
            precision=None if rates is None else rates.precision[label],
            moved=rates is not None and rates.moved[label],
            identified=_identified(identified, label),
        )
        for label, row in zip(order, chosen, strict=True)
    ]


def _identified(identified: Identified, label: int) -> str:
    if label in identified.not_identified:
        return "not"
    return "weakly" if label in identified.weakly_identified else "well"


_NUMBERS = ("p", "predicted", "q", "q_lower", "q_upper", "w", "w_lower", "w_upper")
_DRAWN = ("p", "predicted", "q", "q_lower", "q_upper")


def remarks(found: Result) -> list[str]:
    return [REMARKS[word] for word in found.status if word in REMARKS]


def _at(column: Known | None, label: int) -> float | None:
    found = None if column is None else column[label]
    # What is as good as nothing is shown as nothing.
    return None if found is None else round(found, 6)


def _glyph(shares: Sequence[float | None], top: float) -> Glyph | None:
    known = [share for share in shares if share is not None]
    if len(known) < len(shares) or top <= 0:
        return None
    scale = (GLYPH_WIDTH - 2 * GLYPH_MARGIN) / top
    return Glyph(*(round(GLYPH_MARGIN + scale * max(0.0, share), 1) for share in known))
