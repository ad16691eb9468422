"""Sessions: who has signed in to the page."""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

SESSION = """
CREATE TABLE session (
    digest bytea NOT NULL,
    key_id integer NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    CONSTRAINT session_pkey PRIMARY KEY (digest),
    CONSTRAINT session_key_id_fkey FOREIGN KEY (key_id) REFERENCES api_key ON DELETE CASCADE
);
"""


def upgrade() -> None:
    op.execute(SESSION)
