"""How far back the past is known, and deliveries by month, so that both can be forgotten."""

from datetime import date, timedelta

from alembic import op
from sqlalchemy import text

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

# One row at most; none as long as nothing was forgotten.
HORIZON = """
CREATE TABLE horizon (
    id integer NOT NULL DEFAULT 1,
    closed timestamptz NOT NULL,
    coarse timestamptz NOT NULL,
    forgotten timestamptz NOT NULL,
    CONSTRAINT horizon_pkey PRIMARY KEY (id),
    CONSTRAINT horizon_id_check CHECK (id = 1),
    CONSTRAINT horizon_order_check CHECK (forgotten <= coarse AND coarse <= closed)
);
"""

# A unique key of a partitioned table has to contain what it is partitioned by.
OUT_OF_THE_WAY = """
ALTER TABLE delivery RENAME TO delivery_1970_01_01;
ALTER TABLE delivery_1970_01_01 DROP CONSTRAINT delivery_pkey;
ALTER TABLE delivery_1970_01_01
    ADD CONSTRAINT delivery_1970_01_01_pkey PRIMARY KEY (id, created_at);
ALTER INDEX delivery_webhook_id_idx RENAME TO delivery_1970_01_01_webhook_id_alarm_id_id_idx;
ALTER INDEX delivery_due_idx RENAME TO delivery_1970_01_01_due_at_idx;
"""

DELIVERY = """
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
    trace text,
    CONSTRAINT delivery_pkey PRIMARY KEY (id, created_at),
    CONSTRAINT delivery_webhook_id_fkey FOREIGN KEY (webhook_id)
        REFERENCES webhook ON DELETE CASCADE,
    CONSTRAINT delivery_state_check CHECK (state IN ('pending', 'delivered', 'dead'))
) PARTITION BY RANGE (created_at);
CREATE INDEX delivery_webhook_id_idx ON delivery (webhook_id, alarm_id, id);
CREATE INDEX delivery_due_idx ON delivery (due_at) WHERE state = 'pending';
"""

# Numbers go on where they were: they are the order in which notices are sent.
NUMBERS = """
SELECT setval(
    pg_get_serial_sequence('delivery', 'id'),
    nextval(pg_get_serial_sequence('delivery_1970_01_01', 'id')));
ALTER TABLE delivery_1970_01_01 ALTER COLUMN id DROP IDENTITY;
"""

# The previous release does not make partitions: it finds these.
MONTHS = 6

NEWEST = "SELECT (max(created_at) AT TIME ZONE 'UTC')::date FROM delivery_1970_01_01"
TODAY = "SELECT (now() AT TIME ZONE 'UTC')::date"


def upgrade() -> None:
    op.execute(HORIZON)
    op.execute(OUT_OF_THE_WAY)
    op.execute(DELIVERY)
    op.execute(NUMBERS)
    newest, today = (op.get_bind().execute(text(one)).scalar_one() for one in (NEWEST, TODAY))
    first = today.replace(day=1)
    if newest is None:
        op.execute("DROP TABLE delivery_1970_01_01")
    else:
        # All that is there stays where it is, however much that is, as one long partition.
        first = _next_month(max(newest, today))
        _attach("delivery_1970_01_01", date(1970, 1, 1), first)
    for _ in range(MONTHS):
        name = f"delivery_{first:%Y_%m_%d}"
        op.execute(f"CREATE TABLE {name} (LIKE delivery INCLUDING ALL EXCLUDING IDENTITY)")
        _attach(name, first, _next_month(first))
        first = _next_month(first)


def _attach(name: str, first: date, end: date) -> None:
    op.execute(
        f"ALTER TABLE delivery ATTACH PARTITION {name}"
        f" FOR VALUES FROM ('{first} 00:00:00+00') TO ('{end} 00:00:00+00')"
    )


def _next_month(day: date) -> date:
    return (day.replace(day=1) + timedelta(days=31)).replace(day=1)
