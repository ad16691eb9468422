"""How long the page of a model takes and how much it sends: `python -m bench.page [--days 30]`.

A real server on a database with one model of so many labels, softmax rows in its reference, and an
evaluation of its window of an hour for every minute, and of its window of a day every 24 minutes,
for so many days. What a browser fetches for the page is fetched one by one, nothing remembered. The
limits: 150 ms for the page and 200 kB for all of it.
"""

import argparse
import json
import os
import re
import time
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path

import httpx
import numpy as np
from sqlalchemy import text

from app.domain.window import slices
from app.storage import evaluations, models
from app.storage.db import Database
from bench.evaluate import database
from bench.scrape import fill
from tests.journeys.processes import Server

REQUESTS = 50
SPANS = {"1 hour": 1, "1 day": 24, "30 days": 720}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--labels", type=int, default=10)
    options = parser.parse_args()
    with database() as own:
        fill(own, 1, options.labels, options.days)
        found: dict[str, object] = {"series_milliseconds": read(own), "plan": plan(own)}
        with Server("api", SHIFTWATCH_DATABASE_URL=own.url) as server:
            found |= measured(server.url)
    print(json.dumps(found, indent=1))
    place = Path("bench/results/page.json")
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps({**vars(options), **found, "cores": os.cpu_count()}, indent=1))


def read(own: Database) -> dict[str, float]:
    """What 200 points of six labels take to read, by how much time they are spread over."""
    now = datetime.now(UTC)
    found = {}
    with own.connect() as conn:
        model = models.get(conn, "original")
        for name, hours in SPANS.items():
            cut = slices(now - timedelta(hours=hours), now, 200)
            took = []
            for _ in range(REQUESTS):
                began = time.perf_counter()
                evaluations.series(conn, model.id, "v1", "1h", cut, range(6))
                took.append(time.perf_counter() - began)
            found[name] = round(1e3 * float(np.median(took)), 1)
    return found


def plan(own: Database) -> list[str]:
    """How the database goes about it: every step that touches a table must go by a key."""
    now = datetime.now(UTC)
    cut = slices(now - timedelta(days=30), now, 200)
    with own.connect() as conn:
        given = {"model_id": models.get(conn, "original").id, "version": "v1", "window": "1h"}
        spread = {"first": cut.first, "last": cut.last, "every": cut.every, "labels": [0, 1]}
        explained = text(f"EXPLAIN (ANALYZE, COSTS OFF, SUMMARY OFF) {evaluations.SERIES}")
        lines = [str(row[0]).strip() for row in conn.execute(explained, {**given, **spread})]
    steps = [line for line in lines if "Scan" in line and "never executed" not in line]
    assert not any("Seq Scan" in step for step in steps), steps
    return steps


def measured(url: str) -> dict[str, object]:
    with httpx.Client(base_url=url) as client:
        page = "/models/original?hours=720"
        html = client.get(page).text
        resources = [unescape(one) for one in re.findall(r'(?:href|src)="(/static/[^"]+)"', html)]
        series = unescape(re.findall(r'data-series="([^"]+)"', html)[0])
        paths = [page, series, *resources]
        sent = {path: client.get(path).num_bytes_downloaded for path in paths}
        plain = sum(len(client.get(path).content) for path in paths)
        return {
            "page_milliseconds": _took(client, page),
            "series_request_milliseconds": _took(client, series),
            "bytes": {path.split("?")[0]: size for path, size in sent.items()},
            "bytes_in_all": sum(sent.values()),
            "bytes_in_all_if_nothing_were_compressed": plain,
        }


def _took(client: httpx.Client, path: str) -> dict[str, float]:
    seconds = []
    for _ in range(REQUESTS):
        began = time.perf_counter()
        client.get(path).raise_for_status()
        seconds.append(time.perf_counter() - began)
    p50, p95 = np.percentile(seconds, [50, 95])
    return {"p50": round(1e3 * float(p50), 1), "p95": round(1e3 * float(p95), 1)}


if __name__ == "__main__":
    main()
