"""A few models over months: counted, evaluated, told of and pruned, by a clock of our own."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from sqlalchemy import text

from app import prune
from app.config import Settings
from app.domain.model import AlarmPolicy
from app.domain.notice import Event, Shape
from app.evaluate.due import Worker
from app.ingest.record import Submission, needed_partitions, record
from app.ingest.reduce import Reduced
from app.prune import Purged
from app.stats import moments
from app.stats.moments import Sums
from app.stats.reference import from_confusion
from app.storage import deliveries, partitions, webhooks
from app.storage.db import Database
from app.storage.deliveries import Delivered
from app.storage.panes import Kind, PaneKey
from app.storage.predictions import KeptPredictions
from app.storage.tables import metadata
from tests.evaluate.simulation import Life, life

BEGIN = datetime(2027, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
REFERENCE = from_confusion(np.array([[900, 40, 60], [60, 900, 40], [40, 60, 900]]))
# That of the reference, and another.
MIXES = np.array([[1 / 3, 1 / 3, 1 / 3], [0.2, 0.3, 0.5]])
PER_PANE = 60
# How long a mix lasts: so there are alarms, and their end.
SPELL_DAYS = 5
# In real time autovacuum sweeps these all along.
SWEPT = ("arrival", "detector", "evaluation", "model", "writer", "late", "alarm", "alarm_change")


@dataclass(slots=True)
class Fleet:
    """Models whose mix changes now and then, of which every other one keeps ids."""

    database: Database
    settings: Settings
    pane: timedelta
    size: int
    # How many panes come in, and are evaluated, together.
    together: int = 1
    now: datetime = BEGIN
    purged: list[Purged] = field(default_factory=list)
    _lives: list[Life] = field(default_factory=list)
    _rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(20261118))

    def __post_init__(self) -> None:
        worker = Worker(self.database, "http://localhost")
        with self.database.begin() as conn:
            webhooks.create(conn, "https://a.example", tuple(Event), Shape.STANDARD, BEGIN)
        policy = replace(AlarmPolicy(), overdispersion=1.0)
        for number in range(self.size):
            own: dict[str, Any] = {"pane": self.pane, "alarm": policy, "keep_ids": number % 2 == 0}
            one = life(self.database, REFERENCE, f"model-{number}", **own)
            one.worker = worker
            self._lives.append(one)

    def live(self, days: int) -> None:
        """Some days, each of which ends with pruning."""
        for _ in range(days):
            end = self.now + DAY
            while self.now < end:
                self._step()
            self.purged += prune.prune(self.database, self.settings, self.now).purged
            self._sweep()

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Rows and bytes of each table, with its partitions and indexes."""
        found = {}
        with self.database.begin() as conn:
            for table in sorted(metadata.tables):
                rows = conn.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()
                tree = (
                    f"SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('{table}')"
                )
                of_tree = conn.execute(text(tree)).scalar_one()
                alone = f"SELECT pg_total_relation_size('{table}')"
                found[table] = (rows, int(of_tree or conn.execute(text(alone)).scalar_one()))
        return found

    def _step(self) -> None:
        start = self.now
        self.now += self.together * self.pane
        for one in self._lives:
            one.now = self.now
            self._count(one, start)
        self._lives[0].evaluate()
        # What came in is looked at again a second later, and revised.
        self._lives[0].now += timedelta(seconds=2)
        self._lives[0].evaluate()
        self._deliver()

    def _count(self, one: Life, start: datetime) -> None:
        mix = MIXES[(start - BEGIN) // (SPELL_DAYS * DAY) % 2]
        panes: dict[PaneKey, Sums] = {}
        for i in range(self.together):
            # One in ten comes with the next pane, late.
            at = start + (i - int(self._rng.random() < 0.1)) * self.pane
            soft = self._rng.random() < 0.3
            kind: Kind = "soft" if soft else "hard"
            panes[PaneKey(one.model.id, "v1", at, kind)] = self._sums(mix, soft=soft)
        total = sum(sums.n for sums in panes.values())
        kept = None
        if one.settings.keep_ids:
            kept = KeptPredictions(
                [f"{start:%m%d%H%M}-{i}" for i in range(5)], [start] * 5, [0] * 5
            )
        reduced = Reduced(one.model, "v1", panes, total, late=1, kept=kept)
        submission = Submission(reduced, f"key-{start.isoformat()}", b"content")
        with self.database.begin() as conn:
            partitions.ensure(conn, needed_partitions([submission], self.now))
            record(conn, [submission], int(self._rng.integers(2)), self.now)

    def _sums(self, mix: Any, *, soft: bool) -> Sums:
        if not soft:
            return Sums(self._rng.multinomial(PER_PANE, mix))
        rows = self._rng.dirichlet(8 * mix, PER_PANE)
        return moments.sums(3, moments.argmax(rows), rows)

    def _deliver(self) -> None:
        while True:
            with self.database.begin() as conn:
                claimed = deliveries.claim(conn, self.now, DAY)
                if claimed is None:
                    return
                deliveries.settle(conn, claimed, Delivered(200), self.now)

    def _sweep(self) -> None:
        with self.database.engine.connect() as conn:
            own = conn.execution_options(isolation_level="AUTOCOMMIT")
            for table in SWEPT:
                own.execute(text(f"VACUUM (ANALYZE) {table}"))
