"""A browser, and three services to look at: one with a story, an empty one and a locked one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.browser import chromium, story
from tests.conftest import admin, in_database
from tests.journeys.processes import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# A page that has not come by then does not come.
PATIENCE_MS = 10_000


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    pytest.importorskip("playwright", reason="`make test-browser` brings the driver of a browser")
    if not chromium.CHROMIUM.exists():
        pytest.skip(f"there is no Chromium at {chromium.CHROMIUM}")
    with chromium.launched() as found:
        yield found


@dataclass(frozen=True)
class Place:
    """A running service; `alarms` by model, `key` if it takes one to come in."""

    url: str
    alarms: dict[str, Any] = field(default_factory=dict)
    key: str = ""

    def path(self, name: str) -> str:
        """Ids are known only once the story is told: `/alarms/fraud` is the alarm of that model."""
        folder, _, last = name.rpartition("/")
        if folder == "/alarms" and last in self.alarms:
            return f"/alarms/{self.alarms[last]['id']}"
        return name


def database(server_url: str, template: str, name: str) -> str:
    admin(server_url, f"CREATE DATABASE {name} TEMPLATE {template}")
    return in_database(server_url, name)


# Each fixture wants the browser first: without one, nothing needs to be started.
@pytest.fixture(scope="session")
def told(browser: Browser, server_url: str, template: str) -> Iterator[Place]:
    url = database(server_url, template, "told")
    with Server("serve", SHIFTWATCH_DATABASE_URL=url) as server:
        yield Place(server.url, story.tell(server.url))
        server.stop()


@pytest.fixture(scope="session")
def empty(browser: Browser, server_url: str, template: str) -> Iterator[Place]:
    url = database(server_url, template, "nothing")
    with Server("api", SHIFTWATCH_DATABASE_URL=url) as server:
        yield Place(server.url)
        server.stop()


@pytest.fixture(scope="session")
def locked(browser: Browser, server_url: str, template: str) -> Iterator[Place]:
    url = database(server_url, template, "locked")
    with Server("api", SHIFTWATCH_DATABASE_URL=url) as server:
        body = {"name": "ada", "scopes": ["admin"]}
        made = httpx.post(f"{server.url}/v1/keys", json=body).raise_for_status()
        yield Place(server.url, key=made.json()["secret"])
        server.stop()


@dataclass
class Seen:
    """An open page of a place, and what went wrong on it."""

    page: Page
    place: Place
    scripts: bool = True
    troubles: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        self.page.on("request", self._on_request)

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.troubles.append(f"{message.type}: {message.text}")

    def _on_request(self, request: Any) -> None:
        if not request.url.startswith((self.place.url, "data:", "blob:")):
            self.troubles.append(f"asked {request.url}")

    def open(self, name: str) -> Any:
        answer = self.page.goto(self.place.url + self.place.path(name))
        assert answer is not None
        if self.page.locator("[data-series]").count() and self.scripts:
            self.page.wait_for_function(DRAWN)
        return answer

    def sign_in(self, key: str) -> None:
        self.page.fill("#key", key)
        self.page.click("main button")


# Every curve is drawn, or says that there is nothing to draw.
DRAWN = """() => [...document.querySelectorAll("[data-chart]")].every(
  (place) => place.querySelector("canvas") || !/script/.test(place.textContent))"""

Look = Callable[..., Seen]


@pytest.fixture
def look(browser: Browser) -> Iterator[Look]:
    """Open a fresh browser at a place, with the options of a context."""
    contexts = []

    def opened(place: Place, **options: Any) -> Seen:
        # Colours on their way to others have no contrast that could be measured.
        usual = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"}
        context = browser.new_context(**{**usual, **options})
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        return Seen(context.new_page(), place, scripts=options.get("java_script_enabled", True))

    yield opened
    for context in contexts:
        context.close()
