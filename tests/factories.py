"""Things that many tests need, with the parts that do not matter filled in."""

from datetime import UTC, datetime
from typing import Any

from fastapi.testclient import TestClient

from app.domain.model import Model, ModelSettings

NOW = datetime(2026, 11, 17, 10, 0, 30, tzinfo=UTC)
LABELS = ("legit", "fraud", "abuse")
CONFUSION = [[9000, 30, 12], [60, 500, 9], [40, 20, 329]]
VERSION = "2026-11-01"


def settings(**changes: Any) -> ModelSettings:
    return ModelSettings(**{"labels": LABELS, **changes})


def model(**changes: Any) -> Model:
    """A model as it would be read from the database, with one reference."""
    own = {key: changes.pop(key) for key in ("id", "name", "revision") if key in changes}
    return Model(
        **{"id": 1, "name": "fraud", "revision": 1, **own},
        settings=settings(**changes),
        versions={VERSION: NOW},
        active_version=VERSION,
    )


def register(client: TestClient, name: str = "fraud", **body: Any) -> None:
    """A model with a reference, through the API."""
    client.put(f"/v1/models/{name}", json={"labels": LABELS, **body}).raise_for_status()
    client.put(
        f"/v1/models/{name}/references/{VERSION}", json={"confusion": CONFUSION}
    ).raise_for_status()
