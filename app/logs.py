"""Logging: one line per event, with fields, to standard error."""

import logging
import time

FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s"


def configure(level: str) -> None:
    in_utc = logging.Formatter(FORMAT, datefmt="%Y-%m-%dT%H:%M:%S")
    in_utc.converter = time.gmtime
    lines = logging.StreamHandler()
    lines.setFormatter(in_utc)
    logging.basicConfig(level=level.upper(), handlers=[lines])
    # Alembic tells of every look at the schema.
    logging.getLogger("alembic").setLevel(logging.WARNING)
