"""Estimates through the whole service, on panes that are really stored."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from app.stats.moments import Floats
from tests.factories import LABELS, VERSION, register
from tests.fashion import draw, outputs

URL = "/v1/models/fraud"


def send(client: TestClient, counts: dict[str, int], **more: Any) -> None:
    predicted = [label for label, count in counts.items() for _ in range(count)]
    body = {"predicted": predicted, **more}
    client.post(f"{URL}/predictions", json=body).raise_for_status()


def estimate(client: TestClient, **query: str) -> dict[str, Any]:
    answer = client.get(f"{URL}/estimate", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.fixture
def fraud(client: TestClient) -> TestClient:
    windows = [
        {"name": "1h", "kind": "sliding", "length": "PT1H"},
        {"name": "day", "kind": "tumbling", "length": "P1D"},
        {"name": "last-300", "kind": "last", "count": 300},
        {"name": "live", "kind": "version"},
        {"name": "newest", "kind": "adaptive"},
    ]
    register(client, windows=windows)
    return client


def test_before_any_data_everything_but_the_reference_is_unknown(fraud: TestClient) -> None:
    found = estimate(fraud)

    assert (found["verdict"], found["n"], found["window"]) == ("no_data", 0, "1h")
    assert [label["label"] for label in found["labels"]] == list(LABELS)
    assert [label["p"] for label in found["labels"]] == pytest.approx([0.91, 0.055, 0.035])
    assert {label["q"] for label in found["labels"]} == {None}
    assert found["accuracy"] is None


def test_one_prediction_is_too_few(fraud: TestClient) -> None:
    send(fraud, {"fraud": 1})

    assert estimate(fraud)["verdict"] == "insufficient_data"


def test_the_reference_mix_is_no_shift(fraud: TestClient) -> None:
    send(fraud, {"legit": 904, "fraud": 57, "abuse": 39})

    found = estimate(fraud)

    assert found["verdict"] == "no_shift"
    assert [label["q"] for label in found["labels"]] == pytest.approx(
        [0.91, 0.055, 0.035], abs=0.01
    )


def test_a_shift_in_hard_predictions_cannot_be_told_from_other_changes(fraud: TestClient) -> None:
    send(fraud, {"legit": 700, "fraud": 250, "abuse": 50})

    found = estimate(fraud)

    assert found["verdict"] == "undetermined"
    assert "assumption_untestable_hard_only" in found["status"]
    fraction = found["labels"][1]
    assert fraction["q_lower"] < fraction["q"] < fraction["q_upper"]
    assert fraction["w"] == pytest.approx(fraction["q"] / fraction["p"])
    assert found["tests"][0]["p_value"] < 1e-6


def test_a_window_of_one_label_only_is_more_than_any_mix_can_explain(fraud: TestClient) -> None:
    send(fraud, {"abuse": 400})  # of all abuse, 6 % used to be called something else

    found = estimate(fraud)

    assert found["verdict"] == "not_label_shift"
    assert "A1_or_A2_violated" in found["status"]
    assert sum(label["q_raw"] for label in found["labels"]) == pytest.approx(1.0)


def test_windows_look_at_their_own_panes(fraud: TestClient) -> None:
    now = datetime.now(UTC)
    send(fraud, {"legit": 200}, timestamp=(now - timedelta(hours=3)).isoformat())
    send(fraud, {"legit": 100}, timestamp=(now - timedelta(minutes=10)).isoformat())
    send(fraud, {"legit": 250}, timestamp=(now - timedelta(minutes=5)).isoformat())

    counts = {name: estimate(fraud, window=name)["n"] for name in ("1h", "last-300")}

    # The last 300 reach into the pane of 100, and a pane is never cut.
    assert counts == {"1h": 350, "last-300": 350}


def test_the_last_n_are_all_there_are_if_there_are_fewer(fraud: TestClient) -> None:
    send(fraud, {"legit": 60})

    assert estimate(fraud, window="last-300")["n"] == 60
    assert estimate(fraud, window="live")["n"] == 60


def test_a_span_of_time_is_evaluated_on_the_spot(fraud: TestClient) -> None:
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    for minutes, count in ((30, 70), (20, 80), (10, 90)):
        at = now - timedelta(minutes=minutes)
        send(fraud, {"legit": count}, timestamp=at.isoformat())

    found = estimate(
        fraud,
        **{
            "from": (now - timedelta(minutes=20)).isoformat(),
            "to": (now - timedelta(minutes=10)).isoformat(),
        },
    )

    assert (found["n"], found["window"]) == (80, None)


def test_each_version_has_estimates_of_its_own(fraud: TestClient) -> None:
    send(fraud, {"legit": 100})
    matrix = {"confusion": [[50, 1, 1], [1, 50, 1], [1, 1, 50]]}
    fraud.put(f"{URL}/references/v2", json=matrix).raise_for_status()
    send(fraud, {"abuse": 60})

    assert (estimate(fraud)["version"], estimate(fraud)["n"]) == ("v2", 60)
    assert estimate(fraud, version=VERSION)["n"] == 100


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"window": "nope"}, 404),
        ({"version": "nope"}, 404),
        ({"from": "2026-11-17T10:00:00Z"}, 422),
        ({"from": "2026-11-17T10:00:00Z", "to": "2026-11-17T09:00:00Z"}, 422),
        ({"from": "2026-11-17T10:00:00Z", "to": "2026-11-17T11:00:00Z", "window": "1h"}, 422),
    ],
)
def test_what_cannot_be_asked_is_said(
    fraud: TestClient, query: dict[str, str], status: int
) -> None:
    answer = fraud.get(f"{URL}/estimate", params=query)

    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"


def test_without_a_reference_nothing_can_be_estimated(client: TestClient) -> None:
    client.put("/v1/models/new", json={"labels": ["a", "b"]})

    assert client.get("/v1/models/new/estimate").status_code == 409


@pytest.fixture
def fashion(client: TestClient) -> TestClient:
    """A real classifier: ten labels, and a reference of 5,000 softmax rows."""
    sample = outputs("good", "validation")
    labels = [f"label-{i}" for i in range(10)]
    client.put(URL, json={"labels": labels}).raise_for_status()
    body = {
        "probabilities": sample.rows[:5000].tolist(),
        "actual": sample.labels[:5000].tolist(),
    }
    client.put(f"{URL}/references/{VERSION}", json=body).raise_for_status()
    return client


def traffic(shares: Floats, size: int) -> Floats:
    """Real outputs, drawn so that labels have these shares."""
    return draw(outputs("good", "test"), shares, size, np.random.default_rng(7)).rows


def test_a_label_shift_is_found_measured_and_told_from_other_changes(fashion: TestClient) -> None:
    shares = np.full(10, 0.6 / 9)
    shares[5] = 0.4
    rows = traffic(shares, 2000).tolist()
    fashion.post(f"{URL}/predictions", json={"probabilities": rows}).raise_for_status()

    found = estimate(fashion)

    assert (found["verdict"], found["method"]) == ("label_shift", "bbse-cells")
    assert found["assumption"]["verdict"] == "label_shift_consistent"
    sandal = found["labels"][5]
    assert sandal["q_lower"] <= 0.4 <= sandal["q_upper"]
    assert found["tests"][0]["test"] == "combined"


def test_a_model_grown_unsure_is_not_taken_for_a_changed_mix(fashion: TestClient) -> None:
    rows = np.sqrt(traffic(np.full(10, 0.1), 2000))
    rows /= rows.sum(axis=1, keepdims=True)
    fashion.post(f"{URL}/predictions", json={"probabilities": rows.tolist()}).raise_for_status()

    found = estimate(fashion)

    assert found["verdict"] == "not_label_shift"
    # What was seen is shown; what it would mean is not.
    assert {label["q"] for label in found["labels"]} == {None}
    assert found["accuracy"] is None
    assert found["labels"][0]["predicted"] is not None
