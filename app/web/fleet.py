"""The list of models: who is in trouble, how much has moved, is anything still coming in?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from app.domain.fleet import OpenAlarm, VersionNow
from app.domain.moved import Moved
from app.web import moved, words

WIDTH, HEIGHT = 96, 28


@dataclass(frozen=True, slots=True)
class Row:
    """One model, by its active version and its first window."""

    name: str
    version: str | None
    verdict: str
    n: int
    accuracy: float | None
    reference_accuracy: float | None
    moved: Moved | None
    alarm: OpenAlarm | None
    arrived: str
    sparkline: str | None


def rows(
    names: Sequence[str],
    versions: Sequence[VersionNow],
    traffic: Mapping[str, Sequence[int]],
    now: datetime,
) -> list[Row]:
    active = {one.model: one for one in versions if one.active}
    alarms = {name: _worst(name, versions) for name in names}
    return [
        _row(name, active.get(name), alarms[name], traffic.get(name, ()), now) for name in names
    ]


def _row(
    name: str,
    version: VersionNow | None,
    alarm: OpenAlarm | None,
    traffic: Sequence[int],
    now: datetime,
) -> Row:
    window = version.windows[0] if version is not None and version.windows else None
    verdict = "no_reference" if version is None else "no_data"
    return Row(
        name=name,
        version=None if version is None else version.version,
        verdict=verdict if window is None else window.verdict,
        n=0 if window is None else window.n,
        accuracy=None if window is None or window.accuracy is None else window.accuracy.estimate,
        reference_accuracy=None if version is None else version.accuracy,
        moved=None
        if version is None or window is None
        else moved.most(version.labels, window.labels, window.identified, window.groups),
        alarm=alarm,
        arrived=words.ago(None if version is None else version.arrived_at, now),
        sparkline=sparkline(traffic),
    )


def _worst(name: str, versions: Sequence[VersionNow]) -> OpenAlarm | None:
    """Of all its versions: a canary that shifts is a worry about the model."""
    grades = {"info": 0, "warning": 1, "critical": 2}
    states = {"pending": 0, "acknowledged": 1, "firing": 2}
    found = [alarm for one in versions if one.model == name for alarm in one.alarms]
    return max(found, key=lambda one: (states[one.state], grades[one.severity]), default=None)


def sparkline(values: Sequence[int]) -> str | None:
    """The points of a line through the values, for SVG; None if there is nothing to see.

    >>> sparkline([0, 5, 10])
    '0.0,27.0 48.0,14.0 96.0,1.0'
    """
    top = max(values, default=0)
    if top == 0 or len(values) < 2:
        return None
    step = WIDTH / (len(values) - 1)
    return " ".join(
        f"{i * step:.1f},{HEIGHT - 1 - (HEIGHT - 2) * value / top:.1f}"
        for i, value in enumerate(values)
    )
