"""How much bursts cost, estimated from panes."""

import numpy as np
import pytest

from app.stats.overdispersion import overdispersion

MIX = np.array([0.5, 0.3, 0.2])


def test_a_table_worked_by_hand() -> None:
    # Every cell is expected 10 times and off by 10: X2 = 8 * 10, over 3 degrees of freedom.
    found = overdispersion(np.array([[20, 0], [0, 20], [20, 0], [0, 20]]))

    assert found.estimate == pytest.approx(80 / 3)
    assert found.phi == found.estimate
    assert found.upper > found.estimate


def test_independent_predictions_count_in_full() -> None:
    panes = np.random.default_rng(1).multinomial(50, MIX, size=400)

    found = overdispersion(panes)

    assert found.phi == 1.0
    # A mean of 798 squares, each of variance about two.
    assert found.estimate == pytest.approx(1.0, abs=4 * np.sqrt(2 / 798))


def test_repeated_predictions_count_once() -> None:
    panes = 4 * np.random.default_rng(2).multinomial(20, MIX, size=400)

    found = overdispersion(panes)

    assert found.phi == pytest.approx(4.0, abs=4 * 4 * np.sqrt(2 / 798))
    assert found.upper > found.phi


@pytest.mark.parametrize("shape", [(0, 3), (1, 3), (5, 1)])
def test_too_small_a_table_counts_as_independent(shape: tuple[int, int]) -> None:
    found = overdispersion(np.ones(shape, dtype=np.int64))

    assert (found.phi, found.upper, found.p_value) == (1.0, 1.0, 1.0)


def test_empty_panes_and_unused_labels_do_not_count() -> None:
    panes = np.random.default_rng(3).multinomial(30, MIX, size=50)
    padded = np.zeros((60, 4), dtype=np.int64)
    padded[:50, :3] = panes

    assert overdispersion(padded) == overdispersion(panes)
