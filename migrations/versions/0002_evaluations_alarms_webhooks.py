"""Arrivals, rollups, detectors, evaluations, alarms, silences, webhooks and deliveries."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# Whoever runs the previous release does not know these columns and needs not to.
MODEL = """
ALTER TABLE model
    ADD COLUMN evaluated_at timestamptz,
    ADD COLUMN leased_until timestamptz,
    ADD COLUMN failures integer NOT NULL DEFAULT 0;
"""

# Rows live for a second or so: what they leave behind must be swept often.
ARRIVAL = """
CREATE TABLE arrival (
    model_id integer NOT NULL,
    id bigint GENERATED ALWAYS AS IDENTITY,
    version text NOT NULL,
    start timestamptz NOT NULL,
    kind text NOT NULL,
    counts bigint[] NOT NULL,
    score double precision NOT NULL,
    arrived_at timestamptz NOT NULL,
    CONSTRAINT arrival_pkey PRIMARY KEY (model_id, id),
    CONSTRAINT arrival_kind_check CHECK (kind IN ('hard', 'soft')),
    CONSTRAINT arrival_counts_check CHECK (
        cardinality(counts) BETWEEN 2 AND 1000
        AND array_ndims(counts) = 1
        AND array_position(counts, NULL) IS NULL)
) WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000);
"""

ROLLUP = """
CREATE TABLE rollup (
    model_id integer NOT NULL,
    version text NOT NULL,
    panes integer NOT NULL,
    start timestamptz NOT NULL,
    kind text NOT NULL,
    counts bigint[] NOT NULL,
    prob double precision[],
    "outer" double precision[],
    cells bigint[],
    score double precision[],
    CONSTRAINT rollup_pkey PRIMARY KEY (model_id, version, panes, start, kind),
    CONSTRAINT rollup_kind_check CHECK (
        kind IN ('hard', 'soft')
        AND (kind = 'soft') = (num_nulls(prob, "outer", cells, score) = 0)
        AND (kind = 'hard') = (num_nonnulls(prob, "outer", cells, score) = 0)),
    CONSTRAINT rollup_counts_check CHECK (
        cardinality(counts) BETWEEN 2 AND 1000
        AND array_ndims(counts) = 1
        AND array_position(counts, NULL) IS NULL),
    CONSTRAINT rollup_length_check CHECK (
        cardinality(prob) = cardinality(counts)
        AND cardinality("outer") = CASE WHEN cardinality(counts) <= 64
            THEN cardinality(counts) * (cardinality(counts) + 1) / 2
            ELSE cardinality(counts) END
        AND cardinality(cells) = 14 * cardinality(counts)
        AND cardinality(score) = cardinality(counts) + 2),
    CONSTRAINT rollup_null_check CHECK (
        array_position(prob, NULL) IS NULL
        AND array_position("outer", NULL) IS NULL
        AND array_position(cells, NULL) IS NULL
        AND array_position(score, NULL) IS NULL)
) PARTITION BY RANGE (start);
"""

# The state is rewritten with every evaluation; room on the page keeps that off the index.
DETECTOR = """
CREATE TABLE detector (
    model_id integer NOT NULL,
    version text NOT NULL,
    newest timestamptz NOT NULL,
    arrived_at timestamptz NOT NULL,
    state jsonb NOT NULL,
    CONSTRAINT detector_pkey PRIMARY KEY (model_id, version)
) WITH (fillfactor = 50);
"""

EVALUATION = """
CREATE TABLE evaluation (
    model_id integer NOT NULL,
    version text NOT NULL,
    "window" text NOT NULL,
    slot timestamptz NOT NULL,
    revision integer NOT NULL,
    start timestamptz NOT NULL,
    "end" timestamptz NOT NULL,
    n bigint NOT NULL,
    verdict text NOT NULL,
    evaluated_at timestamptz NOT NULL,
    outdated boolean NOT NULL DEFAULT false,
    result jsonb NOT NULL,
    CONSTRAINT evaluation_pkey PRIMARY KEY (model_id, version, "window", slot, revision),
    CONSTRAINT evaluation_verdict_check CHECK (verdict IN (
        'no_data', 'insufficient_data', 'no_shift', 'label_shift', 'not_label_shift',
        'undetermined'))
) PARTITION BY RANGE (slot);
CREATE INDEX evaluation_outdated_idx ON evaluation (model_id, version, slot) WHERE outdated;
"""

ALARM = """
CREATE TABLE alarm (
    model_id integer NOT NULL,
    id bigint GENERATED ALWAYS AS IDENTITY,
    version text NOT NULL,
    kind text NOT NULL,
    state text NOT NULL,
    severity text NOT NULL,
    verdict text,
    reason text NOT NULL,
    since timestamptz NOT NULL,
    onset timestamptz,
    fired_at timestamptz,
    notified_at timestamptz,
    acknowledged_by text,
    acknowledged_at timestamptz,
    resolved_at timestamptz,
    confirmed boolean NOT NULL DEFAULT false,
    evidence jsonb NOT NULL,
    CONSTRAINT alarm_pkey PRIMARY KEY (model_id, id),
    CONSTRAINT alarm_kind_check CHECK (
        kind IN ('shift', 'assumption', 'no_data', 'ingest_stopped')),
    CONSTRAINT alarm_state_check CHECK (
        state IN ('pending', 'firing', 'acknowledged', 'resolved')),
    CONSTRAINT alarm_severity_check CHECK (severity IN ('info', 'warning', 'critical'))
);
CREATE UNIQUE INDEX alarm_open_key ON alarm (model_id, version, kind) WHERE state <> 'resolved';
CREATE INDEX alarm_id_idx ON alarm (id);

