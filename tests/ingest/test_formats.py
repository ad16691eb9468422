"""Every format says the same: against JSON, in parts, and when it is broken on purpose."""

import gzip
import io
from collections.abc import Iterator
from dataclasses import fields
from datetime import timedelta
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.api import encodings
from app.errors import AppError, InvalidInput, Malformed, TooLarge
from app.ingest import arrow_format, flatbuffer, formats, json_format, ndjson_format
from app.ingest.columns import Columns
from app.ingest.fold import fold
from app.ingest.reduce import Reduced, Watched, reduce
from app.stats.moments import Sums
from tests.factories import LABELS, NOW, VERSION, model
from tests.ingest import bodies
from tests.ingest.bodies import WAYS, Prediction, Predictions

WATCHED = Watched.of(model(keep_ids=True))
MOST_ROWS = 100_000

rows = st.permutations([0.7, 0.2, 0.1]).map(tuple) | st.sampled_from(
    [(1.0, 0.0, 0.0), (0.3334, 0.3333, 0.3333), (0.1 + 1e-7, 0.2, 0.7)]
)
ids = st.text(
    st.characters(codec="utf-8", exclude_characters="\0"),
    min_size=1,
    max_size=json_format.MOST_CHARACTERS,
)
predictions = st.builds(
    Prediction,
    predicted=st.sampled_from(LABELS),
    probabilities=st.none() | rows,
    timestamp=st.none() | st.integers(0, 90_000).map(lambda ago: NOW - timedelta(seconds=ago)),
    id=st.none() | ids,
) | st.builds(Prediction, probabilities=rows)


def parts_of(media: str, content: bytes, *, skip: bool = False) -> Iterator[Columns]:
    return formats.IN_PARTS[media](io.BytesIO(content), LABELS, skip=skip, most_rows=MOST_ROWS)


def by(media: str, content: bytes, *, skip: bool = False) -> Reduced:
    return fold(parts_of(media, content, skip=skip), WATCHED, None, NOW, skip=skip)


def by_json(some: Predictions, *, skip: bool = False) -> Reduced:
    columns = json_format.parse(bodies.json_rows(some), LABELS, skip=skip)
    return reduce(columns, WATCHED, NOW, skip=skip)


def numbers(sums: Sums) -> list[Any]:
    soft = sums.soft
    if soft is None:
        return [sums.counts]
    return [sums.counts, *(getattr(soft, field.name) for field in fields(soft))]


def assert_same(one: Reduced, other: Reduced) -> None:
    assert (one.version, one.accepted, one.late, one.rejected) == (
        other.version,
        other.accepted,
        other.late,
        other.rejected,
    )
    assert one.kept == other.kept
    assert one.panes.keys() == other.panes.keys()
    for key, sums in one.panes.items():
        for a, b in zip(numbers(sums), numbers(other.panes[key]), strict=True):
            np.testing.assert_array_equal(a, b)


@given(st.lists(predictions, max_size=20))
@settings(max_examples=60, deadline=None)
def test_the_same_rows_give_the_same_sums_by_every_way(some: list[Prediction]) -> None:
    expected = by_json(some)

    for media, write in WAYS.values():
        assert_same(by(media, write(some)), expected)


@given(st.lists(predictions, max_size=30), st.integers(1, 7))
@settings(max_examples=30, deadline=None)
def test_parts_add_up_to_the_whole(some: list[Prediction], size: int) -> None:
    expected = by_json(some)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_format, "SLICE_ROWS", size)
        patch.setattr(ndjson_format, "BLOCK_BYTES", size * 40)
        for media, write in WAYS.values():
            found = by(media, write(some))

            assert (found.accepted, found.late, found.kept) == (
                expected.accepted,
                expected.late,
                expected.kept,
            )
            for key, sums in found.panes.items():
                for a, b in zip(numbers(sums), numbers(expected.panes[key]), strict=True):
                    # Counts are the same; of sums of fractions, the order may change a last digit.
                    if np.issubdtype(np.asarray(a).dtype, np.integer):
                        np.testing.assert_array_equal(a, b)
                    else:
                        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_slices_do_not_depend_on_how_rows_were_batched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_format, "SLICE_ROWS", 10)
    table = bodies.table([Prediction("legit", id=str(i)) for i in range(34)])

    sizes = {
        chunk: [
            (part.size, *list(part.ids or ())[:1])
            for part in parts_of(formats.ARROW, bodies.stream(table, chunk))
        ]
        for chunk in (1, 7, 10, 34)
    }

    assert set(map(tuple, sizes.values())) == {((10, "0"), (10, "10"), (10, "20"), (4, "30"))}


