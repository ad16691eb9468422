"""Estimates through the whole service, on panes that are really stored."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from app.stats.moments import Floats
from tests.factories import CONFUSION, LABELS, VERSION, register
from tests.fashion import draw, outputs

URL = "/v1/models/fraud"


def send(client: TestClient, counts: dict[str, int], **more: Any) -> None:
    predicted = [label for label, count in counts.items() for _ in range(count)]
    body = {"predicted": predicted, **more}
    client.post(f"{URL}/predictions", json=body).raise_for_status()


def estimate(client: TestClient, **query: str | float) -> dict[str, Any]:
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


def test_the_papers_numbers_stand_beside_the_default(fraud: TestClient) -> None:
    send(fraud, {"legit": 900, "fraud": 90, "abuse": 10})

    found = estimate(fraud)

    raw = np.linalg.solve(np.array(CONFUSION) / 10_000, [0.9, 0.09, 0.01])
    assert found["method"] == "bbse-cells"
    assert (found["bbse"]["moments"], found["bbse"]["reason"]) == ("hard", None)
    assert [one["label"] for one in found["bbse"]["labels"]] == list(LABELS)
    assert [one["w"] for one in found["bbse"]["labels"]] == pytest.approx(raw.tolist())
    shares = [w * one["p"] for w, one in zip(raw, found["labels"], strict=True)]
    assert [one["q"] for one in found["bbse"]["labels"]] == pytest.approx(shares)


def test_a_method_of_choice_is_the_papers_clipped_and_the_intervals_stay(
    fraud: TestClient,
) -> None:
    send(fraud, {"legit": 960, "fraud": 38, "abuse": 2})
    default = estimate(fraud)

    found = estimate(fraud, method="bbse-hard")

    raw = np.array([one["q"] for one in found["bbse"]["labels"]])
    clipped = np.maximum(raw, 0.0) / np.maximum(raw, 0.0).sum()
    assert raw.min() < 0.0
    assert found["method"] == "bbse-hard"
    assert [one["q"] for one in found["labels"]] == pytest.approx(clipped.tolist())
    assert [one["q_raw"] for one in found["labels"]] == pytest.approx(raw.tolist())
    for ours, theirs in zip(found["labels"], default["labels"], strict=True):
        assert (ours["q_lower"], ours["q_upper"]) == (theirs["q_lower"], theirs["q_upper"])


def test_below_a_given_delta_the_papers_weights_are_one(fraud: TestClient) -> None:
    send(fraud, {"legit": 900, "fraud": 90, "abuse": 10})

    found = estimate(fraud, method="bbse-hard", delta=0.5)

    assert "degenerate_w1" in found["status"]
    assert [one["w"] for one in found["labels"]] == [1.0, 1.0, 1.0]
    assert "degenerate_w1" not in estimate(fraud, method="bbse-hard", delta=0.001)["status"]


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ({"method": "em"}, "method"),
        ({"delta": 0.1}, "delta"),
        ({"delta": 0.1, "method": "default"}, "delta"),
        ({"delta": -1, "method": "bbse-hard"}, "delta"),
    ],
)
def test_a_method_that_there_is_not_is_refused(
    fraud: TestClient, query: dict[str, str | float], parameter: str
) -> None:
    answer = fraud.get(f"{URL}/estimate", params=query)

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["parameter"] == parameter


def test_a_models_setting_chooses_what_its_shares_are(fraud: TestClient) -> None:
    send(fraud, {"legit": 900, "fraud": 90, "abuse": 10})
    default = estimate(fraud)
    body = fraud.get(URL).json()
    settings = {name: body[name] for name in ("labels", "windows", "alarm")}

    fraud.put(URL, json={**settings, "estimator": "bbse-hard"}).raise_for_status()

    found = estimate(fraud)
    assert (found["method"], estimate(fraud, method="default")["method"]) == (
        "bbse-hard",
        "bbse-cells",
    )
    assert found["labels"][1]["q"] == pytest.approx(found["bbse"]["labels"][1]["q"])
    assert estimate(fraud, method="default")["labels"] == default["labels"]


def test_labels_that_look_alike_are_named_in_a_sentence(client: TestClient) -> None:
    client.put(URL, json={"labels": ["cat", "dog", "wolf"]}).raise_for_status()
    confusion = [[900, 50, 50], [50, 480, 470], [50, 470, 480]]
    client.put(f"{URL}/references/{VERSION}", json={"confusion": confusion}).raise_for_status()
    send(client, {"cat": 300, "dog": 350, "wolf": 350})

    found = estimate(client)

    assert found["not_identified"] == ["dog", "wolf"]
    (group,) = found["groups"]
    assert group["labels"] == ["dog", "wolf"]
    assert found["notes"] == [
        "dog and wolf look alike to this classifier: their split is unknown; together "
        f"{100 * group['q']:.1f} % [{100 * group['q_lower']:.0f}, {100 * group['q_upper']:.0f}]"
    ]
    assert group["q_upper"] - group["q_lower"] < 0.1
    assert found["labels"][1]["q_upper"] - found["labels"][1]["q_lower"] > 0.5
