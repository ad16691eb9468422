"""A batch that comes in parts, reduced part by part: what is held is the sums, not the records."""

from collections.abc import Iterable
from datetime import datetime

from msgspec.structs import replace

from app.errors import Flaw
from app.ingest.columns import Columns
from app.ingest.reduce import SHOWN_FLAWS, Reduced, Watched, chosen_version, reduce, refusal
from app.stats import moments
from app.stats.moments import Sums
from app.storage.panes import PaneKey
from app.storage.predictions import KeptPredictions, joined


def fold(
    parts: Iterable[Columns], watched: Watched, version: str | None, now: datetime, *, skip: bool
) -> Reduced:
    """The sums of all parts. A bad record refuses all of them, or with `skip` only itself."""
    folded = Reduced(watched.model, chosen_version(version, watched.model), {}, accepted=0)
    panes: dict[PaneKey, Sums] = {}
    kept: list[KeptPredictions] = []
    flaws: list[Flaw] = []
    for part in parts:
        reduced = reduce(replace(part, version=version), watched, now, skip=True)
        folded = replace(
            folded,
            accepted=folded.accepted + reduced.accepted,
            late=folded.late + reduced.late,
            rejected=folded.rejected + reduced.rejected,
        )
        if reduced.flaws and not skip:
            seen = folded.accepted + folded.late + folded.rejected
            raise refusal(reduced.flaws, reduced.rejected, f"the first {seen}")
        flaws += reduced.flaws[: SHOWN_FLAWS - len(flaws)]
        _add(panes, reduced)
        kept += [] if reduced.kept is None else [reduced.kept]
    return replace(folded, panes=panes, flaws=flaws, kept=joined(kept) if kept else None)


def _add(panes: dict[PaneKey, Sums], reduced: Reduced) -> None:
    for key, sums in reduced.panes.items():
        panes[key] = moments.total([panes[key], sums]) if key in panes else sums
