"""Corrected probabilities and class weights: only on a shift, and only of the label mix."""

import csv
import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from app.api import corrections
from app.domain.correction import corrected, decide
from app.domain.verdict import Verdict
from app.errors import Conflict
from app.stats import analysis as analyses
from app.stats import calibration
from app.stats import reference as references
from app.stats.analysis import Analysis
from app.stats.assumption import Assumption
from app.stats.bbsd import Evidence
from app.stats.calibration import Calibration
from app.stats.moments import Floats, Sums
from tests.factories import LABELS, VERSION, register
from tests.fashion import Outputs, draw, outputs

URL = "/v1/models/fraud"
NAMES = [
    "t-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "boot",
]
SHIRT, SANDAL = 6, 5
EVEN = np.full(10, 0.1)


# The decision, without any service.


def shifted(**changes: Any) -> Analysis:
    """Labels from even to .1 and .9, as a window of softmax rows could have shown it."""
    on = analyses.basis(references.from_confusion(np.array([[900, 200], [100, 800]])))
    found = analyses.analyse(on, Sums(np.array([270, 730])))
    trusted = replace(found, status=("ok",), assumption=Assumption("label_shift_consistent", 0.5))
    return replace(trusted, **changes)


def chi_square(statistic: float, p_value: float, df: int = 1) -> dict[str, Any]:
    return {"tests": (Evidence("chi2", statistic, df, p_value, "asymptotic"),)}


@pytest.mark.parametrize(
    ("found", "verdict", "alarm", "applied", "reason"),
    [
        (shifted(), Verdict.LABEL_SHIFT, None, True, "found in this window"),
        (shifted(), Verdict.LABEL_SHIFT, True, True, "found by the stream's alarm"),
        (shifted(), Verdict.LABEL_SHIFT, False, False, "no shift was found by the stream's alarm"),
        (shifted(), Verdict.NO_SHIFT, True, True, "found by the stream's alarm"),
        (shifted(), Verdict.NO_SHIFT, None, False, "too small to matter"),
        (
            shifted(**chi_square(2.0, 0.15)),
            Verdict.NO_SHIFT,
            None,
            False,
            "no shift was found in this window (p = 0.15)",
        ),
        (shifted(n=49), Verdict.INSUFFICIENT_DATA, True, False, "49 predictions, and 50"),
        (shifted(), Verdict.NOT_LABEL_SHIFT, True, False, "other than the label mix"),
        (shifted(total_variation=None), Verdict.UNDETERMINED, True, False, "nothing could be est"),
        (shifted(status=("degenerate_w1",)), Verdict.LABEL_SHIFT, True, False, "all one"),
        (
            shifted(assumption=Assumption("untestable", None)),
            Verdict.UNDETERMINED,
            None,
            False,
            "without softmax rows",
        ),
        (shifted(assumption=None), Verdict.UNDETERMINED, None, False, "without softmax rows"),
        (
            shifted(assumption=Assumption("label_shift_doubtful", 0.02)),
            Verdict.LABEL_SHIFT,
            True,
            False,
            "doubtful",
        ),
        (
            shifted(status=("A1_or_A2_violated",)),
            Verdict.LABEL_SHIFT,
            True,
            False,
            "no mix of the reference's labels",
        ),
        (
            shifted(status=("unseen_prediction", "ok")),
            Verdict.LABEL_SHIFT,
            None,
            False,
            "no mix of the reference's labels",
        ),
    ],
)
def test_only_a_shift_of_the_label_mix_is_corrected(
    found: Analysis, verdict: Verdict, alarm: bool | None, applied: bool, reason: str
) -> None:
    decided = decide(found, verdict, 2, alarm=alarm)

    assert decided.applied is applied
    assert reason in decided.reason
    assert applied or decided.w.tolist() == [1.0, 1.0]


def test_an_empty_window_has_nothing_that_could_be_forced() -> None:
    empty = Analysis(0, ("no_data",), "bbse-hard")

    for force in (False, True):
        decided = decide(empty, Verdict.NO_DATA, 2, alarm=None, force=force)
        assert (decided.applied, decided.reason) == (False, "the window holds no predictions")


