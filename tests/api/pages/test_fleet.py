"""The list of models, as somebody sees it who opens the page."""

import re
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from fastapi.testclient import TestClient

from app.api.pages import fleet as pages
from app.evaluate.due import Worker
from app.storage import fleet
from app.storage.db import Database
from app.storage.fleet import Order
from tests.factories import register


def evaluate(database: Database) -> None:
    worker = Worker(database, "http://localhost")
    while worker.evaluate_next(datetime.now(UTC)):
        pass


def send(client: TestClient, name: str, counts: tuple[int, ...]) -> None:
    predicted = np.repeat(np.arange(len(counts)), counts).tolist()
    answer = client.post(f"/v1/models/{name}/predictions", json={"predicted": predicted})
    answer.raise_for_status()


def listed(client: TestClient, query: str = "") -> list[str]:
    """The names on the page, in their order."""
    answer = client.get(f"/?{query}")
    assert answer.status_code == 200
    return re.findall(r'<th scope="row"><a href="/models/([^"]+)">', answer.text)


@pytest.fixture
def three(client: TestClient, database: Database) -> TestClient:
    """Quiet, shifted with an alarm, and one without a reference."""
    armed = {"alarm": {"overdispersion": 1}}
    register(client, "quiet", **armed)
    register(client, "moved", **armed)
    client.put("/v1/models/bare", json={"labels": ["a", "b"]}).raise_for_status()
    send(client, "quiet", (1810, 110, 80))
    send(client, "moved", (800, 150, 50))
    evaluate(database)
    return client


def test_an_empty_fleet_says_how_to_begin(client: TestClient) -> None:
    page = client.get("/")

    assert page.status_code == 200
    assert "No models yet" in page.text
    assert "curl -X PUT" in page.text


def test_the_model_in_trouble_comes_first(three: TestClient) -> None:
    assert listed(three) == ["moved", "quiet", "bare"]


def test_a_model_is_told_at_a_glance(three: TestClient) -> None:
    page = three.get("/?q=moved").text
    estimate = three.get("/v1/models/moved/estimate").json()
    fraud = next(one for one in estimate["labels"] if one["label"] == "fraud")

    assert "shift, cause unknown" in page
    assert "shift: firing" in page
    assert f"<strong>fraud</strong> 5.5 % → {100 * fraud['q']:.1f} %" in page
    assert f"[{100 * fraud['q_lower']:.1f}, {100 * fraud['q_upper']:.1f}]" in page
    assert f"{100 * estimate['accuracy']['estimate']:.1f} %" in page
    assert "(was 98.3 %)" in page
    assert "1,000" in page


def test_a_model_without_a_reference_says_so(three: TestClient) -> None:
    page = three.get("/?q=bare").text

    assert "no reference yet" in page
    assert "never" in page


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("q=UI", ["quiet"]),
        ("q=nobody", []),
        ("q=%25", []),
        ("q=_", []),
        ("q=%5C", []),
        ("sort=name", ["bare", "moved", "quiet"]),
        ("sort=traffic", ["quiet", "moved", "bare"]),
        ("sort=change", ["moved", "quiet", "bare"]),
    ],
)
def test_models_are_found_and_sorted(three: TestClient, query: str, names: list[str]) -> None:
    assert listed(three, query) == names


def test_what_was_looked_for_is_shown_and_harmless(three: TestClient) -> None:
    page = three.get("/", params={"q": '"><script>alert(1)</script>'}).text

    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_long_lists_have_pages(three: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PER_PAGE", 2)

    first, second = listed(three, "sort=name"), listed(three, "sort=name&page=2")

    assert (first, second) == (["bare", "moved"], ["quiet"])
    text = three.get("/?sort=name").text
    assert "page 1 of 2" in text
    assert 'rel="next" href="/?q=&amp;sort=name&amp;page=2"' in text


def test_a_sort_that_is_none_is_told_as_a_page(client: TestClient) -> None:
    answer = client.get("/?sort=colour")

    assert answer.status_code == 422
    assert answer.headers["content-type"].startswith("text/html")
    assert "sort:" in answer.text


def test_nothing_is_inline_and_nothing_comes_from_elsewhere(three: TestClient) -> None:
    page = three.get("/")

    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=|https?://", page.text)


def test_every_static_file_of_a_page_is_there_and_may_be_kept(client: TestClient) -> None:
    paths = re.findall(r'(?:src|href)="(/static/[^"]+)"', client.get("/").text)
    assert len(paths) >= 4

    for path in paths:
        answer = client.get(path)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]


def test_traffic_is_told_by_the_hour(three: TestClient, database: Database) -> None:
    now = datetime.now(UTC)
    with database.begin() as conn:
        found = fleet.traffic(conn, ["quiet", "bare"], now + timedelta(seconds=1), hours=24)

    assert found == {"quiet": [0] * 23 + [2000]}


def test_a_page_of_names_says_how_many_there_are(three: TestClient, database: Database) -> None:
    with database.begin() as conn:
        assert fleet.page(conn, "", Order.NAME, 1, 1) == (["moved"], 3)
        assert fleet.page(conn, "nobody", Order.NAME, 1) == ([], 0)
