"""From the body of a source to its contributions: sums of whole panes that it has added up itself.

The names are those of `GET /v1/models/{model}/panes`, so that what is shown there can be sent.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import starmap
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta, Struct

from app.domain.model import SLUG
from app.domain.times import rfc_3339
from app.domain.window import pane_start
from app.errors import InvalidInput, escaped
from app.ingest import json_format
from app.ingest.contributions import Contribution, Contributions
from app.ingest.json_format import Moment
from app.ingest.reduce import FUTURE_TOLERANCE, Watched, chosen_version
from app.stats import coherence, moments
from app.stats.moments import CODE_BINS, CONFIDENCE_BINS, Counts, SoftSums, Sums
from app.storage.panes import Kind

# A day of minutes. Who has more to say says it in several requests.
MOST_PANES = 1440
# So that sums over a year of panes of a thousand sources still fit PostgreSQL's bigint.
MOST_PREDICTIONS = 10**10

Count = Annotated[int, Meta(ge=0, le=MOST_PREDICTIONS)]
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class LabelCount(Struct, forbid_unknown_fields=True):
    label: str
    count: Count


# As GET shows them, or as an object from label to count.
LabelCounts = list[LabelCount] | dict[str, Count]


class LabelSum(Struct, forbid_unknown_fields=True):
    label: str
    probability: float
    score: float
    cells: Annotated[list[Count], Meta(min_length=CONFIDENCE_BINS, max_length=CONFIDENCE_BINS)]


class CodeCount(Struct, forbid_unknown_fields=True):
    first: str
    second: str
    bin: Annotated[int, Meta(ge=0, lt=CODE_BINS)]
    count: Annotated[int, Meta(ge=1, le=MOST_PREDICTIONS)]


class SoftBody(Struct, forbid_unknown_fields=True):
    """Sums over the predictions of a pane that came with softmax rows."""

    counts: LabelCounts
    labels: list[LabelSum]
    outer: list[float]
    codes: list[CodeCount]
    score: float
    score_squared: float
    n: int | None = None


class PaneBody(Struct, forbid_unknown_fields=True):
    """All that the source has counted in a pane; `counts` are those of every prediction in it."""

    start: Moment
    counts: LabelCounts
    sequence: Number | None = None
    soft: SoftBody | None = None
    version: str | None = None
    n: int | None = None
    length: timedelta | None = None


class Body(Struct, forbid_unknown_fields=True):
    """`version` and `sequence` hold for every pane that has none of its own."""

    source: str
    panes: Annotated[list[PaneBody], Meta(min_length=1, max_length=MOST_PANES)]
    version: str | None = None
    sequence: Number | None = None


_decoder = msgspec.json.Decoder(Body)


def parse(content: bytes) -> Body:
    try:
        return _decoder.decode(content)
    except msgspec.ValidationError as error:
        flaw = json_format.flaw_of(error)
        # Which entry of an object is meant, msgspec does not say.
        raise InvalidInput(flaw.detail, (flaw.pointer or "#").partition("[")[0]) from None
    except msgspec.DecodeError as error:
        json_format.refuse(content, error)


def size(body: Body) -> int:
    """How many predictions a body speaks of, whatever is wrong with it."""
    return sum(one.count for pane in body.panes for one in _pairs(pane.counts))


def contributions(
    body: Body, watched: Watched, now: datetime, most_sources: int, trace: str | None = None
) -> Contributions:
    """What the body says, or what is wrong with it."""
    if not SLUG.fullmatch(body.source):
        detail = "must be 1 to 100 letters, digits, '.', '_', '~' or '-', as a model's name"
        raise InvalidInput(detail, "#/source")
    version = chosen_version(body.version, watched.model)
    panes = [_contribution(body, place, watched, version, now) for place in range(len(body.panes))]
    _refuse_twins([(one.version, one.start) for one in panes])
    return Contributions(watched.model, body.source, version, panes, most_sources, trace)


def _contribution(
    body: Body, place: int, watched: Watched, version: str, now: datetime
) -> Contribution:
    pane, at = body.panes[place], f"#/panes/{place}"
    sequence = body.sequence if pane.sequence is None else pane.sequence
    if sequence is None:
        raise InvalidInput("needs a `sequence`, its own or one for all panes", f"{at}/sequence")
    if pane.version is not None:
        version = chosen_version(pane.version, watched.model, f"{at}/version")
    _refuse_times(pane, watched, now, at)
    settings = watched.model.settings
    return Contribution(
        version=version,
        start=pane.start,
        sequence=sequence,
        sums=_sums(pane, watched, at),
        # Each of its predictions would be, sent by itself.
        late=pane.start + settings.pane <= now - settings.allowed_lateness,
    )


def _refuse_times(pane: PaneBody, watched: Watched, now: datetime, at: str) -> None:
    length = watched.model.settings.pane
    if pane.length is not None and pane.length != length:
        detail = f"is {pane.length}, but panes of model {watched.model.name!r} are {length} long"
        raise InvalidInput(detail, f"{at}/length")
    try:
        start = pane_start(pane.start, length)
    except OverflowError:
        start = None
    if pane.start != start:
        near = "" if start is None else f"; the one around it begins at {rfc_3339(start)}"
        raise InvalidInput(
            f"no pane of model {watched.model.name!r} begins then: they are {length} long{near}",
            f"{at}/start",
        )
    if pane.start > now + FUTURE_TOLERANCE:
        raise InvalidInput(f"lies in the future (it is {now:%Y-%m-%dT%H:%M:%SZ})", f"{at}/start")


def _refuse_twins(panes: Sequence[tuple[str, datetime]]) -> None:
    first: dict[tuple[str, datetime], int] = {}
    for place, pane in enumerate(panes):
        if first.setdefault(pane, place) != place:
            detail = f"the same pane as #/panes/{first[pane]}; a source has one word on each"
            raise InvalidInput(detail, f"#/panes/{place}/start")


def _sums(pane: PaneBody, watched: Watched, at: str) -> dict[Kind, Sums]:
    """Predictions with and without softmax rows apart; none of a kind is not there."""
    counts = _counts(pane.counts, watched, f"{at}/counts")
    _refuse_size(pane.n, counts, at)
    if pane.soft is None:
        parts: dict[Kind, Sums] = {"hard": Sums(counts)}
    else:
        soft = _soft(pane.soft, watched, f"{at}/soft")
        if (soft.counts > counts).any():
            detail = "has more of a label than `counts` of the pane, which are of all predictions"
            raise InvalidInput(detail, f"{at}/soft/counts")
        parts = {"hard": Sums(counts - soft.counts), "soft": soft}
    return {kind: part for kind, part in parts.items() if part.n}


def _refuse_size(n: int | None, counts: Counts, at: str) -> None:
    if int(counts.sum()) > MOST_PREDICTIONS:
        raise InvalidInput(f"counts more than {MOST_PREDICTIONS} predictions", f"{at}/counts")
    if n is not None and n != counts.sum():
        raise InvalidInput(f"is not what `counts` add up to, {counts.sum()}", f"{at}/n")


def _pairs(counts: LabelCounts) -> Iterable[LabelCount]:
    return starmap(LabelCount, counts.items()) if isinstance(counts, dict) else counts


def _counts(given: LabelCounts, watched: Watched, at: str) -> Counts:
    """In the order of the labels; one that is not named has none."""
    names = [one.label for one in _pairs(given)]
    pointers = (
        [f"{at}/{escaped(name)}" for name in names]
        if isinstance(given, dict)
        else [f"{at}/{place}/label" for place in range(len(names))]
    )
    counts = np.zeros(watched.model.k, dtype=np.int64)
    counts[_labels(names, pointers, watched)] = [one.count for one in _pairs(given)]
    return counts


def _labels(names: Sequence[str], pointers: Sequence[str], watched: Watched) -> list[int]:
    """The positions of labels, each of which is named once."""
    found: dict[int, None] = {}
    for name, pointer in zip(names, pointers, strict=True):
        label = _label(name, watched, pointer)
        if label in found:
            raise InvalidInput(f"{name!r} stands there twice", pointer)
        found[label] = None
    return list(found)


def _label(name: str, watched: Watched, pointer: str) -> int:
    if name not in watched.index:
        raise InvalidInput(f"model {watched.model.name!r} has no label {name!r}", pointer)
    return watched.index[name]


def _soft(body: SoftBody, watched: Watched, at: str) -> Sums:
    k = watched.model.k
    counts = _counts(body.counts, watched, f"{at}/counts")
    _refuse_size(body.n, counts, at)
    if len(body.outer) != moments.outer_size(k):
        detail = f"has {len(body.outer)} numbers, but for {k} labels it is {moments.outer_size(k)}"
        raise InvalidInput(detail, f"{at}/outer")
    pointers = [f"{at}/labels/{place}/label" for place in range(len(body.labels))]
    own = _labels([one.label for one in body.labels], pointers, watched)
    prob, score, cells = np.zeros(k), np.zeros(k), np.zeros((k, CONFIDENCE_BINS), dtype=np.int64)
    prob[own] = [one.probability for one in body.labels]
    score[own] = [one.score for one in body.labels]
    for place, one in zip(own, body.labels, strict=True):
        cells[place] = one.cells
    codes, code_counts = _codes(body.codes, watched, f"{at}/codes")
    sums = Sums(
        counts,
        SoftSums(
            prob=prob,
            outer=np.array(body.outer),
            cells=cells.ravel(),
            codes=codes,
            code_counts=code_counts,
            score=body.score,
            score_squared=body.score_squared,
            score_by_label=score,
        ),
    )
    wrong = coherence.incoherence(sums)
    if wrong is not None:
        raise InvalidInput(wrong.detail, f"{at}/{wrong.field}")
    return sums


def _codes(body: Sequence[CodeCount], watched: Watched, at: str) -> tuple[Counts, Counts]:
    """Codes in order, as panes have them, and their counts."""
    first, second = np.zeros((2, len(body)), dtype=np.int64)
    for place, one in enumerate(body):
        first[place] = _label(one.first, watched, f"{at}/{place}/first")
        second[place] = _label(one.second, watched, f"{at}/{place}/second")
        if one.first == one.second:
            raise InvalidInput("is `first` again, and not the runner-up", f"{at}/{place}/second")
    bins = np.array([one.bin for one in body], dtype=np.int64)
    codes, places = np.unique(
        moments.encode(watched.model.k, first, second, bins), return_index=True
    )
    if len(places) < len(body):
        twin = min(set(range(len(body))).difference(places.tolist()))
        raise InvalidInput("stands there twice", f"{at}/{twin}")
    return codes, np.array([one.count for one in body], dtype=np.int64)[places]
