"""Detectors: what each version's watch remembers, bit for bit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from sqlalchemy import Connection, select, update
from sqlalchemy.dialects.postgresql import insert

from app.domain.evidence import part_from_json, part_to_json
from app.domain.watch import Raised, Watch
from app.stats import sequential
from app.stats.moments import Floats
from app.stats.sequential import State
from app.storage.tables import detector


@dataclass(frozen=True, slots=True)
class Seen:
    """The start of a version's newest pane, and when predictions of it last came in."""

    newest: datetime
    arrived_at: datetime


def seen(conn: Connection, model_id: int) -> dict[str, Seen]:
    """Of all versions of a model that ever had a prediction, when they had it."""
    rows = conn.execute(
        select(detector.c.version, detector.c.newest, detector.c.arrived_at).where(
            detector.c.model_id == model_id
        )
    )
    return {row.version: Seen(row.newest, row.arrived_at) for row in rows}


def find(conn: Connection, model_id: int, version: str) -> Watch | None:
    """The watch of a version; None before its first prediction."""
    stored = conn.execute(
        select(detector.c.state).where(
            detector.c.model_id == model_id, detector.c.version == version
        )
    ).scalar_one_or_none()
    return None if stored is None else _from_json(stored)


def put(
    conn: Connection, model_id: int, version: str, watch: Watch, when: Seen | None = None
) -> None:
    """Remember a watch instead of what was remembered of it before, and `when` it was fed."""
    own: dict[str, Any] = {"state": _to_json(watch)}
    if when is None:
        conn.execute(
            update(detector)
            .where(detector.c.model_id == model_id, detector.c.version == version)
            .values(**own)
        )
        return
    own |= {"newest": when.newest, "arrived_at": when.arrived_at}
    new = insert(detector).values(model_id=model_id, version=version, **own)
    conn.execute(
        new.on_conflict_do_update(
            index_elements=[detector.c.model_id, detector.c.version],
            set_={name: new.excluded[name] for name in own},
        )
    )


def _to_json(watch: Watch) -> dict[str, Any]:
    """The watch in lists and numbers; `_from_json` gives back every bit of it."""
    return {
        "waiting": [part_to_json(part) for part in watch.waiting],
        "phi": watch.phi,
        "phi_upper": watch.phi_upper,
        "newest": watch.newest,
        "panes": watch.panes,
        "shift": _state_to_json(watch.shift),
        "worst": _state_to_json(watch.worst),
        "monitor": _state_to_json(watch.monitor),
        "shifted": _raised_to_json(watch.shifted),
        "violated": _raised_to_json(watch.violated),
        "confirmed": watch.confirmed,
        "frozen": _known(watch.frozen),
        "accepted": _known(watch.accepted),
    }


def _from_json(stored: dict[str, Any]) -> Watch:
    """The watch that `_to_json` wrote."""
    return Watch(
        waiting=tuple(part_from_json(part) for part in stored["waiting"]),
        phi=stored["phi"],
        phi_upper=stored["phi_upper"],
        newest=stored["newest"],
        panes=stored["panes"],
        shift=_state_from_json(stored["shift"]),
        worst=_state_from_json(stored["worst"]),
        monitor=_state_from_json(stored["monitor"]),
        shifted=_raised_from_json(stored["shifted"]),
        violated=_raised_from_json(stored["violated"]),
        confirmed=stored["confirmed"],
        frozen=_floats(stored["frozen"]),
        accepted=_floats(stored["accepted"]),
    )


def _raised_to_json(raised: Raised | None) -> dict[str, Any] | None:
    if raised is None:
        return None
    return {
        "at": raised.at,
        "onset": raised.onset,
        "bet": raised.bet,
        "statistic": raised.statistic,
        "before": sequential.to_json(raised.before),
        "part": part_to_json(raised.part),
        "opens": raised.opens,
        "recent": raised.recent,
        "way_back": raised.way_back.tolist(),
        "back": raised.back,
        "quiet_panes": raised.quiet_panes,
    }


def _raised_from_json(stored: Mapping[str, Any] | None) -> Raised | None:
    if stored is None:
        return None
    kept: dict[str, Any] = {
        **stored,
        "before": sequential.from_json(stored["before"]),
        "part": part_from_json(stored["part"]),
        "way_back": np.array(stored["way_back"], dtype=np.float64),
    }
    return Raised(**kept)


def _state_to_json(state: State | None) -> dict[str, Any] | None:
    return None if state is None else sequential.to_json(state)


def _state_from_json(stored: dict[str, Any] | None) -> State | None:
    return None if stored is None else sequential.from_json(stored)


def _known(values: Floats | None) -> list[float | None] | None:
    """JSON has no NaN: what is not known is null."""
    if values is None:
        return None
    return [value if np.isfinite(value) else None for value in values.tolist()]


def _floats(values: Sequence[float | None] | None) -> Floats | None:
    if values is None:
        return None
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
