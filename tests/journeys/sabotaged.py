"""The service made worse: slow where it is vulnerable, or with one of its guards taken away.

`python -m tests.journeys.sabotaged slow,keys api`
"""

import sys
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from app import cli
from app.errors import Unavailable
from app.ingest.record import Outcome, Receipt, Submission
from app.ingest.recorder import Recorder
from app.storage import batches
from app.storage.db import Connection


def slow_to_answer() -> None:
    """Leave time to be killed between the commit and the answer."""
    answer = Recorder._answer

    def late(self: Recorder, *what: Any) -> None:
        time.sleep(0.1)
        answer(self, *what)

    Recorder._answer = late  # type: ignore[assignment]


def without_keys() -> None:
    """Forget which batches were counted."""

    def claim(_: Connection, some: Sequence[batches.Batch], now: datetime) -> dict[Any, Any]:
        return {}

    batches.claim = claim  # type: ignore[assignment]


def without_waiting_for_the_commit() -> None:
    """Answer a batch as stored although its commit failed."""
    attempt = Recorder._attempt

    def hopeful(self: Recorder, group: Sequence[Submission]) -> list[Outcome]:
        try:
            return attempt(self, group)
        except Unavailable:
            return [Receipt(one.reduced.version, one.reduced.accepted, 0, 0) for one in group]

    Recorder._attempt = hopeful  # type: ignore[method-assign]


SABOTAGE = {
    "slow": slow_to_answer,
    "keys": without_keys,
    "commit": without_waiting_for_the_commit,
}

if __name__ == "__main__":
    for kind in sys.argv[1].split(","):
        SABOTAGE[kind]()
    sys.exit(cli.main(sys.argv[2:]))
