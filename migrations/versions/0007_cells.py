"""Estimates by cells of codes: what a reference's cells say, codes of blocks, and a setting."""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

# References of earlier releases have no cells: whoever reads one works them out and keeps them.
REFERENCE = "ALTER TABLE reference ADD COLUMN cells bytea;"

# Blocks of earlier releases have no codes, and neither has any block that is added to one.
ROLLUP = """
ALTER TABLE rollup
    ADD COLUMN codes bigint[],
    ADD COLUMN code_counts bigint[],
    ADD CONSTRAINT rollup_codes_check CHECK (
        num_nulls(codes, code_counts) IN (0, 2)
        AND (kind = 'soft' OR codes IS NULL)
        AND cardinality(codes) = cardinality(code_counts)
        AND array_position(codes, NULL) IS NULL
        AND array_position(code_counts, NULL) IS NULL);
"""

MODEL = """
ALTER TABLE model
    ADD COLUMN estimator text NOT NULL DEFAULT 'default',
    ADD CONSTRAINT model_estimator_check
        CHECK (estimator IN ('default', 'bbse-soft', 'bbse-hard'));
"""


def upgrade() -> None:
    op.execute(REFERENCE)
    op.execute(ROLLUP)
    op.execute(MODEL)
