"""Batches in other formats than JSON, as a client sends them."""

import gzip
import re
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from fastapi.testclient import TestClient

from app.api import bodies as receiving
from app.api import encodings
from app.api.app import create_app
from app.config import Settings
from app.ingest import formats
from app.storage.db import Database
from tests.factories import LABELS, VERSION, register
from tests.ingest import bodies
from tests.ingest.bodies import WAYS, Prediction

URL = "/v1/models/fraud/predictions"
SOME = [Prediction("legit"), Prediction("fraud", (0.1, 0.8, 0.1)), Prediction("fraud")]


@pytest.fixture
def fraud(client: TestClient) -> TestClient:
    register(client)
    return client


def post(client: TestClient, media: str, body: bytes, query: str = "", **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post(f"{URL}{query}", content=body, headers={"Content-Type": media, **named})


def counts(client: TestClient) -> list[int]:
    found = [0] * len(LABELS)
    for pane in client.get("/v1/models/fraud/panes?limit=1000").json()["items"]:
        found = [a + one["count"] for a, one in zip(found, pane["counts"], strict=True)]
    return found


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_comes_in_any_format(fraud: TestClient, way: str) -> None:
    media, write = WAYS[way]

    answer = post(fraud, media, write(SOME), Idempotency_Key="one")
    again = post(fraud, media, write(SOME), Idempotency_Key="one")

    assert (answer.status_code, answer.json()["accepted"]) == (202, 3)
    assert again.json() == {**answer.json(), "duplicate": True}
    assert counts(fraud) == [1, 2, 0]


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@pytest.mark.parametrize("media", [formats.JSON, formats.NDJSON, formats.ARROW, formats.PARQUET])
def test_every_format_may_be_packed(fraud: TestClient, media: str, encoding: str) -> None:
    pack = gzip.compress if encoding == "gzip" else encodings.zstd.compress
    ways = {formats.JSON: bodies.json_rows} | dict(WAYS.values())
    body = pack(ways[media](SOME))

    first = post(fraud, media, body, Content_Encoding=encoding, Idempotency_Key="one")
    # The same content, whether it is packed or not.
    again = post(fraud, media, ways[media](SOME), Idempotency_Key="one")

    assert (first.json()["accepted"], first.json()["duplicate"]) == (3, False)
    assert again.json()["duplicate"]
    assert counts(fraud) == [1, 2, 0]


@pytest.mark.parametrize("media", [formats.NDJSON, formats.ARROW, formats.PARQUET])
@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_a_body_that_is_large_goes_through_a_file(
    fraud: TestClient, media: str, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "MEMORY_BYTES", 100)
    monkeypatch.setattr(formats, "INLINE_BYTES", dict.fromkeys(formats.INLINE_BYTES, 50))
    body = dict(WAYS.values())[media](SOME * 200)
    packed = gzip.compress(body, 0) if encoding == "gzip" else body

    answer = post(fraud, media, packed, Content_Encoding=encoding, Idempotency_Key="one")
    again = post(fraud, media, packed, Content_Encoding=encoding, Idempotency_Key="one")
    other = post(fraud, media, dict(WAYS.values())[media](SOME), Idempotency_Key="one")

    assert (answer.json()["accepted"], again.json()["duplicate"]) == (600, True)
    assert other.status_code == 422
    assert counts(fraud) == [200, 400, 0]


def test_a_disk_without_room_is_said_to_be_one(
    fraud: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "MEMORY_BYTES", 100)
    full = Path("/dev/full")
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: full.open("wb"))

    answer = post(fraud, formats.NDJSON, bodies.ndjson(SOME * 200))

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "no room" in answer.json()["detail"]


def test_large_bodies_do_not_fill_the_disk_together(
    fraud: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "MEMORY_BYTES", 100)
    monkeypatch.setattr(receiving, "FILES", BoundedSemaphore(1))
    body = bodies.ndjson(SOME * 200)
    receiving.FILES.acquire()

    refused = post(fraud, formats.NDJSON, body)
    small = post(fraud, formats.NDJSON, bodies.ndjson(SOME[:1]))
    receiving.FILES.release()
    again = [post(fraud, formats.NDJSON, body).status_code for _ in range(3)]

    assert (refused.status_code, small.status_code, again) == (503, 202, [202, 202, 202])


