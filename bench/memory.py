"""Does memory stay flat? Ten minutes of mixed load; the end beside minute two.

`python -m bench.memory [--minutes 10]` prints the server's resident memory every half minute and
writes bench/results/memory.json. Batches of 1 and of 1,000, hard and soft, with and without keys.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

from bench import family, load
from bench.load import Shot

JSON = {"content-type": "application/json"}
STEP_SECONDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    seconds = parser.parse_args().minutes * 60
    samples: list[tuple[float, float]] = []
    sent = 0.0
    with family.database() as url, family.process(url) as server:
        family.register(server)
        began = time.monotonic()
        for shot in _shots(server):
            sent += load.fire(shot, 32, STEP_SECONDS).requests_per_second * STEP_SECONDS
            elapsed = time.monotonic() - began
            samples.append((elapsed, server.rss_megabytes()))
            if len(samples) % 6 == 0:
                print(
                    f"{elapsed:5.0f} s  {samples[-1][1]:6.1f} MB  {sent:9.0f} requests", flush=True
                )
            if elapsed > seconds:
                break
    early = next(rss for at, rss in samples if at >= 120)
    last = samples[-1][1]
    print(f"minute 2: {early:.1f} MB, end: {last:.1f} MB, ratio {last / early:.3f}")
    place = Path("bench/results/memory.json")
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps({"samples": samples, "requests": sent, "ratio": last / early}))


def _shots(server: family.Running) -> Iterator[Shot]:
    bodies = [
        {"predicted": family.labels(1)},
        {"predicted": family.labels(1000)},
        {"probabilities": _rows(1)},
        {"probabilities": _rows(200)},
    ]
    for body in cycle(bodies):
        for keyed in (False, True):
            yield Shot(server.predictions, json.dumps(body).encode(), JSON, keyed)


def _rows(size: int) -> list[list[float]]:
    chance = random.Random(size)
    rows = [[chance.expovariate(1.0) ** 3 for _ in family.LABELS] for _ in range(size)]
    return [[round(part / sum(row), 9) for part in row] for row in rows]


if __name__ == "__main__":
    main()
