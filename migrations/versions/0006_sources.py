"""Sources: who sends sums of whole panes, and which word of theirs on each pane was the last."""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# Recorders have the small numbers, also those of the release before this one.
SOURCE = """
CREATE TABLE source (
    model_id integer NOT NULL,
    name text NOT NULL,
    shard smallint NOT NULL,
    newest timestamptz NOT NULL,
    CONSTRAINT source_pkey PRIMARY KEY (model_id, name),
    CONSTRAINT source_shard_key UNIQUE (model_id, shard),
    CONSTRAINT source_shard_check CHECK (shard >= 1000)
);
"""

CONTRIBUTION = """
CREATE TABLE contribution (
    model_id integer NOT NULL,
    version text NOT NULL,
    start timestamptz NOT NULL,
    shard smallint NOT NULL,
    sequence bigint NOT NULL,
    CONSTRAINT contribution_pkey PRIMARY KEY (model_id, version, start, shard)
) PARTITION BY RANGE (start);
"""


def upgrade() -> None:
    op.execute(SOURCE)
    op.execute(CONTRIBUTION)
