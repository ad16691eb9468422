"""Which trace an arrival and a delivery belong to, if somebody traces."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TRACE = """
ALTER TABLE arrival ADD COLUMN trace text;
ALTER TABLE delivery ADD COLUMN trace text;
"""


def upgrade() -> None:
    op.execute(TRACE)