def test_many_labels_make_slices_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_format, "SLICE_CELLS", 9)
    some = [Prediction(probabilities=(0.2, 0.3, 0.5))] * 7

    assert [part.size for part in parts_of(formats.ARROW, WAYS["Arrow"][1](some))] == [3, 3, 1]


POSITIONS = [(pa.int8(), [0, 1, 2, None]), (pa.uint64(), [2, 2, 0, 1]), (pa.int64(), [1, 1, 1, 1])]


@pytest.mark.parametrize(("kind", "positions"), POSITIONS, ids=str)
def test_labels_come_by_position(kind: Any, positions: list[int | None]) -> None:
    row = (0.2, 0.1, 0.7)
    some = [Prediction(position, row) for position in positions]

    table = bodies.table(some, labels=kind)

    assert_same(by(formats.ARROW, bodies.stream(table)), by_json(some))
    assert_same(by(formats.PARQUET, bodies.parquet(table)), by_json(some))


def test_a_file_of_nothing_but_rows_can_be_read() -> None:
    some = [Prediction(probabilities=(0.2, 0.3, 0.5))] * 10

    body = bodies.parquet(bodies.table(some).select(["probabilities"]))

    assert_same(by(formats.PARQUET, body), by_json(some))


@pytest.mark.parametrize(
    "values", [["legit", "fraud"], ["legit", None, "fraud", "x", "y"]], ids=str
)
def test_dictionaries_of_any_kind_are_labels(values: list[str | None]) -> None:
    indices = pa.array([0, len(values) - 1 if len(values) == 2 else 2, None], pa.int32())
    column = pa.DictionaryArray.from_arrays(indices, pa.array(values))
    rows = pa.array([(0.2, 0.1, 0.7)] * 3, pa.list_(pa.float32(), 3))
    body = bodies.stream(pa.table({"predicted": column, "probabilities": rows}))

    (pane,) = by(formats.ARROW, body).panes.values()

    assert pane.counts.tolist() == [1, 1, 1]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_moments_come_in_any_unit_and_zone(unit: str) -> None:
    at = NOW.replace(microsecond=0) - timedelta(minutes=7)
    column = pa.array([at, None], pa.timestamp(unit, tz="Europe/Vienna"))
    body = bodies.parquet(pa.table({"predicted": ["legit", "fraud"], "timestamp": column}))

    starts = sorted(key.start for key in by(formats.PARQUET, body).panes)

    assert starts == [moment.replace(second=0) for moment in (at, NOW)]


@given(st.lists(predictions, min_size=1, max_size=12), st.data())
@settings(max_examples=40, deadline=None)
def test_bad_records_are_named_or_skipped_alike(
    some: list[Prediction], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(some) - 1))
    bad = data.draw(
        st.sampled_from(
            [
                Prediction("nobody"),
                Prediction(),
                Prediction("legit", (0.5, 0.6, 0.1)),
                Prediction("legit", (0.5, 0.5)),
                Prediction("legit", timestamp=NOW + timedelta(hours=1)),
                Prediction("legit", id="x" * 201),
            ]
        )
    )
    some[place] = bad
    expected = by_json(some, skip=True)

    for media, write in WAYS.values():
        if bad.probabilities is not None and len(bad.probabilities) == 2:
            body = bodies.stream(bodies.table(some))  # other columns have rows of one size
            media = formats.ARROW
        else:
            body = write(some)
        assert_same(by(media, body, skip=True), expected)
        with pytest.raises(InvalidInput) as raised:
            by(media, body)
        places = [flaw.pointer or "" for flaw in raised.value.flaws]
        assert any(f"/{place}" in pointer for pointer in places)


# What is wrong with all of a body.


def table_of(**columns: Any) -> bytes:
    return bodies.stream(pa.table(columns))


WRONG_SCHEMAS = [
    (table_of(predicted=["legit"], score=[0.5]), "#/score"),
    (table_of(id=["a"]), "#"),
    (table_of(predicted=[0.5]), "#/predicted"),
    (table_of(predicted=[True]), "#/predicted"),
    (table_of(probabilities=[["0.5"]]), "#/probabilities"),
    (table_of(probabilities=[0.5]), "#/probabilities"),
    (table_of(predicted=["legit"], timestamp=["2026-11-17T10:00:00Z"]), "#/timestamp"),
    (
        table_of(predicted=["legit"], timestamp=pa.array([NOW.replace(tzinfo=None)])),
        "#/timestamp",
    ),
    (table_of(predicted=["legit"], id=[1]), "#/id"),
]


