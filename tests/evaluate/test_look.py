"""What a look compares with a reference, where panes are of several kinds."""

from collections.abc import Mapping

import numpy as np

from app.evaluate import look
from app.stats import adaptive, analysis, moments
from app.stats import reference as statistics
from app.stats.moments import Sums
from app.storage.panes import Kind
from tests import fashion


def basis() -> analysis.Basis:
    sample = fashion.outputs("good", "validation")
    rows, actual = sample.rows[:1000], sample.labels[:1000]
    return analysis.basis(statistics.from_sample(10, moments.argmax(rows), actual, rows))


def soft_panes() -> list[Sums]:
    rows = fashion.outputs("good", "test").rows
    parts = [rows[i : i + 200] for i in range(0, 800, 200)]
    return [moments.sums(10, moments.argmax(part), part) for part in parts]


def test_a_pane_without_softmax_rows_does_not_hide_that_codes_are_missing() -> None:
    on = basis()
    newest: Mapping[Kind, Sums] = {"hard": Sums(np.eye(10, dtype=np.int64)[0])}
    older: list[Mapping[Kind, Sums]] = [
        {"soft": moments.without_codes(part)} for part in soft_panes()
    ]

    parts = look.alike([newest, *older], 10, on)

    solver = on.for_window(moments.total(parts))
    assert solver is on.hard
    assert solver.operator is not None
    assert adaptive.choose(solver.operator, parts) is not None


def test_one_pane_without_codes_takes_them_from_all() -> None:
    first, *others = soft_panes()
    found: list[Mapping[Kind, Sums]] = [{"soft": part} for part in others]

    parts = look.alike([{"soft": moments.without_codes(first)}, *found], 10, basis())

    assert not any(part.soft is None or len(part.soft.codes) for part in parts)


def test_with_all_codes_there_softmax_is_what_counts() -> None:
    on = basis()

    parts = look.alike([{"soft": part} for part in soft_panes()], 10, on)

    assert on.for_window(moments.total(parts)) is on.soft
