"""Which labels are shown of a model, and where its links lead."""

from datetime import UTC, datetime

from app.domain.evaluation import Identified, LabelColumns, LabelRates
from app.web import model as web
from app.web.model import Asked, LabelRow

LABELS = ("a", "b", "c", "d")
COLUMNS = LabelColumns(
    p=(0.7, 0.1, 0.2, 0.0),
    predicted=(0.6, 0.2, 0.2, 0.0),
    q=(0.5, 0.3, 0.2, None),
    q_lower=(0.45, 0.25, 0.1, None),
    q_upper=(0.55, 0.35, 0.3, None),
    w=(0.7, 3.0, 1.0, None),
    w_lower=(0.6, 2.5, 0.5, None),
    w_upper=(0.8, 3.5, 1.5, None),
)


def rows() -> dict[str, LabelRow]:
    return {row.label: row for row in web.label_rows(LABELS, COLUMNS, web.ranked(COLUMNS))}


def test_labels_that_moved_most_come_first_and_unknown_ones_last() -> None:
    assert [LABELS[label] for label in web.ranked(COLUMNS)] == ["b", "a", "c", "d"]


def test_without_an_estimate_the_commonest_come_first() -> None:
    assert web.ranked(LabelColumns(p=(0.1, 0.6, 0.3))) == [1, 2, 0]


def test_a_label_has_its_rates_and_is_marked_where_it_moved_or_is_hardly_known() -> None:
    unknown = (None,) * 4
    rates = LabelRates(
        recall=(0.9, 0.8, 0.7, None),
        recall_lower=unknown,
        recall_upper=unknown,
        precision=(0.95, 0.6, 0.5, None),
        precision_lower=unknown,
        precision_upper=unknown,
        moved=(True, True, False, False),
    )

    found = web.label_rows(LABELS, COLUMNS, [0, 1, 2, 3], rates, Identified((2,), (1,)))

    assert [row.moved for row in found] == [True, True, False, False]
    assert [row.identified for row in found] == ["well", "weakly", "not", "well"]
    assert [(row.recall, row.precision) for row in found[:2]] == [(0.9, 0.95), (0.8, 0.6)]
    assert [row.moved for row in rows().values()] == [False] * 4


def test_shares_are_drawn_on_one_scale() -> None:
    shown = rows()["a"].glyph

    assert shown is not None
    assert (shown.p, shown.q) == (146.0, round(4 + 142 * 0.5 / 0.7, 1))


def test_what_is_not_known_is_not_drawn() -> None:
    assert rows()["d"].glyph is None


def test_next_to_nothing_is_shown_as_nothing() -> None:
    columns = LabelColumns(p=(1.0, 0.0), q=(1.0, 4e-15))

    assert web.label_rows(("a", "b"), columns, [1])[0].q == 0.0


def test_a_link_keeps_what_was_chosen() -> None:
    start = datetime(2026, 11, 17, 10, tzinfo=UTC)
    asked = Asked("fraud", version="v 2", start=start, labels=("a", "b"))

    assert asked.path(window="1h") == (
        "/models/fraud?window=1h&version=v+2&from=2026-11-17T10%3A00%3A00Z&labels=a&labels=b"
    )
    assert asked.series(start=None, labels=()) == "/models/fraud/series?version=v+2"
