"""References: what a labelled sample said of a version, once and for all."""

import gzip
import json
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from fastapi.testclient import TestClient
from sklearn.metrics import confusion_matrix

from app.domain.model import Model
from app.domain.reference import diagnosed
from app.stats import moments
from app.stats import reference as statistics
from app.stats.ranking import ranks
from app.stats.reference import Reference, SoftReference
from app.storage import models, panes, references
from app.storage.db import Database
from tests.factories import CONFUSION, LABELS, NOW, VERSION, settings

MODEL = "/v1/models/fraud"
URL = f"{MODEL}/references"
JSON = {"content-type": "application/json"}
SEED = 20261118


@pytest.fixture
def fraud(client: TestClient) -> TestClient:
    """The model without any reference."""
    client.put(MODEL, json={"labels": LABELS}).raise_for_status()
    return client


def put(client: TestClient, body: Any, version: str = VERSION) -> Any:
    answer = client.put(f"{URL}/{version}", json=body)
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


# A classifier with this matrix tells nothing.
ALWAYS_THE_SAME = [[100, 100, 100], [0, 0, 0], [0, 0, 0]]


def put_tiny(client: TestClient, body: Any) -> Any:
    """A reference of so few records that nothing can be estimated from it."""
    return put(client, {**body, "activate": "force"})


def softmax_sample(n: int = 200, k: int = 3) -> dict[str, Any]:
    rng = np.random.default_rng(SEED)
    actual = rng.integers(0, k, n)
    rows = rng.dirichlet(np.ones(k), n) + 2 * np.eye(k)[actual]
    return {
        "probabilities": (rows / rows.sum(axis=1, keepdims=True)).tolist(),
        "actual": actual.tolist(),
    }


def test_a_confusion_matrix_is_a_reference(fraud: TestClient) -> None:
    answer = fraud.put(f"{URL}/{VERSION}", json={"confusion": CONFUSION})

    assert answer.status_code == 201
    found = answer.json()
    assert (found["version"], found["n"], found["kind"], found["status"], found["groups"]) == (
        VERSION,
        10_000,
        "hard",
        "ok",
        [],
    )
    assert found["accuracy"] == pytest.approx(0.9829)


def test_rows_of_a_confusion_matrix_are_predictions_and_columns_the_truth(
    fraud: TestClient,
) -> None:
    found = put(fraud, {"confusion": CONFUSION})

    assert found["labels"] == [
        {
            "label": label,
            "support": support,
            "p": pytest.approx(support / 10_000),
            "recall": pytest.approx(right / support),
            "precision": pytest.approx(right / predicted),
            "floor": pytest.approx(floor, abs=1e-3),
        }
        for label, support, predicted, right, floor in [
            ("legit", 9100, 9042, 9000, 0.0057),
            ("fraud", 550, 569, 500, 0.0064),
            ("abuse", 350, 389, 329, 0.0053),
        ]
    ]


def test_sigma_min_is_that_of_the_joint_matrix(fraud: TestClient) -> None:
    found = put(fraud, {"confusion": CONFUSION})

    values = np.linalg.svd(np.array(CONFUSION) / 10_000, compute_uv=False)
    assert found["sigma_min"] == pytest.approx(values[-1])
    assert found["condition_number"] == pytest.approx(values[0] / values[-1])


def test_a_matrix_with_true_labels_as_rows_is_turned(fraud: TestClient) -> None:
    turned = {"confusion": np.array(CONFUSION).T.tolist(), "orientation": "actual-rows"}
    first = put(fraud, {"confusion": CONFUSION, "orientation": "predicted-rows"})

    again = fraud.put(f"{URL}/{VERSION}", json=turned)

    assert (again.status_code, again.json()) == (200, first)
    assert put(fraud, {"confusion": CONFUSION}) == first


def test_a_matrix_of_scikit_learn_needs_only_its_orientation(fraud: TestClient) -> None:
    sample = {"predicted": [0, 1, 1, 2, 0, 0], "actual": [0, 1, 2, 2, 1, 0]}
    theirs = confusion_matrix(sample["actual"], sample["predicted"], labels=[0, 1, 2])

    put_tiny(fraud, sample)

    body = {"confusion": theirs.tolist(), "orientation": "actual-rows"}
    assert fraud.put(f"{URL}/{VERSION}", json=body).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"predicted": ["legit", "fraud", "fraud"], "actual": ["legit", "abuse", "fraud"]},
        {"predicted": [0, 1, 1], "actual": [0, 2, 1]},
        {"predicted": [0, "fraud", 1], "actual": ["legit", 2, "fraud"]},
        {"confusion": [[1, 0, 0], [0, 1, 1], [0, 0, 0]]},
    ],
)
def test_labelled_predictions_are_counted_into_a_confusion_matrix(
    fraud: TestClient, body: Any
) -> None:
    found = put_tiny(fraud, body)

    assert (found["n"], found["kind"]) == (3, "hard")
    assert [one["support"] for one in found["labels"]] == [1, 1, 1]
    assert [one["recall"] for one in found["labels"]] == [1, 1, 0]
    assert [one["precision"] for one in found["labels"]] == [1, 0.5, None]