def test_weights_are_shrunk_by_how_clear_the_change_is() -> None:
    decided = decide(shifted(**chi_square(8.0, 0.005)), Verdict.LABEL_SHIFT, 2, alarm=None)

    # 1 - 1 / 8 of the way from 1 to .2 and 1.8.
    assert decided.gamma == 0.875
    assert decided.w == pytest.approx([0.3, 1.7], abs=0.001)


def test_labels_that_nobody_predicts_do_not_shrink_anything() -> None:
    decided = decide(shifted(**chi_square(20.0, 1e-5, df=1)), Verdict.LABEL_SHIFT, 2, alarm=None)
    crowded = decide(shifted(**chi_square(20.0, 1e-5, df=12)), Verdict.LABEL_SHIFT, 2, alarm=None)

    assert (decided.gamma, crowded.gamma) == (0.95, 0.5)


def test_a_change_that_chance_explains_is_shrunk_to_nothing() -> None:
    decided = decide(shifted(**chi_square(0.5, 0.5)), Verdict.LABEL_SHIFT, 2, alarm=True)

    assert (decided.applied, decided.gamma, decided.w.tolist()) == (False, 0.0, [1.0, 1.0])
    assert "no larger than chance" in decided.reason


def test_force_opens_the_gate_and_says_so() -> None:
    decided = decide(shifted(), Verdict.NO_SHIFT, 2, alarm=False, force=True)

    assert decided.applied
    assert decided.reason == "forced, although no shift was found by the stream's alarm"


def test_force_does_not_open_it_to_weights_that_must_be_wrong() -> None:
    with pytest.raises(Conflict, match="cannot be forced: something other than the label mix"):
        decide(shifted(), Verdict.NOT_LABEL_SHIFT, 2, alarm=True, force=True)


def test_force_makes_no_weights_out_of_nothing() -> None:
    blind = shifted(total_variation=None)

    decided = decide(blind, Verdict.UNDETERMINED, 2, alarm=None, force=True)

    assert (decided.applied, decided.w.tolist()) == (False, [1.0, 1.0])


# Shrunken weights are never zero. The last label always has one.
weights = st.lists(st.floats(0.01, 50.0) | st.just(float("nan")), min_size=2, max_size=2)
parts = st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(any)


@given(weights, parts, st.booleans())
def test_corrected_rows_are_distributions_and_unknown_labels_keep_their_part(
    some: list[float], row: list[int], calibrate: bool
) -> None:
    w = np.array([*some, 2.0])
    rows = np.array([row]) / sum(row)
    bias = np.array([0.1, -0.2, 0.3])

    present = np.flatnonzero(~np.isnan(w))
    fitted = Calibration(present, np.full(len(present), 0.7), bias[present], np.zeros(len(present)))
    found = corrected(rows, w, fitted if calibrate else None)

    assert found.sum() == pytest.approx(1.0)
    assert found.min() >= 0.0
    assert found[0, np.isnan(w)] == pytest.approx(rows[0, np.isnan(w)])


# The routes, on outputs of a real classifier.


def even_reference(size: int = 5000) -> Outputs:
    sample = outputs("good", "validation")
    return Outputs(sample.rows[:size], sample.labels[:size])


def put_reference(client: TestClient, sample: Outputs, labels: list[str] = NAMES) -> None:
    client.put(URL, json={"labels": labels}).raise_for_status()
    body = {"probabilities": sample.rows.tolist(), "actual": sample.labels.tolist()}
    client.put(f"{URL}/references/{VERSION}", json=body).raise_for_status()


@pytest.fixture
def fashion(client: TestClient) -> TestClient:
    """Ten labels, and a reference of 5,000 softmax rows."""
    put_reference(client, even_reference())
    return client


def tweaked(label: int, share: float) -> Floats:
    return np.where(np.arange(10) == label, share, (1.0 - share) / 9)


def traffic(shares: Floats, size: int = 2000, seed: int = 7) -> Outputs:
    return draw(outputs("good", "test"), shares, size, np.random.default_rng(seed))


def send(client: TestClient, rows: Floats) -> None:
    body = {"probabilities": rows.tolist()}
    client.post(f"{URL}/predictions", json=body).raise_for_status()


