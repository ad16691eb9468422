"""Regularised weights against the conditions that define them."""

import numpy as np
import pytest
from scipy.optimize import minimize

from bench.paper.rlls import regularised_weights

C = np.array([[0.30, 0.05, 0.05], [0.03, 0.20, 0.05], [0.02, 0.05, 0.25]])
MU = np.array([0.2, 0.5, 0.3])


@pytest.mark.parametrize("strength", [0.19, 0.2, 0.21, 0.22])
def test_between_the_extremes_it_minimises_the_objective(strength: float) -> None:
    theta = regularised_weights(C, MU, strength) - 1.0
    b = MU - C.sum(axis=1)

    def objective(x: np.ndarray) -> float:
        return float(np.linalg.norm(C @ x - b) + strength * np.linalg.norm(x))

    best = minimize(
        objective, theta + 0.05, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}
    )

    assert objective(theta) <= best.fun + 1e-9


def test_no_regularisation_is_plain_estimation() -> None:
    assert regularised_weights(C, MU, 0.0) == pytest.approx(np.linalg.solve(C, MU))


def test_much_of_it_says_no_shift() -> None:
    assert regularised_weights(C, MU, 0.9).tolist() == [1.0, 1.0, 1.0]


def test_gamma_scales_the_change() -> None:
    full, half = regularised_weights(C, MU, 0.1), regularised_weights(C, MU, 0.1, gamma=0.5)

    assert half - 1.0 == pytest.approx((full - 1.0) / 2.0)


@pytest.mark.parametrize(
    ("strength", "expected"), [(0.0, [4 / 3, 2 / 3]), (0.31, [1.0, 1.0]), (1.0, [1.0, 1.0])]
)
def test_two_labels_by_hand(strength: float, expected: list[float]) -> None:
    two = np.array([[0.4, 0.1], [0.1, 0.4]])

    assert regularised_weights(two, np.array([0.6, 0.4]), strength) == pytest.approx(expected)
