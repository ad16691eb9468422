"""Corrected scores and class weights."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.stats import correction


def test_correction_is_bayes_rule_for_another_prior() -> None:
    # p(x | y) of .8 and .3 with priors (.5, .5) becomes priors (.2, .8).
    row = np.array([[0.8, 0.3]]) / 1.1

    found = correction.corrected(row, np.array([0.4, 1.6]))

    assert found[0] == pytest.approx(np.array([0.16, 0.24]) / 0.4)


def test_unknown_weights_leave_a_label_alone_and_impossible_rows_stay() -> None:
    rows = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])

    found = correction.corrected(rows, np.array([0.0, np.nan, 2.0]))

    assert found.tolist() == [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]


def test_class_weights_average_one_over_the_sample() -> None:
    support = np.array([60, 30, 10])

    found = correction.class_weights(np.array([0.5, 1.0, 4.0]), support)

    assert found.weights @ support == pytest.approx(100.0)
    assert found.n_effective == pytest.approx(100**2 / (60 * 0.25 + 30 + 10 * 16))
    assert not found.thin


def test_weights_on_few_records_are_thin_and_negative_ones_are_zero() -> None:
    found = correction.class_weights(np.array([-0.1, 40.0]), np.array([990, 10]))

    assert found.weights[0] == 0.0
    assert found.n_effective == pytest.approx(10.0)
    assert found.thin


def test_all_zero_weights_change_nothing() -> None:
    found = correction.class_weights(np.zeros(2), np.array([5, 5]))

    assert (found.weights.tolist(), found.n_effective) == ([1.0, 1.0], 10.0)


@pytest.mark.parametrize(
    ("p_value", "consistent", "alarm", "expected"),
    [
        (0.001, True, None, True),
        (0.02, True, None, False),
        (0.001, False, None, False),
        (0.5, True, True, True),
        (0.001, True, False, False),
        (0.001, False, True, False),
    ],
)
def test_the_gate(p_value: float, consistent: bool, alarm: bool | None, expected: bool) -> None:
    assert correction.called_for(p_value, consistent=consistent, alarm=alarm) is expected


@given(st.floats(0.0, 1e9), st.integers(2, 1000))
def test_shrinkage_is_a_factor_that_grows_with_the_evidence(x: float, k: int) -> None:
    assert 0.0 <= correction.shrinkage(x, k) <= correction.shrinkage(2 * x, k) <= 1.0


def test_few_labels_are_shrunk_by_one_over_the_statistic() -> None:
    assert correction.shrinkage(4.0, 2) == correction.shrinkage(4.0, 3) == 0.75
    assert correction.shrunken(np.array([3.0, 0.0]), 0.75).tolist() == [2.5, 0.25]
