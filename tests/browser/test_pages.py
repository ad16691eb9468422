"""Every page in a real browser, with data and without, as everybody can use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.conftest import Look, Place, Seen

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

# With what each of them has to show.
TOLD = {
    "/": "fraud",
    "/?q=nothing-like-it": "No model has",
    "/models/fraud": "Accuracy",
    "/models/loans": "Accuracy",
    "/models/idle": "has not been evaluated",
    "/models/new": "reference",
    "/models/fraud/references/v1": "Confusion matrix",
    "/alarms": "Silences",
    "/alarms/fraud": "What to do next",
    "/alarms/loans": "What to do next",
    "/webhooks": "127.0.0.1:9",
    "/webhooks/1": "Deliveries",
    "/keys": "No keys yet",
    "/sign-in": "API key",
}
EMPTY = {
    "/": "No models yet",
    "/alarms": "No alarms",
    "/webhooks": "Nobody is told",
    "/keys": "No keys yet",
}
LOCKED = {"/keys": "yours", "/": "No models yet"}
NARROW = {"width": 420, "height": 800}


def axe(page: Page) -> list[str]:
    """What axe-core finds serious or worse: the rule, where, and why."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']} ({one['impact']}): {node['target']} {node['failureSummary']}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def overhang(page: Page) -> Any:
    """By how many pixels the document is wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")


def is_fine(seen: Seen, name: str, words: str) -> None:
    assert seen.open(name).status == 200
    assert words in seen.page.inner_text("main")
    for scheme in ("light", "dark"):
        seen.page.emulate_media(color_scheme=scheme)
        assert axe(seen.page) == [], scheme
    seen.page.set_viewport_size(NARROW)
    assert overhang(seen.page) <= 0
    assert seen.troubles == []


@pytest.mark.parametrize("name", TOLD)
def test_a_page_shows_its_data_to_everybody(look: Look, told: Place, name: str) -> None:
    is_fine(look(told), name, TOLD[name])


@pytest.mark.parametrize("name", EMPTY)
def test_a_page_without_data_says_so(look: Look, empty: Place, name: str) -> None:
    is_fine(look(empty), name, EMPTY[name])


@pytest.mark.parametrize("name", LOCKED)
def test_a_page_behind_a_key_is_as_good(look: Look, locked: Place, name: str) -> None:
    seen = look(locked)
    seen.open("/")
    seen.sign_in(locked.key)

    is_fine(seen, name, LOCKED[name])


def test_what_is_not_there_is_said_on_a_page(look: Look, empty: Place) -> None:
    seen = look(empty)

    assert seen.open("/models/nothing").status == 404
    assert "nothing" in seen.page.inner_text("main")
    assert axe(seen.page) == []


def test_axe_finds_what_is_wrong(look: Look, empty: Place) -> None:
    seen = look(empty)
    seen.open("/")
    seen.page.evaluate(
        """() => {
          const faint = document.createElement("p");
          faint.textContent = "hardly to be read";
          faint.style.color = "#bbbbbb";
          document.querySelector("main").append(faint, new Image());
        }"""
    )

    assert {one.partition(" ")[0] for one in axe(seen.page)} == {"color-contrast", "image-alt"}


def test_what_does_not_fit_and_what_goes_wrong_is_seen(look: Look, empty: Place) -> None:
    seen = look(empty)
    seen.open("/")
    seen.page.set_viewport_size(NARROW)
    seen.page.evaluate(
        """() => {
          const wide = document.createElement("div");
          wide.style.width = "900px";
          wide.textContent = "wide";
          document.body.append(wide);
          fetch("http://127.0.0.1:9/elsewhere").catch(() => console.error("no"));
        }"""
    )
    seen.page.wait_for_timeout(200)

    assert overhang(seen.page) > 400
    assert any("elsewhere" in one for one in seen.troubles)
    assert "error: no" in seen.troubles


# Pixels of a canvas that are drawn, and how many colours they have.
PAINTED = """(canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const colours = new Set();
  let pixels = 0;
  for (let i = 0; i < data.length; i += 4)
    if (data[i + 3] > 0) { pixels++; colours.add(`${data[i]},${data[i + 1]},${data[i + 2]}`); }
  return [pixels, colours.size];
}"""


def test_the_curves_of_a_model_are_drawn(look: Look, told: Place) -> None:
    seen = look(told)
    seen.open("/models/fraud")

    canvases = seen.page.locator("#charts canvas").all()
    painted = [canvas.evaluate(PAINTED) for canvas in canvases]

    assert len(canvases) >= 6
    assert all(pixels > 500 and colours > 2 for pixels, colours in painted), painted
    assert seen.page.locator(".u-over").first.bounding_box()["width"] > 200


def test_without_scripts_the_tables_are_there(look: Look, told: Place) -> None:
    seen = look(told, java_script_enabled=False)
    page = seen.page

    seen.open("/models/fraud")
    assert page.locator("#labels-table tbody tr").count() == 3
    page.click("text=The same as a table")
    assert page.locator("#history-table tbody tr").count() > 3
    assert page.locator("#history-table").is_visible()

    seen.open("/")
    page.fill("#q", "loa")
    page.click("form.search button")
    assert page.locator("tbody tr").count() == 1


@pytest.mark.parametrize("name", ["/", "/models/fraud", "/alarms/fraud"])
def test_the_keyboard_gets_to_the_content(look: Look, told: Place, name: str) -> None:
    seen = look(told)
    page = seen.page
    seen.open(name)

    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.locator(".skip").bounding_box()["x"] >= 0
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("!!document.activeElement.closest('main')")

    page.evaluate("document.activeElement.blur(); location.hash = ''")
    seen.open(name)
    for _ in range(2):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "brand"
