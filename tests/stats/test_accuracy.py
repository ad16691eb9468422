"""Accuracy, recall and precision on a window without labels."""

import numpy as np
import pytest

from app.stats import accuracy, bbse, moments
from app.stats import reference as references
from app.stats.bbse import Prepared
from app.stats.diagnosis import diagnose
from app.stats.moments import Counts, Sums

TWO = np.array([[900, 200], [100, 800]])
WINDOW = Sums(np.array([270, 730]))  # q = (.1, .9)


def prepared(counts: Counts) -> Prepared:
    reference = references.from_confusion(counts)
    return bbse.prepare(reference, diagnose(reference))


def test_accuracy_of_two_labels_worked_by_hand() -> None:
    on = prepared(TWO)

    found = accuracy.accuracy(on, bbse.estimate(on, WINDOW), WINDOW)

    # h = A^-T (.9, .8) = (6.4, 5.4) / 7, the prediction's worth in accuracy.
    h = np.array([6.4, 5.4]) / 7
    window = (h**2 @ [0.27, 0.73] - 0.81**2) / 1000
    # 1(correct) - h of label 0: 1 - h_0 or -h_1, apart by (7 - 1) / 7; with half a record added
    # to each of two cells the shares are 900.5 and 100.5 of 1001.
    of_0 = (1 - h[0] + h[1]) ** 2 * 900.5 * 100.5 / 1001**2
    of_1 = (1 - h[1] + h[0]) ** 2 * 800.5 * 200.5 / 1001**2
    half = 1.959964 * np.sqrt(window + 0.01 * of_0 / 1000 + 0.81 * of_1 / 1000)
    assert found.estimate == pytest.approx(0.81)
    assert found.lower == pytest.approx(0.81 - half, abs=1e-7)
    assert found.upper == pytest.approx(0.81 + half, abs=1e-7)
    assert found.reference == 0.85


def test_the_references_own_window_has_the_references_accuracy() -> None:
    counts = np.array([[80, 10, 10], [10, 70, 10], [10, 20, 80]])
    on = prepared(counts)
    window = Sums(counts.sum(axis=1))

    found = accuracy.accuracy(on, bbse.estimate(on, window), window)

    assert found.estimate == pytest.approx(found.reference)


def test_merged_labels_count_their_groups_recall() -> None:
    counts = np.array([[90, 10, 10], [5, 45, 45], [5, 45, 45]])
    on = prepared(counts)
    window = Sums(counts.sum(axis=1))

    found = accuracy.accuracy(on, bbse.estimate(on, window), window)

    assert on.columns == ((0,), (1, 2))
    assert found.estimate == pytest.approx(180 / 300)


def test_precision_of_two_labels_worked_by_hand() -> None:
    on = prepared(TWO * 10**6)

    found = accuracy.precision(on, bbse.estimate(on, WINDOW), WINDOW)

    # p(true 0 | predicted 0) = .9 * .1 / .27; with A known its only error is the window's:
    # H = .9 (8, -2) / 7 and theta = 1/3, so Var(H.g - theta 1(predicted 0)) over .27^2, smoothed.
    values = np.array([7.2 / 7 - 1 / 3, -1.8 / 7])
    variance = (values**2 @ [0.27, 0.73]) / 1000 + 0.25 * 0.81 * 68 / 49 / 1000**2
    half = 1.959964 * np.sqrt(variance) / 0.27
    assert found.estimate == pytest.approx([1 / 3, 0.8 * 0.9 / 0.73])
    assert found.upper[0] - 1 / 3 == pytest.approx(half, rel=1e-4)


def test_precision_is_undefined_for_labels_not_predicted_or_absent() -> None:
    on = prepared(np.array([[90, 10, 0], [10, 90, 0], [0, 0, 0]]))
    window = Sums(np.array([50, 0, 0]))

    found = accuracy.precision(on, bbse.estimate(on, window), window)

    assert np.isnan(found.estimate).tolist() == [False, True, True]


def test_recall_is_that_of_the_reference_and_undefined_without_records() -> None:
    found = accuracy.recall(prepared(np.array([[90, 10, 0], [10, 90, 0], [0, 0, 0]])))

    assert found.estimate[:2].tolist() == [0.9, 0.9]
    # Wilson's interval for 90 of 100.
    assert found.lower[0] == pytest.approx(0.8256, abs=1e-4)
    assert found.upper[0] == pytest.approx(0.9448, abs=1e-4)
    assert np.isnan(found.estimate[2])


def test_one_hot_softmax_gives_the_same_accuracy_and_precision() -> None:
    rng = np.random.default_rng(8)
    actual = rng.integers(3, size=3000)
    guess = np.where(rng.random(3000) < 0.8, actual, rng.integers(3, size=3000))
    seen = rng.choice(3, size=500, p=[0.6, 0.3, 0.1])
    hard = references.from_sample(3, guess, actual)
    soft = references.from_sample(3, guess, actual, np.eye(3)[guess])

    answers = []
    for reference, window in (
        (hard, moments.sums(3, seen)),
        (soft, moments.sums(3, seen, np.eye(3)[seen])),
    ):
        on = bbse.prepare(reference, diagnose(reference))
        found = bbse.estimate(on, window)
        answers.append(
            (accuracy.accuracy(on, found, window), accuracy.precision(on, found, window))
        )

    (of_hard, hard_rates), (of_soft, soft_rates) = answers
    assert of_soft.estimate == pytest.approx(of_hard.estimate, abs=1e-10)
    # Only the pseudo-counts of the hard variance are left between them.
    assert of_soft.lower == pytest.approx(of_hard.lower, abs=1e-4)
    assert soft_rates.lower == pytest.approx(hard_rates.lower, abs=1e-10)
