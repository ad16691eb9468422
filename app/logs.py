"""Logging: one line per event, with fields, to standard error."""

import logging
import time

FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s"


def configure(level: str) -> None:
    lines = logging.StreamHandler()
    lines.setFormatter(logging.Formatter(FORMAT, datefmt="%Y-%m-%dT%H:%M:%S"))
    lines.formatter.converter = time.gmtime  # type: ignore[union-attr]
    logging.basicConfig(level=level.upper(), handlers=[lines])
    # Alembic tells of every look at the schema.
    logging.getLogger("alembic").setLevel(logging.WARNING)
