"""Settings, read from the environment once, at start-up."""

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator

PREFIX = "SHIFTWATCH_"


class BadSettings(Exception):
    """The environment does not make sense; the message lists everything that is wrong."""


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return error.strerror or "unknown" if isinstance(error, OSError) else "not UTF-8"


class Settings(BaseModel):
    """Every knob of the service. Field `database_url` is `SHIFTWATCH_DATABASE_URL`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    database_url: SecretStr | None = Field(
        default=None, description="PostgreSQL 15 or newer; left out, an embedded one is started"
    )
    data_dir: Path = Field(
        default=Path(".shiftwatch"), description="where the embedded PostgreSQL keeps its files"
    )
    pg_bin: Path | None = Field(
        default=None,
        description="directory of the PostgreSQL programs that the embedded server uses",
    )
    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(
        default=8000, ge=0, le=65535, description="port to listen on; 0 takes a free one"
    )
    auth: Literal["on", "off"] = Field(
        default="on", description="`off` lets anybody in who reaches the port; think twice"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least level that is logged"
    )
    max_body_bytes: int = Field(
        default=32 * 1024 * 1024, ge=1024, description="largest request body, after decompression"
    )
    max_stream_bytes: int = Field(
        default=512 * 1024 * 1024,
        ge=1024,
        description="largest body of NDJSON, Arrow or Parquet, before and after decompression",
    )
    max_stream_rows: int = Field(
        default=10_000_000, ge=1, description="most predictions in such a body"
    )
    pool_size: int = Field(
        default=10, ge=1, le=200, description="database connections of a process"
    )
    recorder_queue: int = Field(
        default=4096,
        ge=1,
        description="batches that may wait for their commit before 503 is answered",
    )
    recorder_patience_seconds: float = Field(
        default=10.0, gt=0, description="how long a batch waits for a database that is away"
    )
    max_sources: int = Field(
        default=100,
        ge=1,
        le=30_000,
        description="sources that may send sums of panes of one model",
    )
    public_url: str | None = Field(
        default=None,
        description="how people reach the service, for links; left out, by host and port",
    )
    webhook_allow_private: bool = Field(
        default=False, description="whether webhooks may go to private and loopback addresses"
    )
    worker_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="port of the worker's own `/metrics` and `/livez`; left out, it has none",
    )
    metrics_max_labels: int = Field(
        default=50, ge=0, description="labels of a model that `/metrics` shows, the commonest first"
    )
    metrics_max_series: int = Field(
        default=100_000,
        ge=0,
        description="series of models in `/metrics`; beyond it, labels are left out",
    )
    log_format: Literal["auto", "json", "text"] = Field(
        default="auto", description="`auto` is `text` on a terminal and `json` elsewhere"
    )
    access_log: bool = Field(default=False, description="whether each request gets a line")
    otlp_endpoint: str | None = Field(
        default=None,
        description="where traces go by OTLP over HTTP (`http://host:4318`); left out, nowhere",
    )
    keep_batches_days: int = Field(
        default=2, ge=2, description="how long a batch's key is remembered"
    )
    keep_panes_days: int = Field(
        default=31, ge=1, description="age from which on panes are only kept in blocks of 60"
    )
    keep_rollups_days: int = Field(default=400, ge=1, description="how long these blocks are kept")
    keep_evaluations_days: int = Field(
        default=31, ge=1, description="how long the history of estimates is kept"
    )
    keep_predictions_days: int = Field(
        default=31, ge=1, description="how long single predictions are kept (`keep_ids`)"
    )
    keep_deliveries_days: int = Field(
        default=30, ge=7, description="how long it is kept what became of notices"
    )
    keep_alarms_days: int = Field(
        default=400, ge=1, description="how long alarms that are over are kept"
    )

    @field_validator("database_url")
    @classmethod
    def _use_our_driver(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None:
            return None
        scheme, separator, rest = value.get_secret_value().partition("://")
        if not separator or scheme not in ("postgresql", "postgres", "postgresql+psycopg"):
            raise ValueError("must start with postgresql://")
        return SecretStr(f"postgresql+psycopg://{rest}")

    @field_validator("otlp_endpoint")
    @classmethod
    def _is_http(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("must start with http:// or https://")
        return value

    @property
    def root_url(self) -> str:
        """What links begin with."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (self.public_url or f"http://{host}:{self.port}").rstrip("/")

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the service."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @classmethod
    def from_env(cls, environ: Mapping[str, str], **given: object) -> Self:
        """Build from `environ`; `SHIFTWATCH_X_FILE` names a file holding the value of X.

        What is `given` and not None, such as a command's options, goes before the environment.
        """
        values: dict[str, object] = {}
        problems: list[str] = []
        for name, text in sorted(environ.items()):
            if not name.startswith(PREFIX):
                continue
            field = name.removeprefix(PREFIX).lower()
            if field.endswith("_file") and field not in cls.model_fields:
                field = field.removesuffix("_file")
                try:
                    text = Path(text).read_text().strip()
                except (OSError, UnicodeDecodeError) as error:
                    # What was given may be the secret itself, by mistake: then it is not repeated.
                    place = "what it names" if "://" in text else text
                    problems.append(f"{name}: cannot read {place}: {_reason(error)}")
                    continue
            if field not in cls.model_fields:
                problems.append(f"{name}: there is no such setting")
            elif field in values:
                problems.append(f"{name}: given twice, with and without _FILE")
            values[field] = text
        values.update({field: value for field, value in given.items() if value is not None})
        return cls._checked(values, problems)

    @classmethod
    def _checked(cls, values: dict[str, object], problems: list[str]) -> Self:
        known = {field: value for field, value in values.items() if field in cls.model_fields}
        try:
            settings = cls.model_validate(known)
        except ValidationError as error:
            # The value itself stays out of the message: it may be a secret.
            for flaw in error.errors(include_input=False, include_url=False):
                problems.append(f"{PREFIX}{str(flaw['loc'][0]).upper()}: {flaw['msg']}")
            raise BadSettings("\n".join(problems)) from None
        if problems:
            raise BadSettings("\n".join(problems))
        return settings
