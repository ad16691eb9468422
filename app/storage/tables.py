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
    ForeignKey,
    Identity,
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
    Column("active_version", Text),
    Column("revision", Integer, nullable=False, server_default=text("1")),
    Column("due_at", Moment),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
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
