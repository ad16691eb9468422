"""Be told when something becomes due, instead of asking all the time."""

from collections.abc import Callable

import psycopg
from sqlalchemy import make_url

from app.errors import Unavailable
from app.storage.db import CONNECT_TIMEOUT_SECONDS


def listen(url: str, channel: str, on_word: Callable[[], None], until: Callable[[], bool]) -> None:
    """Call `on_word` for each word on the channel, until told to stop or the connection breaks."""
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        with psycopg.connect(
            plain, autocommit=True, connect_timeout=CONNECT_TIMEOUT_SECONDS
        ) as conn:
            conn.execute(f"LISTEN {channel}".encode())
            # Whatever was said before we listened is looked for now.
            on_word()
            while not until():
                for _ in conn.notifies(timeout=1.0, stop_after=1):
                    on_word()
    except psycopg.OperationalError as error:
        raise Unavailable("the database cannot be reached; try again soon") from error
