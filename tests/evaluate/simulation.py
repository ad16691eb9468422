"""A model's life at any speed: counted, evaluated and told of, by a clock of our own."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from app.domain.model import Model, ModelSettings
from app.domain.reference import diagnosed
from app.evaluate.due import Worker
from app.ingest.contributions import Contribution, Contributions
from app.ingest.record import Entry, Outcome, Submission, needed_partitions, record
from app.ingest.reduce import Reduced
from app.stats import moments
from app.stats.moments import Counts, Floats, Sums
from app.stats.reference import Reference
from app.storage import models, partitions, references
from app.storage.db import Database
from app.storage.panes import PaneKey

BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@dataclass(slots=True)
class Life:
    """One model of a database. `now` moves only when it is told to."""

    database: Database
    worker: Worker
    name: str
    reference: Reference
    settings: ModelSettings
    now: datetime = BEGIN
    version: str = "v1"
    model: Model = field(init=False)

    def __post_init__(self) -> None:
        with self.database.begin() as conn:
            models.put(conn, self.name, self.settings, self.now)
            model = models.get(conn, self.name)
            stored = diagnosed(self.version, self.reference, self.now)
            references.put(conn, model, references.packed(stored, None))
            models.activate(conn, model, self.version, self.now)
            self.model = models.get(conn, self.name)

    @property
    def pane(self) -> timedelta:
        return self.settings.pane

    def count(self, panes: Iterable[tuple[datetime, Sums]]) -> None:
        """Count predictions by pane, as ingest would."""
        keyed = {
            PaneKey(
                self.model.id, self.version, start, "hard" if sums.soft is None else "soft"
            ): sums
            for start, sums in panes
            if sums.n
        }
        accepted = sum(sums.n for sums in keyed.values())
        self._record(Submission(Reduced(self.model, self.version, keyed, accepted)))

    def contribute(
        self, sequence: int, panes: Iterable[tuple[datetime, Sums]], source: str = "edge"
    ) -> Outcome:
        """Say what a source has counted in panes, as ingest would."""
        some = [
            Contribution(
                self.version,
                start,
                sequence,
                {"hard" if sums.soft is None else "soft": sums} if sums.n else {},
            )
            for start, sums in panes
        ]
        return self._record(Contributions(self.model, source, self.version, some, most_sources=10))

    def _record(self, entry: Entry) -> Outcome:
        with self.database.begin() as conn:
            partitions.ensure(conn, needed_partitions([entry], self.now))
            return record(conn, [entry], 0, self.now)[0]

    def live(self, counts: Sequence[Counts] | Counts) -> None:
        """Panes one after the other from now on, counted and evaluated together at their end."""
        start = self.now
        self.now = start + len(counts) * self.pane
        self.count((start + i * self.pane, Sums(one)) for i, one in enumerate(counts))
        self.evaluate()

    def live_soft(self, rows: Sequence[Floats]) -> None:
        """The same, of softmax rows."""
        start = self.now
        self.now = start + len(rows) * self.pane
        k = self.model.k
        self.count(
            (start + i * self.pane, moments.sums(k, moments.argmax(one), one))
            for i, one in enumerate(rows)
        )
        self.evaluate()

    def evaluate(self) -> None:
        """Until nothing is due any more."""
        while self.worker.evaluate_next(self.now):
            pass


def life(database: Database, reference: Reference, name: str = "m", **settings: Any) -> Life:
    own = ModelSettings(**{"labels": tuple(f"label-{i}" for i in range(reference.k)), **settings})
    return Life(database, Worker(database, "http://localhost"), name, reference, own)


def quiet(reference: Reference, per_pane: int, panes: int, rng: np.random.Generator) -> Counts:
    """Panes of the reference's own mix."""
    return rng.multinomial(per_pane, reference.predicted / reference.n, size=panes)
