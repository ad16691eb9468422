"""Plans: what a reference can show before there is any traffic."""

from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from tests.factories import CONFUSION, LABELS, VERSION, register
from tests.fashion import draw, outputs

URL = "/v1/models/fraud"


def plan(client: TestClient, **query: Any) -> dict[str, Any]:
    answer = client.get(f"{URL}/plan", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def put_confusion(client: TestClient, confusion: list[list[int]], version: str = "v2") -> None:
    body = {"confusion": confusion, "activate": "force"}
    client.put(f"{URL}/references/{version}", json=body).raise_for_status()


@pytest.fixture
def fraud(client: TestClient) -> TestClient:
    register(client)
    return client


def test_a_reference_says_what_an_hour_of_traffic_will_show(fraud: TestClient) -> None:
    found = plan(fraud)

    assert (found["version"], found["n"], found["status"]) == (VERSION, 10_000, ["ok"])
    assert (found["per_hour"], found["per_pane"]) == (1000, pytest.approx(1000 / 60))
    assert [one["label"] for one in found["labels"]] == list(LABELS)
    assert [one["p"] for one in found["labels"]] == pytest.approx([0.91, 0.055, 0.035])
    # docs/correction-and-planning.md quotes these.
    assert [one["growth"] for one in found["labels"]] == pytest.approx(
        [0.038, 0.032, 0.026], abs=0.0005
    )
    assert (found["detection"], found["interval"]) == (None, None)


def test_the_smallest_visible_growth_takes_just_that_hour(fraud: TestClient) -> None:
    growth = plan(fraud, per_hour=2000)["labels"][1]["growth"]

    found = plan(fraud, label="fraud", to=0.055 + growth)

    assert found["detection"]["predictions"] == pytest.approx(2000, abs=2)


def test_traffic_is_taken_to_go_on_as_in_the_last_hour(fraud: TestClient) -> None:
    body = {"predicted": ["legit"] * 240}
    fraud.post(f"{URL}/predictions", json=body).raise_for_status()

    found = plan(fraud)

    assert (found["per_hour"], found["per_pane"]) == (240, 4)


def test_panes_longer_than_an_hour_are_scaled_to_one(client: TestClient) -> None:
    register(client, pane="P1D", windows=[{"name": "day", "kind": "tumbling", "length": "P1D"}])
    client.post(f"{URL}/predictions", json={"predicted": ["legit"] * 240}).raise_for_status()

    found = plan(client)

    assert (found["per_hour"], found["per_pane"]) == (10, 240)


def test_traffic_may_be_given_per_pane(fraud: TestClient) -> None:
    found = plan(fraud, per_pane=20)

    assert (found["per_hour"], found["per_pane"]) == (1200, 20)
    assert found["labels"] == plan(fraud, per_hour=1200)["labels"]


def test_a_shift_takes_so_many_predictions_and_so_many_panes(fraud: TestClient) -> None:
    found = plan(fraud, label="fraud", to=0.1, per_pane=20)["detection"]

    assert (found["label"], found["p"], found["to"]) == ("fraud", 0.055, 0.1)
    assert (found["predictions"], found["reference_factor"]) == (489, None)
    # (log ARL + log(2 * 18 bets)) / (20 KL), ARL 43,200 panes.
    given = np.array(CONFUSION) / np.array([9100, 550, 350])
    p0 = given @ [0.91, 0.055, 0.035]
    p1 = given @ [0.91 * 0.9 / 0.945, 0.1, 0.035 * 0.9 / 0.945]
    bar = np.log(43_200) + np.log(36)
    assert found["delay_panes"] == pytest.approx(bar / (20 * p1 @ np.log(p1 / p0)))
    assert found["delay_panes"] == pytest.approx(55.6, abs=0.05)


def test_a_fall_can_be_planned_for_as_well(fraud: TestClient) -> None:
    found = plan(fraud, label="legit", to=0.5)["detection"]

    assert found["predictions"] < 100


def test_stricter_wishes_take_more_predictions(fraud: TestClient) -> None:
    wishes = [{"alpha": 0.05}, {}, {"power": 0.95}, {"alpha": 0.001, "power": 0.95}]

    sizes = [
        plan(fraud, label="fraud", to=0.1, **wish)["detection"]["predictions"] for wish in wishes
    ]

    assert sizes == sorted(set(sizes))


def test_a_smaller_budget_of_false_alarms_takes_longer(fraud: TestClient) -> None:
    budget = {"false_alarms": {"at_most": 1, "per": "P365D"}}
    usual = plan(fraud, label="fraud", to=0.1, per_pane=20)["detection"]

    register(fraud, alarm=budget)

    rarer = plan(fraud, label="fraud", to=0.1, per_pane=20)["detection"]
    assert rarer["delay_panes"] > usual["delay_panes"]


def test_what_no_traffic_can_show_takes_a_larger_reference(fraud: TestClient) -> None:
    found = plan(fraud, label="fraud", to=0.06, half_width=0.001)

    assert found["detection"]["predictions"] is None
    assert found["detection"]["reference_factor"] == pytest.approx(3.93, abs=0.01)
    assert [one["predictions"] for one in found["interval"]["labels"]] == [None] * 3
    assert all(one["reference_factor"] > 1.0 for one in found["interval"]["labels"])


def test_each_interval_takes_its_own_number_of_predictions(fraud: TestClient) -> None:
    found = plan(fraud, half_width=0.01)["interval"]

    assert (found["half_width"], found["level"]) == (0.01, 0.95)
    assert [(one["labels"], one["predictions"]) for one in found["labels"]] == [
        (["legit"], 3997),
        (["fraud"], 2690),
        (["abuse"], 1716),
    ]


def test_intervals_are_planned_at_the_mix_that_is_asked_about(fraud: TestClient) -> None:
    calm = plan(fraud, half_width=0.02)["interval"]["labels"][1]
    shifted = plan(fraud, half_width=0.02, label="fraud", to=0.3)["interval"]["labels"][1]

    # A share of .3 scatters more than one of .055.
    assert shifted["predictions"] > 3 * calm["predictions"]


def test_labels_that_look_alike_are_planned_one_by_one_and_named(fraud: TestClient) -> None:
    put_confusion(fraud, [[900, 50, 50], [50, 500, 500], [50, 450, 450]])

    found = plan(fraud, label="fraud", to=0.6, half_width=0.03)

    assert (found["status"], found["groups"]) == (["not_identified"], [["fraud", "abuse"]])
    assert found["not_identified"] == ["fraud", "abuse"]
    sizes = found["interval"]["labels"]
    assert [one["labels"] for one in sizes] == [["legit"], ["fraud"], ["abuse"]]
    # No reference of this kind tells them apart, however large.
    assert [one["predictions"] is None for one in sizes] == [False, True, True]
    assert [one["reference_factor"] for one in sizes] == [None, None, None]
    assert found["detection"]["predictions"] > 0


def test_an_absent_label_is_left_out(fraud: TestClient) -> None:
    put_confusion(fraud, [[900, 100, 0], [100, 900, 0], [0, 0, 4]])

    found = plan(fraud, half_width=0.05)

    assert found["labels"][2] == {"label": "abuse", "p": None, "growth": None}
    assert [one["labels"] for one in found["interval"]["labels"]] == [["legit"], ["fraud"]]
    answer = fraud.get(f"{URL}/plan?label=abuse&to=.5")
    assert answer.status_code == 422
    assert "fewer than 5 records" in answer.json()["detail"]


@pytest.mark.parametrize(
    "confusion",
    [
        [[100, 100, 100], [0, 0, 0], [0, 0, 0]],
        [[10, 0, 0], [0, 0, 0], [0, 0, 0]],
    ],
)
def test_a_reference_that_separates_nothing_promises_nothing(
    fraud: TestClient, confusion: list[list[int]]
) -> None:
    put_confusion(fraud, confusion)

    found = plan(fraud, label="legit", to=0.5, half_width=0.1)

    assert "not_identified" in found["status"]
    assert {one["growth"] for one in found["labels"]} == {None}
    sizes = [found["detection"], *found["interval"]["labels"]]
    assert {(one["predictions"], one["reference_factor"]) for one in sizes} == {(None, None)}
    assert found["detection"]["delay_panes"] is None


def test_a_plan_is_for_the_kind_of_traffic_there_is(client: TestClient) -> None:
    sample = outputs("good", "validation")
    client.put(URL, json={"labels": [f"label-{i}" for i in range(10)]}).raise_for_status()
    body = {"probabilities": sample.rows[:5000].tolist(), "actual": sample.labels[:5000].tolist()}
    client.put(f"{URL}/references/{VERSION}", json=body).raise_for_status()
    at_best = plan(client, half_width=0.03)

    client.post(f"{URL}/predictions", json={"predicted": [0] * 60}).raise_for_status()

    as_is = plan(client, half_width=0.03)
    assert (at_best["method"], as_is["method"]) == ("bbse-cells", "bbse-cells")
    # Shirts, much confused, take more predictions if only their labels are told.
    shirts = [one["interval"]["labels"][6]["predictions"] for one in (at_best, as_is)]
    assert shirts[0] < shirts[1]


def test_a_window_of_the_promised_size_mostly_shows_the_shift(client: TestClient) -> None:
    sample = outputs("good", "validation")
    client.put(URL, json={"labels": [f"label-{i}" for i in range(10)]}).raise_for_status()
    body = {"probabilities": sample.rows[:5000].tolist(), "actual": sample.labels[:5000].tolist()}
    client.put(f"{URL}/references/{VERSION}", json=body).raise_for_status()
    size = plan(client, label="label-6", to=0.2, power=0.99)["detection"]["predictions"]
    shares = np.where(np.arange(10) == 6, 0.2, 0.8 / 9)
    window = draw(outputs("good", "test"), shares, size, np.random.default_rng(2))

    client.post(f"{URL}/predictions", json={"probabilities": window.rows.tolist()})

    chi_square = client.get(f"{URL}/estimate").json()["tests"][1]
    assert chi_square["test"] == "chi2"
    assert chi_square["p_value"] < 0.01


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ({"label": "fraud"}, "to"),
        ({"to": "0.1"}, "label"),
        ({"label": "nobody", "to": "0.1"}, "label"),
        ({"label": "fraud", "to": "0.055"}, "to"),
        ({"label": "fraud", "to": "0"}, "to"),
        ({"label": "fraud", "to": "1"}, "to"),
        ({"label": "fraud", "to": "nan"}, "to"),
        ({"half_width": "0"}, "half_width"),
        ({"half_width": "1"}, "half_width"),
        ({"alpha": "0"}, "alpha"),
        ({"alpha": "0.9"}, "alpha"),
        ({"power": "1"}, "power"),
        ({"alpha": "0.3", "power": "0.3"}, "power"),
        ({"per_hour": "0"}, "per_hour"),
        ({"per_pane": "-1"}, "per_pane"),
        ({"per_hour": "inf"}, "per_hour"),
        ({"per_hour": "10", "per_pane": "10"}, "per_pane"),
    ],
)
def test_what_makes_no_sense_is_named(
    fraud: TestClient, query: dict[str, str], parameter: str
) -> None:
    answer = fraud.get(f"{URL}/plan", params=query)

    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert [one["parameter"] for one in answer.json()["errors"]] == [parameter]


