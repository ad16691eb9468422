"""Knowing the labels makes parsing quicker, and makes no other difference."""

import io
import json
from collections import Counter
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.model import MAX_LABELS
from app.errors import InvalidInput
from app.ingest import formats, json_format
from app.ingest.columns import Coded, Columns
from app.ingest.reduce import Reduced, Watched, reduce
from app.stats import moments
from tests.factories import NOW, model

# Among them what means something to Python's enumerations, or is a letter itself.
LABELS = ("mro", "_value_", "name", "\x01", "\x00", "ü", "🙂", '"', "\\", " ", "a" * 200)
names = st.sampled_from(LABELS)


def counted(body: dict[str, Any], labels: tuple[str, ...], *, known: bool) -> Reduced:
    content = json.dumps(body).encode()
    watched = Watched.of(model(labels=labels))
    own = watched.model.labels if known else ()
    return reduce(json_format.parse(content, own, skip=False), watched, NOW)


def counts(reduced: Reduced) -> list[list[int]]:
    return [sums.counts.tolist() for sums in reduced.panes.values()]


@given(st.lists(names | st.integers(0, len(LABELS) - 1), max_size=30) | st.lists(names))
def test_the_counts_are_the_same_whether_or_not_the_labels_are_known(predicted: list[Any]) -> None:
    known = counted({"predicted": predicted}, LABELS, known=True)

    assert counts(known) == counts(counted({"predicted": predicted}, LABELS, known=False))
    assert known.accepted == len(predicted)


@given(st.lists(st.tuples(names, st.integers(0, 10_000)), min_size=1, max_size=30))
def test_so_are_those_of_predictions_that_have_their_times(some: list[tuple[str, int]]) -> None:
    body = {
        "predicted": [label for label, _ in some],
        "timestamps": [(NOW - timedelta(seconds=ago)).isoformat() for _, ago in some],
    }

    known, unknown = (counted(body, LABELS, known=known) for known in (True, False))

    assert known.panes.keys() == unknown.panes.keys()
    assert counts(known) == counts(unknown)


# Each with a label, a row of probabilities, or both.
some_rows = st.lists(
    st.fixed_dictionaries({"predicted": names | st.integers(0, len(LABELS) - 1)})
    | st.fixed_dictionaries(
        {"probabilities": st.permutations([1.0, *[0.0] * (len(LABELS) - 1)])},
        optional={"predicted": names},
    ),
    max_size=20,
)


def label_of(row: dict[str, Any]) -> int:
    """The position of its label: the one it names, or the one it is sure of."""
    named = row.get("predicted")
    if named is None:
        place: int = row["probabilities"].index(1.0)
        return place
    return named if isinstance(named, int) else LABELS.index(named)


def recount(reduced: Reduced) -> Counter[int]:
    found: Counter[int] = Counter()
    for sums in reduced.panes.values():
        found.update({i: count for i, count in enumerate(sums.counts.tolist()) if count})
    return found


@given(some_rows)
def test_and_those_of_rows(rows: list[dict[str, Any]]) -> None:
    known, unknown = (counted({"rows": rows}, LABELS, known=known) for known in (True, False))

    assert known.panes.keys() == unknown.panes.keys()
    assert all(moments.same(sums, unknown.panes[key]) for key, sums in known.panes.items())
    assert recount(known) == Counter(map(label_of, rows))


def test_as_many_labels_as_a_model_may_have_are_told_apart() -> None:
    labels = tuple(f"label-{i}" for i in range(MAX_LABELS))
    body = {"predicted": [label for i, label in enumerate(labels) for _ in range(i % 3)]}

    (found,) = counts(counted(body, labels, known=True))

    assert found == [i % 3 for i in range(MAX_LABELS)]


def test_names_that_are_known_do_not_become_strings() -> None:
    columns = json_format.parse(b'{"predicted": ["b", "a", "b"]}', ("a", "b"), skip=False)

    assert isinstance(columns.predicted, Coded)
    np.testing.assert_array_equal(columns.predicted.codes, [1, 0, 1])
    assert [columns.predicted[place] for place in range(3)] == ["b", "a", "b"]


def rows_of_labels(media: str) -> Columns:
    lines = [b'{"predicted": "b"}', b'{"predicted": "a"}', b'{"predicted": "b"}']
    if media == formats.JSON:
        return json_format.parse(b'{"rows": [%s]}' % b",".join(lines), ("a", "b"), skip=False)
    source = io.BytesIO(b"\n".join([*lines, b""]))
    (columns,) = formats.IN_PARTS[media](source, ("a", "b"), skip=False, most_rows=3)
    return columns


@pytest.mark.parametrize("media", [formats.JSON, formats.NDJSON])
def test_rows_of_labels_alone_become_a_column_of_labels_alone(media: str) -> None:
    columns = rows_of_labels(media)

    assert isinstance(columns.predicted, Coded)
    np.testing.assert_array_equal(columns.predicted.codes, [1, 0, 1])
    assert (columns.rows, columns.times, columns.ids) == (None, None, None)


def test_positions_and_names_in_one_batch_are_told_apart() -> None:
    labels = ("a", "b", "c")

    for predicted in ([0, "b", 2, "b"], ["b", 0, "b", 2], [2, 0, 1, 1]):
        (found,) = counts(counted({"predicted": predicted}, labels, known=True))

        assert found == [1, 2, 1]


@pytest.mark.parametrize("predicted", [["legit", "nobody"], ["legit", 3], ["legit", None]])
def test_a_label_that_nobody_knows_is_named_either_way(predicted: list[Any]) -> None:
    for known in (True, False):
        with pytest.raises(InvalidInput) as raised:
            counted({"predicted": predicted}, ("legit", "fraud", "abuse"), known=known)

        (flaw,) = raised.value.flaws
        assert flaw.pointer == "#/predicted/1"
