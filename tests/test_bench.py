"""The benchmarks send what they say they send, and tell what they saw."""

import asyncio
import gzip
import io
import json
from argparse import Namespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench import cells, formats, limits, load, query
from bench.cells import Cell, Lost, Result, Round, Target
from bench.family import labels
from bench.formats import FORMATS
from bench.load import Shot

SIZE = 7
CELL = Cell("json", 1000, 64)
ROUNDS = [
    Round(100, 0, 50.0, 1.0, 2.0, 0.2, 0.1, {"read": 100.0, "copy": 25_000.0}, {"read": 0.05}),
    Round(100, 3, 90.0, 1.0, 2.0, 0.2, 0.1, {"read": 100.0, "copy": 30_000.0}, {"read": 0.10}),
    Round(100, 0, 60.0, 1.0, 2.0, 0.2, 0.1, {"read": 200.0, "copy": 15_000.0}, {"read": 0.15}),
]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_holds_the_same_batch(name: str) -> None:
    sent = FORMATS[name]

    found = _read(sent.write(SIZE), sent)

    assert found == (formats.rows(SIZE).tolist() if sent.soft else labels(SIZE))


def _read(body: bytes, sent: formats.Format) -> object:
    if sent.encoding == "gzip":
        body = gzip.decompress(body)
    elif sent.encoding == "zstd":
        body = pa.CompressedInputStream(pa.BufferReader(body), "zstd").read()
    column = "probabilities" if sent.soft else "predicted"
    if sent.content_type == formats.ARROW:
        return pa.ipc.open_stream(body).read_all()[column].to_pylist()
    if sent.content_type == formats.PARQUET:
        return pq.read_table(io.BytesIO(body))[column].to_pylist()
    if sent.content_type == formats.NDJSON:
        return [json.loads(line)[column] for line in body.splitlines()]
    content = json.loads(body)
    return [row[column] for row in content["rows"]] if "rows" in content else content[column]


def test_copy_gets_the_same_rows() -> None:
    hard = [line.split("\t") for line in limits.block(FORMATS["json"], SIZE).decode().splitlines()]
    soft = limits.block(FORMATS["arrow-softmax"], SIZE).decode().splitlines()

    assert [row[2:] for row in hard] == [[label, r"\N"] for label in labels(SIZE)]
    numbers = [line.split("\t")[3].strip("{}").split(",") for line in soft]
    assert np.array_equal(np.array(numbers, float), formats.rows(SIZE))


def test_a_share_is_that_of_a_round_and_failures_are_shown() -> None:
    result = Result(CELL, ROUNDS, accepted=297_000, stored=297_000)

    shown = cells.line(result, ["read", "copy"])

    assert result.share("read") == 0.5
    assert result.share("copy") == 3.0
    assert shown.endswith("0.500   3.000 |   0.00  3 of these failed")
    assert shown.index("|") == cells.heading(["read", "copy"]).index("|")
    told = json.loads(json.dumps(result.as_json()))
    assert (told["shares"]["read"], told["failures"], told["stored"]) == (0.5, 3, 297_000)


@pytest.mark.parametrize("stored", [999, 1011])
def test_a_prediction_less_or_one_that_nobody_sent_ends_the_benchmark(stored: int) -> None:
    cells.refuse_loss(CELL, 1000, 1000, 10)
    cells.refuse_loss(CELL, 1000, 1010, 10)

    with pytest.raises(Lost):
        cells.refuse_loss(CELL, 1000, stored, 10)


def test_a_format_that_is_refused_is_shown_as_such() -> None:
    refused = Result(CELL, refused=415)

    assert cells.line(refused, ["read"]).endswith("refused (415)")
    assert "not reached" in cells.target_line(Target(CELL, "read", 0.5), refused)
    assert json.loads(json.dumps(refused.as_json()))["refused"] == 415


@pytest.mark.parametrize(("share", "said"), [(0.5, "yes"), (0.51, "no")])
def test_a_target_is_reached_or_not(share: float, said: str) -> None:
    shown = cells.target_line(Target(CELL, "read", share), Result(CELL, ROUNDS))

    assert f"0.50   0.50  {said:>3} |   0.00  3 failed" in shown


def test_what_wrk_did_not_wait_for_is_not_forgotten() -> None:
    said = load._said("...\nRESULT 1000 2.5 1.5 9.5 10 2\n", connections=64)

    assert (said.requests, said.good, said.failures) == (1002, 990, 12)
    assert said.unanswered == 66
    assert said.requests_per_second == pytest.approx(400.8)


def test_our_loader_sends_so_many_and_counts_what_is_refused() -> None:
    seen: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readline():
            while (line := await reader.readline()) != b"\r\n":
                head += line
            await reader.readexactly(len(b"body"))
            seen.append(head)
            status = b"503 No" if len(seen) % 3 == 0 else b"202 Yes"
            writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    async def loaded() -> load.Load:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            shot = Shot(f"http://127.0.0.1:{port}/x", b"body", {"a": "b"}, keyed=True)
            return await load._own(shot, 2, 5.0, rate=None, most=9)

    found = asyncio.run(loaded())

    assert (found.requests, found.failures, found.unanswered) == (9, 3, 0)
    keys = [line for head in seen for line in head.split(b"\r\n") if b"idempotency-key" in line]
    assert len(set(keys)) == 9


def test_requests_at_a_pace_are_due_whatever_became_of_those_before() -> None:
    turns = list(load._turns(100.0, 1.0, rate=4.0, most=None))

    assert turns == [100.0, 100.25, 100.5, 100.75]


def test_questions_under_load_are_compared_with_idle_ones() -> None:
    idle, loaded = query.Phases(seconds=2.0), query.Phases(seconds=2.0, sent=10, refused=1)
    for phases, took in ((idle, 2.0), (loaded, 7.0)):
        phases.cpu_seconds = {"api": 1.0}
        for asked in phases.asked.values():
            asked.times = [took] * 10
    found: dict[query.Condition, query.Phases] = {"idle": idle, "loaded": loaded}

    shown = query.table(found)

    assert "reached 3.50: no" in shown
    assert "of which failed: 1" in shown
    told = json.loads(json.dumps(query.as_json(found, 100.0, Namespace(rounds=1))))
    assert told["p99_ratio"] == {"estimate": 3.5, "metrics": 3.5}
    assert told["conditions"]["idle"]["cores_in_use"] == {"api": 0.5}
