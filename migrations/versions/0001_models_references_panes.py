"""Models, references, panes, batches, predictions and keys."""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# Adding arrays of unequal length leaves NULLs behind, which the CHECKs of the table refuse:
# a mistake in the code becomes an error instead of a wrong sum.
ADD_ARRAYS = """
CREATE FUNCTION add_arrays(a bigint[], b bigint[]) RETURNS bigint[]
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN (SELECT coalesce(array_agg(x + y ORDER BY i), '{}')
            FROM unnest(a, b) WITH ORDINALITY AS both_arrays(x, y, i));

CREATE FUNCTION add_arrays(a double precision[], b double precision[]) RETURNS double precision[]
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN (SELECT coalesce(array_agg(x + y ORDER BY i), '{}')
            FROM unnest(a, b) WITH ORDINALITY AS both_arrays(x, y, i));
"""

# A sparse map kept as two arrays: sorted keys, and their counts. The union of two such maps has
# the keys of both; each function returns one of its arrays, in the same order.
ADD_SPARSE = """
CREATE FUNCTION merged_codes(a bigint[], b bigint[]) RETURNS bigint[]
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN (SELECT coalesce(array_agg(DISTINCT code ORDER BY code), '{}')
            FROM unnest(a || b) AS codes(code));

CREATE FUNCTION merged_code_counts(a bigint[], a_counts bigint[], b bigint[], b_counts bigint[])
    RETURNS bigint[]
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN (SELECT coalesce(array_agg(n ORDER BY code), '{}')
            FROM (SELECT code, sum(n)::bigint AS n
                  FROM unnest(a || b, a_counts || b_counts) AS codes(code, n)
                  GROUP BY code) AS merged);
"""

MODEL = """
CREATE TABLE model (
    id integer GENERATED ALWAYS AS IDENTITY,
    name text NOT NULL,
    labels text[] NOT NULL,
    pane interval NOT NULL,
    windows jsonb NOT NULL,
    alarm jsonb NOT NULL,
    allowed_lateness interval NOT NULL,
    keep_ids boolean NOT NULL,
    active_version text,
    revision integer NOT NULL DEFAULT 1,
    due_at timestamptz,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    CONSTRAINT model_pkey PRIMARY KEY (id),
    CONSTRAINT model_name_key UNIQUE (name),
    CONSTRAINT model_labels_check CHECK (
        cardinality(labels) BETWEEN 2 AND 1000
        AND array_ndims(labels) = 1
        AND array_position(labels, NULL) IS NULL),
    CONSTRAINT model_pane_check CHECK (pane > interval '0')
);
"""

REFERENCE = """
CREATE TABLE reference (
    model_id integer NOT NULL,
    version text NOT NULL,
    kind text NOT NULL,
    counts bigint[] NOT NULL,
    soft bytea,
    rows bytea,
    diagnosis jsonb NOT NULL,
    fingerprint bytea NOT NULL,
    created_at timestamptz NOT NULL,
    activated_at timestamptz,
    CONSTRAINT reference_pkey PRIMARY KEY (model_id, version),
    CONSTRAINT reference_model_id_fkey FOREIGN KEY (model_id) REFERENCES model ON DELETE CASCADE,
    CONSTRAINT reference_kind_check CHECK (kind IN ('hard', 'soft')),
    CONSTRAINT reference_counts_check CHECK (
        cardinality(counts) >= 4
        AND array_ndims(counts) = 1
        AND array_position(counts, NULL) IS NULL),
    CONSTRAINT reference_soft_check CHECK ((kind = 'soft') = (soft IS NOT NULL))
);
"""

