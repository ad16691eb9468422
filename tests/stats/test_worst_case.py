import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import rel_entr

from app.stats import sequential, worst_case
from app.stats.moments import Counts, Floats
from app.stats.reference import Reference, from_confusion
from app.stats.sequential import State
from app.stats.worst_case import WorstCaseDetector

THREE = from_confusion(np.array([[80, 10, 5], [15, 60, 10], [5, 10, 45]]))
DETECTOR = worst_case.prepare(THREE, 1000.0)

mixes = arrays(np.float64, 3, elements=st.floats(0.01, 1.0)).map(lambda x: x / x.sum())
any_confusion = st.sampled_from([2, 3, 6]).flatmap(
    lambda k: arrays(np.int64, (k, k), elements=st.integers(0, 10**6)).filter(np.any)
)


def walk(detector: WorstCaseDetector, panes: list[Counts], *, phi: float = 1.0) -> State:
    state = worst_case.start(detector)
    for counts in panes:
        state = worst_case.step(detector, state, counts, phi=phi)
    return state


@given(mixes, mixes)
@settings(deadline=None)
def test_no_mix_in_the_set_lets_a_bet_win_on_average(Q: Floats, pi: Floats) -> None:
    predicted, radius = DETECTOR.predicted, DETECTOR.radius
    inside = predicted + worst_case.projection(predicted, pi[None], radius)[0] * (pi - predicted)
    P = predicted + worst_case.projection(predicted, Q[None], radius)[0] * (Q - predicted)

    assert rel_entr(predicted, P).sum() <= radius + 1e-9
    assert inside @ (Q / P) <= 1.0 + 1e-6


def test_every_dictionary_bet_is_bounded_above_its_mean_at_the_reference() -> None:
    mean = 1.0 + DETECTOR.bets.strides * (DETECTOR.predicted @ DETECTOR.bets.tilt)

    assert mean == pytest.approx(np.ones_like(mean))
    assert (DETECTOR.log_bounds > 0.0).all()


def test_waiting_does_not_add_up_to_an_alarm() -> None:
    like_the_reference = THREE.predicted // 10

    state = walk(worst_case.prepare(THREE, 20.0), [like_the_reference] * 500)

    assert state.alarm is None


def test_a_change_beyond_reference_error_raises_an_alarm() -> None:
    state = walk(DETECTOR, [np.array([2, 2, 16])] * 20)

    assert state.alarm is not None
    assert state.alarm.onset == 0


def test_what_is_tolerated_raises_none() -> None:
    tolerant = worst_case.prepare(THREE, 1000.0, tolerance=2.0)

    assert walk(tolerant, [np.array([2, 2, 16])] * 50).alarm is None


def test_empty_panes_are_skipped_and_alarms_latch() -> None:
    state = walk(DETECTOR, [np.array([9, 7, 4])])
    alarmed = walk(DETECTOR, [np.array([2, 2, 16])] * 20)

    assert worst_case.step(DETECTOR, state, np.zeros(3, dtype=np.int64)) is state
    assert worst_case.step(DETECTOR, alarmed, np.array([9, 7, 4])) is alarmed


def test_counts_over_phi_are_effective_counts() -> None:
    halved, half = (
        walk(DETECTOR, [np.array([8, 6, 4])], phi=2.0),
        walk(DETECTOR, [np.array([4, 3, 2])]),
    )

    assert halved.log_m.tolist() == half.log_m.tolist()


def test_a_stored_state_goes_on_exactly_as_the_one_in_memory() -> None:
    state = walk(DETECTOR, [np.array([9, 6, 5]), np.array([7, 7, 7])])

    stored = sequential.from_json(json.loads(json.dumps(sequential.to_json(state))))
    here = worst_case.step(DETECTOR, state, np.array([3, 3, 9]))
    there = worst_case.step(DETECTOR, stored, np.array([3, 3, 9]))

    assert sequential.to_json(here) == sequential.to_json(there)


@given(st.permutations(range(3)), arrays(np.int64, (4, 3), elements=st.integers(0, 30)))
@settings(deadline=None, max_examples=50)
def test_evidence_does_not_depend_on_the_order_of_labels(order: list[int], panes: Counts) -> None:
    other = worst_case.prepare(Reference(THREE.counts[np.ix_(order, order)]), 1e300)

    here = walk(worst_case.prepare(THREE, 1e300), list(panes))
    there = walk(other, [pane[order] for pane in panes])

    assert np.sort(there.log_m) == pytest.approx(np.sort(here.log_m), abs=1e-6)


@given(any_confusion, st.lists(st.integers(0, 10**9), min_size=6, max_size=6))
@settings(deadline=None)
def test_no_counts_give_anything_but_finite_evidence(confusion: Counts, six: list[int]) -> None:
    k = len(confusion)
    detector = worst_case.prepare(from_confusion(confusion), 1e300)
    single = np.zeros(k, dtype=np.int64)
    single[0] = 1

    state = walk(detector, [np.array(six[:k]), single, np.array(six[:k])])

    for part in (state.recent, state.log_m, state.cusum):
        assert np.isfinite(part).all()


def test_waiting_within_a_pane_adds_nothing() -> None:
    """Where the bet is no bet, more of the same pane leaves the evidence as it is."""
    reference = from_confusion(np.array([[90, 10], [10, 90]]))
    detector = worst_case.prepare(reference, 1000.0)
    opened = worst_case.step(detector, worst_case.start(detector), np.array([5, 5]))

    more = worst_case.step(detector, opened, np.array([5, 5]), opens=False)

    adaptive = slice(detector.bets.size, None)
    assert more.log_m[adaptive].tolist() == opened.log_m[adaptive].tolist()
