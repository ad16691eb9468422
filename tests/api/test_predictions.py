import gzip
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.factories import VERSION, register

URL = "/v1/models/fraud/predictions"


def counts(client: TestClient) -> dict[str, int]:
    """What all panes of the model hold together."""
    found: dict[str, int] = {}
    for pane in client.get("/v1/models/fraud/panes?limit=1000").json()["items"]:
        for one in pane["counts"]:
            found[one["label"]] = found.get(one["label"], 0) + one["count"]
    return found


@pytest.fixture
def fraud(client: TestClient) -> TestClient:
    register(client)
    return client


def test_a_batch_is_counted_before_it_is_acknowledged(fraud: TestClient) -> None:
    answer = fraud.post(URL, json={"predicted": ["legit", "fraud", "fraud"]})

    assert answer.status_code == 202
    assert answer.json() == {
        "accepted": 3,
        "rejected": 0,
        "late": 0,
        "duplicate": False,
        "version": VERSION,
    }
    assert counts(fraud) == {"legit": 1, "fraud": 2, "abuse": 0}


@pytest.mark.parametrize(
    "body",
    [
        {"predicted": ["legit", "fraud"]},
        {"predicted": [0, 1]},
        {"probabilities": [[0.9, 0.08, 0.02], [0.1, 0.7, 0.2]]},
        {"rows": [{"predicted": "legit"}, {"probabilities": [0.1, 0.7, 0.2]}]},
        {"predicted": ["legit", "fraud"], "version": VERSION, "ids": ["a", "b"]},
    ],
)
def test_labels_come_by_name_position_or_probability(fraud: TestClient, body: Any) -> None:
    assert fraud.post(URL, json=body).json()["accepted"] == 2

    assert counts(fraud) == {"legit": 1, "fraud": 1, "abuse": 0}


def test_a_label_that_is_named_goes_before_the_argmax(fraud: TestClient) -> None:
    fraud.post(URL, json={"predicted": ["abuse"], "probabilities": [[0.9, 0.08, 0.02]]})

    assert counts(fraud) == {"legit": 0, "fraud": 0, "abuse": 1}


def test_the_lowest_label_wins_a_tie(fraud: TestClient) -> None:
    fraud.post(URL, json={"probabilities": [[0.2, 0.4, 0.4]]})

    assert counts(fraud) == {"legit": 0, "fraud": 1, "abuse": 0}


def test_softmax_sums_stand_beside_the_counts(fraud: TestClient) -> None:
    fraud.post(URL, json={"probabilities": [[0.9, 0.08, 0.02], [0.1, 0.7, 0.2]]})

    (pane,) = fraud.get("/v1/models/fraud/panes").json()["items"]

    assert [one["probability"] for one in pane["soft"]["labels"]] == pytest.approx([1, 0.78, 0.22])
    assert pane["soft"]["score"] == pytest.approx(1.6)
    assert pane["soft"]["outer"][0] == pytest.approx(0.9**2 + 0.1**2)
    assert [(code["first"], code["second"]) for code in pane["soft"]["codes"]] == [
        ("legit", "fraud"),
        ("fraud", "abuse"),
    ]


def test_events_land_in_the_pane_of_their_time(fraud: TestClient) -> None:
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    times = [now - timedelta(minutes=2), now - timedelta(minutes=9, seconds=1), now]
    fraud.post(
        URL, json={"predicted": [0, 1, 2], "timestamps": [time.isoformat() for time in times]}
    )

    items = fraud.get("/v1/models/fraud/panes").json()["items"]

    starts = [datetime.fromisoformat(item["start"]) for item in items]
    assert starts == [now - timedelta(minutes=10), now - timedelta(minutes=2), now]


def test_what_is_too_late_for_any_window_is_only_counted_as_late(fraud: TestClient) -> None:
    long_ago = (datetime.now(UTC) - timedelta(days=2)).isoformat()

    answer = fraud.post(URL, json={"predicted": ["legit"], "timestamp": long_ago}).json()

    assert (answer["accepted"], answer["late"]) == (0, 1)
    assert counts(fraud) == {}


def test_the_same_batch_again_counts_nothing(fraud: TestClient) -> None:
    headers = {"Idempotency-Key": '"batch-1"'}
    first = fraud.post(URL, json={"predicted": ["fraud"]}, headers=headers)

    again = fraud.post(URL, json={"predicted": ["fraud"]}, headers=headers)

    assert again.status_code == 202
    assert again.json() == {**first.json(), "duplicate": True}
    assert counts(fraud)["fraud"] == 1


def test_a_key_in_the_body_is_as_good_as_the_header(fraud: TestClient) -> None:
    body = {"predicted": ["fraud"], "batch_id": "batch-1"}

    answers = [fraud.post(URL, json=body).json()["duplicate"] for _ in range(2)]

    assert answers == [False, True]


