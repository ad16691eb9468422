"""Time is cut into fixed panes; a window is a union of them."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

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
