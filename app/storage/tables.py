"""The schema as SQLAlchemy Core tables; migrations/ must agree with it.

Every per-model table's keys start with `model_id`, so that the tables could be distributed by it.
Tables with a time in their key are partitioned by it and forgotten partition by partition.
"""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    Interval,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from app.storage.arrays import BigInts, Doubles

metadata = MetaData()

Moment = DateTime(timezone=True)

model = Table(
    "model",
    metadata,
    Column("id", Integer, Identity(always=True), primary_key=True),
    Column("name", Text, nullable=False),
    Column("labels", ARRAY(Text), nullable=False),
    Column("pane", Interval, nullable=False),
    Column("windows", JSONB, nullable=False),
    Column("alarm", JSONB, nullable=False),
    Column("allowed_lateness", Interval, nullable=False),
    Column("keep_ids", Boolean, nullable=False),
    Column("estimator", Text, nullable=False, server_default=text("'default'")),
    Column("active_version", Text),
    Column("revision", Integer, nullable=False, server_default=text("1")),
    Column("due_at", Moment),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Column("evaluated_at", Moment),
    Column("leased_until", Moment),
    Column("failures", Integer, nullable=False, server_default=text("0")),
    UniqueConstraint("name", name="model_name_key"),
)

reference = Table(
    "reference",
    metadata,
    Column("model_id", Integer, ForeignKey("model.id", ondelete="CASCADE"), nullable=False),
    Column("version", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("counts", BigInts, nullable=False),
    Column("soft", LargeBinary),
    Column("cells", LargeBinary),
    Column("rows", LargeBinary),
    Column("diagnosis", JSONB, nullable=False),
    Column("fingerprint", LargeBinary, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("activated_at", Moment),
    PrimaryKeyConstraint("model_id", "version", name="reference_pkey"),
)

pane = Table(
    "pane",
    metadata,
    Column("model_id", Integer, nullable=False),
    Column("version", Text, nullable=False),
    Column("start", Moment, nullable=False),
    Column("kind", Text, nullable=False),
    Column("shard", SmallInteger, nullable=False),
    Column("counts", BigInts, nullable=False),
    Column("prob", Doubles),
    Column("outer", Doubles),
    Column("cells", BigInts),
    Column("codes", BigInts),
    Column("code_counts", BigInts),
    Column("score", Doubles),
    Column("updated_at", Moment, nullable=False),
    PrimaryKeyConstraint("model_id", "version", "start", "kind", "shard", name="pane_pkey"),
    postgresql_partition_by="RANGE (start)",
)

# Who sends sums of whole panes. What a source says of a pane is the pane's row of that `shard`,
# which is the source's own; `newest` is the newest pane that it has spoken of.
source = Table(
    "source",
    metadata,
    Column("model_id", Integer, nullable=False),
    Column("name", Text, nullable=False),
    Column("shard", SmallInteger, nullable=False),
    Column("newest", Moment, nullable=False),
    PrimaryKeyConstraint("model_id", "name", name="source_pkey"),
    UniqueConstraint("model_id", "shard", name="source_shard_key"),
)

# The sequence of a source's last word on a pane; one that it says is empty has no other row.
contribution = Table(
    "contribution",
    metadata,
    Column("model_id", Integer, nullable=False),
    Column("version", Text, nullable=False),
    Column("start", Moment, nullable=False),
    Column("shard", SmallInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    PrimaryKeyConstraint("model_id", "version", "start", "shard", name="contribution_pkey"),
    postgresql_partition_by="RANGE (start)",
)

batch = Table(
    "batch",
    metadata,
    Column("model_id", Integer, nullable=False),
    Column("key", Text, nullable=False),
    Column("received_on", Date, nullable=False),
    Column("fingerprint", LargeBinary, nullable=False),
    Column("version", Text, nullable=False),
    Column("accepted", Integer, nullable=False),
    Column("rejected", Integer, nullable=False),
    Column("late", Integer, nullable=False),
    PrimaryKeyConstraint("model_id", "key", "received_on", name="batch_pkey"),
    postgresql_partition_by="RANGE (received_on)",
)

late = Table(
    "late",
    metadata,
    Column("model_id", Integer, nullable=False),
    Column("version", Text, nullable=False),
    Column("received_on", Date, nullable=False),
    Column("shard", SmallInteger, nullable=False),
    Column("predictions", BigInteger, nullable=False),
    PrimaryKeyConstraint("model_id", "version", "received_on", "shard", name="late_pkey"),
)

prediction = Table(
    "prediction",
    metadata,
    Column("model_id", Integer, nullable=False),
    Column("id", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("version", Text, nullable=False),
    Column("predicted", SmallInteger, nullable=False),
    PrimaryKeyConstraint("model_id", "id", "at", name="prediction_pkey"),
    postgresql_partition_by="RANGE (at)",
)

writer = Table(
    "writer",
    metadata,
    Column("id", Uuid, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("noted_at", Moment, nullable=False),
    PrimaryKeyConstraint("id", name="writer_pkey"),
)

api_key = Table(
    "api_key",
    metadata,
    Column("id", Integer, Identity(always=True), primary_key=True),
    Column("name", Text, nullable=False),
    Column("scopes", ARRAY(Text), nullable=False),
    Column("hint", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("revoked_at", Moment),
    UniqueConstraint("digest", name="api_key_digest_key"),
)

session = Table(
    "session",
    metadata,
    Column("digest", LargeBinary, nullable=False),
    Column("key_id", Integer, ForeignKey("api_key.id", ondelete="CASCADE"), nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment, nullable=False),
    PrimaryKeyConstraint("digest", name="session_pkey"),
)

# What has come in for a pane and no evaluation has taken yet: rows are added by whoever counts
# and removed by the evaluation that feeds them to the detectors, each in its own transaction.
arrival = Table(
    "arrival",
    metadata,
    Column("model_id", Integer, nullable=False),
    Column("id", BigInteger, Identity(always=True), nullable=False),
    Column("version", Text, nullable=False),
    Column("start", Moment, nullable=False),
    Column("kind", Text, nullable=False),
    Column("counts", BigInts, nullable=False),
    Column("score", Double, nullable=False),
    Column("arrived_at", Moment, nullable=False),
    Column("trace", Text),
    PrimaryKeyConstraint("model_id", "id", name="arrival_pkey"),
)

# The sums of `panes` panes in a row, so that a long window need not read each of them.
rollup = Table(
    "rollup",
    metadata,
    Column("model_id", Integer, nullable=False),
    Column("version", Text, nullable=False),
    Column("panes", Integer, nullable=False),
    Column("start", Moment, nullable=False),
    Column("kind", Text, nullable=False),
    Column("counts", BigInts, nullable=False),
    Column("prob", Doubles),
    Column("outer", Doubles),
    Column("cells", BigInts),
    Column("codes", BigInts),
    Column("code_counts", BigInts),
    Column("score", Doubles),
    PrimaryKeyConstraint("model_id", "version", "panes", "start", "kind", name="rollup_pkey"),
    postgresql_partition_by="RANGE (start)",
)

detector = Table(
    "detector",
    metadata,
    Column("model_id", Integer, nullable=False),
    Column("version", Text, nullable=False),
    Column("newest", Moment, nullable=False),
    Column("arrived_at", Moment, nullable=False),
    Column("state", JSONB, nullable=False),
    PrimaryKeyConstraint("model_id", "version", name="detector_pkey"),
)

evaluation = Table(
    "evaluation",
    metadata,
    Column("model_id", Integer, nullable=False),
    Column("version", Text, nullable=False),
    Column("window", Text, nullable=False),
    Column("slot", Moment, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("start", Moment, nullable=False),
    Column("end", Moment, nullable=False),
    Column("n", BigInteger, nullable=False),
    Column("verdict", Text, nullable=False),
    Column("evaluated_at", Moment, nullable=False),
    Column("outdated", Boolean, nullable=False, server_default=text("false")),
    Column("result", JSONB, nullable=False),
    PrimaryKeyConstraint(
        "model_id", "version", "window", "slot", "revision", name="evaluation_pkey"
    ),
    Index(
        "evaluation_outdated_idx",
        "model_id",
        "version",
        "slot",
        postgresql_where=text("outdated"),
    ),
    postgresql_partition_by="RANGE (slot)",
)

alarm = Table(
    "alarm",
    metadata,
    Column("model_id", Integer, nullable=False),
    Column("id", BigInteger, Identity(always=True), nullable=False),
    Column("version", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("severity", Text, nullable=False),
    Column("verdict", Text),
    Column("reason", Text, nullable=False),
    Column("since", Moment, nullable=False),
    Column("onset", Moment),
    Column("fired_at", Moment),
    Column("notified_at", Moment),
    Column("acknowledged_by", Text),
    Column("acknowledged_at", Moment),
    Column("resolved_at", Moment),
    Column("confirmed", Boolean, nullable=False, server_default=text("false")),
    Column("evidence", JSONB, nullable=False),
    PrimaryKeyConstraint("model_id", "id", name="alarm_pkey"),
    Index(
        "alarm_open_key",
        "model_id",
        "version",
        "kind",
        unique=True,
        postgresql_where=text("state <> 'resolved'"),
    ),
    Index("alarm_id_idx", "id"),
)

alarm_change = Table(
    "alarm_change",
    metadata,
    Column("model_id", Integer, nullable=False),
    Column("alarm_id", BigInteger, nullable=False),
    Column("id", BigInteger, Identity(always=True), nullable=False),
    Column("at", Moment, nullable=False),
    Column("event", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("by", Text),
    Column("note", Text),
    PrimaryKeyConstraint("model_id", "alarm_id", "id", name="alarm_change_pkey"),
)

silence = Table(
    "silence",
    metadata,
    Column("id", Integer, Identity(always=True), primary_key=True),
    Column("matchers", JSONB, nullable=False),
    Column("by", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("until", Moment, nullable=False),
    Column("ended_at", Moment),
    Column("ended_by", Text),
)

webhook = Table(
    "webhook",
    metadata,
    Column("id", Integer, Identity(always=True), primary_key=True),
    Column("url", Text, nullable=False),
    Column("events", ARRAY(Text), nullable=False),
    Column("shape", Text, nullable=False),
    Column("routing_key", Text),
    Column("secret", Text, nullable=False),
    Column("old_secret", Text),
    Column("old_secret_until", Moment),
    Column("created_at", Moment, nullable=False),
    Column("disabled_at", Moment),
    Column("disabled_because", Text),
)

delivery = Table(
    "delivery",
    metadata,
    Column("id", BigInteger, Identity(always=True), nullable=False),
    Column("webhook_id", Integer, ForeignKey("webhook.id", ondelete="CASCADE"), nullable=False),
    Column("alarm_id", BigInteger),
    Column("event", Text, nullable=False),
    Column("message_id", Text, nullable=False),
    Column("notice", JSONB, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("created_at", Moment, nullable=False),
    Column("due_at", Moment, nullable=False),
    Column("leased_until", Moment),
    Column("settled_at", Moment),
    Column("status_code", Integer),
    Column("error", Text),
    Column("trace", Text),
    PrimaryKeyConstraint("id", "created_at", name="delivery_pkey"),
    Index("delivery_webhook_id_idx", "webhook_id", "alarm_id", "id"),
    Index("delivery_due_idx", "due_at", postgresql_where=text("state = 'pending'")),
    postgresql_partition_by="RANGE (created_at)",
)

# How far back the past is known: one row at most, none as long as nothing was forgotten.
horizon = Table(
    "horizon",
    metadata,
    Column("id", Integer, nullable=False, server_default=text("1")),
    Column("closed", Moment, nullable=False),
    Column("coarse", Moment, nullable=False),
    Column("forgotten", Moment, nullable=False),
    PrimaryKeyConstraint("id", name="horizon_pkey"),
)
