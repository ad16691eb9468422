"""How much bursts cost, estimated from panes."""

import numpy as np
import pytest

from app.stats.overdispersion import INDEPENDENT, between_neighbours, overdispersion

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


def test_neighbours_worked_by_hand() -> None:
    # Each pair of 20 and 20: X2 = 400 (.2^2/20 + .2^2/20) = 1.6, times 39/40 for their number.
    found = between_neighbours(np.array([[12, 8], [8, 12], [12, 8], [8, 12]]))

    assert found.estimate == pytest.approx(1.6 * 39 / 40)
    assert found.df == 2


@pytest.mark.parametrize("per_pane", [1, 2, 20, 500])
def test_neighbours_of_independent_panes_scatter_as_they_should(per_pane: int) -> None:
    rng = np.random.default_rng(4)

    found = [between_neighbours(rng.multinomial(per_pane, MIX, size=200)) for _ in range(50)]

    assert np.mean([one.estimate for one in found]) == pytest.approx(1.0, abs=0.06)
    assert np.mean([one.phi for one in found]) == pytest.approx(1.0, abs=0.1)


def test_neighbours_show_bursts() -> None:
    panes = 4 * np.random.default_rng(5).multinomial(20, MIX, size=400)

    assert between_neighbours(panes).phi == pytest.approx(4.0, abs=4 * 4 * np.sqrt(2 / 400))


def test_a_change_of_the_mix_hardly_shows_between_neighbours() -> None:
    rng = np.random.default_rng(6)
    panes = np.concatenate(
        [rng.multinomial(500, MIX, size=101), rng.multinomial(500, MIX[::-1], size=99)]
    )

    assert overdispersion(panes).phi > 10.0
    assert between_neighbours(panes).phi < 2.0


@pytest.mark.parametrize("shape", [(0, 3), (1, 3), (4, 1)])
def test_too_few_neighbours_count_as_independent(shape: tuple[int, int]) -> None:
    assert between_neighbours(np.ones(shape, dtype=np.int64)) == INDEPENDENT


def test_empty_panes_are_nobodys_neighbours() -> None:
    panes = np.random.default_rng(7).multinomial(30, MIX, size=10)
    holes = np.insert(panes, [1, 4, 4], 0, axis=0)

    assert between_neighbours(holes) == between_neighbours(panes)