def test_softmax_rows_make_a_soft_reference(fraud: TestClient) -> None:
    body = {"probabilities": [[0.9, 0.08, 0.02], [0.2, 0.4, 0.4]], "actual": [0, 2]}

    found = put_tiny(fraud, body)

    assert (found["n"], found["kind"]) == (2, "soft")
    # The second row is a tie, which the lower label wins: predicted fraud, in truth abuse.
    assert [one["precision"] for one in found["labels"]] == [1, 0, None]


def test_a_prediction_that_is_named_goes_before_the_argmax(fraud: TestClient) -> None:
    body = {"probabilities": [[0.9, 0.08, 0.02]], "predicted": ["abuse"], "actual": ["abuse"]}

    assert put_tiny(fraud, body)["accuracy"] == 1


def test_what_was_answered_is_what_one_gets(fraud: TestClient) -> None:
    answered = put(fraud, softmax_sample())

    assert fraud.get(f"{URL}/{VERSION}").json() == answered


def same(left: Reference, right: Reference) -> bool:
    if not np.array_equal(left.counts, right.counts):
        return False
    if left.soft is None or right.soft is None:
        return left.soft is right.soft
    return all(
        np.array_equal(getattr(left.soft, one.name), getattr(right.soft, one.name))
        for one in fields(SoftReference)
    )


def test_a_soft_reference_is_read_back_exactly(fraud: TestClient, database: Database) -> None:
    sample = softmax_sample()
    put(fraud, sample)

    with database.begin() as conn:
        stored = references.get(conn, models.get(conn, "fraud"), VERSION)

    rows, good = moments.normalised(np.array(sample["probabilities"]))
    found = ranks(rows)
    assert good.all()
    assert same(
        stored.statistics,
        statistics.from_sample(
            3, found.first, np.array(sample["actual"]), rows.astype(np.float32), found
        ),
    )


def test_rounding_to_single_precision_moves_no_row_to_another_cell(
    fraud: TestClient, database: Database
) -> None:
    """In single precision, 0.9 is less than 0.9, where a confidence bin begins."""
    rows = [[0.9, 0.1, 0.0], [0.05, 0.95, 0.0], [0.3, 0.0, 0.7]] * 10
    put(fraud, {"probabilities": rows, "actual": [0, 1, 2] * 10})
    fraud.post(f"{MODEL}/predictions", json={"probabilities": rows}).raise_for_status()

    with database.begin() as conn:
        model = models.get(conn, "fraud")
        stored = references.get(conn, model, VERSION).statistics
        soft, table = stored.soft, stored.table
        (pane,) = panes.between(conn, model.id, NOW.replace(year=2000), NOW.replace(year=2100))

    window = pane.sums["soft"].soft
    assert soft is not None
    assert window is not None
    assert soft.cells.sum(axis=1).tolist() == window.cells.tolist()
    assert table is not None
    assert table.codes is not None
    assert table.codes.tolist() == window.codes.tolist()


def test_a_hard_reference_is_read_back_exactly(fraud: TestClient, database: Database) -> None:
    put(fraud, {"confusion": CONFUSION})

    with database.begin() as conn:
        stored = references.get(conn, models.get(conn, "fraud"), VERSION)

    assert same(stored.statistics, statistics.from_confusion(np.array(CONFUSION)))


def test_softmax_rows_are_kept_in_single_precision(fraud: TestClient, database: Database) -> None:
    sample = softmax_sample()
    put(fraud, sample)

    with database.begin() as conn:
        kept = references.labelled_rows(conn, models.get(conn, "fraud"), VERSION)

    assert kept is not None
    assert kept.rows == pytest.approx(np.array(sample["probabilities"]), abs=1e-7)
    assert kept.actual.tolist() == sample["actual"]


def test_no_rows_are_kept_of_a_hard_reference(fraud: TestClient, database: Database) -> None:
    put_tiny(fraud, {"predicted": [0, 1], "actual": [0, 1]})

    with database.begin() as conn:
        kept = references.labelled_rows(conn, models.get(conn, "fraud"), VERSION)

    assert kept is None


@pytest.mark.parametrize(
    "body",
    [
        {"confusion": CONFUSION},
        {"predicted": [0, 1], "actual": [0, 1], "activate": "force"},
        softmax_sample(20),
    ],
)
def test_the_same_content_again_changes_nothing(fraud: TestClient, body: Any) -> None:
    first = put(fraud, body)
    revision = fraud.get(MODEL).json()["revision"]

    again = fraud.put(f"{URL}/{VERSION}", json=body)

    assert again.status_code == 200
    assert again.json() == first
    assert fraud.get(MODEL).json()["revision"] == revision


OTHERS = [
    {"confusion": [[9001, 30, 12], [60, 500, 9], [40, 20, 329]]},
    {"confusion": np.array(CONFUSION).T.tolist()},
    {"predicted": [0, 1], "actual": [0, 1], "activate": "force"},
    softmax_sample(20),
]


def count_one(client: TestClient, version: str = VERSION, **more: Any) -> None:
    body = {"predicted": [0], "version": version, **more}
    client.post(f"{MODEL}/predictions", json=body).raise_for_status()


