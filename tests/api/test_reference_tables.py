"""References as Arrow streams and Parquet files."""

import gzip
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient

from app.api import bodies as receiving
from app.api import encodings
from app.api.app import create_app
from app.config import Settings
from app.ingest import arrow_format, formats, sample
from app.storage import models, references
from app.storage.db import Database
from tests.api.test_references import MODEL, URL, fraud, put, softmax_sample
from tests.factories import CONFUSION, LABELS, VERSION
from tests.ingest.bodies import parquet, stream

__all__ = ["fraud"]  # a fixture

SAMPLE = softmax_sample(200)
NAMES = [LABELS[label] for label in SAMPLE["actual"]]
DICTIONARY = pa.dictionary(pa.int8(), pa.string())


def table(rows: Any = None, **columns: Any) -> pa.Table:
    """The sample, with softmax rows of a type and some other columns."""
    rows = pa.array(SAMPLE["probabilities"], rows or pa.list_(pa.float64()))
    return pa.table({"probabilities": rows, "actual": NAMES, **columns})


def fixed(kind: Any) -> Any:
    return pa.list_(kind, len(LABELS))


def send(client: TestClient, media: str, body: bytes, query: str = "", **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    place = f"{URL}/{VERSION}{query}"
    return client.put(place, content=body, headers={"content-type": media, **named})


WAYS: dict[str, tuple[str, bytes]] = {
    "Arrow": (formats.ARROW, stream(table())),
    "Arrow, small batches": (formats.ARROW, stream(table(), 7)),
    "Arrow, rows of a fixed size": (formats.ARROW, stream(table(fixed(pa.float64())), 50)),
    "Arrow, dictionary": (
        formats.ARROW,
        stream(table(actual=pa.array(NAMES, DICTIONARY)), 50, unify_dictionaries=True),
    ),
    "Arrow, positions": (
        formats.ARROW,
        stream(table(actual=pa.array(SAMPLE["actual"], pa.int16()))),
    ),
    "Parquet": (formats.PARQUET, parquet(table())),
    "Parquet, small row groups": (
        formats.PARQUET,
        parquet(table(fixed(pa.float64())), row_group_size=30, compression="zstd"),
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_table_is_the_same_reference_as_the_columns_of_json(
    fraud: TestClient, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Many slices, and blocks of rows that are full now and then.
    monkeypatch.setattr(arrow_format, "SLICE_CELLS", 40)
    monkeypatch.setattr(sample, "BLOCK_NUMBERS", 100)
    media, body = WAYS[way]

    answer = send(fraud, media, body)

    assert (answer.status_code, answer.json()["kind"], answer.json()["n"]) == (201, "soft", 200)
    again = fraud.put(f"{URL}/{VERSION}", json=SAMPLE)
    assert (again.status_code, again.json()) == (200, answer.json())


@pytest.mark.parametrize("media", [formats.ARROW, formats.PARQUET])
def test_predicted_labels_come_as_a_table_too(
    fraud: TestClient, media: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_format, "SLICE_ROWS", 1000)
    pairs = np.repeat(np.arange(9), np.array(CONFUSION).ravel())
    labels = np.array(LABELS)
    predicted, actual = labels[pairs // 3], labels[pairs % 3]
    write = stream if media == formats.ARROW else parquet

    found = send(fraud, media, write(pa.table({"predicted": predicted, "actual": actual})))

    assert (found.status_code, found.json()["kind"]) == (201, "hard")
    assert fraud.put(f"{URL}/{VERSION}", json={"confusion": CONFUSION}).status_code == 200


def test_a_predicted_label_goes_before_the_argmax(fraud: TestClient) -> None:
    body = parquet(table(predicted=pa.array(NAMES)))

    assert send(fraud, formats.PARQUET, body).json()["accuracy"] == 1


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@pytest.mark.parametrize("way", ["Arrow", "Parquet"])
@pytest.mark.parametrize("memory", [100, receiving.MEMORY_BYTES])
def test_a_table_may_be_packed_and_larger_than_memory(
    fraud: TestClient, way: str, encoding: str, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "MEMORY_BYTES", memory)
    pack = gzip.compress if encoding == "gzip" else encodings.zstd.compress
    media, body = WAYS[way]

    assert send(fraud, media, pack(body), content_encoding=encoding).status_code == 201
    assert send(fraud, media, body).status_code == 200


@pytest.mark.parametrize(("query", "active"), [("", "v0"), ("true", VERSION), ("false", "v0")])
def test_the_query_says_whether_to_activate_a_table(
    fraud: TestClient, query: str, active: str
) -> None:
    put(fraud, {"confusion": CONFUSION}, "v0")

    answer = send(fraud, *WAYS["Parquet"], f"?activate={query}" if query else "")

    assert answer.status_code == 201
    assert fraud.get(MODEL).json()["active_version"] == (active if query else VERSION)


def test_a_table_that_can_estimate_nothing_is_activated_by_force(fraud: TestClient) -> None:
    body = stream(table().slice(0, 3))

    refused = send(fraud, formats.ARROW, body)
    forced = send(fraud, formats.ARROW, body, "?activate=force")

    assert (refused.status_code, forced.status_code) == (409, 201)
    assert forced.json()["active"]


def changed(values: list[Any], record: int, to: Any) -> list[Any]:
    return [*values[:record], to, *values[record + 1 :]]


ROWS = SAMPLE["probabilities"]
ACTUAL = table().column("actual")
FAULTS: list[tuple[pa.Table, str]] = [
    (table(actual_=ACTUAL), "#/actual_"),
    (table(timestamp=ACTUAL), "#/timestamp"),
    (table().select(["probabilities"]), "#"),
    (table().select(["actual"]), "#"),
    (table(actual=[0.5] * 200), "#/actual"),
    (table(actual=changed(NAMES, 150, "?")), "#/actual/150"),
    (table(actual=changed(NAMES, 150, None)), "#/actual/150"),
    (table(actual=pa.nulls(200)), "#/actual/0"),
    (table(actual=changed(SAMPLE["actual"], 150, 3)), "#/actual/150"),
    (table(probabilities=changed(ROWS, 150, None)), "#/predicted/150"),
    (table(probabilities=changed(ROWS, 150, None), predicted=NAMES), "#/probabilities/150"),
    (table(probabilities=changed(ROWS, 150, [0.5, 0.5, 0.5])), "#/probabilities/150"),
    (table(probabilities=changed(ROWS, 150, [0.5, 0.5])), "#/probabilities/150"),
    (
        pa.table({"predicted": changed(NAMES, 150, "?"), "actual": NAMES}),
        "#/predicted/150",
    ),
    (table().slice(0, 0), "#/actual"),
]


@pytest.mark.parametrize(("whole", "pointer"), FAULTS)
@pytest.mark.parametrize("media", [formats.ARROW, formats.PARQUET])
def test_faults_are_named_by_column_and_record(
    fraud: TestClient, whole: pa.Table, pointer: str, media: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_format, "SLICE_CELLS", 40)

    answer = send(fraud, media, (stream if media == formats.ARROW else parquet)(whole))

    assert answer.status_code == 422, answer.text
    flaws = answer.json()["errors"]
    assert flaws[0]["pointer"] == pointer
    assert len(flaws) <= 20
    assert fraud.get(URL).json()["items"] == []


def test_a_column_that_is_there_twice_is_refused(fraud: TestClient) -> None:
    answer = send(fraud, formats.ARROW, stream(table().append_column("actual", ACTUAL)))

    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "#/actual")


@pytest.mark.parametrize("way", ["Arrow", "Parquet"])
def test_what_is_cut_off_is_malformed(fraud: TestClient, way: str) -> None:
    media, body = WAYS[way]

    answer = send(fraud, media, body[: len(body) // 2])

    assert answer.status_code == 400
    assert fraud.get(URL).json()["items"] == []


def test_the_example_of_the_documentation_works(
    fraud: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parents[2] / "docs/formats.md").read_text()
    _, example = re.findall("```python\n(.*?)```", text, re.DOTALL)

    def put_here(url: str, timeout: int, **options: Any) -> Any:
        assert timeout
        return fraud.put(urlsplit(url).path, **options)

    monkeypatch.setattr("httpx.put", put_here)

    exec(example, {"softmax": np.array(ROWS), "truth": SAMPLE["actual"]})

    (found,) = fraud.get(URL).json()["items"]
    assert (found["kind"], found["n"], found["active"]) == ("soft", 200, False)


def test_json_lines_are_no_table(fraud: TestClient) -> None:
    answer = send(fraud, formats.NDJSON, json.dumps({"actual": 0}).encode())

    assert answer.status_code == 415
    assert formats.PARQUET in answer.json()["detail"]


def test_without_pyarrow_a_table_is_not_understood(
    fraud: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "LABELLED", {})

    answer = send(fraud, *WAYS["Parquet"])

    assert answer.status_code == 415
    assert "extra `formats`" in answer.json()["detail"]


def test_more_softmax_rows_than_are_of_use_are_refused(
    fraud: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "MOST_NUMBERS", 199 * sample.LEAST_WIDTH)

    answer = send(fraud, *WAYS["Parquet"])

    assert (answer.status_code, answer.json()["limit"]) == (413, 199)
    assert "199 records" in answer.json()["detail"]
    assert fraud.get(URL).json()["items"] == []


@pytest.mark.parametrize("way", ["Arrow", "Parquet"])
def test_settings_limit_tables_too(database: Database, way: str) -> None:
    small = create_app(Settings(max_stream_rows=199), database)
    with TestClient(small, "http://localhost", raise_server_exceptions=False) as client:
        client.put(MODEL, json={"labels": LABELS}).raise_for_status()
        answer = send(client, *WAYS[way])

    assert (answer.status_code, answer.json()["limit"]) == (413, 199)


def test_the_rows_of_a_very_large_reference_are_not_kept(
    fraud: TestClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "KEPT_NUMBERS", 599)

    first = send(fraud, *WAYS["Parquet"])
    again = send(fraud, *WAYS["Arrow"])

    assert (first.status_code, again.status_code) == (201, 200)
    with database.begin() as conn:
        model = models.get(conn, "fraud")
        assert references.labelled_rows(conn, model, VERSION) is None
        assert references.get(conn, model, VERSION).statistics.soft is not None