def correct(client: TestClient, rows: Floats, **query: Any) -> dict[str, Any]:
    body = {"probabilities": rows.tolist()}
    answer = client.post(f"{URL}/correct", json=body, params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def class_weights(client: TestClient, **query: Any) -> dict[str, Any]:
    answer = client.get(f"{URL}/weights", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def accuracy(found: dict[str, Any], truth: Outputs) -> float:
    names = np.array(NAMES)[truth.labels]
    return float((np.array(found["predicted"]) == names).mean())


def test_under_a_label_shift_corrected_predictions_are_right_more_often(
    fashion: TestClient,
) -> None:
    send(fashion, traffic(tweaked(SHIRT, 0.5)).rows)
    served = traffic(tweaked(SHIRT, 0.5), seed=8)

    found = correct(fashion, served.rows)

    assert (found["applied"], found["calibrated"], found["window"]) == (True, True, "1h")
    # docs/correction-and-planning.md quotes these: as it came, only calibrated, and corrected.
    fitted = calibration.fit(even_reference().rows, even_reference().labels, np.arange(10))
    rights = [
        float((rows.argmax(axis=1) == served.labels).mean())
        for rows in (served.rows, calibration.calibrated(fitted, served.rows))
    ]
    assert [*rights, accuracy(found, served)] == pytest.approx([0.668, 0.7585, 0.8575], abs=0.002)
    rows = np.array(found["probabilities"])
    assert rows.sum(axis=1) == pytest.approx(np.ones(len(rows)))
    assert [NAMES[i] for i in rows.argmax(axis=1)] == found["predicted"]
    w = {one["label"]: one["w"] for one in found["weights"]}
    assert list(w) == NAMES
    assert w["shirt"] == pytest.approx(4.744, abs=0.01)


def test_without_a_shift_rows_come_back_as_they_came(fashion: TestClient) -> None:
    send(fashion, traffic(EVEN).rows)
    served = traffic(EVEN, 100, seed=8)

    found = correct(fashion, served.rows)

    assert (found["applied"], found["calibrated"]) == (False, False)
    assert found["reason"].startswith("no shift was found in this window (p = ")
    assert found["probabilities"] == served.rows.tolist()
    assert found["predicted"] == [NAMES[i] for i in served.predicted]
    assert {one["w"] for one in found["weights"]} == {1.0}


def test_the_control_correcting_without_a_shift_changes_predictions(fashion: TestClient) -> None:
    send(fashion, traffic(EVEN, 200, seed=11).rows)
    served = traffic(EVEN, seed=8)

    found = correct(fashion, served.rows, force=True)

    assert found["applied"]
    assert found["reason"].startswith("forced, although no shift was found")
    assert found["predicted"] != [NAMES[i] for i in served.predicted]


def test_a_model_without_traffic_is_served_as_it_is(fashion: TestClient) -> None:
    found = correct(fashion, traffic(EVEN, 3).rows)

    assert (found["applied"], found["reason"]) == (False, "the window holds no predictions")


def test_no_rows_are_no_mistake(fashion: TestClient) -> None:
    found = correct(fashion, np.zeros((0, 10)))

    assert (found["probabilities"], found["predicted"]) == ([], [])


def test_the_alarm_of_a_watched_stream_decides(
    fashion: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(fashion, traffic(tweaked(SHIRT, 0.5)).rows)
    asked: list[Any] = []

    def quiet(_: object, model_id: int, version: str) -> bool:
        asked.append((model_id > 0, version))
        return False

    monkeypatch.setattr(corrections, "shift_firing", quiet)

    found = class_weights(fashion)

    assert asked == [(True, VERSION)]
    assert (found["applied"], found["reason"]) == (
        False,
        "no shift was found by the stream's alarm",
    )


@pytest.fixture
def unsure(fashion: TestClient) -> TestClient:
    """Something other than the label mix has changed."""
    rows = np.sqrt(traffic(EVEN).rows)
    send(fashion, rows / rows.sum(axis=1, keepdims=True))
    return fashion


def test_more_than_a_label_shift_is_left_alone(unsure: TestClient) -> None:
    found = correct(unsure, traffic(EVEN, 3).rows)

    assert not found["applied"]
    assert "other than the label mix" in found["reason"]
    assert {one["weight"] for one in class_weights(unsure)["labels"]} == {1.0}


@pytest.mark.parametrize(("method", "route"), [("POST", "correct"), ("GET", "weights")])
def test_more_than_a_label_shift_cannot_be_forced(
    unsure: TestClient, method: str, route: str
) -> None:
    body = {"probabilities": traffic(EVEN, 3).rows.tolist()}

    answer = unsure.request(method, f"{URL}/{route}?force=true", json=body)

    assert answer.status_code == 409
    assert "weights would be wrong" in answer.json()["detail"]


@pytest.fixture
def hard(client: TestClient) -> TestClient:
    """A confusion matrix, and a shift in predictions without softmax rows."""
    register(client)
    predicted = ["legit"] * 700 + ["fraud"] * 250 + ["abuse"] * 50
    client.post(f"{URL}/predictions", json={"predicted": predicted}).raise_for_status()
    return client


ROWS = np.array([[0.5, 0.4, 0.1], [0.9, 0.05, 0.05]])


def test_hard_predictions_do_not_suffice_to_correct(hard: TestClient) -> None:
    found = correct(hard, ROWS)

    assert not found["applied"]
    assert "without softmax rows" in found["reason"]
    assert found["probabilities"] == ROWS.tolist()


def test_who_knows_that_it_is_a_label_shift_may_force_it(hard: TestClient) -> None:
    found = correct(hard, ROWS, force=True)

    # There are no softmax rows to calibrate on.
    assert (found["applied"], found["calibrated"]) == (True, False)
    assert found["predicted"] == ["fraud", "legit"]
    w = np.array([one["w"] for one in found["weights"]])
    expected = ROWS * w / (ROWS * w).sum(axis=1, keepdims=True)
    assert np.array(found["probabilities"]) == pytest.approx(expected)


def test_class_weights_average_one_and_say_what_they_cost(fashion: TestClient) -> None:
    send(fashion, traffic(tweaked(SHIRT, 0.5)).rows)

    found = class_weights(fashion)

    assert (found["applied"], found["n"], found["warnings"]) == (True, 5000, [])
    assert found["gamma"] == pytest.approx(0.988, abs=0.001)
    weight = np.array([one["weight"] for one in found["labels"]])
    support = np.array([one["support"] for one in found["labels"]])
    assert weight @ support == pytest.approx(5000)
    assert found["n_effective"] == pytest.approx(5000**2 / (weight**2 @ support))
    # docs/correction-and-planning.md quotes it.
    assert found["n_effective"] == pytest.approx(1917, rel=0.01)


def test_weights_that_rest_on_few_records_are_thin(client: TestClient) -> None:
    pool = outputs("good", "validation")
    rng = np.random.default_rng(3)
    put_reference(client, draw(pool, tweaked(SANDAL, 0.02), 5000, rng))
    send(client, traffic(tweaked(SANDAL, 0.8)).rows)

    found = class_weights(client)

    assert found["applied"]
    assert found["warnings"] == ["thin"]
    assert found["n_effective"] < 1000


def test_without_a_shift_all_class_weights_are_one(fashion: TestClient) -> None:
    send(fashion, traffic(EVEN).rows)

    found = class_weights(fashion)

    assert (found["applied"], found["gamma"], found["n_effective"]) == (False, None, 5000)
    assert {(one["w"], one["weight"]) for one in found["labels"]} == {(1.0, 1.0)}


def test_weights_of_labels_that_look_alike_come_with_a_warning(client: TestClient) -> None:
    sample = even_reference()
    rng = np.random.default_rng(4)
    knit = np.isin(sample.labels, (2, 4))
    labels = np.where(knit, rng.choice([2, 4], len(knit)), sample.labels)
    put_reference(client, Outputs(sample.rows, labels))
    send(client, traffic(tweaked(SANDAL, 0.4)).rows)
    served = traffic(EVEN, 50, seed=8)

    found = class_weights(client)

    assert (found["applied"], found["warnings"]) == (True, ["not_identified"])
    assert found["labels"][2]["w"] == pytest.approx(found["labels"][4]["w"], abs=0.3)
    rows = np.array(correct(client, served.rows)["probabilities"])
    assert rows.sum(axis=1) == pytest.approx(np.ones(50))


def test_a_label_that_the_reference_lacks_keeps_its_probability(client: TestClient) -> None:
    sample = even_reference()
    wide = np.column_stack([sample.rows, np.zeros(len(sample.rows))])
    put_reference(client, Outputs(wide, sample.labels), [*NAMES, "hat"])
    seen = traffic(tweaked(SHIRT, 0.5)).rows
    send(client, np.column_stack([seen, np.zeros(len(seen))]))
    served = np.zeros((2, 11))
    served[0, 10] = 1.0
    served[1, [0, 6, 10]] = 0.4, 0.4, 0.2

    found = correct(client, served)

    assert found["applied"]
    assert found["weights"][10] == {"label": "hat", "w": None}
    rows = np.array(found["probabilities"])
    assert rows[:, 10] == pytest.approx([1.0, 0.2])
    assert rows[1, 6] > 0.6
    hat = class_weights(client)
    assert hat["labels"][10]["w"] is None
    assert hat["warnings"] == ["A2_class_absent"]


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ({"format": "csv"}, {}),
        ({}, {"accept": "text/csv"}),
        ({"format": "csv"}, {"accept": "application/json"}),
    ],
)
def test_class_weights_come_as_a_table(
    client: TestClient, query: dict[str, str], headers: dict[str, str]
) -> None:
    client.put(URL, json={"labels": ['shirt, "loose"', "boot"]}).raise_for_status()
    body = {"confusion": [[90, 20], [10, 80]]}
    client.put(f"{URL}/references/{VERSION}", json=body).raise_for_status()
    client.post(f"{URL}/predictions", json={"predicted": [0] * 270 + [1] * 730})

    answer = client.get(f"{URL}/weights", params={"force": True, **query}, headers=headers)

    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    header, *rows = csv.reader(io.StringIO(answer.text))
    assert header == ["label", "weight"]
    assert [row[0] for row in rows] == ['shirt, "loose"', "boot"]
    assert float(rows[0][1]) < 1.0 < float(rows[1][1])


def test_the_format_that_is_named_goes_before_the_accepted_one(fashion: TestClient) -> None:
    answer = fashion.get(f"{URL}/weights?format=json", headers={"accept": "text/csv"})

    assert answer.json()["applied"] is False


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"probabilities": [[0.2, 0.3, 0.5]] * 3 + [[0.9, 0.9, 0.1]]}, "#/probabilities/3"),
        ({"probabilities": [[0.2, 0.3, 0.5], [1.0, 0.0]]}, "#/probabilities/1"),
        ({"probabilities": [[-0.5, 1.0, 0.5]]}, "#/probabilities/0"),
        ({"probabilities": [[0.2, "x", 0.5]]}, "#/probabilities/0/1"),
        ({"probabilities": [None]}, "#/probabilities/0"),
        ({"rows": []}, "#/rows"),
        ({}, "#"),
    ],
)
def test_a_bad_row_is_named_shift_or_no_shift(hard: TestClient, body: Any, pointer: str) -> None:
    for force in ("false", "true"):
        answer = hard.post(f"{URL}/correct?force={force}", json=body)

        assert answer.status_code == 422
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["errors"][0]["pointer"] == pointer


