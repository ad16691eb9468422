"""Register, change, list and forget models."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select

from app.evaluate.due import Worker
from app.storage import models, tables
from app.storage.db import Database
from tests.factories import CONFUSION, LABELS, VERSION, register

URL = "/v1/models/fraud"
JSON = {"content-type": "application/json"}
DEFAULTS = {
    "pane": "PT1M",
    "windows": [
        {"name": "1h", "kind": "sliding", "length": "PT1H", "count": None},
        {"name": "24h", "kind": "sliding", "length": "P1D", "count": None},
    ],
    "alarm": {
        "false_alarms": {"at_most": 1, "per": "P30D"},
        "min_effect": 0.02,
        "min_duration": "PT0S",
        "clear_panes": 30,
        "cooldown": "PT0S",
        "renotify": "PT4H",
        "no_data_after": "PT1H",
        "ingest_stopped_after": "PT1H",
        "calibration_panes": 200,
        "overdispersion": None,
    },
    "allowed_lateness": "P1D",
    "keep_ids": False,
    "estimator": "default",
}


def names(count: int) -> list[str]:
    return [f"label {i}" for i in range(count)]


def with_labels(**more: Any) -> str:
    return json.dumps({"labels": ["a", "b"], **more})


def with_window(**window: Any) -> str:
    return with_labels(windows=[{"name": "w", "kind": "sliding", "length": "PT1H"} | window])


def test_a_new_model_is_created(client: TestClient) -> None:
    answer = client.put(URL, json={"labels": LABELS})

    assert answer.status_code == 201


def test_only_labels_are_needed_and_the_rest_is_told(client: TestClient) -> None:
    answer = client.put(URL, json={"labels": LABELS})

    assert answer.json() == {
        "name": "fraud",
        "labels": list(LABELS),
        "active_version": None,
        "revision": 1,
        **DEFAULTS,
    }


def test_what_was_put_is_what_one_gets(client: TestClient) -> None:
    body = {
        "labels": ["légitime", "詐欺", "b a"],
        "pane": "PT5M",
        "windows": [
            {"name": "last-5000", "kind": "last", "length": None, "count": 5000},
            {"name": "t", "kind": "tumbling", "length": "PT15M", "count": None},
            {"name": "v", "kind": "version", "length": None, "count": None},
            {"name": "a", "kind": "adaptive", "length": None, "count": None},
        ],
        "alarm": {
            "false_alarms": {"at_most": 0.5, "per": "P7D"},
            "min_effect": 0.1,
            "min_duration": "PT10M",
            "clear_panes": 12,
            "cooldown": "PT2H",
            "renotify": "P1D",
            "no_data_after": None,
            "ingest_stopped_after": "PT6H",
            "calibration_panes": 100,
            "overdispersion": 2.5,
        },
        "allowed_lateness": "PT6H",
        "keep_ids": True,
        "estimator": "bbse-soft",
    }
    client.put(URL, json=body)

    found = client.get(URL).json()

    assert {name: found[name] for name in body} == body


def test_other_settings_change_the_model(client: TestClient) -> None:
    client.put(URL, json={"labels": LABELS})

    answer = client.put(URL, json={"labels": LABELS, "keep_ids": True})

    assert answer.status_code == 200
    assert client.get(URL).json()["keep_ids"] is True


def test_what_is_left_out_goes_back_to_its_default(client: TestClient) -> None:
    client.put(URL, json={"labels": LABELS, "keep_ids": True, "allowed_lateness": "PT1H"})

    client.put(URL, json={"labels": LABELS})

    found = client.get(URL).json()
    assert (found["keep_ids"], found["allowed_lateness"]) == (False, "P1D")


def test_the_same_settings_again_change_nothing(client: TestClient) -> None:
    first = client.put(URL, json={"labels": LABELS})

    again = client.put(URL, json={"labels": LABELS})

    assert again.status_code == 200
    assert again.json() == first.json()
    assert again.headers["etag"] == first.headers["etag"]


def test_of_many_who_register_a_model_at_once_one_creates_it(client: TestClient) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client.put(URL, json={"labels": LABELS}), range(8)))

    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]


def test_an_unknown_model_is_not_found(client: TestClient) -> None:
    assert client.get(URL).status_code == 404


def test_every_answer_about_a_model_has_its_etag(client: TestClient) -> None:
    put = client.put(URL, json={"labels": LABELS})
    changed = client.put(URL, json={"labels": LABELS, "keep_ids": True})
    got = client.get(URL)

    assert put.headers["etag"] != changed.headers["etag"] == got.headers["etag"]


def test_a_change_of_the_current_state_is_made(client: TestClient) -> None:
    etag = client.put(URL, json={"labels": LABELS}).headers["etag"]

    answer = client.put(URL, json={"labels": ["a", "b"]}, headers={"if-match": etag})

    assert answer.status_code == 200
    assert answer.json()["labels"] == ["a", "b"]


def test_a_change_of_a_state_that_is_gone_is_refused(client: TestClient) -> None:
    etag = client.put(URL, json={"labels": LABELS}).headers["etag"]
    client.put(URL, json={"labels": LABELS, "keep_ids": True})

    answer = client.put(URL, json={"labels": LABELS}, headers={"if-match": etag})

    assert answer.status_code == 412
    assert client.get(URL).json()["keep_ids"] is True


def test_a_change_of_a_model_that_is_not_there_is_refused(client: TestClient) -> None:
    answer = client.put(URL, json={"labels": LABELS}, headers={"if-match": '"1"'})

    assert answer.status_code == 412
    assert client.get(URL).status_code == 404


def test_an_etag_that_cannot_be_one_matches_nothing(client: TestClient) -> None:
    client.put(URL, json={"labels": LABELS})

    answer = client.put(URL, json={"labels": LABELS}, headers={"if-match": "one"})

    assert answer.status_code == 412


def test_a_model_made_anew_has_another_etag(client: TestClient) -> None:
    etag = client.put(URL, json={"labels": LABELS}).headers["etag"]
    client.delete(URL)
    client.put(URL, json={"labels": LABELS})

    answer = client.put(URL, json={"labels": LABELS}, headers={"if-match": etag})

    assert answer.status_code == 412


def test_a_model_that_has_changed_is_not_deleted_by_mistake(client: TestClient) -> None:
    etag = client.put(URL, json={"labels": LABELS}).headers["etag"]
    client.put(URL, json={"labels": LABELS, "keep_ids": True})

    answer = client.delete(URL, headers={"if-match": etag})

    assert answer.status_code == 412
    assert client.get(URL).status_code == 200


def pages(client: TestClient, url: str, limit: int) -> list[list[str]]:
    """The names on each page, by following the cursors."""
    found: list[list[str]] = []
    cursor: dict[str, str] = {}
    while True:
        page = client.get(url, params={"limit": limit, **cursor}).json()
        found.append([item["name"] for item in page["items"]])
        if page["next"] is None:
            return found
        cursor = {"cursor": page["next"]}


def test_models_are_listed_by_name_page_by_page(client: TestClient) -> None:
    for name in ("d", "a", "c", "e", "b"):
        client.put(f"/v1/models/{name}", json={"labels": LABELS})

    assert pages(client, "/v1/models", 2) == [["a", "b"], ["c", "d"], ["e"]]


def test_a_full_last_page_has_no_next(client: TestClient) -> None:
    for name in ("a", "b"):
        client.put(f"/v1/models/{name}", json={"labels": LABELS})

    assert pages(client, "/v1/models", 2) == [["a", "b"]]


def test_without_models_the_list_is_empty(client: TestClient) -> None:
    assert client.get("/v1/models").json() == {"items": [], "next": None}


def test_the_list_shows_models_as_each_shows_itself(client: TestClient) -> None:
    register(client)

    assert client.get("/v1/models").json()["items"] == [client.get(URL).json()]


@pytest.mark.parametrize("limit", ["0", "1001", "many"])
def test_a_page_has_1_to_1000_models(client: TestClient, limit: str) -> None:
    answer = client.get("/v1/models", params={"limit": limit})

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["parameter"] == "limit"


def test_a_deleted_model_is_gone(client: TestClient) -> None:
    register(client)

    answer = client.delete(URL)

    assert (answer.status_code, answer.content) == (204, b"")
    assert client.get(URL).status_code == 404


def test_only_what_is_there_can_be_deleted(client: TestClient) -> None:
    assert client.delete(URL).status_code == 404


PER_MODEL = [table for table in tables.metadata.sorted_tables if "model_id" in table.c]


def rows_of_models(database: Database, model_id: int | None = None) -> dict[str, int]:
    """How many rows each table has, of all models or of one."""
    found = {}
    with database.begin() as conn:
        for table in [tables.model, *PER_MODEL]:
            own = table.c.id if table is tables.model else table.c.model_id
            count = select(func.count()).select_from(table)
            count = count if model_id is None else count.where(own == model_id)
            found[table.name] = conn.execute(count).scalar_one()
    return found


def fill(client: TestClient, database: Database, name: str) -> None:
    """Something of the model in every table."""
    register(client, name, keep_ids=True)
    now = datetime.now(UTC)
    worker = Worker(database, "http://localhost")
    for batch in ("batch-1", "batch-2"):
        client.post(
            f"/v1/models/{name}/predictions",
            json={
                "probabilities": [[1, 0, 0], [0, 1, 0]],
                "timestamps": [now.isoformat(), (now - timedelta(days=2)).isoformat()],
                "ids": ["a", "b"],
                "batch_id": batch,
            },
        ).raise_for_status()
        if batch == "batch-1":
            # Predictions have stopped by then, which raises an alarm, and hours have been over.
            while worker.evaluate_next(now + timedelta(hours=3)):
                pass
    pane = {"start": f"{now:%Y-%m-%dT%H:%M:00Z}", "counts": {"legit": 1}}
    client.post(
        f"/v1/models/{name}/counts", json={"source": "edge", "sequence": 1, "panes": [pane]}
    ).raise_for_status()


def test_deleting_a_model_forgets_everything_about_it(
    client: TestClient, database: Database
) -> None:
    fill(client, database, "fraud")
    assert all(rows_of_models(database).values())

    client.delete(URL)

    assert rows_of_models(database) == dict.fromkeys(rows_of_models(database), 0)


def test_deleting_a_model_leaves_the_others_alone(client: TestClient, database: Database) -> None:
    fill(client, database, "fraud")
    fill(client, database, "other")
    with database.begin() as conn:
        kept, forgotten = (models.get(conn, name).id for name in ("fraud", "other"))
    before = rows_of_models(database, kept)

    client.delete("/v1/models/other")

    assert min(before[name] for name in ("pane", "evaluation", "alarm")) > 0
    assert rows_of_models(database, kept) == before
    assert not any(rows_of_models(database, forgotten).values())


def test_the_name_of_a_deleted_model_can_be_used_again(
    client: TestClient, database: Database
) -> None:
    fill(client, database, "fraud")
    client.delete(URL)

    answer = client.put(URL, json={"labels": ["yes", "no"]})

    assert answer.status_code == 201
    assert answer.json()["active_version"] is None


def test_a_model_of_an_old_name_knows_no_old_batches(
    client: TestClient, database: Database
) -> None:
    fill(client, database, "fraud")
    client.delete(URL)
    register(client)

    answer = client.post(f"{URL}/predictions", json={"predicted": [0], "batch_id": "batch-1"})

    assert answer.json()["duplicate"] is False
    (pane,) = client.get(f"{URL}/panes").json()["items"]
    assert pane["n"] == 1


def test_labels_can_be_changed_until_there_is_a_reference(client: TestClient) -> None:
    client.put(URL, json={"labels": LABELS})

    assert client.put(URL, json={"labels": ["a", "b"], "pane": "PT2M"}).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"labels": LABELS[:2]},
        {"labels": [*LABELS, "more"]},
        {"labels": LABELS[::-1]},
        {"labels": LABELS, "pane": "PT2M"},
    ],
)
def test_labels_and_pane_stay_once_there_is_a_reference(client: TestClient, body: Any) -> None:
    register(client)
    before = client.get(URL).json()

    answer = client.put(URL, json=body)

    assert answer.status_code == 409
    assert client.get(URL).json() == before


def test_other_settings_can_be_changed_even_then(client: TestClient) -> None:
    register(client)

    answer = client.put(URL, json={"labels": LABELS, "windows": [{"name": "v", "kind": "version"}]})

    assert answer.status_code == 200
    assert [window["name"] for window in answer.json()["windows"]] == ["v"]


def test_a_reference_becomes_the_active_version_of_its_model(client: TestClient) -> None:
    client.put(URL, json={"labels": LABELS})
    client.put(f"{URL}/references/{VERSION}", json={"confusion": CONFUSION})

    assert client.get(URL).json()["active_version"] == VERSION


@pytest.mark.parametrize("k", [2, 1000])
def test_a_model_may_have_2_to_1000_labels(client: TestClient, k: int) -> None:
    answer = client.put(URL, json={"labels": names(k)})

    assert answer.status_code == 201
    assert client.get(URL).json()["labels"] == names(k)


@pytest.mark.parametrize("k", [0, 1, 1001])
def test_fewer_or_more_labels_are_refused(client: TestClient, k: int) -> None:
    answer = client.put(URL, json={"labels": names(k)})

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "#/labels"


def test_the_longest_label_has_200_characters(client: TestClient) -> None:
    answer = client.put(URL, json={"labels": ["a", "ü" * 200]})

    assert answer.status_code == 201


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ("{}", "#/labels"),
        ("[]", "#"),
        ("null", "#"),
        ('{"labels": null}', "#/labels"),
        ('{"labels": "ab"}', "#/labels"),
        ('{"labels": ["a", ""]}', "#/labels/1"),
        ('{"labels": ["a", "  "]}', "#/labels/1"),
        ('{"labels": ["a", "b\\n"]}', "#/labels/1"),
        ('{"labels": ["a", "\\u0000"]}', "#/labels/1"),
        ('{"labels": ["a", "%s"]}' % ("x" * 201), "#/labels/1"),
        ('{"labels": ["a", 1]}', "#/labels/1"),
        ('{"labels": ["a", null]}', "#/labels/1"),
        ('{"labels": ["a", NaN]}', "#/labels/1"),
        ('{"labels": ["a", "b", "a"]}', "#/labels"),
        (with_labels(label=1), "#/label"),
        (with_labels(**{"a/b~c": 1}), "#/a~1b~0c"),
        (with_labels(name="fraud"), "#/name"),
        (with_labels(alarm={"effect": 1}), "#/alarm/effect"),
        (with_labels(alarm={"false_alarms": {"most": 1}}), "#/alarm/false_alarms/most"),
        (with_window(size=1), "#/windows/0/size"),
        (with_labels(pane="1m"), "#/pane"),
        (with_labels(pane=60), "#/pane"),
        (with_labels(pane=None), "#/pane"),
        (with_labels(pane="P"), "#/pane"),
        (with_labels(pane="PTXM"), "#/pane"),
        (with_labels(pane="-PT1M"), "#/pane"),
        (with_labels(pane="PT0S"), "#/pane"),
        (with_labels(pane="PT0.5S"), "#/pane"),
        (with_labels(pane="P2D"), "#/pane"),
        (with_labels(pane="P999999999999D"), "#/pane"),
        (with_labels(allowed_lateness="-P1D"), "#/allowed_lateness"),
        (with_labels(allowed_lateness="P32D"), "#/allowed_lateness"),
        (with_labels(allowed_lateness="1d"), "#/allowed_lateness"),
        (with_labels(alarm={"min_effect": float("nan")}), "#/alarm/min_effect"),
        (with_labels(alarm={"min_effect": float("inf")}), "#/alarm/min_effect"),
        (with_labels(alarm={"min_effect": "nan"}), "#/alarm/min_effect"),
        (with_labels(alarm={"min_effect": -0.1}), "#/alarm/min_effect"),
        (with_labels(alarm={"min_effect": 1.1}), "#/alarm/min_effect"),
        (
            with_labels(alarm={"false_alarms": {"at_most": -float("inf")}}),
            "#/alarm/false_alarms/at_most",
        ),
        (with_labels(alarm={"false_alarms": {"at_most": 0}}), "#/alarm/false_alarms/at_most"),
        (with_labels(alarm={"false_alarms": {"per": "PT1M"}}), "#/alarm/false_alarms/per"),
        (with_labels(windows=[]), "#/windows"),
        (with_labels(windows=[{"name": "v", "kind": "version"}] * 2), "#/windows"),
        (with_window(length="PT90S"), "#/windows"),
        (with_window(length="PT30S"), "#/windows"),
        (with_window(length="P367D"), "#/windows/0/length"),
        (with_window(length="PT0S"), "#/windows/0/length"),
        (with_window(length="1h"), "#/windows/0/length"),
        (with_window(length=None), "#/windows/0"),
        (with_window(count=5), "#/windows/0"),
        (with_window(kind="last"), "#/windows/0"),
        (with_window(kind="last", length=None), "#/windows/0"),
        (with_window(kind="last", length=None, count=0), "#/windows/0/count"),
        (with_window(kind="last", length=None, count=float("nan")), "#/windows/0/count"),
        (with_window(kind="adaptive"), "#/windows/0"),
        (with_window(kind="hopping"), "#/windows/0/kind"),
        (with_window(name="1 h"), "#/windows/0/name"),
        (with_window(name=""), "#/windows/0/name"),
        (with_labels(keep_ids="perhaps"), "#/keep_ids"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_place(
    client: TestClient, body: str, pointer: str
) -> None:
    answer = client.put(URL, content=body, headers=JSON)

    assert answer.status_code == 422, answer.text
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    assert client.get(URL).status_code == 404


def test_everything_that_is_wrong_is_told_at_once(client: TestClient) -> None:
    body = {"labels": ["a", ""], "pane": "x", "windows": [], "more": 1}

    answer = client.put(URL, json=body)

    found = {error["pointer"] for error in answer.json()["errors"]}
    assert found == {"#/labels/1", "#/pane", "#/windows", "#/more"}


def test_panes_that_do_not_fit_the_default_windows_are_refused(client: TestClient) -> None:
    answer = client.put(URL, json={"labels": LABELS, "pane": "PT7M"})

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] in ("#/pane", "#/windows")


def test_panes_of_any_length_do_with_windows_that_fit(client: TestClient) -> None:
    window = {"name": "1h", "kind": "sliding", "length": "PT70M"}

    answer = client.put(URL, json={"labels": LABELS, "pane": "PT7M", "windows": [window]})

    assert answer.status_code == 201


@pytest.mark.parametrize("name", ["a", "7", "A.b_c~d-1", "x" * 100])
def test_a_name_is_a_url_safe_slug(client: TestClient, name: str) -> None:
    answer = client.put(f"/v1/models/{name}", json={"labels": LABELS})

    assert answer.status_code == 201
    assert client.get(f"/v1/models/{name}").json()["name"] == name


@pytest.mark.parametrize(
    "name", ["a b", "-a", "a-", ".a", "a%", "ä", "a\n", "a\0b", "a?b", "a:b", "x" * 101]
)
def test_other_names_are_refused(client: TestClient, name: str) -> None:
    answer = client.put(f"/v1/models/{quote(name, safe='')}", json={"labels": LABELS})

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["parameter"] == "model"


@pytest.mark.parametrize("body", [b"{", b'{"labels": ["a", "b"]', b"\xff"])
def test_what_is_not_json_is_malformed(client: TestClient, body: bytes) -> None:
    answer = client.put(URL, content=body, headers=JSON)

    assert answer.status_code == 400


def test_another_content_type_is_refused(client: TestClient) -> None:
    answer = client.put(URL, content=with_labels(), headers={"content-type": "text/plain"})

    assert answer.status_code == 415


def test_a_body_over_the_limit_is_refused(client: TestClient) -> None:
    body = with_labels() + " " * (32 * 1024 * 1024)

    answer = client.put(URL, content=body, headers=JSON)

    assert answer.status_code == 413
    assert answer.json()["limit"] == 32 * 1024 * 1024