CREATE TABLE alarm_change (
    model_id integer NOT NULL,
    alarm_id bigint NOT NULL,
    id bigint GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL,
    event text NOT NULL,
    state text NOT NULL,
    reason text NOT NULL,
    "by" text,
    note text,
    CONSTRAINT alarm_change_pkey PRIMARY KEY (model_id, alarm_id, id)
);

CREATE TABLE silence (
    id integer GENERATED ALWAYS AS IDENTITY,
    matchers jsonb NOT NULL,
    "by" text NOT NULL,
    reason text NOT NULL,
    created_at timestamptz NOT NULL,
    until timestamptz NOT NULL,
    ended_at timestamptz,
    ended_by text,
    CONSTRAINT silence_pkey PRIMARY KEY (id)
);
"""

WEBHOOK = """
CREATE TABLE webhook (
    id integer GENERATED ALWAYS AS IDENTITY,
    url text NOT NULL,
    events text[] NOT NULL,
    shape text NOT NULL,
    routing_key text,
    secret text NOT NULL,
    old_secret text,
    old_secret_until timestamptz,
    created_at timestamptz NOT NULL,
    disabled_at timestamptz,
    disabled_because text,
    CONSTRAINT webhook_pkey PRIMARY KEY (id),
    CONSTRAINT webhook_events_check CHECK (
        cardinality(events) > 0 AND array_position(events, NULL) IS NULL),
    CONSTRAINT webhook_shape_check CHECK (shape IN (
        'standard', 'cloudevents', 'slack', 'pagerduty', 'teams', 'alertmanager'))
);

CREATE TABLE delivery (
    id bigint GENERATED ALWAYS AS IDENTITY,
    webhook_id integer NOT NULL,
    alarm_id bigint,
    event text NOT NULL,
    message_id text NOT NULL,
    notice jsonb NOT NULL,
    state text NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL,
    due_at timestamptz NOT NULL,
    leased_until timestamptz,
    settled_at timestamptz,
    status_code integer,
    error text,
    CONSTRAINT delivery_pkey PRIMARY KEY (id),
    CONSTRAINT delivery_webhook_id_fkey FOREIGN KEY (webhook_id)
        REFERENCES webhook ON DELETE CASCADE,
    CONSTRAINT delivery_state_check CHECK (state IN ('pending', 'delivered', 'dead'))
);
CREATE INDEX delivery_webhook_id_idx ON delivery (webhook_id, alarm_id, id);
CREATE INDEX delivery_due_idx ON delivery (due_at) WHERE state = 'pending';
"""


def upgrade() -> None:
    for statement in (
        MODEL,
        ARRIVAL,
        ROLLUP,
        DETECTOR,
        EVALUATION,
        ALARM,
        WEBHOOK,
    ):
        op.execute(statement)