@pytest.mark.parametrize(
    ("content", "media", "status"),
    [
        (b'{"probabilities": [[', "application/json", 400),
        (b'{"probabilities": [[NaN, 0.5, 0.5]]}', "application/json", 422),
        (b"label,weight", "text/csv", 415),
        (b" " * (32 * 1024 * 1024 + 1), "application/json", 413),
    ],
)
def test_what_cannot_be_read_is_refused(
    hard: TestClient, content: bytes, media: str, status: int
) -> None:
    answer = hard.post(f"{URL}/correct", content=content, headers={"content-type": media})

    assert answer.status_code == status


@pytest.mark.parametrize(("method", "route"), [("POST", "correct"), ("GET", "weights")])
@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        (URL, {"window": "nope"}, 404),
        (URL, {"version": "nope"}, 404),
        ("/v1/models/nobody", {}, 404),
        ("/v1/models/new", {}, 409),
    ],
)
def test_what_is_not_there_is_named(
    hard: TestClient, method: str, route: str, path: str, query: dict[str, str], status: int
) -> None:
    hard.put("/v1/models/new", json={"labels": LABELS}).raise_for_status()
    body = {"probabilities": ROWS.tolist()}

    answer = hard.request(method, f"{path}/{route}", params=query, json=body)

    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