def test_the_query_names_the_version(fraud: TestClient) -> None:
    body = bodies.ndjson(SOME)

    assert post(fraud, formats.NDJSON, body, f"?version={VERSION}").json()["version"] == VERSION
    assert post(fraud, formats.NDJSON, body, "?version=other").status_code == 422
    assert fraud.post(f"{URL}?version={VERSION}", json={"predicted": [0]}).status_code == 202
    both = fraud.post(f"{URL}?version={VERSION}", json={"predicted": [0], "version": "other"})
    assert (both.status_code, both.json()["errors"][0]["parameter"]) == (422, "version")


def test_a_bad_record_refuses_all_or_only_itself(fraud: TestClient) -> None:
    body = bodies.ndjson([*SOME, Prediction("nobody")])

    refused = post(fraud, formats.NDJSON, body)
    nothing = counts(fraud)
    skipped = post(fraud, formats.NDJSON, body, "?on_error=skip").json()

    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == "#/3/predicted"
    assert nothing == [0, 0, 0]
    assert (skipped["accepted"], skipped["rejected"]) == (3, 1)
    assert skipped["errors"][0]["pointer"] == "#/3/predicted"


@pytest.mark.parametrize("media", [formats.ARROW, formats.PARQUET])
def test_what_is_corrupt_is_malformed(fraud: TestClient, media: str) -> None:
    whole = dict(WAYS.values())[media](SOME * 100)

    for body in (b"", b"nonsense", whole[:-30], whole[: len(whole) // 2]):
        answer = post(fraud, media, body)
        assert answer.status_code == 400, body[:20]
        assert answer.headers["content-type"] == "application/problem+json"
    assert counts(fraud) == [0, 0, 0]


@pytest.mark.parametrize(
    ("setting", "limit"), [("max_stream_bytes", 2000), ("max_stream_rows", 599)]
)
def test_what_is_too_large_is_refused_with_the_limit(
    database: Database, setting: str, limit: int
) -> None:
    limits: dict[str, Any] = {setting: limit}
    app = create_app(Settings(**limits), database)
    body = bodies.ndjson(SOME * 200)
    with TestClient(app, base_url="http://localhost") as fraud:
        register(fraud)

        plain = post(fraud, formats.NDJSON, body)
        packed = post(fraud, formats.NDJSON, gzip.compress(body), Content_Encoding="gzip")

        for answer in (plain, packed):
            assert (answer.status_code, answer.json()["limit"]) == (413, limit)
        assert counts(fraud) == [0, 0, 0]


def test_a_server_without_pyarrow_says_what_it_lacks(
    fraud: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "IN_PARTS", {formats.NDJSON: formats.IN_PARTS[formats.NDJSON]})
    monkeypatch.setattr(encodings, "KNOWN", ("identity", "gzip"))

    arrow = post(fraud, formats.ARROW, b"")
    packed = post(fraud, formats.JSON, b"", Content_Encoding="zstd")

    assert (arrow.status_code, packed.status_code) == (415, 415)
    assert "`formats`" in arrow.json()["detail"]
    assert "`formats`" in packed.json()["detail"]


def test_every_batch_of_a_stream_may_have_a_dictionary_of_its_own(fraud: TestClient) -> None:
    kind = pa.dictionary(pa.int32(), pa.string())
    batches = [
        pa.table({"predicted": pa.array(names, kind)}).to_batches()[0]
        for names in (["legit", "fraud"], ["abuse"], ["fraud", "legit"])
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)

    assert post(fraud, formats.ARROW, sink.getvalue().to_pybytes()).json()["accepted"] == 5
    assert counts(fraud) == [2, 2, 1]


def test_the_example_of_the_documentation_works(
    fraud: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parents[2] / "docs/formats.md").read_text()
    example, _ = re.findall("```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.setattr(
        "httpx.post", lambda url, **options: fraud.post(urlsplit(url).path, **options)
    )

    exec(example, {})

    assert counts(fraud) == [1, 1, 0]