def test_an_unknown_label_is_answered_with_the_known_ones(fraud: TestClient) -> None:
    answer = fraud.get(f"{URL}/plan?label=nobody&to=.1")

    assert "legit, fraud, abuse" in answer.json()["detail"]


def test_of_many_known_labels_some_are_named(client: TestClient) -> None:
    labels = [f"label-{i}" for i in range(25)]
    client.put(URL, json={"labels": labels}).raise_for_status()
    put_confusion(client, (100 * np.eye(25, dtype=int)).tolist())

    detail = client.get(f"{URL}/plan?label=nobody&to=.1").json()["detail"]

    assert detail.endswith("label-18, label-19, …")


@pytest.mark.parametrize("extreme", [{"alpha": 1e-9, "power": 0.9999}, {"power": 0.02}])
@pytest.mark.parametrize("per_hour", [1e-6, 1e12])
def test_extreme_wishes_have_answers(
    fraud: TestClient, extreme: dict[str, float], per_hour: float
) -> None:
    found = plan(fraud, label="fraud", to=0.999, half_width=1e-9, per_hour=per_hour, **extreme)

    assert found["detection"]["predictions"] >= 1


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/models/nobody/plan", 404),
        (f"{URL}/plan?version=nope", 404),
        ("/v1/models/new/plan", 409),
    ],
)
def test_what_is_not_there_is_named(fraud: TestClient, path: str, status: int) -> None:
    fraud.put("/v1/models/new", json={"labels": LABELS}).raise_for_status()

    assert fraud.get(path).status_code == status
