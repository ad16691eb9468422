"""What sums of whole panes cost, which sources send to `/counts` instead of predictions.

`python -m bench.counts [--seconds 3]` prints requests, panes and predictions a second for requests
of one pane and of sixty, hard and with softmax sums, beside a FastAPI route that reads the same
body; writes bench/results/counts.json. Sixteen connections, and as many sources, each of which
sends the same panes again and again with a higher sequence: every request replaces what its source
had said, in one pane more by another number. Afterwards the panes must hold the last word of each.
"""

import argparse
import itertools
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from pathlib import Path

from app.api.panes import PaneView
from app.domain.model import Model, ModelSettings
from app.serve import stopping_on_signals
from app.stats import moments
from app.storage.panes import Kind, Pane
from bench import family, formats, load
from bench.cells import Lost
from bench.family import LABELS, MODEL
from bench.load import Load, Shot
from tests.journeys.processes import stored

SOURCES = 16
PANE_SIZE = 1_000
MINUTE = timedelta(minutes=1)
HOURS_AGO = f"{datetime.now(UTC) - timedelta(hours=3):%Y-%m-%dT%H:%M:%SZ}"
KINDS: tuple[Kind, ...] = ("hard", "soft")


@dataclass(frozen=True, slots=True)
class Measured:
    kind: Kind
    panes: int
    requests_per_second: float
    panes_per_second: float
    predictions_per_second: float
    p50_ms: float
    p99_ms: float
    api_cpu_ms: float
    share_of_read: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    seconds = parser.parse_args().seconds
    found = []
    print(f"{'':5} {'panes':>6} {'requests/s':>11} {'panes/s':>9} {'predictions/s':>14}", end="")
    print(f" {'p50 ms':>7} {'p99 ms':>7} {'api ms':>7} {'of read':>8}")
    with (
        stopping_on_signals(once=True),
        family.database() as url,
        family.process(url) as api,
        family.process(url, "fastapi") as reading,
    ):
        for kind, panes in itertools.product(KINDS, (1, 60)):
            one = _measured(api, reading, kind, panes, seconds)
            found.append(asdict(one))
            print(
                f"{kind:5} {panes:6} {one.requests_per_second:11,.0f} {one.panes_per_second:9,.0f}"
                f" {one.predictions_per_second:14,.0f} {one.p50_ms:7.1f} {one.p99_ms:7.1f}"
                f" {one.api_cpu_ms:7.2f} {one.share_of_read:8.2f}",
                flush=True,
            )
    place = Path("bench/results/counts.json")
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps(found, indent=1))


def _measured(
    api: family.Running, reading: family.Running, kind: Kind, panes: int, seconds: float
) -> Measured:
    name = f"{MODEL}-{kind}-{panes}"
    family.register(api, name)
    write = partial(said, kind, panes, datetime.now(UTC))
    before = api.cpu_seconds()
    loaded = _loaded(f"{api.url}/v1/models/{name}/counts", write, seconds)
    cpu = api.cpu_seconds() - before
    _refuse_another_word(api, name, panes, loaded.requests)
    read = _loaded(f"{reading.url}/v1/models/{name}/predictions", write, seconds / 2)
    rate = loaded.requests_per_second
    return Measured(
        kind=kind,
        panes=panes,
        requests_per_second=rate,
        panes_per_second=rate * panes,
        predictions_per_second=rate * panes * PANE_SIZE,
        p50_ms=loaded.p50,
        p99_ms=loaded.p99,
        api_cpu_ms=1e3 * cpu / loaded.requests,
        share_of_read=rate / read.requests_per_second,
    )


def _loaded(url: str, write: "partial[bytes]", seconds: float) -> Load:
    shot = Shot(url, b"", {"content-type": "application/json"}, numbered=write)
    loaded = load.start(shot, SOURCES, seconds).result()
    if loaded.failures:
        raise RuntimeError(f"{loaded.failures} failures at {url}")
    return loaded


def _refuse_another_word(api: family.Running, name: str, panes: int, requests: int) -> None:
    """In the last of them each source has said its sequence, beside what it says in all of them."""
    last = range(max(0, requests - SOURCES), requests)
    expected = len(last) * panes * PANE_SIZE + sum(number // SOURCES for number in last)
    total = sum(stored(api.url, name, **{"from": HOURS_AGO}).values())
    if total != expected:
        raise Lost(f"{name}: {expected} in the last words of {len(last)} sources, stored {total}")


def said(kind: Kind, panes: int, now: datetime, number: int) -> bytes:
    """What the source whose turn it is says of its panes, the newest of which is over."""
    sequence, source = divmod(number, SOURCES)
    head = f'{{"source": "source-{source}", "sequence": {sequence}, "panes": ['
    start = _minute(now) - (panes + 1) * MINUTE
    own = f', {{"start": "{start:%Y-%m-%dT%H:%M:%SZ}", "counts": {{"{LABELS[0]}": {sequence}}}}}]}}'
    return head.encode() + _panes(kind, panes, now) + own.encode()


def _minute(now: datetime) -> datetime:
    return now.replace(second=0, microsecond=0)


@lru_cache
def _panes(kind: Kind, panes: int, now: datetime) -> bytes:
    """As `GET …/panes` shows them."""
    rows = formats.rows(PANE_SIZE)
    sums = moments.sums(len(LABELS), moments.argmax(rows), rows if kind == "soft" else None)
    model = Model(1, MODEL, ModelSettings(tuple(LABELS)), 1, {"v1": now}, "v1")
    first = _minute(now) - panes * MINUTE
    views = (
        PaneView.of(Pane(first + number * MINUTE, "v1", {kind: sums}), model)
        for number in range(panes)
    )
    return b", ".join(view.model_dump_json().encode() for view in views)


if __name__ == "__main__":
    main()
