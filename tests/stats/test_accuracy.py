"""Accuracy, recall and precision on a window without labels."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.stats import accuracy, estimator, intervals
from app.stats.accuracy import Accuracy, Rates
from app.stats.estimator import Estimate, Operator
from app.stats.moments import Counts, Floats
from tests.stats import golden
from tests.stats.golden import CASES, NEAR, Case, hard

Z = 1.959963984540054
# q = (.1, .9) of 1000 predictions.
TWO = np.array([[900, 200], [100, 800]])
WINDOW = np.array([270.0, 730.0])


def accuracy_of(on: Operator, counts: Floats, *, reference: float = 0.0) -> Accuracy:
    found = estimator.estimate(on, counts)
    return accuracy.accuracy(intervals.design(on, found), found, reference)


def precision_of(on: Operator, counts: Floats) -> Rates:
    found = estimator.estimate(on, counts)
    at = intervals.design(on, found)
    return accuracy.precision(at, found, intervals.shares(at, found))


def plain(counts: Counts) -> tuple[Operator, Estimate]:
    """Two labels without strays, and an estimate of exactly (.1, .9)."""
    on = replace(hard(counts), stray=np.zeros(2))
    return on, replace(estimator.estimate(on, WINDOW), q=np.array([0.1, 0.9]))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.accuracy])
def test_known_windows_have_the_known_accuracy(name: str) -> None:
    case: Case = CASES[name]

    found = accuracy_of(case.on, case.counts)

    assert (found.estimate, found.lower, found.upper) == pytest.approx(case.accuracy, abs=NEAR)


def test_accuracy_of_two_labels_worked_by_hand() -> None:
    on, estimate = plain(TWO)

    found = accuracy.accuracy(intervals.planned(on, estimate.q, 1000.0), estimate, 0.85)

    # h = A^-T (.9, .8) = (6.4, 5.4) / 7, the prediction's worth in accuracy.
    h = np.array([6.4, 5.4]) / 7
    window = (h**2 @ [0.27, 0.73] - 0.81**2) / 1000
    # h - 1(correct) of label 0 is h_0 - 1 or h_1, of label 1 h_0 or h_1 - 1.
    of_0 = (1 - h[0] + h[1]) ** 2 * 0.09
    of_1 = (1 - h[1] + h[0]) ** 2 * 0.16
    half = Z * np.sqrt(window + 0.01 * of_0 / 1000 + 0.81 * of_1 / 1000)
    assert found.estimate == pytest.approx(0.81)
    assert found.lower == pytest.approx(0.81 - half)
    assert found.upper == pytest.approx(0.81 + half)
    assert found.reference == 0.85


def test_the_references_own_window_has_the_references_accuracy() -> None:
    counts = np.array([[80, 10, 10], [10, 70, 10], [10, 20, 80]])

    found = accuracy_of(hard(counts), counts.sum(axis=1) * 1.0, reference=230 / 300)

    assert found.estimate == pytest.approx(found.reference)


def test_accuracy_may_be_known_where_labels_are_not() -> None:
    # Labels 1 and 2 look alike and are hit as often, so it does not matter which is which.
    case = CASES["two labels alike"]
    found = estimator.estimate(case.on, case.counts)
    at = intervals.design(case.on, found)

    of_labels = intervals.shares(at, found)
    known = accuracy.accuracy(at, found, 0.0)

    assert of_labels.vacuous.tolist() == [False, True, True]
    assert known.upper - known.lower < 0.12


def test_a_label_never_predicted_leaves_accuracy_as_open_as_its_share() -> None:
    case = CASES["a label never predicted"]

    found = accuracy_of(case.on, case.counts)

    # With label 2 in the place of label 1, of which .8 are hit, all of that is wrong.
    assert found.upper - found.lower > 0.7


def test_no_classifier_is_more_than_perfect() -> None:
    found = accuracy_of(hard(np.diag([500, 300, 200])), np.array([10.0, 20.0, 970.0]))

    assert found.estimate == pytest.approx(1.0)
    assert found.upper == 1.0
    # Strays are reckoned with.
    assert 0.99 < found.lower < 1.0


def test_a_higher_level_has_a_wider_interval() -> None:
    on, estimate = plain(TWO)
    at = intervals.planned(on, estimate.q, 1000.0)

    half, most = (accuracy.accuracy(at, estimate, 0.0, level=level) for level in (0.5, 0.99))

    assert most.lower < half.lower < half.estimate < half.upper < most.upper


@given(seed=st.integers(0, 2**32 - 1), k=st.integers(2, 6), m=st.integers(1, 5000))
@example(seed=1684, k=4, m=456)
@settings(deadline=None, max_examples=60)
def test_rates_are_rates_and_lie_in_their_intervals(seed: int, k: int, m: int) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 9, size=(k, k)) * rng.integers(0, 2, size=(k, k))
    counts[0] += 5
    on = hard(counts)
    window = rng.multinomial(m, rng.dirichlet(np.full(len(on.A), 0.3))).astype(np.float64)

    whole, by_label = accuracy_of(on, window), precision_of(on, window)

    assert 0.0 <= whole.lower <= whole.estimate <= whole.upper <= 1.0
    known = ~np.isnan(by_label.estimate)
    lower, found, upper = (
        part[known] for part in (by_label.lower, by_label.estimate, by_label.upper)
    )
    assert ((lower >= 0.0) & (lower <= found) & (found <= upper) & (upper <= 1.0)).all()


@given(st.permutations(range(3)))
@settings(deadline=None, max_examples=6)
def test_the_order_of_labels_does_not_matter(order: list[int]) -> None:
    case = CASES["three labels"]
    permuted = hard(golden.THREE[np.ix_(order, order)])

    here, there = accuracy_of(case.on, case.counts), accuracy_of(permuted, case.counts[order])
    rates, other = precision_of(case.on, case.counts), precision_of(permuted, case.counts[order])

    assert there.lower == pytest.approx(here.lower, abs=1e-6)
    assert other.estimate == pytest.approx(rates.estimate[order], abs=1e-5)
    assert other.upper == pytest.approx(rates.upper[order], abs=1e-5)


def test_precision_of_two_labels_worked_by_hand() -> None:
    on, estimate = plain(TWO * 10**6)
    at = intervals.planned(on, estimate.q, 1000.0)

    found = accuracy.precision(at, estimate, intervals.shares(at, estimate))

    # p(true 0 | predicted 0) = .9 * .1 / .27; with A known its only error is the window's:
    # .9 K_0 = .9 (8, -2) / 7 and theta = 1/3, so it is that of .9 K_0.mu - theta mu_0, over .27.
    values = np.array([7.2 / 7 - 1 / 3, -1.8 / 7])
    half = Z * np.sqrt(values**2 @ [0.27, 0.73] / 1000) / 0.27
    assert found.estimate == pytest.approx([1 / 3, 0.8 * 0.9 / 0.73])
    assert found.upper[0] - 1 / 3 == pytest.approx(half, rel=1e-5)
    assert 1 / 3 - found.lower[0] == pytest.approx(half, rel=1e-5)


def test_the_references_part_of_the_error_of_precision_worked_by_hand() -> None:
    on, estimate = plain(TWO)
    at = intervals.planned(on, estimate.q, 1e12)

    found = accuracy.precision(at, estimate, intervals.shares(at, estimate))

    # With an endless window theta_0 = R_0 q_0 / .27 with q_0 = (mu_0 - A_01) / (A_00 - A_01): by
    # label 0's records d theta = dA_00 (q_0 - R_0 q_0 / .7) / .27, of variance .09 / 1000; by label
    # 1's dA_01 R_0 (-1 + q_0) / .7 / .27, of variance .16 / 1000.
    own = (0.1 - 0.9 * 0.1 / 0.7) ** 2 * 0.09 / 1000
    other = (0.9 * 0.9 / 0.7) ** 2 * 0.16 / 1000
    half = Z * np.sqrt(own + other) / 0.27
    assert found.upper[0] - 1 / 3 == pytest.approx(half, rel=1e-4)


def test_precision_of_a_label_that_is_not_identified_reaches_as_far_as_its_share() -> None:
    case = CASES["two labels alike"]
    found = estimator.estimate(case.on, case.counts)
    at = intervals.design(case.on, found)

    of_label = accuracy.precision(at, found, intervals.shares(at, found))

    # Of label 1, .45 are predicted so, and so are .4 of the window: .45 q / .4 is anything.
    assert of_label.estimate[1] == pytest.approx(0.45 * found.q[1] / 0.4)
    assert (of_label.lower[1], of_label.upper[1]) == (0.0, 1.0)
    assert of_label.upper[0] - of_label.lower[0] < 0.5


def test_precision_of_a_label_not_predicted_in_the_window_is_undefined() -> None:
    found = precision_of(hard(golden.TWO), np.array([50.0, 0.0]))

    assert np.isnan(found.estimate).tolist() == [False, True]
    assert np.isnan(found.lower).tolist() == [False, True]


def test_precision_of_a_label_the_reference_never_predicted_is_undefined() -> None:
    case = CASES["a label never predicted"]

    found = precision_of(case.on, case.counts)

    assert np.isnan(found.estimate).tolist() == [False, False, True]


def test_predictions_of_a_label_that_is_absent_are_right_for_none() -> None:
    # Label 2 has no records but is predicted for a tenth of label 0's.
    on = hard(np.array([[80, 10, 0], [10, 90, 0], [10, 0, 0]]))

    assert on.recall == pytest.approx([0.8, 0.9])
    assert accuracy_of(on, np.array([40.0, 55.0, 5.0])).estimate < 0.91


def test_cells_of_a_label_count_together_for_its_recall() -> None:
    on = golden.six_cells()

    # The cells of argmax 0, 1 and 2 are two each.
    expected = [on.A[0:2, 0].sum(), on.A[2:4, 1].sum(), on.A[4:6, 2].sum()]
    assert on.recall == pytest.approx(expected)


def test_recall_has_wilsons_interval_and_is_undefined_without_records() -> None:
    found = accuracy.recall(np.array([100, 100, 0]), np.array([0.9, 1.0, np.nan]))

    # 90 of 100: (.9 + z^2 / 200 +- z sqrt(.0009 + z^2 / 40000)) / (1 + z^2 / 100).
    assert found.lower[0] == pytest.approx(0.8256, abs=1e-4)
    assert found.upper[0] == pytest.approx(0.9448, abs=1e-4)
    # 100 of 100: 1 / (1 + z^2 / 100).
    assert found.lower[1] == pytest.approx(1 / (1 + Z**2 / 100))
    assert found.upper[1] == 1.0
    assert np.isnan([found.estimate[2], found.lower[2], found.upper[2]]).all()
