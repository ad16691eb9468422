"""Models by name, remembered between requests so that ingest need not read them each time.

A remembered model may be out of date. That is harmless: the recorder compares its revision with
the database's in the very transaction that counts, and whoever finds it outdated looks again.
"""

from dataclasses import dataclass, field

from anyio import to_thread

from app.domain.model import SLUG, Model
from app.errors import NotFound
from app.ingest.reduce import Watched
from app.storage import models
from app.storage.db import Database

MOST_REMEMBERED = 10_000


@dataclass(slots=True)
class Directory:
    database: Database
    _watched: dict[str, Watched] = field(default_factory=dict, init=False)

    async def get(self, name: str) -> Watched:
        return self._watched.get(name) or await self.look_again(name)

    async def look_again(self, name: str) -> Watched:
        """The model as the database has it now."""
        if not SLUG.fullmatch(name):
            raise NotFound(f"there is no model {name!r}")
        try:
            watched = Watched.of(await to_thread.run_sync(self._read, name))
        except NotFound:
            self._watched.pop(name, None)
            raise
        if len(self._watched) >= MOST_REMEMBERED:
            self._watched.clear()
        self._watched[name] = watched
        return watched

    def _read(self, name: str) -> Model:
        with self.database.begin() as conn:
            return models.get(conn, name)