def count_nothing_in_a_pane(client: TestClient) -> None:
    start = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:00Z}"
    pane = {"start": start, "version": VERSION, "counts": {}}
    body = {"source": "edge-7", "sequence": 1, "panes": [pane]}
    client.post(f"{MODEL}/counts", json=body).raise_for_status()


def count_too_late(client: TestClient) -> None:
    count_one(client, timestamp="2020-01-01T00:00:00Z")


USES: list[Callable[[TestClient], None]] = [count_one, count_too_late, count_nothing_in_a_pane]


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("use", USES)
def test_other_content_is_refused_once_something_was_counted(
    fraud: TestClient, other: Any, use: Callable[[TestClient], None]
) -> None:
    first = put(fraud, {"confusion": CONFUSION})
    use(fraud)
    before = fraud.get(MODEL).json()

    answer = fraud.put(f"{URL}/{VERSION}", json=other)

    assert (answer.status_code, answer.json()["type"]) == (409, "/problems/conflict")
    assert "predictions were counted under it" in answer.json()["detail"]
    assert fraud.get(f"{URL}/{VERSION}").json() == first
    assert fraud.get(MODEL).json() == before
    assert put(fraud, {"confusion": CONFUSION}) == first


@pytest.mark.parametrize("other", OTHERS)
def test_other_content_replaces_what_nothing_was_counted_under(
    fraud: TestClient, other: Any
) -> None:
    first = put(fraud, {"confusion": CONFUSION})
    revision = fraud.get(MODEL).json()["revision"]

    answer = fraud.put(f"{URL}/{VERSION}", json=other)

    assert answer.status_code == 200
    found = answer.json()
    assert found == fraud.get(f"{URL}/{VERSION}").json()
    assert found["labels"] != first["labels"]
    assert found["created_at"] > first["created_at"]
    assert (found["active"], found["activated_at"]) == (True, first["activated_at"])
    assert fraud.get(MODEL).json()["revision"] == revision + 1
    assert len(fraud.get(URL).json()["items"]) == 1


def test_a_replacement_is_activated_as_a_new_reference_is(fraud: TestClient) -> None:
    put(fraud, {"confusion": CONFUSION}, "v1")
    put(fraud, {"confusion": CONFUSION}, "v2")

    put(fraud, {**OTHERS[0], "activate": False}, "v1")
    stays = fraud.get(MODEL).json()["active_version"]
    put(fraud, OTHERS[1], "v1")

    assert (stays, fraud.get(MODEL).json()["active_version"]) == ("v2", "v1")


def test_what_was_counted_under_another_version_does_not_matter(fraud: TestClient) -> None:
    put(fraud, {"confusion": CONFUSION}, "v1")
    count_one(fraud, "v1")
    put(fraud, {"confusion": CONFUSION}, "v2")

    assert fraud.put(f"{URL}/v2", json=OTHERS[0]).status_code == 200


def p_of(client: TestClient) -> list[float]:
    found = client.get(f"{MODEL}/estimate").json()
    return [one["p"] for one in found["labels"]]


def test_estimates_are_made_with_the_replacement(fraud: TestClient) -> None:
    put(fraud, {"confusion": CONFUSION})
    before = p_of(fraud)

    found = put(fraud, OTHERS[1])

    assert before == pytest.approx([0.91, 0.055, 0.035])
    assert p_of(fraud) == pytest.approx([one["p"] for one in found["labels"]])


def test_the_control_a_cache_that_knows_versions_only_keeps_the_old_one(
    fraud: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Model, "reference_key", lambda own, version: (own.id, version))
    put(fraud, {"confusion": CONFUSION})
    before = p_of(fraud)

    put(fraud, OTHERS[1])

    assert p_of(fraud) == before


def test_rows_are_calibrated_on_the_replacement(fraud: TestClient, database: Database) -> None:
    evaluator = fraud.app.state.services.evaluator  # type: ignore[attr-defined]
    found = []
    for body in (softmax_sample(200), softmax_sample(150), {"confusion": CONFUSION}):
        put(fraud, body)
        with database.begin() as conn:
            prepared = evaluator.prepared(conn, models.get(conn, "fraud"), VERSION)
            found.append(prepared.calibration)

    assert not np.array_equal(found[0].slope, found[1].slope)
    assert found[2] is None


def test_replacements_differ_in_time_whatever_the_clock_says(database: Database) -> None:
    with database.begin() as conn:
        model, _ = models.put(conn, "fraud", settings(), NOW)
        times = []
        for n in (1, 2, 3):
            stored = diagnosed("v1", statistics.from_confusion(n * np.array(CONFUSION)), NOW)
            references.put(conn, model, references.packed(stored, None))
            times.append(models.get(conn, "fraud").versions["v1"])

    assert times == sorted(set(times))


def test_the_same_labels_with_other_probabilities_are_other_content(fraud: TestClient) -> None:
    sample = softmax_sample(200)
    put(fraud, sample)
    count_one(fraud)
    other = np.array(sample["probabilities"])
    other[0] = [0.98, 0.01, 0.01] if other[0].argmax() == 0 else other[0] + [0, 1e-4, -1e-4]

    answer = fraud.put(f"{URL}/{VERSION}", json={**sample, "probabilities": other.tolist()})

    assert answer.status_code == 409


