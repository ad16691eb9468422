"""Time is cut into fixed panes; a window is a union of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from math import ceil

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class WindowKind(StrEnum):
    SLIDING = "sliding"
    TUMBLING = "tumbling"
    LAST = "last"
    VERSION = "version"
    ADAPTIVE = "adaptive"


@dataclass(frozen=True, slots=True)
class Window:
    """Which panes an evaluation looks at: `length` of them by time, or `count` predictions."""

    name: str
    kind: WindowKind
    length: timedelta | None = None
    count: int | None = None


# How many evaluations the history keeps for each length of a window: enough for a curve, and it
# bounds what a late prediction makes necessary to look at again.
KEPT_PER_LENGTH = 60
# Windows without a length have evaluations this many panes apart.
STRIDE_PANES = {WindowKind.LAST: 5, WindowKind.ADAPTIVE: 5, WindowKind.VERSION: 60}

DEFAULT_WINDOWS = (
    Window("1h", WindowKind.SLIDING, length=timedelta(hours=1)),
    Window("24h", WindowKind.SLIDING, length=timedelta(hours=24)),
)


def pane_start(at: datetime, pane: timedelta) -> datetime:
    """The start of the pane that `at` falls in; panes are aligned to the epoch.

    >>> pane_start(datetime(2026, 11, 17, 10, 0, 59, tzinfo=UTC), timedelta(minutes=1)).isoformat()
    '2026-11-17T10:00:00+00:00'
    """
    return at - (at - EPOCH) % pane


def span(window: Window, pane: timedelta, now: datetime) -> tuple[datetime, datetime]:
    """Begin and end of a window; the pane that is still open is in it.

    Where one that is not defined by time begins is not for the clock to say: it is empty here.

    >>> hour = Window("1h", WindowKind.SLIDING, length=timedelta(hours=1))
    >>> now = datetime(2026, 11, 17, 10, 0, 30, tzinfo=UTC)
    >>> [str(end.time()) for end in span(hour, timedelta(minutes=1), now)]
    ['09:01:00', '10:01:00']
    """
    end = pane_start(now, pane) + pane
    if window.length is None:
        return end, end
    if window.kind is WindowKind.TUMBLING:
        start = pane_start(now, window.length)
        return start, start + window.length
    return end - window.length, end


def slot(window: Window, pane: timedelta, end: datetime) -> datetime:
    """Where in the history an evaluation of a window that ends at `end` stands.

    >>> day = Window("24h", WindowKind.SLIDING, length=timedelta(hours=24))
    >>> str(slot(day, timedelta(minutes=1), datetime(2026, 11, 17, 10, 1, tzinfo=UTC)).time())
    '10:00:00'
    """
    newest = end - pane
    if window.kind is WindowKind.TUMBLING:
        return pane_start(newest, window.length or pane)
    return pane_start(newest, stride(window, pane))


def stride(window: Window, pane: timedelta) -> timedelta:
    """How far apart the evaluations that the history keeps of a window are: whole panes.

    >>> hour, day = DEFAULT_WINDOWS
    >>> [str(stride(window, timedelta(minutes=1))) for window in (hour, day)]
    ['0:01:00', '0:24:00']
    """
    if window.length is None:
        return STRIDE_PANES[window.kind] * pane
    return max(1, window.length // (KEPT_PER_LENGTH * pane)) * pane


@dataclass(frozen=True, slots=True)
class Slices:
    """A span of time in equal parts: they begin at `first`, `first + every`, ..., `last`."""

    first: datetime
    last: datetime
    every: timedelta


def slices(start: datetime, end: datetime, at_most: int) -> Slices:
    """A span in about so many slices, which stay where they are while the span moves on.

    >>> noon = datetime(2026, 11, 17, 12, 0, 7, tzinfo=UTC)
    >>> cut = slices(noon - timedelta(hours=24), noon, 240)
    >>> str(cut.first.time()), str(cut.last.time()), str(cut.every)
    ('12:00:00', '12:00:00', '0:06:00')
    """
    every = timedelta(seconds=max(1, ceil((end - start).total_seconds() / at_most)))
    return Slices(pane_start(start, every), pane_start(end, every), every)


def longest(windows: Iterable[Window]) -> timedelta:
    """The longest span of time that a window looks back; none for those that count predictions."""
    return max((one.length for one in windows if one.length is not None), default=timedelta(0))
