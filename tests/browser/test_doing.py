"""What people do on the page, in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.conftest import Look, Place

pytestmark = pytest.mark.browser


def test_a_key_opens_the_page_until_its_owner_signs_out(look: Look, locked: Place) -> None:
    seen = look(locked)
    page = seen.page
    seen.open("/keys")
    assert page.url.endswith("/sign-in?next=/keys")

    seen.sign_in("not-the-key")
    assert page.locator("[role=alert]").is_visible()

    seen.sign_in(locked.key)
    page.wait_for_url("**/keys")
    assert "ada" in page.inner_text("header")
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Lax")
    assert locked.key not in cookie["value"]

    page.click("text=Sign out")
    seen.open("/")
    assert "/sign-in" in page.url


def test_an_alarm_is_acknowledged_by_its_form(look: Look, told: Place) -> None:
    seen = look(told)
    page = seen.page
    seen.open("/alarms/loans")

    page.fill("#note-acknowledge", "looking into it")
    page.click("button:text-is('Acknowledge')")

    page.wait_for_selector("text=looking into it")
    assert page.locator(".badge.alarm-acknowledged").first.is_visible()
    assert page.locator("#note-acknowledge").count() == 0
    seen.open("/alarms")
    assert page.locator(".badge.alarm-acknowledged").count() == 1
    assert seen.troubles == []


def test_the_weights_of_an_alarm_are_downloaded(look: Look, told: Place, tmp_path: Path) -> None:
    seen = look(told)
    seen.open("/alarms/fraud")

    with seen.page.expect_download() as coming:
        seen.page.click(".steps a:text-is('CSV')")
    coming.value.save_as(tmp_path / "weights.csv")

    assert coming.value.suggested_filename == "fraud-weights.csv"
    header, *rows = (tmp_path / "weights.csv").read_text().splitlines()
    weights = {label: float(weight) for label, weight in (row.split(",") for row in rows)}
    assert header == "label,weight"
    assert set(weights) == {"legit", "fraud", "abuse"}
    assert weights["fraud"] > 2 > weights["legit"]


def test_searching_narrows_the_list_as_one_types(look: Look, told: Place) -> None:
    seen = look(told)
    page = seen.page
    seen.open("/")
    assert page.locator(".fleet tbody tr").count() == 5

    page.locator("#q").press_sequentially("loa")

    page.wait_for_function("() => document.querySelectorAll('.fleet tbody tr').length === 1")
    assert page.locator(".fleet tbody a").inner_text() == "loans"
    assert "q=loa" in page.url
    # What is typed is still there, and still where one types.
    assert page.evaluate("document.activeElement.id") == "q"
    assert seen.troubles == []