# The wrong way round.

# 5 % are predicted to be frauds, of which 1 % is.
BIASED = np.array([[9312, 10, 20], [291, 85, 20], [97, 5, 160]])
TRANSPOSED = {"confusion": BIASED.T.tolist()}


def test_a_matrix_that_stands_the_wrong_way_round_is_suspected(fraud: TestClient) -> None:
    first = put(fraud, {"confusion": BIASED.tolist()}, "v1")

    found = put(fraud, {"confusion": (BIASED.T // 2).tolist()}, "v2")

    assert (first["notes"], first["warnings"]) == (["ok"], [])
    assert (found["status"], found["notes"]) == ("ok", ["ok", "transposed_suspected"])
    assert "actual-rows" in found["warnings"][0]
    assert fraud.get(f"{URL}/v2").json() == found
    assert fraud.get(URL).json()["items"][0]["notes"] == found["notes"]
    assert "seem to be exchanged" in fraud.get("/models/fraud/references/v2").text
    assert "seem to be exchanged" not in fraud.get("/models/fraud/references/v1").text


def test_turned_as_its_orientation_says_it_is_not_suspected(fraud: TestClient) -> None:
    put(fraud, {"confusion": BIASED.tolist()}, "v1")
    put(fraud, TRANSPOSED, "v2")

    found = put(fraud, {**TRANSPOSED, "orientation": "actual-rows"}, "v2")

    assert (found["notes"], found["warnings"]) == (["ok"], [])


def test_the_first_reference_is_compared_with_nothing(fraud: TestClient) -> None:
    assert put(fraud, TRANSPOSED)["notes"] == ["ok"]
    # Nor with itself, when it is replaced.
    assert put(fraud, {"confusion": BIASED.tolist()})["notes"] == ["ok"]


def test_labelled_predictions_are_not_suspected(fraud: TestClient) -> None:
    put(fraud, {"confusion": BIASED.tolist()}, "v1")
    predicted, actual = np.divmod(np.repeat(np.arange(9), BIASED.T.ravel()), 3)

    found = put(fraud, {"predicted": predicted.tolist(), "actual": actual.tolist()}, "v2")

    assert found["notes"] == ["ok"]


def test_predictions_show_that_an_earlier_one_stood_the_wrong_way_round(fraud: TestClient) -> None:
    put(fraud, TRANSPOSED, "v1")
    suspected = put(fraud, {"confusion": BIASED.tolist()}, "v2")["notes"]
    predicted = np.repeat(np.arange(3), BIASED.sum(axis=1)).tolist()
    fraud.post(f"{MODEL}/predictions", json={"predicted": predicted}).raise_for_status()

    found = put(fraud, {"confusion": (2 * BIASED).tolist()}, "v3")["notes"]

    assert (suspected, found) == (["ok", "transposed_suspected"], ["ok"])


# Deleting.


def test_a_reference_is_deleted_while_nothing_was_counted_under_it(fraud: TestClient) -> None:
    put(fraud, {"confusion": CONFUSION}, "v1")
    put(fraud, {"confusion": CONFUSION, "activate": False}, "v2")
    revision = fraud.get(MODEL).json()["revision"]

    answer = fraud.delete(f"{URL}/v2")

    assert (answer.status_code, answer.content) == (204, b"")
    assert [one["version"] for one in fraud.get(URL).json()["items"]] == ["v1"]
    found = fraud.get(MODEL).json()
    assert (found["active_version"], found["revision"]) == ("v1", revision + 1)
    refused = fraud.post(f"{MODEL}/predictions", json={"predicted": [0], "version": "v2"})
    assert refused.status_code == 422
    assert fraud.delete(f"{URL}/v2").status_code == 404


@pytest.mark.parametrize("use", USES)
def test_a_reference_stays_once_something_was_counted(
    fraud: TestClient, use: Callable[[TestClient], None]
) -> None:
    first = put(fraud, {"confusion": CONFUSION})
    use(fraud)

    answer = fraud.delete(f"{URL}/{VERSION}")

    assert (answer.status_code, answer.json()["type"]) == (409, "/problems/conflict")
    assert fraud.get(f"{URL}/{VERSION}").json() == first


def test_the_active_one_of_several_is_not_deleted(fraud: TestClient) -> None:
    put(fraud, {"confusion": CONFUSION}, "v1")
    put(fraud, {"confusion": CONFUSION}, "v2")

    refused = fraud.delete(f"{URL}/v2")
    fraud.post(f"{URL}/v1/activate").raise_for_status()

    assert refused.status_code == 409
    assert "activate another one" in refused.json()["detail"]
    assert fraud.delete(f"{URL}/v2").status_code == 204
    assert fraud.get(MODEL).json()["active_version"] == "v1"


def test_without_its_only_reference_a_model_is_as_before(fraud: TestClient) -> None:
    put(fraud, {"confusion": CONFUSION})

    fraud.delete(f"{URL}/{VERSION}").raise_for_status()

    assert fraud.get(MODEL).json()["active_version"] is None
    assert fraud.post(f"{MODEL}/predictions", json={"predicted": [0]}).status_code == 409
    assert fraud.get("/models/fraud").status_code == 200
    assert fraud.get(f"{MODEL}/estimate").status_code == 409
    # A mistake in the labels, found after the first reference, can be mended.
    assert fraud.put(MODEL, json={"labels": ["legit", "fraud"]}).status_code == 200
    assert put(fraud, {"confusion": [[9, 1], [1, 9]]})["active"]


def test_a_version_can_come_back_after_it_was_deleted(fraud: TestClient) -> None:
    put(fraud, {"confusion": CONFUSION})
    p_of(fraud)
    fraud.delete(f"{URL}/{VERSION}").raise_for_status()

    put(fraud, OTHERS[1])
    count_one(fraud)

    assert p_of(fraud) != pytest.approx([0.91, 0.055, 0.035])


def test_references_of_unknown_models_cannot_be_deleted(client: TestClient) -> None:
    assert client.delete(f"{URL}/{VERSION}").status_code == 404


def test_the_newest_reference_is_the_active_one(fraud: TestClient) -> None:
    put(fraud, {"confusion": CONFUSION}, "v1")
    put(fraud, {"confusion": CONFUSION}, "v2")

    assert fraud.get(MODEL).json()["active_version"] == "v2"
    assert [fraud.get(f"{URL}/{v}").json()["active"] for v in ("v1", "v2")] == [False, True]


def test_a_reference_can_be_put_without_being_activated(fraud: TestClient) -> None:
    put(fraud, {"confusion": CONFUSION}, "v1")

    found = put(fraud, {"confusion": CONFUSION, "activate": False}, "v2")

    assert (found["active"], found["activated_at"]) == (False, None)
    assert fraud.get(MODEL).json()["active_version"] == "v1"


def test_without_an_active_version_predictions_need_one(fraud: TestClient) -> None:
    put(fraud, {"confusion": CONFUSION, "activate": False}, "v1")

    answers = [
        fraud.post(f"{MODEL}/predictions", json=body)
        for body in ({"predicted": [0]}, {"predicted": [0], "version": "v1"})
    ]

    assert [answer.status_code for answer in answers] == [409, 202]


USELESS: list[Any] = [
    ({"confusion": ALWAYS_THE_SAME}, "do not tell the labels apart"),
    ({"confusion": [[50, 0, 0], [10, 4, 0], [0, 0, 4]]}, "1 of its labels has 5 records or more"),
    ({"probabilities": [[0.9, 0.1, 0]] * 20, "actual": [0] * 20}, "it takes two"),
]


@pytest.mark.parametrize(("body", "reason"), USELESS)
@pytest.mark.parametrize("activate", [{}, {"activate": True}])
def test_what_can_estimate_nothing_is_not_activated_by_itself(
    fraud: TestClient, body: Any, reason: str, activate: Any
) -> None:
    put(fraud, {"confusion": CONFUSION}, "v1")
    before = fraud.get(MODEL).json()

    answer = fraud.put(f"{URL}/v2", json={**body, **activate})

    assert (answer.status_code, answer.json()["type"]) == (409, "/problems/conflict")
    detail = answer.json()["detail"]
    assert reason in detail
    assert '`"force"`' in detail
    assert "`false`" in detail
    assert fraud.get(MODEL).json() == before
    assert [one["version"] for one in fraud.get(URL).json()["items"]] == ["v1"]


@pytest.mark.parametrize(("body", "_"), USELESS)
def test_it_may_be_stored_and_activated_by_force(fraud: TestClient, body: Any, _: str) -> None:
    put(fraud, {"confusion": CONFUSION}, "v1")

    stored = put(fraud, {**body, "activate": False}, "v2")
    refused = fraud.post(f"{URL}/v2/activate")
    active = fraud.get(MODEL).json()["active_version"]
    forced = fraud.post(f"{URL}/v2/activate?force=true")

    assert not stored["active"]
    assert (refused.status_code, active) == (409, "v1")
    assert "?force=true" in refused.json()["detail"]
    assert forced.json()["active"]
    assert put(fraud, {**body, "activate": "force"}, "v3")["active"]


def test_the_same_useless_reference_again_is_no_conflict(fraud: TestClient) -> None:
    first = put(fraud, {"confusion": ALWAYS_THE_SAME, "activate": "force"})

    assert put(fraud, {"confusion": ALWAYS_THE_SAME}) == first


@pytest.mark.parametrize("activate", [True, False])
def test_the_active_one_is_not_replaced_by_a_useless_one(fraud: TestClient, activate: bool) -> None:
    first = put(fraud, {"confusion": CONFUSION})
    body = {"confusion": ALWAYS_THE_SAME, "activate": activate}

    answer = fraud.put(f"{URL}/{VERSION}", json=body)

    assert answer.status_code == 409
    assert fraud.get(f"{URL}/{VERSION}").json() == first
    assert put(fraud, {"confusion": ALWAYS_THE_SAME, "activate": "force"})["active"]


@pytest.mark.parametrize(
    ("query", "body", "active"),
    [
        ("true", {}, "v2"),
        ("false", {}, "v1"),
        ("force", {}, "v2"),
        ("force", {"activate": "force"}, "v2"),
    ],
)
def test_the_query_says_whether_to_activate(
    fraud: TestClient, query: str, body: Any, active: str
) -> None:
    put(fraud, {"confusion": CONFUSION}, "v1")

    answer = fraud.put(f"{URL}/v2?activate={query}", json={"confusion": CONFUSION, **body})

    assert answer.status_code == 201
    assert fraud.get(MODEL).json()["active_version"] == active


@pytest.mark.parametrize(
    ("query", "body"),
    [("maybe", {}), ("", {}), ("true", {"activate": "force"}), ("false", {"activate": True})],
)
def test_a_query_that_makes_no_sense_is_refused(fraud: TestClient, query: str, body: Any) -> None:
    answer = fraud.put(f"{URL}/v2?activate={query}", json={"confusion": CONFUSION, **body})

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["parameter"] == "activate"
    assert fraud.get(URL).json()["items"] == []


def test_activating_switches_the_version_and_back(fraud: TestClient) -> None:
    put(fraud, {"confusion": CONFUSION}, "v1")
    put(fraud, {"confusion": CONFUSION}, "v2")

    answer = fraud.post(f"{URL}/v1/activate")

    assert (answer.status_code, answer.json()["active"]) == (200, True)
    assert fraud.get(MODEL).json()["active_version"] == "v1"


def test_activating_what_is_not_there_is_not_found(fraud: TestClient) -> None:
    put(fraud, {"confusion": CONFUSION}, "v1")

    assert fraud.post(f"{URL}/v2/activate").status_code == 404
    assert fraud.get(MODEL).json()["active_version"] == "v1"


def test_putting_the_same_again_does_not_activate_it(fraud: TestClient) -> None:
    put(fraud, {"confusion": CONFUSION}, "v1")
    put(fraud, {"confusion": CONFUSION}, "v2")

    put(fraud, {"confusion": CONFUSION}, "v1")

    assert fraud.get(MODEL).json()["active_version"] == "v2"


def test_references_are_listed_newest_first_with_what_tells_them_apart(
    fraud: TestClient,
) -> None:
    good = put(fraud, {"confusion": [[100, 1, 1], [1, 100, 1], [1, 1, 100]]}, "a-good")
    poor = put(fraud, {"confusion": [[100, 30, 30], [30, 100, 30], [30, 30, 100]]}, "b-poor")

    items = fraud.get(URL).json()["items"]

    assert [(item["version"], item["sigma_min"], item["accuracy"]) for item in items] == [
        ("b-poor", poor["sigma_min"], poor["accuracy"]),
        ("a-good", good["sigma_min"], good["accuracy"]),
    ]
    assert good["sigma_min"] > poor["sigma_min"]


def test_references_are_listed_page_by_page(fraud: TestClient) -> None:
    for version in ("v1", "v2", "v3"):
        put(fraud, {"confusion": CONFUSION}, version)

    first = fraud.get(URL, params={"limit": 2}).json()
    last = fraud.get(URL, params={"limit": 2, "cursor": first["next"]}).json()

    assert [[item["version"] for item in page["items"]] for page in (first, last)] == [
        ["v3", "v2"],
        ["v1"],
    ]
    assert last["next"] is None


@pytest.mark.parametrize("path", ["", f"/{VERSION}"])
def test_references_of_an_unknown_model_are_not_found(client: TestClient, path: str) -> None:
    assert client.get(URL + path).status_code == 404


def test_an_unknown_version_is_not_found(fraud: TestClient) -> None:
    assert fraud.get(f"{URL}/{VERSION}").status_code == 404


def test_an_unknown_model_takes_no_reference(client: TestClient) -> None:
    answer = client.put(f"{URL}/{VERSION}", json={"confusion": CONFUSION})

    assert answer.status_code == 404


def test_labels_that_cannot_be_told_apart_are_grouped(fraud: TestClient) -> None:
    found = put(fraud, {"confusion": [[90, 5, 5], [5, 50, 50], [5, 45, 45]]})

    assert (found["status"], found["groups"]) == ("not_identified", [["fraud", "abuse"]])
    assert (found["not_identified"], found["before"]) == (["fraud", "abuse"], None)
    assert found["sigma_min"] == pytest.approx(0, abs=1e-12)
    floors = [one["floor"] for one in found["labels"]]
    assert floors[0] < 0.1 < 0.4 < min(floors[1:])


def test_a_classifier_that_always_says_the_same_supports_no_estimate(fraud: TestClient) -> None:
    found = put_tiny(fraud, {"confusion": ALWAYS_THE_SAME})

    assert found["status"] == "degenerate"
    assert [one["precision"] for one in found["labels"]] == [pytest.approx(1 / 3), None, None]


def test_a_label_that_the_sample_lacks_is_said_to_be_absent(fraud: TestClient) -> None:
    found = put(fraud, {"confusion": [[90, 5, 0], [5, 50, 0], [5, 45, 0]]})

    assert found["status"] == "labels_absent"
    assert found["labels"][2] == {
        "label": "abuse",
        "support": 0,
        "p": 0,
        "recall": None,
        "precision": 0,
        "floor": None,
    }


def test_a_single_record_is_a_poor_but_honest_reference(fraud: TestClient) -> None:
    found = put_tiny(fraud, {"confusion": [[1, 0, 0], [0, 0, 0], [0, 0, 0]]})

    assert (found["status"], found["n"], found["condition_number"]) == ("degenerate", 1, None)


def test_a_thousand_labels_have_a_confusion_matrix(client: TestClient) -> None:
    client.put(MODEL, json={"labels": [f"label {i}" for i in range(1000)]})

    found = put(client, {"confusion": (100 * np.eye(1000, dtype=int)).tolist()})

    assert (found["status"], found["n"]) == ("ok", 100_000)
    assert found["sigma_min"] == pytest.approx(0.001)


def test_counts_may_be_as_large_as_a_double_is_exact(fraud: TestClient) -> None:
    found = put_tiny(fraud, {"confusion": [[2**53 - 2, 0, 0], [0, 1, 0], [0, 0, 1]]})

    assert found["n"] == 2**53


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ("{}", "#"),
        ("[]", "#"),
        ('{"activate": true}', "#"),
        # Not a confusion matrix of three labels.
        ('{"confusion": []}', "#/confusion"),
        ('{"confusion": [[1, 0], [0, 1]]}', "#/confusion"),
        ('{"confusion": [[1, 0, 0], [0, 1, 0]]}', "#/confusion"),
        ('{"confusion": [[1, 0, 0], [0, 1], [0, 0, 1]]}', "#/confusion/1"),
        ('{"confusion": [[1, 0, 0], [0, 1, 0], [0, 0, 1, 0]]}', "#/confusion/2"),
        ('{"confusion": [1, 2, 3]}', "#/confusion/0"),
        ('{"confusion": 5}', "#/confusion"),
        # Not counts.
        ('{"confusion": [[0, 0, 0], [0, 0, 0], [0, 0, 0]]}', "#/confusion"),
        ('{"confusion": [[1, 0, 0], [0, -1, 0], [0, 0, 1]]}', "#/confusion/1/1"),
        ('{"confusion": [[1, 0, 0], [0, 1.5, 0], [0, 0, 1]]}', "#/confusion/1/1"),
        ('{"confusion": [[1, 0, 0], [0, 1, 0], [0, 0, "1"]]}', "#/confusion/2/2"),
        ('{"confusion": [[1, 0, 0], [0, 1, 0], [0, 0, true]]}', "#/confusion/2/2"),
        ('{"confusion": [[1, 0, 0], [0, 1, 0], [0, null, 1]]}', "#/confusion/2/1"),
        ('{"confusion": [[NaN, 0, 0], [0, 1, 0], [0, 0, 1]]}', "#/confusion/0/0"),
        ('{"confusion": [[1, 0, 0], [0, 1, 0], [0, 0, Infinity]]}', "#/confusion/2/2"),
        ('{"confusion": [[1, 0, 0], [0, 1, 0], [0, 0, 1e400]]}', "#/confusion/2/2"),
        ('{"confusion": [[9007199254740993, 0, 0], [0, 1, 0], [0, 0, 1]]}', "#/confusion/0/0"),
        ('{"confusion": [[9007199254740992, 0, 0], [0, 1, 0], [0, 0, 1]]}', "#/confusion"),
        # Not labels.
        ('{"predicted": ["legit", "fruad"], "actual": [0, 0]}', "#/predicted/1"),
        ('{"predicted": [0, 1], "actual": ["legit", "fruad"]}', "#/actual/1"),
        ('{"predicted": [3], "actual": [0]}', "#/predicted/0"),
        ('{"predicted": [0], "actual": [-1]}', "#/actual/0"),
        ('{"predicted": [0], "actual": [true]}', "#/actual/0"),
        ('{"predicted": [0], "actual": [null]}', "#/actual/0"),
        ('{"predicted": [0], "actual": [0.0]}', "#/actual/0"),
        ('{"predicted": [NaN], "actual": [0]}', "#/predicted/0"),
        # Not probabilities.
        ('{"probabilities": [[0.5, 0.4, 0.2]], "actual": [0]}', "#/probabilities/0"),
        ('{"probabilities": [[1.1, -0.1, 0]], "actual": [0]}', "#/probabilities/0"),
        ('{"probabilities": [[0.5, 0.5]], "actual": [0]}', "#/probabilities/0"),
        ('{"probabilities": [[1, 0, 0], []], "actual": [0, 0]}', "#/probabilities/1"),
        ('{"probabilities": [[0.5, 0.5, NaN]], "actual": [0]}', "#/probabilities/0/2"),
        ('{"probabilities": [[0.5, 0.5, -Infinity]], "actual": [0]}', "#/probabilities/0/2"),
        ('{"probabilities": [[0.5, 0.5, 1e999]], "actual": [0]}', "#/probabilities/0/2"),
        ('{"probabilities": [[0.5, 0.5, "NaN"]], "actual": [0]}', "#/probabilities/0/2"),
        ('{"probabilities": [[0.5, 0.5, "inf"]], "actual": [0]}', "#/probabilities/0/2"),
        ('{"probabilities": [[0.5, 0.5, null]], "actual": [0]}', "#/probabilities/0/2"),
        # Not of one length.
        ('{"predicted": [0, 1], "actual": [0]}', "#/predicted"),
        ('{"predicted": [], "actual": [0]}', "#/predicted"),
        ('{"predicted": [], "actual": []}', "#/actual"),
        ('{"probabilities": [[1, 0, 0]], "actual": [0, 0]}', "#/probabilities"),
        ('{"probabilities": [[1, 0, 0]], "predicted": [0, 0], "actual": [0]}', "#/predicted"),
        # Not one of the three forms.
        ('{"actual": [0]}', "#"),
        ('{"predicted": [0]}', "#"),
        ('{"confusion": [[1, 0, 0], [0, 1, 0], [0, 0, 1]], "actual": [0]}', "#/actual"),
        ('{"confusion": [[1, 0, 0], [0, 1, 0], [0, 0, 1]], "activate": 1}', "#/activate"),
        ('{"confusion": [[1, 0, 0], [0, 1, 0], [0, 0, 1]], "activate": "no"}', "#/activate"),
        ('{"confusion": [[1, 0, 0], [0, 1, 0], [0, 0, 1]], "activate": null}', "#/activate"),
        ('{"confusion": [[1, 0, 0], [0, 1, 0], [0, 0, 1]], "matrix": 1}', "#/matrix"),
        ('{"predicted": [0], "actual": [0], "timestamps": []}', "#/timestamps"),
        # Not an orientation, or of nothing.
        ('{"confusion": [[1, 0, 0], [0, 1, 0], [0, 0, 1]], "orientation": 1}', "#/orientation"),
        (
            '{"confusion": [[1, 0, 0], [0, 1, 0], [0, 0, 1]], "orientation": "rows"}',
            "#/orientation",
        ),
        ('{"predicted": [0], "actual": [0], "orientation": "actual-rows"}', "#/orientation"),
        ('{"predicted": [0], "actual": [0], "orientation": "predicted-rows"}', "#/orientation"),
        # Faults are named where they stand in the matrix that was sent.
        (
            '{"confusion": [[1, 0, 0], [0, 1, -1], [0, 0, 1]], "orientation": "actual-rows"}',
            "#/confusion/1/2",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_place(
    fraud: TestClient, body: str, pointer: str
) -> None:
    answer = fraud.put(f"{URL}/{VERSION}", content=body, headers=JSON)

    assert answer.status_code == 422, answer.text
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    assert fraud.get(URL).json()["items"] == []


def test_bad_records_are_named_but_not_without_end(fraud: TestClient) -> None:
    answer = fraud.put(f"{URL}/{VERSION}", json={"predicted": ["?"] * 50, "actual": ["legit"] * 50})

    found = [error["pointer"] for error in answer.json()["errors"]]
    assert found == [f"#/predicted/{i}" for i in range(20)]


@pytest.mark.parametrize("version", ["a b", "-a", "ä", "a\0b", "x" * 101])
def test_a_version_is_a_url_safe_slug(fraud: TestClient, version: str) -> None:
    answer = fraud.put(f"{URL}/{quote(version, safe='')}", json={"confusion": CONFUSION})

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["parameter"] == "version"


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"confusion": [[1'])
def test_what_is_not_json_is_malformed(fraud: TestClient, body: bytes) -> None:
    answer = fraud.put(f"{URL}/{VERSION}", content=body, headers=JSON)

    assert answer.status_code == 400
    assert answer.json()["type"] == "/problems/malformed"


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/csv"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/json", "content-encoding": "br"},
    ],
)
def test_another_content_type_is_refused(fraud: TestClient, headers: Any) -> None:
    answer = fraud.put(f"{URL}/{VERSION}", content=b"{}", headers=headers)

    assert answer.status_code == 415


def test_a_gzip_body_is_read(fraud: TestClient) -> None:
    body = gzip.compress(json.dumps({"confusion": CONFUSION}).encode())

    answer = fraud.put(
        f"{URL}/{VERSION}", content=body, headers={**JSON, "content-encoding": "gzip"}
    )

    assert answer.status_code == 201


def test_a_body_over_the_limit_is_refused(fraud: TestClient) -> None:
    body = json.dumps({"confusion": CONFUSION}).encode() + b" " * (32 * 1024 * 1024)

    answer = fraud.put(f"{URL}/{VERSION}", content=body, headers=JSON)

    assert answer.status_code == 413
    assert answer.json()["limit"] == 32 * 1024 * 1024


def test_a_gzip_bomb_is_refused(fraud: TestClient) -> None:
    bomb = gzip.compress(b" " * (33 * 1024 * 1024), compresslevel=1)

    answer = fraud.put(
        f"{URL}/{VERSION}", content=bomb, headers={**JSON, "content-encoding": "gzip"}
    )

    assert answer.status_code == 413