def test_a_key_with_other_content_is_refused(fraud: TestClient) -> None:
    headers = {"Idempotency-Key": "batch-1"}
    fraud.post(URL, json={"predicted": ["fraud"]}, headers=headers)

    answer = fraud.post(URL, json={"predicted": ["legit"]}, headers=headers)

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["parameter"] == "idempotency-key"
    assert counts(fraud) == {"legit": 0, "fraud": 1, "abuse": 0}


def test_a_key_belongs_to_one_model(fraud: TestClient) -> None:
    register(fraud, "other")
    headers = {"Idempotency-Key": "batch-1"}

    answers = [
        fraud.post(f"/v1/models/{name}/predictions", json={"predicted": [0]}, headers=headers)
        for name in ("fraud", "other")
    ]

    assert [answer.json()["duplicate"] for answer in answers] == [False, False]


def test_one_bad_record_refuses_the_whole_batch_and_is_named(fraud: TestClient) -> None:
    answer = fraud.post(URL, json={"predicted": ["legit", "legit", "fruad"]})

    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["errors"] == [
        {"detail": "model 'fraud' has no label 'fruad'", "pointer": "#/predicted/2"}
    ]
    assert counts(fraud) == {}


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ('{"predicted": ["legit", true]}', "#/predicted/1"),
        ('{"predicted": ["legit", null]}', "#/predicted/1"),
        ('{"predicted": ["legit", ""]}', "#/predicted/1"),
        ('{"predicted": [3]}', "#/predicted/0"),
        ('{"predicted": [-1]}', "#/predicted/0"),
        ('{"predicted": [0.5]}', "#/predicted/0"),
        ('{"predicted": [NaN]}', "#/predicted/0"),
        ('{"predicted": "legit"}', "#/predicted"),
        ('{"probabilities": [[0.9, 0.1, 0], [0.5, 0.5, 0.5]]}', "#/probabilities/1"),
        ('{"probabilities": [[1.1, -0.1, 0]]}', "#/probabilities/0"),
        ('{"probabilities": [[0.5, 0.5]]}', "#/probabilities/0"),
        ('{"probabilities": [[0.5, 0.5, NaN]]}', "#/probabilities/0/2"),
        ('{"probabilities": [[0.5, 0.5, -Infinity]]}', "#/probabilities/0/2"),
        ('{"probabilities": [[0.5, 0.5, 1e999]]}', "#/probabilities/0/2"),
        ('{"probabilities": [[0.5, 0.5, "nan"]]}', "#/probabilities/0/2"),
        ('{"predicted": [0], "probabilities": [[1, 0, 0], [1, 0, 0]]}', "#/probabilities"),
        ('{"predicted": [0], "timestamps": []}', "#/timestamps"),
        ('{"predicted": [0], "timestamps": ["2026-11-17T10:00:00"]}', "#/timestamps/0"),
        ('{"predicted": [0], "timestamps": ["2126-11-17T10:00:00Z"]}', "#/timestamps/0"),
        ('{"predicted": [0], "ids": ["a", "b"]}', "#/ids"),
        ('{"predicted": [0], "ids": [""]}', "#/ids/0"),
        ('{"predicted": [0], "version": "nope"}', "#/version"),
        ('{"predicted": [0], "predictions": [0]}', "#/predictions"),
        ('{"rows": [{"predicted": 0}, {"label": 0}]}', "#/rows/1/label"),
        ('{"rows": [{"predicted": 0}, {}]}', "#/rows/1"),
        ('{"rows": [{"probabilities": [0.2, 0.2, 0.2]}]}', "#/rows/0/probabilities"),
        ('{"rows": [], "predicted": []}', "#/predicted"),
        ("{}", "#"),
        ("[1]", "#"),
    ],
)
def test_bad_input_is_named_and_changes_nothing(fraud: TestClient, body: str, pointer: str) -> None:
    answer = fraud.post(URL, content=body, headers={"content-type": "application/json"})

    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["pointer"] == pointer
    assert counts(fraud) == {}


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"predicted": [0]'])
def test_what_is_not_json_is_malformed(fraud: TestClient, body: bytes) -> None:
    answer = fraud.post(URL, content=body, headers={"content-type": "application/json"})

    assert answer.status_code == 400
    assert answer.json()["type"] == "/problems/malformed"


def test_a_body_nested_without_end_is_refused_either_way(fraud: TestClient) -> None:
    answers = [
        fraud.post(
            f"{URL}?on_error={mode}",
            content=b'{"rows": ' + b"[" * 100_000,
            headers={"content-type": "application/json"},
        )
        for mode in ("refuse", "skip")
    ]

    assert [answer.status_code for answer in answers] == [422, 400]