@pytest.mark.parametrize(("body", "pointer"), WRONG_SCHEMAS, ids=[p for _, p in WRONG_SCHEMAS])
def test_a_wrong_column_is_named(body: bytes, pointer: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        by(formats.ARROW, body)

    assert [flaw.pointer for flaw in raised.value.flaws] == [pointer]


def test_a_column_that_is_there_twice_is_refused() -> None:
    twice = pa.table([pa.array(["legit"]), pa.array(["fraud"])], names=["predicted", "predicted"])

    with pytest.raises(InvalidInput, match="twice"):
        by(formats.ARROW, bodies.stream(twice))


@pytest.mark.parametrize("media", [formats.NDJSON, formats.ARROW])
def test_nothing_is_nothing(media: str) -> None:
    empty = b"" if media == formats.NDJSON else bodies.stream(bodies.table([]))

    found = by(media, empty)

    assert (found.accepted, found.version, dict(found.panes)) == (0, VERSION, {})


LINES = [
    (b'{"predicted": "legit"}\n{"predicted": tru\n', Malformed, "line 2"),
    (b'{"predicted": "legit"}\n\n{"predicted": 0.5}\n', InvalidInput, "Expected"),
    (b'{"predicted": "legit", "label": 1}', InvalidInput, "label"),
    (b'{"probabilities": [NaN, 1, 0]}', Malformed, "line 1"),
    (b'{"predicted": "leg\xffit"}', Malformed, "line 1"),
    (b"\xff\xfe", Malformed, "line 1"),
    (b'["legit"]', InvalidInput, "Expected"),
]


@pytest.mark.parametrize(
    ("body", "error", "said"), LINES, ids=[b.decode("latin1") for b, *_ in LINES]
)
def test_a_bad_line_is_named(body: bytes, error: type[AppError], said: str) -> None:
    with pytest.raises(error, match=said):
        by(formats.NDJSON, body)


def test_a_line_of_the_second_block_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ndjson_format, "BLOCK_BYTES", 60)
    lines = [b'{"predicted": "legit"}'] * 9
    lines[7] = b'{"predicted": "nobody"}'

    with pytest.raises(InvalidInput) as raised:
        by(formats.NDJSON, b"\n".join(lines))

    assert [flaw.pointer for flaw in raised.value.flaws] == ["#/7/predicted"]


# Bombs.


class Counting(io.BytesIO):
    """How much of it was read."""

    seen = 0

    def read(self, size: int | None = -1) -> bytes:
        found = super().read(size)
        self.seen += len(found)
        return found


def test_a_giant_line_is_refused_before_it_is_read() -> None:
    source = Counting(b'{"predicted": "' + b"x" * 50_000_000)

    with pytest.raises(Malformed, match="longer"):
        list(ndjson_format.parts(source, LABELS, skip=False, most_rows=1))

    assert source.seen <= 3 * ndjson_format.BLOCK_BYTES


@pytest.mark.parametrize("skip", [False, True])
def test_a_deeply_nested_line_is_refused(skip: bool) -> None:
    for body in (b"[" * 500_000, b'{"predicted": ' + b"[" * 500_000 + b"]" * 500_000 + b"}"):
        with pytest.raises(AppError):
            by(formats.NDJSON, body, skip=skip)


def packed(content: bytes, encoding: str) -> bytes:
    return gzip.compress(content) if encoding == "gzip" else encodings.zstd.compress(content)


