"""Templates and static files. Nothing is fetched from elsewhere and nothing is built."""

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from app import __version__
from app.web import words

HERE = Path(__file__).parent
STATIC = HERE / "static"

MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@cache
def files() -> dict[str, tuple[bytes, str]]:
    """Content and media type of each static file, by the name it is asked for under."""
    found = (place for place in STATIC.iterdir() if place.suffix in MEDIA_TYPES)
    return {place.name: (place.read_bytes(), MEDIA_TYPES[place.suffix]) for place in found}


@cache
def static(name: str) -> str:
    """The path of a static file; another one for other content, so that it can be kept for ever."""
    content, _ = files()[name]
    return f"/static/{name}?{hashlib.sha256(content).hexdigest()[:12]}"


def page(name: str, **context: Any) -> str:
    """A template, filled in. A name that is missing is an error, not an empty place."""
    return _environment().get_template(name).render(**context)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(static=static, version=__version__)
    made.filters.update(
        percent=words.percent,
        hundredths=words.hundredths,
        points=words.points,
        number=words.number,
        count=words.count,
        moment=words.moment,
        iso=words.iso,
        p_value=words.p_value,
        ago=words.ago,
        seconds=words.seconds,
        plain=words.plain,
        event=words.EVENTS.__getitem__,
        delivery=words.DELIVERIES.__getitem__,
        shape=words.SHAPES.__getitem__,
    )
    return made
