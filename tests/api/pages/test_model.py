"""The page of a model and the curves on it."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from app.stats.reference import from_confusion
from app.storage import predictions
from app.storage.db import Database
from tests.evaluate.simulation import Life, life
from tests.factories import CONFUSION, LABELS, register

REFERENCE = from_confusion(np.array(CONFUSION))
CALM, SHIFTED = [0.905, 0.056, 0.039], [0.7, 0.26, 0.04]


@pytest.fixture
def watched(database: Database, client: TestClient) -> Life:
    """Hours of calm with 200 predictions a minute, then 40 minutes of a shift, until now."""
    rng = np.random.default_rng(1)
    one = life(database, REFERENCE, "fraud", labels=LABELS)
    one.now = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(hours=4, minutes=10)
    for mix, times in ((CALM, 21), (SHIFTED, 4)):
        for _ in range(times):
            one.live(rng.multinomial(200, mix, size=10))
    return one


def test_a_model_without_a_reference_says_what_to_do(client: TestClient) -> None:
    client.put("/v1/models/new", json={"labels": ["a", "b"]})

    page = client.get("/models/new")

    assert page.status_code == 200
    assert "No reference yet" in page.text


def test_a_model_without_predictions_is_shown_with_its_reference(client: TestClient) -> None:
    register(client)

    page = client.get("/models/fraud")

    assert page.status_code == 200
    assert "No predictions have been evaluated yet." in page.text
    assert "No evaluations in this span yet." in page.text
    assert "91.0 %" in page.text


def test_a_young_history_fills_the_curves_unless_a_span_is_chosen(
    client: TestClient, watched: Life
) -> None:
    young = client.get("/models/fraud/series").json()
    day = client.get("/models/fraud/series?hours=24").json()

    assert 0 <= young["at"][0] - young["start"] < 600
    assert young["at"] == day["at"]
    assert young["end"] - young["start"] < 5 * 3600
    assert day["end"] - day["start"] == 24 * 3600


def test_a_shift_is_the_headline(client: TestClient, watched: Life) -> None:
    page = client.get("/models/fraud").text

    headline = re.findall(r'<p class="headline">(.*?)</p>', page)[0]
    assert re.match(r"Since .*\d\d:\d\d UTC, if .* the share of <strong>fraud</strong>", headline)
    assert "(was 5.5\N{NO-BREAK SPACE}%)" in headline
    assert "shift: firing" in page


def test_a_headline_is_about_the_time_since_the_change(client: TestClient, watched: Life) -> None:
    since = client.get("/v1/alarms?model=fraud").json()["items"][0]["onset"]
    span = {"from": since, "to": watched.now.isoformat()}
    fraud = client.get("/v1/models/fraud/estimate", params=span).json()["labels"][1]

    for window in ("1h", "24h"):
        page = client.get(f"/models/fraud?window={window}").text
        assert f"is about {100 * fraud['q']:.1f}\N{NO-BREAK SPACE}% (was" in page


def test_everything_that_is_known_is_in_tables(client: TestClient, watched: Life) -> None:
    page = client.get("/models/fraud?hours=5").text

    table = page[page.index('<table class="labels">') :]
    assert table.index("fraud") < table.index("legit")
    estimate = client.get("/v1/models/fraud/evaluations?limit=1").json()["items"][0]
    fraud = estimate["labels"][1]
    assert f"{100 * fraud['q']:.1f} %" in table
    assert f"{fraud['w']:.3g}" in table
    history = page[page.index('<details class="history"') :]
    assert history.count("<tr>") > 15
    assert f"evidence {estimate['evidence']['statistic']:.3g}" in page


def test_predictions_that_came_too_late_are_counted(
    client: TestClient, watched: Life, database: Database
) -> None:
    with database.begin() as conn:
        key = (watched.model.id, watched.version)
        for days in (0, 3, 300):
            at = datetime.now(UTC) - timedelta(days=days)
            predictions.count_late(conn, {key: 600}, 0, at)

    assert "1,200 <span" in client.get("/models/fraud").text


def test_curves_are_what_the_history_says(client: TestClient, watched: Life) -> None:
    found = client.get("/models/fraud/series?hours=4&labels=abuse&labels=fraud").json()

    items = client.get("/v1/models/fraud/evaluations?limit=200").json()["items"]
    by_end = {datetime.fromisoformat(one["to"]).timestamp(): one for one in items}
    assert [one["label"] for one in found["labels"]] == ["abuse", "fraud"]
    assert len(found["at"]) == len(set(found["at"])) >= 20
    for i, at in enumerate(found["at"]):
        one = by_end[at]
        for curve in found["labels"]:
            own = next(row for row in one["labels"] if row["label"] == curve["label"])
            assert curve["q"][i] == pytest.approx(own["q"], abs=1e-5)
            assert curve["lower"][i] == pytest.approx(own["q_lower"], abs=1e-5)
            assert curve["upper"][i] == pytest.approx(own["q_upper"], abs=1e-5)
            assert curve["p"] == pytest.approx(own["p"], abs=1e-5)
        assert found["n"][i] == one["n"]
        assert found["p_value"][i] == pytest.approx(one["tests"][0]["p_value"], rel=0.01)
        assert found["accuracy"]["estimate"][i] == pytest.approx(
            one["accuracy"]["estimate"], abs=1e-5
        )
        for name, column in found["evidence"].items():
            kept = one["evidence"] and one["evidence"][name]
            assert column[i] == (kept and float(f"{kept:.3g}"))


def test_the_detector_calls_at_its_threshold(client: TestClient, watched: Life) -> None:
    found = client.get("/models/fraud/series?hours=5").json()["evidence"]

    known = [(one, at) for one, at in zip(*found.values(), strict=True) if one is not None]
    assert max(one / at for one, at in known) >= 1.0
    assert found["statistic"][0] is None


def test_a_span_of_the_past_is_drawn_by_itself(client: TestClient, watched: Life) -> None:
    middle = watched.now - timedelta(hours=2)
    span = {"from": (middle - timedelta(hours=1)).isoformat(), "to": middle.isoformat()}

    found = client.get("/models/fraud/series", params=span).json()

    assert (found["end"], found["end"] - found["start"]) == (middle.timestamp(), 3600)
    assert found["at"]
    assert all(found["start"] < at <= found["end"] + 60 for at in found["at"])
    assert client.get("/models/fraud", params=span).status_code == 200


def test_long_spans_are_thinned_out(client: TestClient, watched: Life) -> None:
    found = client.get("/models/fraud/series?hours=8000").json()

    assert 1 <= len(found["at"]) <= 2


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/models/nobody", 404, "nobody"),
        ("/models/fraud?window=2h", 404, "has no window &#39;2h&#39;"),
        ("/models/fraud?version=v9", 404, "has no reference &#39;v9&#39;"),
        ("/models/fraud?labels=cat", 422, "&#39;cat&#39;, which is not one of"),
        ("/models/fraud?hours=0", 422, "hours"),
        ("/models/fraud?from=2026-11-17T10:00:00Z&to=2026-11-17T10:00:00Z", 422, "before"),
        ("/models/fraud/series?window=2h", 404, "2h"),
    ],
)
def test_what_makes_no_sense_is_answered_with_a_page(
    client: TestClient, path: str, status: int, words: str
) -> None:
    register(client)

    answer = client.get(path)

    assert answer.status_code == status
    assert words in answer.text
    assert "<html" in answer.text


def test_names_of_labels_are_text_and_nothing_else(client: TestClient, database: Database) -> None:
    rng = np.random.default_rng(1)
    evil = "<script>alert('1')</script>\" onload=x"
    one = life(database, REFERENCE, "evil", labels=("a", evil, "c&d"))
    one.now = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=10)
    one.live(rng.multinomial(200, SHIFTED, size=10))

    for path in ("/models/evil", "/models/evil/references/v1"):
        page = client.get(path).text
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert" in page
        assert '" onload' not in page
    series = re.findall(r'data-series="([^"]+)"', client.get("/models/evil").text)[0]
    curves = client.get(series.replace("&amp;", "&")).json()
    assert evil in [curve["label"] for curve in curves["labels"]]


@pytest.mark.parametrize("path", ["/models/fraud", "/models/fraud/references/v1"])
def test_nothing_is_inline_and_nothing_comes_from_elsewhere(
    client: TestClient, watched: Life, path: str
) -> None:
    page = client.get(path)

    assert "'unsafe" not in page.headers["content-security-policy"]
    assert not re.search(r"<script(?![^>]*\bsrc=)", page.text)
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=", page.text)
    assert all(address.startswith("/") for address in linked(page.text))


def test_all_that_is_linked_is_there(client: TestClient, watched: Life) -> None:
    for path in linked(client.get("/models/fraud").text):
        # The pages of alarms, webhooks and keys are others' to test.
        if path.startswith(("/models", "/static", "/v1")):
            assert client.get(path).status_code == 200, path


def linked(page: str) -> list[str]:
    found = re.findall(r'(?:href|src|data-series|hx-get)="([^"#]+)', page)
    return [one.replace("&amp;", "&") for one in found]


def test_versions_can_be_switched(client: TestClient) -> None:
    register(client)
    body: dict[str, Any] = {"confusion": CONFUSION, "activate": False}
    client.put("/v1/models/fraud/references/next", json=body).raise_for_status()

    page = client.get("/models/fraud?version=next").text

    assert re.search(r'<option value="next" selected>next</option>', page)
    assert "2026-11-01 (active)</option>" in page
    assert 'href="/models/fraud/references/next"' in page


def test_other_labels_can_be_drawn(client: TestClient) -> None:
    many = [f"label-{i}" for i in range(9)]
    client.put("/v1/models/many", json={"labels": many}).raise_for_status()
    confusion = (np.eye(9, dtype=int) * 90 + 1).tolist()
    client.put("/v1/models/many/references/v1", json={"confusion": confusion}).raise_for_status()

    chosen = client.get("/models/many?labels=label-8&labels=label-7").text

    assert client.get("/models/many").text.count('data-chart="label"') == 6
    assert chosen.count('data-chart="label"') == 2
    assert 'value="label-8" checked' in chosen
