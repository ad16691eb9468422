import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from app.stats import sequential
from app.stats.moments import Floats
from app.stats.sequential import Alarm, State

ONE_BET = np.zeros(1)

some_counts = arrays(np.float64, 4, elements=st.integers(0, 1000).map(float))
some_weights = arrays(np.float64, 4, elements=st.floats(0.5, 1e7))


def run(log_e: list[float], arl: float = 1e9) -> State:
    state = sequential.fresh(1, np.zeros(0), np.zeros(0))
    for value in log_e:
        state = sequential.advance(state, np.array([value]), ONE_BET, np.log(arl))
    return state


def test_the_sum_over_all_starts_is_what_the_recursion_keeps() -> None:
    e = np.array([0.5, 2.0, 3.0])
    over_starts = e[0] * e[1] * e[2] + e[1] * e[2] + e[2]

    state = run(list(np.log(e)))

    assert np.exp(state.log_m[0]) == pytest.approx(over_starts)


def test_bets_that_never_win_nor_lose_count_panes() -> None:
    state = run([0.0] * 7)

    assert np.exp(state.log_m[0]) == pytest.approx(7.0)


def test_the_onset_is_where_evidence_last_left_zero() -> None:
    state = run([0.3, -1.0, -0.2, 0.5, -0.1, 2.0], arl=10.0)

    assert state.alarm == Alarm(at=5, onset=3, bet=0)


def test_marks_name_panes_in_an_alarm() -> None:
    state = sequential.fresh(1, np.zeros(0), np.zeros(0))
    for mark, value in [(60, -1.0), (120, 1.0), (180, 3.0)]:
        state = sequential.advance(state, np.array([value]), ONE_BET, np.log(20.0), mark)

    assert state.alarm == Alarm(at=180, onset=120, bet=0)


def test_evidence_stays_finite_however_strong() -> None:
    state = run([1e12, 1e12, -1e12, 1e300])

    assert np.isfinite(state.log_m).all()
    assert np.isfinite(state.cusum).all()


@given(some_weights, some_counts, some_counts)
@settings(deadline=None)
def test_a_pane_is_as_likely_as_its_two_halves(w: Floats, first: Floats, second: Floats) -> None:
    halves = sequential.log_polya(first, w) + sequential.log_polya(second, w + first)

    assert sequential.log_polya(first + second, w) == pytest.approx(halves, rel=1e-9, abs=1e-6)


@given(some_weights, some_counts, st.permutations(range(4)))
@settings(deadline=None)
def test_the_order_of_labels_is_irrelevant(w: Floats, c: Floats, order: list[int]) -> None:
    there = sequential.log_polya(c[order], w[order])

    assert there == pytest.approx(sequential.log_polya(c, w), rel=1e-12, abs=1e-9)


@pytest.mark.parametrize("x", [0.5, 7.5, 9.9e4, 1.1e5, 1e9, 1e15])
def test_a_rising_factorial_is_the_product_it_stands_for(x: float) -> None:
    product = sum(np.log(x + i) for i in range(12))

    found = sequential.log_rising(np.array(x), np.array(12.0))

    assert float(found) == pytest.approx(product, rel=1e-13, abs=1e-9)


def test_fading_sums_halve_at_their_half_life() -> None:
    recent = np.zeros((2, 1))
    recent = sequential.remember(recent, np.array([8.0]), np.array([3.0, 0.0]))
    for _ in range(3):
        recent = sequential.remember(recent, np.array([0.0]), np.array([3.0, 0.0]))

    assert recent.tolist() == [[pytest.approx(4.0)], [0.0]]


awkward = st.floats(allow_nan=False, allow_infinity=False)


@given(
    arrays(np.float64, 3, elements=awkward),
    arrays(np.float64, (2, 3), elements=awkward),
    arrays(np.int64, 3, elements=st.integers(0, 2**40)),
    st.none() | st.builds(Alarm, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)),
)
@settings(deadline=None)
def test_a_state_comes_back_from_json_bit_for_bit(
    floats: Floats, rows: Floats, began: Floats, alarm: Alarm | None
) -> None:
    state = State(7, floats, rows, floats[::-1], -floats, began.astype(np.int64), alarm)

    back = sequential.from_json(json.loads(json.dumps(sequential.to_json(state))))

    assert (back.steps, back.alarm) == (state.steps, state.alarm)
    for name in ("baseline", "recent", "log_m", "cusum", "began"):
        assert getattr(back, name).tobytes() == np.ascontiguousarray(getattr(state, name)).tobytes()
        assert getattr(back, name).shape == getattr(state, name).shape


def test_more_evidence_is_never_less() -> None:
    log_m = np.linspace(-20.0, 20.0, 9)

    grown = sequential.grown(log_m, np.zeros(9))

    assert all(a < b for a, b in pairwise(grown))
    assert (grown >= log_m).all()


WEIGHTS = np.log([0.5, 0.5])


def test_a_pane_in_parts_lets_one_gambler_in() -> None:
    log_e = np.log([[2.0, 0.5], [3.0, 0.5]])

    first = sequential.advance(
        sequential.fresh(2, np.zeros(0), np.zeros(0)), log_e[0], WEIGHTS, 9.0
    )
    both = sequential.advance(first, log_e[1], WEIGHTS, 9.0, opens=False)

    assert np.exp(both.log_m) == pytest.approx([6.0, 0.25])


def test_what_is_remembered_fades_once_a_pane() -> None:
    half_lives = np.array([1.0, 0.0])
    recent = np.array([[8.0], [0.0]])

    opened = sequential.remember(recent, np.array([1.0]), half_lives)
    more = sequential.remember(opened, np.array([2.0]), half_lives, opens=False)

    assert more.tolist() == [[7.0], [0.0]]