ENCODINGS = ["gzip", "zstd"]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_packed_bomb_is_not_unpacked(encoding: str) -> None:
    bomb = packed(b"\n" * 30_000_000, encoding)
    source = encodings.reader(encoding, io.BytesIO(bomb), limit=1_000_000)

    with pytest.raises(TooLarge) as raised:
        list(ndjson_format.parts(source, LABELS, skip=False, most_rows=1))

    assert raised.value.limit == 1_000_000
    with pytest.raises(TooLarge):
        encodings.decoded(encoding, bomb, 1_000_000)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_is_packed_comes_out_whole_or_not_at_all(encoding: str) -> None:
    whole = bytes(range(256)) * 1000
    body = packed(whole, encoding)

    assert encodings.decoded(encoding, body, len(whole)) == whole
    assert encodings.decoded(encoding, body + body, 2 * len(whole)) == whole + whole
    for broken in (body[:-1], body[: len(body) // 2], b"\0" + body, body + b"garbage"):
        with pytest.raises(Malformed, match=encoding):
            encodings.decoded(encoding, broken, 10 * len(whole))


def test_a_zstd_window_that_takes_much_memory_is_refused() -> None:
    compressor = encodings.zstd.ZstdCompressor(
        options={encodings.zstd.CompressionParameter.window_log: 27}
    )
    body = compressor.compress(b"x" * 100_000) + compressor.flush()

    with pytest.raises(Malformed, match="memory"):
        encodings.decoded("zstd", body, 1_000_000)


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
@pytest.mark.parametrize("kind", [pa.string(), pa.dictionary(pa.int8(), pa.string())])
def test_buffers_that_are_packed_inside_a_stream_are_refused(compression: str, kind: Any) -> None:
    whole = bodies.table([Prediction("legit")] * 5000, labels=kind)

    with pytest.raises(Malformed, match="compress the body instead"):
        by(formats.ARROW, bodies.stream(whole, compression=compression))


def test_too_many_records_are_refused_by_what_a_file_says_of_itself() -> None:
    many = pa.table({"predicted": pa.array(np.zeros(MOST_ROWS + 1, dtype=np.int8))})
    source = Counting(bodies.parquet(many))

    with pytest.raises(TooLarge, match="records"):
        list(formats.IN_PARTS[formats.PARQUET](source, LABELS, skip=False, most_rows=MOST_ROWS))
    with pytest.raises(TooLarge, match="records"):
        by(formats.ARROW, bodies.stream(many))
    with pytest.raises(TooLarge, match="records"):
        by(formats.NDJSON, b'{"predicted":0}\n' * (MOST_ROWS + 1))


class OnDisk(io.BytesIO):
    """Not recognised as being in memory."""


def test_a_huge_message_of_a_stream_on_disk_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = bodies.stream(bodies.table([Prediction("legit")] * 1000))
    monkeypatch.setattr(arrow_format, "_opened", lambda body: _as_file(body))

    assert sum(part.size for part in parts_of(formats.ARROW, body)) == 1000
    monkeypatch.setattr(arrow_format, "MESSAGE_BYTES", 1000)
    with pytest.raises(TooLarge, match="record batch"):
        by(formats.ARROW, body)


def _as_file(body: IO[bytes]) -> Any:
    return pa.PythonFile(arrow_format._Messages(body), mode="r")


SOUND = {
    media: write([Prediction(LABELS[i % 3], (0.2, 0.3, 0.5), NOW, str(i)) for i in range(40)])
    for media, write in (WAYS["Arrow, dictionary"], WAYS["Parquet"], WAYS["NDJSON"])
}


@pytest.mark.parametrize("media", SOUND)
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_a_corrupt_body_is_refused_or_read_but_breaks_nothing(
    media: str, data: st.DataObject
) -> None:
    body = bytearray(SOUND[media])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(body) - 1))
        body[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))

    for broken in (bytes(body), bytes(body[:cut])):
        try:
            found = by(media, broken, skip=True)
        except AppError:
            continue
        assert 0 <= found.accepted <= MOST_ROWS


def test_text_that_is_none_is_refused() -> None:
    broken = pa.StringArray.from_buffers(
        1, pa.py_buffer(np.array([0, 2], np.int32).tobytes()), pa.py_buffer(b"\xff\xfe")
    )
    for body, media in (
        (bodies.stream(pa.table({"predicted": broken})), formats.ARROW),
        (bodies.parquet(pa.table({"predicted": broken})), formats.PARQUET),
    ):
        with pytest.raises(AppError):
            by(media, body)


def test_offsets_that_lead_astray_are_not_followed() -> None:
    astray = pa.ListArray.from_arrays(pa.array([0, 3]), pa.array([0.2, 0.3, 0.5]))
    body = bytearray(bodies.stream(pa.table({"probabilities": astray})))
    offsets = np.array([0, 3], np.int32).tobytes()
    place = body.find(offsets)
    body[place : place + 8] = np.array([0, 2**30], np.int32).tobytes()

    with pytest.raises(Malformed, match="Arrow"):
        by(formats.ARROW, bytes(body))


def test_a_message_that_ends_too_soon_has_no_fields() -> None:
    for body in (b"", b"\x10\0\0\0", b"\x04\0\0\0" + b"\xff" * 8):
        with pytest.raises(Malformed):
            flatbuffer.is_compressed(body)


def test_parquet_from_elsewhere_can_be_read_piece_by_piece() -> None:
    """A file whose rows came from a stream that can only be read onwards."""
    some = [Prediction(probabilities=(0.2, 0.3, 0.5))] * 100
    body = gzip.compress(WAYS["Parquet"][1](some))
    source = encodings.reader("gzip", io.BytesIO(body), 10_000_000)
    parts = formats.IN_PARTS[formats.PARQUET](source, LABELS, skip=False, most_rows=100)

    assert fold(parts, WATCHED, None, NOW, skip=False).accepted == 100
