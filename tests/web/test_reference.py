"""A confusion matrix in colours, and what a reference can show in words."""

from dataclasses import replace

import numpy as np

from app.stats import diagnosis
from app.stats.diagnosis import Before
from app.stats.reference import from_confusion
from app.web import reference as web
from app.web.reference import Growth

LABELS = ("cat", "lynx", "dog")
CLEAR = np.array([[9000, 30, 12], [60, 500, 9], [40, 20, 329]])
CONFUSED = 10 * np.array([[80, 76, 5], [75, 79, 5], [5, 5, 90]])


def test_cells_are_shaded_by_the_share_of_their_true_label() -> None:
    found = web.heat_map(LABELS, CLEAR)

    predicted, cells = found.rows[1]
    assert predicted == "lynx"
    assert [cell.n for cell in cells] == [60, 500, 9]
    assert [cell.share for cell in cells] == [60 / 9100, 500 / 550, 9 / 350]
    assert [cell.heat for cell in cells] == [1, 7, 2]
    assert [cell.correct for cell in cells] == [False, True, False]


def test_a_label_without_records_has_no_share() -> None:
    found = web.heat_map(("a", "b"), np.array([[5, 0], [1, 0]]))

    assert [cells[1].share for _, cells in found.rows] == [None, None]
    assert {cells[1].heat for _, cells in found.rows} == {0}


def test_of_many_labels_all_but_the_commonest_are_taken_together() -> None:
    k = web.MOST_LABELS + 6
    counts = np.diag(np.arange(1, k + 1)) + np.ones((k, k), dtype=np.int64)

    found = web.heat_map([f"label-{i}" for i in range(k)], counts)

    assert found.others == 6
    assert found.labels[0] == f"label-{k - 1}"
    assert found.labels[-1] == found.rows[-1][0] == "6 others"
    assert sum(cell.n for _, cells in found.rows for cell in cells) == counts.sum()


def test_a_good_reference_is_said_to_be_one() -> None:
    found = diagnosis.diagnose(from_confusion(CLEAR))

    assert web.verdict(found) == "The reference tells all of its labels apart."
    assert web.separation(found).startswith("sigma_min is 0.0")
    assert web.separation(found).endswith("times its own sampling error.")
    assert web.look_alikes(LABELS, found) == []
    assert web.renewed(LABELS, found) is None
    assert web.little_support(LABELS, found) == []


def test_doubts_are_sentences() -> None:
    assert web.doubts([]) == web.doubts(["ok"]) == []
    assert "exchanged" in web.doubts(["transposed_suspected"])[0]


def test_a_bad_reference_is_said_to_be_one() -> None:
    found = diagnosis.diagnose(from_confusion(CONFUSED))

    assert web.verdict(found).startswith("The reference tells most labels apart")
    (said,) = web.look_alikes(LABELS, found)
    assert "look alike to this classifier" in said
    assert web.separation(found).startswith("sigma_min is")


def test_few_records_are_told_from_a_classifier_that_confuses() -> None:
    found = diagnosis.diagnose(from_confusion(np.array([[900, 2, 2], [5, 6, 3], [5, 3, 6]])))

    said = web.look_alikes(LABELS, found)

    assert any("so few labelled records of" in sentence for sentence in said)
    assert not any("look alike" in sentence for sentence in said)


def test_a_singular_matrix_is_said_to_be_one() -> None:
    found = diagnosis.diagnose(from_confusion(np.array([[18, 2, 2], [1, 9, 9], [1, 9, 9]])))

    assert found.hard.sigma_min == 0.0
    assert found.hard.condition_number == np.inf
    assert web.separation(found).startswith("sigma_min is 0:")


def test_every_outcome_of_a_diagnosis_has_its_words() -> None:
    nothing = diagnosis.diagnose(from_confusion(np.array([[50, 50], [50, 50]])))

    assert nothing.status[0] == "not_identified"
    assert "no mix can be estimated" in web.verdict(nothing)


def test_what_an_earlier_release_had_merged_is_said() -> None:
    found = diagnosis.diagnose(from_confusion(CLEAR))

    merged = replace(found, before=Before(("merged",), ((0, 2),)))
    sharper = replace(found, before=Before(("ok",), ()))

    assert f"had merged {LABELS[0]}, {LABELS[2]};" in str(web.renewed(LABELS, merged))
    assert "estimates are sharper" in str(web.renewed(LABELS, sharper))


def test_labels_with_few_records_are_named() -> None:
    counts = np.diag([900, 20, 3])

    said = web.little_support(LABELS, diagnosis.diagnose(from_confusion(counts)))

    assert [sentence.rpartition(": ")[2] for sentence in said] == ["dog.", "lynx."]


def test_equal_changes_are_told_once() -> None:
    changes = [Growth("a", 0.0151), Growth("b", 0.0149), Growth("c", None)]

    assert web.plan(1000, changes).endswith("shows changes of 1.5 points or more.")


def test_a_reference_that_shows_nothing_promises_nothing() -> None:
    assert web.plan(1000, [Growth("a", None)]).endswith("no change of any label, however large.")


def test_each_label_has_what_is_known_of_it() -> None:
    found = diagnosis.diagnose(from_confusion(CLEAR))

    rows = web.label_rows(LABELS, found, [Growth("lynx", 0.02)])

    assert [row.label for row in rows] == list(LABELS)
    assert (rows[1].support, rows[1].growth, rows[1].recall) == (550, 0.02, 500 / 550)
    assert [row.label for row in web.label_rows(LABELS, found, [], most=2)] == ["cat", "lynx"]