def test_skipping_counts_the_good_and_tells_of_the_bad(fraud: TestClient) -> None:
    body = '{"predicted": ["legit", "fruad", true, null, "fraud"]}'

    answer = fraud.post(
        f"{URL}?on_error=skip", content=body, headers={"content-type": "application/json"}
    ).json()

    assert (answer["accepted"], answer["rejected"]) == (2, 3)
    assert [error["pointer"] for error in answer["errors"]] == [
        "#/predicted/1",
        "#/predicted/2",
        "#/predicted/3",
    ]
    assert counts(fraud) == {"legit": 1, "fraud": 1, "abuse": 0}


def test_skipping_names_twenty_reasons_at_the_most(fraud: TestClient) -> None:
    answer = fraud.post(f"{URL}?on_error=skip", json={"predicted": ["?"] * 50}).json()

    assert (answer["rejected"], len(answer["errors"])) == (50, 20)


def test_skipping_works_for_rows_too(fraud: TestClient) -> None:
    rows = '{"rows": [5, {"predicted": "legit"}, {"probabilities": [NaN, 0, 0]}, {"label": 1}]}'

    answer = fraud.post(
        f"{URL}?on_error=skip", content=rows, headers={"content-type": "application/json"}
    ).json()

    assert [error["pointer"] for error in answer["errors"]] == [
        "#/rows/0",
        "#/rows/2/probabilities",
        "#/rows/3/label",
    ]
    assert counts(fraud)["legit"] == 1


def test_a_gzip_body_is_read(fraud: TestClient) -> None:
    body = gzip.compress(json.dumps({"predicted": ["fraud"] * 10}).encode())

    answer = fraud.post(
        URL,
        content=body,
        headers={"content-encoding": "gzip", "content-type": "application/json"},
    )

    assert answer.json()["accepted"] == 10


@pytest.mark.parametrize(
    "body",
    # Their names must be the same in every process that runs tests, and gzip writes the time.
    [b"not gzip", pytest.param(gzip.compress(b'{"predicted": [0]}')[:-10], id="cut off")],
)
def test_a_broken_gzip_body_is_malformed(fraud: TestClient, body: bytes) -> None:
    answer = fraud.post(
        URL,
        content=body,
        headers={"content-encoding": "gzip", "content-type": "application/json"},
    )

    assert answer.status_code == 400


def test_a_gzip_bomb_is_refused_before_it_unfolds(fraud: TestClient) -> None:
    bomb = gzip.compress(b" " * (64 * 1024 * 1024))

    answer = fraud.post(
        URL,
        content=bomb,
        headers={"content-encoding": "gzip", "content-type": "application/json"},
    )

    assert answer.status_code == 413
    assert answer.json()["limit"] == 32 * 1024 * 1024


def test_a_body_over_the_limit_is_refused(fraud: TestClient) -> None:
    answer = fraud.post(
        URL, content=b" " * (33 * 1024 * 1024), headers={"content-type": "application/json"}
    )

    assert answer.status_code == 413


def test_unknown_formats_are_refused(fraud: TestClient) -> None:
    kinds = [{"content-type": "text/csv"}, {"content-encoding": "br"}]

    answers = [fraud.post(URL, content=b"0", headers=headers) for headers in kinds]

    assert [answer.status_code for answer in answers] == [415, 415]


def test_an_unknown_model_is_not_found(client: TestClient) -> None:
    assert client.post(URL, json={"predicted": [0]}).status_code == 404


def test_without_a_reference_there_is_nothing_to_count_under(client: TestClient) -> None:
    client.put("/v1/models/fraud", json={"labels": ["a", "b"]})

    answer = client.post(URL, json={"predicted": [0]})

    assert answer.status_code == 409
    assert "PUT one" in answer.json()["detail"]


def test_a_new_active_version_is_used_at_once(fraud: TestClient) -> None:
    fraud.post(URL, json={"predicted": [0]})
    confusion = {"confusion": [[50, 1, 1], [1, 50, 1], [1, 1, 50]]}
    fraud.put("/v1/models/fraud/references/v2", json=confusion)

    answer = fraud.post(URL, json={"predicted": [0]})

    assert answer.json()["version"] == "v2"


def test_a_model_that_was_forgotten_takes_no_more(fraud: TestClient) -> None:
    fraud.post(URL, json={"predicted": [0]})
    fraud.delete("/v1/models/fraud")

    assert fraud.post(URL, json={"predicted": [0]}).status_code == 404


def test_an_empty_batch_is_fine(fraud: TestClient) -> None:
    assert fraud.post(URL, json={"predicted": []}).json()["accepted"] == 0


@pytest.mark.parametrize("query", ["", "?on_error=skip"])
def test_text_that_is_not_utf8_is_malformed(fraud: TestClient, query: str) -> None:
    for body in (b'{"predicted": ["\xff"]}', b'{"\xff": 1}'):
        answer = fraud.post(f"{URL}{query}", content=body)

        assert (answer.status_code, answer.json()["title"]) == (400, "The request cannot be read")
    assert counts(fraud) == {}
