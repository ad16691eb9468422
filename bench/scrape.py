"""How long a scrape takes: `python -m bench.scrape [--models 200] [--labels 10] [--days 1]`.

A real server on a database with that many models, each with a softmax reference, two windows and an
evaluation a minute (and one every 24 minutes) for so many days. Nothing is remembered between two
scrapes that are measured as cold.
"""

import argparse
import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import numpy as np
from sqlalchemy import text

from app.api.gauges import REMEMBERED_SECONDS
from app.storage import partitions
from app.storage.db import Database
from bench.evaluate import WINDOWS, advance, database, panes
from bench.sequential import soft_reference
from tests.evaluate.simulation import life
from tests.journeys.processes import Server

SCRAPES = 10
GZIP = {"accept-encoding": "gzip"}

# One model is evaluated for real; the others are copies of it, and so are the days before.
COPY_MODELS = """
INSERT INTO model (name, labels, pane, windows, alarm, allowed_lateness, keep_ids, active_version,
                   created_at, updated_at)
SELECT 'copy-' || i, labels, pane, windows, alarm, allowed_lateness, keep_ids, active_version,
       created_at, updated_at
FROM model, generate_series(2, :models) AS i;
"""
COPY_REFERENCES = """
INSERT INTO reference SELECT copy.id, version, kind, counts, soft, NULL, diagnosis, fingerprint,
    reference.created_at, activated_at
FROM reference, model AS copy WHERE copy.name LIKE 'copy-%' AND model_id <> copy.id;
"""
COPY_DETECTORS = """
INSERT INTO detector SELECT copy.id, version, newest, arrived_at, state
FROM detector, model AS copy WHERE copy.name LIKE 'copy-%';
"""
COPY_HISTORY = """
INSERT INTO evaluation
SELECT id, version, "window", slot - i * CASE WHEN "window" = '1h' THEN interval '1 minute'
           ELSE interval '24 minutes' END, 1, start, "end", n, verdict,
       newest.evaluated_at, false, result
FROM (SELECT DISTINCT ON ("window") * FROM evaluation ORDER BY "window", slot DESC) AS newest,
     model, generate_series(0, :minutes) AS i
WHERE "window" = '1h' OR i <= :minutes / 24
ON CONFLICT DO NOTHING;
"""


def fill(own: Database, models: int, labels: int, days: int) -> None:
    rng = np.random.default_rng(1)
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    one = life(own, soft_reference(labels, 200, rng), "original", windows=WINDOWS[:2])
    pool = panes(labels, 20, rng)
    one.now = now - timedelta(hours=2)
    advance(one, [pool[i] for i in range(120)])
    with own.begin() as conn:
        conn.execute(text("SET LOCAL statement_timeout = 0"))
        months = text("SELECT count(*) FROM pg_inherits WHERE inhparent = 'evaluation'::regclass")
        partitions.ensure(conn, partitions.covering("evaluation", [now - timedelta(days), now]))
        conn.execute(text(COPY_MODELS), {"models": models})
        for statement in (COPY_REFERENCES, COPY_DETECTORS):
            conn.execute(text(statement))
        print(f"{models} models; writing {days} days of evaluations", flush=True)
        conn.execute(text(COPY_HISTORY), {"minutes": days * 1440})
        kept = conn.execute(text("SELECT count(*) FROM evaluation")).scalar_one()
        print(f"{kept:,} evaluations in {conn.execute(months).scalar_one()} partitions", flush=True)
    with own.connect() as conn:
        conn.execution_options(isolation_level="AUTOCOMMIT")
        conn.execute(text("SET statement_timeout = 0"))
        conn.execute(text("VACUUM ANALYZE evaluation"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--labels", type=int, default=10)
    parser.add_argument("--days", type=int, default=1)
    options = parser.parse_args()
    with database() as own:
        fill(own, options.models, options.labels, options.days)
        with Server("api", SHIFTWATCH_DATABASE_URL=own.url) as server:
            found = measured(server.url)
    print(json.dumps(found, indent=1))
    place = Path("bench/results/scrape.json")
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps({**vars(options), **found, "cores": os.cpu_count()}, indent=1))


def measured(url: str) -> dict[str, float]:
    cold, warm, reading = [], [], []
    answer = httpx.get(f"{url}/metrics")
    for _ in range(SCRAPES):
        time.sleep(REMEMBERED_SECONDS)
        cold.append(_seconds(url))
        warm.append(_seconds(url))
        shown = httpx.get(f"{url}/metrics").text
        reading.append(float(shown.rpartition("shiftwatch_scrape_duration_seconds ")[2].split()[0]))
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    return {
        "series": len(lines),
        "megabytes": round(len(answer.content) / 1e6, 1),
        "cold_milliseconds_median": round(1e3 * float(np.median(cold))),
        "cold_milliseconds_worst": round(1e3 * max(cold)),
        "remembered_milliseconds_median": round(1e3 * float(np.median(warm))),
        "reading_and_writing_text_milliseconds": round(1e3 * float(np.median(reading))),
    }


def _seconds(url: str) -> float:
    began = time.perf_counter()
    httpx.get(f"{url}/metrics", headers=GZIP).raise_for_status()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