PANE = """
CREATE TABLE pane (
    model_id integer NOT NULL,
    version text NOT NULL,
    start timestamptz NOT NULL,
    kind text NOT NULL,
    shard smallint NOT NULL,
    counts bigint[] NOT NULL,
    prob double precision[],
    "outer" double precision[],
    cells bigint[],
    codes bigint[],
    code_counts bigint[],
    score double precision[],
    updated_at timestamptz NOT NULL,
    CONSTRAINT pane_pkey PRIMARY KEY (model_id, version, start, kind, shard),
    CONSTRAINT pane_kind_check CHECK (
        kind IN ('hard', 'soft')
        AND (kind = 'soft') = (num_nulls(prob, "outer", cells, codes, code_counts, score) = 0)
        AND (kind = 'hard') = (num_nonnulls(prob, "outer", cells, codes, code_counts, score) = 0)),
    CONSTRAINT pane_counts_check CHECK (
        cardinality(counts) BETWEEN 2 AND 1000
        AND array_ndims(counts) = 1
        AND array_position(counts, NULL) IS NULL),
    CONSTRAINT pane_length_check CHECK (
        cardinality(prob) = cardinality(counts)
        AND cardinality("outer") = CASE WHEN cardinality(counts) <= 64
            THEN cardinality(counts) * (cardinality(counts) + 1) / 2
            ELSE cardinality(counts) END
        AND cardinality(cells) = 14 * cardinality(counts)
        AND cardinality(codes) = cardinality(code_counts)
        AND cardinality(score) = cardinality(counts) + 2),
    CONSTRAINT pane_null_check CHECK (
        array_position(prob, NULL) IS NULL
        AND array_position("outer", NULL) IS NULL
        AND array_position(cells, NULL) IS NULL
        AND array_position(codes, NULL) IS NULL
        AND array_position(code_counts, NULL) IS NULL
        AND array_position(score, NULL) IS NULL)
) PARTITION BY RANGE (start);
"""

BATCH = """
CREATE TABLE batch (
    model_id integer NOT NULL,
    key text NOT NULL,
    received_on date NOT NULL,
    fingerprint bytea NOT NULL,
    version text NOT NULL,
    accepted integer NOT NULL,
    rejected integer NOT NULL,
    late integer NOT NULL,
    CONSTRAINT batch_pkey PRIMARY KEY (model_id, key, received_on)
) PARTITION BY RANGE (received_on);

CREATE TABLE late (
    model_id integer NOT NULL,
    version text NOT NULL,
    received_on date NOT NULL,
    shard smallint NOT NULL,
    predictions bigint NOT NULL,
    CONSTRAINT late_pkey PRIMARY KEY (model_id, version, received_on, shard)
);
"""

PREDICTION = """
CREATE TABLE prediction (
    model_id integer NOT NULL,
    id text NOT NULL,
    at timestamptz NOT NULL,
    version text NOT NULL,
    predicted smallint NOT NULL,
    CONSTRAINT prediction_pkey PRIMARY KEY (model_id, id, at)
) PARTITION BY RANGE (at);
"""

# Updated by every transaction that counts: room on the page keeps that off the index.
WRITER = """
CREATE TABLE writer (
    id uuid NOT NULL,
    number bigint NOT NULL,
    noted_at timestamptz NOT NULL,
    CONSTRAINT writer_pkey PRIMARY KEY (id)
) WITH (fillfactor = 50);
"""

API_KEY = """
CREATE TABLE api_key (
    id integer GENERATED ALWAYS AS IDENTITY,
    name text NOT NULL,
    scopes text[] NOT NULL,
    hint text NOT NULL,
    digest bytea NOT NULL,
    created_at timestamptz NOT NULL,
    revoked_at timestamptz,
    CONSTRAINT api_key_pkey PRIMARY KEY (id),
    CONSTRAINT api_key_digest_key UNIQUE (digest),
    CONSTRAINT api_key_scopes_check CHECK (
        cardinality(scopes) > 0
        AND array_position(scopes, NULL) IS NULL
        AND scopes <@ ARRAY['ingest', 'read', 'admin'])
);
"""


def upgrade() -> None:
    for statement in (
        ADD_ARRAYS,
        ADD_SPARSE,
        MODEL,
        REFERENCE,
        PANE,
        BATCH,
        PREDICTION,
        WRITER,
        API_KEY,
    ):
        op.execute(statement)
