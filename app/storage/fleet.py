"""All models at one moment, in one statement, so that all of it was true at once."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec
from sqlalchemy import Connection, text

from app.domain.fleet import Fleet

# For how long a version that is not the active one is shown after its last prediction.
SHOWN_FOR = timedelta(days=1)

# A scrape that takes longer is of no use to anybody.
TIMEOUT = "5s"

# The newest evaluation of each window is looked for by its key, one after the other: sorting all
# of them to find it would take longer with every month of history. The document is put together by
# the database because a row with arrays for each window would repeat the labels every time.
_READ = text(
    """
WITH shown AS (
    SELECT m.name, m.labels, m.windows, r.model_id, r.version, r.kind, r.diagnosis,
           r.version = m.active_version AS active,
           greatest(d.newest, w.newest) AS newest,
           greatest(d.arrived_at, w.arrived_at) AS arrived_at
    FROM reference r
    JOIN model m ON m.id = r.model_id
    LEFT JOIN detector d ON d.model_id = r.model_id AND d.version = r.version
    -- What no evaluation has taken yet has come in all the same; the last of it, by its key:
    -- without a worker there may be millions.
    LEFT JOIN LATERAL (
        SELECT start AS newest, arrived_at FROM arrival
        WHERE model_id = r.model_id AND version = r.version ORDER BY id DESC LIMIT 1
    ) AS w ON true
    WHERE (r.version = m.active_version OR greatest(d.arrived_at, w.arrived_at) >= :since)
      AND (CAST(:names AS text[]) IS NULL OR m.name = ANY(:names))
), looks AS (
    SELECT s.model_id, s.version, json_agg(json_build_object(
        'window', e."window", 'end', e."end", 'evaluated_at', e.evaluated_at, 'n', e.n,
        'verdict', e.verdict, 'labels', e.result -> 'labels', 'tests', e.result -> 'tests',
        'total_variation', e.result -> 'total_variation',
        'accuracy', e.result -> 'accuracy', 'assumption', e.result -> 'assumption',
        'paper', e.result -> 'paper',
        'identified', coalesce(e.result -> 'identified', '{}'),
        'groups', coalesce(e.result -> 'groups', '[]'),
        'degenerate', e.result -> 'status' ? 'degenerate_w1'
    ) ORDER BY place) AS windows
    FROM shown s
    CROSS JOIN LATERAL jsonb_array_elements(s.windows) WITH ORDINALITY AS w(own, place)
    CROSS JOIN LATERAL (
        SELECT * FROM evaluation
        WHERE model_id = s.model_id AND version = s.version AND "window" = w.own ->> 'name'
        ORDER BY slot DESC, revision DESC LIMIT 1
    ) AS e
    GROUP BY s.model_id, s.version
), worries AS (
    SELECT model_id, version, json_agg(json_build_object(
        'alarm', kind, 'state', state, 'severity', severity, 'verdict', verdict)) AS alarms
    FROM alarm WHERE state <> 'resolved' GROUP BY model_id, version
), versions AS (
    SELECT json_agg(json_build_object(
        'model', s.name, 'version', s.version, 'active', s.active, 'kind', s.kind,
        'labels', s.labels, 'p', s.diagnosis -> 'nu', 'accuracy', s.diagnosis -> 'accuracy',
        'sigma_min', s.diagnosis -> (s.diagnosis ->> 'moments') -> 'sigma_min',
        'newest', s.newest, 'arrived_at', s.arrived_at,
        'windows', coalesce(l.windows, '[]'), 'alarms', coalesce(o.alarms, '[]')
    ) ORDER BY s.name, s.version) AS found
    FROM shown s LEFT JOIN looks l USING (model_id, version)
    LEFT JOIN worries o USING (model_id, version)
), outbox AS (
    SELECT count(*) FILTER (WHERE waiting) AS pending,
           min(due_at) FILTER (WHERE waiting AND place = 1) AS oldest_pending_at,
           count(*) FILTER (WHERE state = 'dead') AS dead
    FROM (SELECT d.state, d.due_at, d.state = 'pending' AND h.disabled_at IS NULL AS waiting,
                 -- Only the first notice of an alarm can go: the others wait for it, not for us.
                 row_number() OVER (
                     PARTITION BY d.webhook_id, d.state, coalesce(d.alarm_id, -d.id) ORDER BY d.id
                 ) AS place
          FROM delivery d JOIN webhook h ON h.id = d.webhook_id
          WHERE d.state <> 'delivered') AS notice
)
SELECT json_build_object(
    'models', coalesce((SELECT json_agg(name ORDER BY name) FROM model), '[]'),
    'versions', coalesce(versions.found, '[]'),
    'oldest_due_at', (SELECT min(due_at) FROM model WHERE due_at <= :now),
    'pending', outbox.pending, 'oldest_pending_at', outbox.oldest_pending_at, 'dead', outbox.dead
)::text
FROM versions, outbox
"""
)

# Straight from the text into the domain's values: for a hundred thousand numbers, anything less
# direct is what a scrape would mostly wait for.
_decoder = msgspec.json.Decoder(Fleet)


def read(conn: Connection, now: datetime, names: Sequence[str] | None = None) -> Fleet:
    """What was last found of every version that is in use, and what waits to be done.

    With `names`, only versions of these models.
    """
    conn.execute(text(f"SET LOCAL statement_timeout = '{TIMEOUT}'"))
    wanted = None if names is None else list(names)
    found = conn.execute(_READ, {"now": now, "since": now - SHOWN_FOR, "names": wanted})
    return _decoder.decode(found.scalar_one())


class Order(StrEnum):
    """What a list of models begins with: the worst alarms, the largest change, ..."""

    TROUBLE = "trouble"
    NAME = "name"
    CHANGE = "change"
    TRAFFIC = "traffic"


# What models are put in order by is read of all of them; the rest, of those on the page.
_PAGE = """
WITH newest AS (
    SELECT r.model_id, e.n, CAST(e.result ->> 'total_variation' AS double precision) AS change
    FROM reference r JOIN model m ON m.id = r.model_id AND m.active_version = r.version
    CROSS JOIN LATERAL (
        SELECT n, result FROM evaluation
        WHERE model_id = r.model_id AND version = r.version
          AND "window" = m.windows -> 0 ->> 'name'
        ORDER BY slot DESC, revision DESC LIMIT 1
    ) AS e
), worst AS (
    SELECT model_id, max(
        CASE severity WHEN 'critical' THEN 3 WHEN 'warning' THEN 2 ELSE 1 END
        + CASE state WHEN 'firing' THEN 10 WHEN 'acknowledged' THEN 5 ELSE 0 END) AS trouble
    FROM alarm WHERE state <> 'resolved' GROUP BY model_id
)
SELECT m.name, count(*) OVER () FROM model m
LEFT JOIN newest ON newest.model_id = m.id LEFT JOIN worst ON worst.model_id = m.id
WHERE m.name ILIKE :pattern
ORDER BY {} m.name LIMIT :limit OFFSET :offset
"""
_PAGES = {
    Order.TROUBLE: text(_PAGE.format("coalesce(trouble, 0) DESC, coalesce(change, 0) DESC,")),
    Order.NAME: text(_PAGE.format("")),
    Order.CHANGE: text(_PAGE.format("coalesce(change, 0) DESC,")),
    Order.TRAFFIC: text(_PAGE.format("coalesce(n, 0) DESC,")),
}


def page(
    conn: Connection, search: str, order: Order, limit: int, offset: int = 0
) -> tuple[list[str], int]:
    """The names on one page of the list of models, and how many there are on all pages."""
    plain = search.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    rows = conn.execute(
        _PAGES[order], {"pattern": f"%{plain}%", "limit": limit, "offset": offset}
    ).all()
    return [row[0] for row in rows], rows[0][1] if rows else 0


# One look per hour at what the first window held: with a window of an hour, the hour's traffic.
_TRAFFIC = text(
    """
SELECT m.name, hour, e.n
FROM reference r JOIN model m ON m.id = r.model_id AND m.active_version = r.version
CROSS JOIN generate_series(CAST(:first AS timestamptz), :now, interval '1 hour') AS hour
CROSS JOIN LATERAL (
    SELECT n FROM evaluation
    WHERE model_id = r.model_id AND version = r.version AND "window" = m.windows -> 0 ->> 'name'
      AND slot > hour - interval '1 hour' AND slot <= hour
    ORDER BY slot DESC, revision DESC LIMIT 1
) AS e
WHERE m.name = ANY(:names)
"""
)


def traffic(
    conn: Connection, names: Sequence[str], now: datetime, hours: int = 24
) -> dict[str, list[int]]:
    """What the first window of each model held at the end of each of the last hours."""
    first = now - timedelta(hours=hours - 1)
    rows = conn.execute(_TRAFFIC, {"names": list(names), "first": first, "now": now})
    found: defaultdict[str, list[int]] = defaultdict(lambda: [0] * hours)
    for name, hour, n in rows:
        found[name][round((hour - first) / timedelta(hours=1))] = n
    return dict(found)
