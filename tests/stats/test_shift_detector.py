import json
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import gammaln

from app.stats import dictionary, sequential, shift_detector
from app.stats.moments import Counts, Floats
from app.stats.reference import Reference, from_confusion
from app.stats.sequential import State
from app.stats.shift_detector import ShiftDetector

THREE = from_confusion(np.array([[80, 10, 5], [15, 60, 10], [5, 10, 45]]))
DETECTOR = shift_detector.prepare(THREE, 1000.0)

any_confusion = st.sampled_from([2, 3, 6]).flatmap(
    lambda k: arrays(np.int64, (k, k), elements=st.integers(0, 10**6)).filter(np.any)
)


def walk(detector: ShiftDetector, panes: list[Counts], **options: float) -> State:
    state = shift_detector.start(detector)
    for counts in panes:
        state = shift_detector.step(detector, state, counts, **options)  # type: ignore[arg-type]
    return state


def outcomes(k: int, m: int) -> Floats:
    return np.array([c for c in product(range(m + 1), repeat=k) if sum(c) == m], dtype=np.float64)


def log_orderings(counts: Floats) -> Floats:
    return np.asarray(gammaln(counts.sum(axis=-1) + 1.0) - gammaln(counts + 1.0).sum(axis=-1))


def test_every_bet_has_mean_one_under_the_urn() -> None:
    counts = outcomes(3, 8)
    baseline = DETECTOR.predicted + shift_detector.JEFFREYS
    recent = np.arange(12.0).reshape(4, 3)
    chance = np.exp(log_orderings(counts) + sequential.log_polya(counts, baseline))

    e = np.exp(shift_detector.log_bets(DETECTOR, baseline, recent, counts))

    assert chance.sum() == pytest.approx(1.0)
    assert chance @ e == pytest.approx(np.ones(e.shape[1]), abs=1e-9)


def test_with_the_learned_mix_plugged_in_every_bet_would_win_on_average() -> None:
    counts = outcomes(3, 8)
    baseline = np.array([12.5, 9.5, 6.5])
    chance = np.exp(log_orderings(counts) + sequential.log_polya(counts, baseline))
    assumed = counts @ np.log(baseline / baseline.sum())

    bets = shift_detector.log_bets(DETECTOR, baseline, np.zeros((4, 3)), counts)
    plugged_in = np.exp(bets + (sequential.log_polya(counts, baseline) - assumed)[:, None])

    assert (chance @ plugged_in > 1.0).all()
    assert (chance @ plugged_in).max() > 1.2


def test_growing_a_label_tilts_predictions_as_the_confusion_matrix_says() -> None:
    bets = dictionary.dictionary(THREE)
    nu, A = THREE.nu, THREE.conditional()
    q = 0.8 * nu + 0.2 * np.eye(3)[1]

    assert A @ q == pytest.approx((A @ nu) * (1.0 + 0.2 * bets.tilt[:, 1]))


def test_shrinking_a_label_is_the_same_line_walked_backwards() -> None:
    bets = dictionary.dictionary(THREE)
    nu, A = THREE.nu, THREE.conditional()
    q = nu * np.array([1.0, 1.0, 0.1])
    stride = bets.strides[5, 2]

    assert A @ (q / q.sum()) == pytest.approx((A @ nu) * (1.0 + stride * bets.tilt[:, 2]))


def test_a_change_raises_an_alarm_that_says_when_and_what() -> None:
    rng = np.random.default_rng(1)
    quiet = [rng.multinomial(20, THREE.predicted / THREE.n) for _ in range(50)]
    moved = [rng.multinomial(20, [0.1, 0.1, 0.8]) for _ in range(10)]

    alarm = walk(DETECTOR, quiet + moved).alarm

    assert alarm is not None
    assert 50 <= alarm.at < 55
    assert abs(alarm.onset - 50) <= 2
    assert dictionary.moved_label(DETECTOR.bets, alarm.bet) == 2


def test_an_adaptive_bet_is_about_no_label_in_particular() -> None:
    assert dictionary.moved_label(DETECTOR.bets, DETECTOR.bets.size) is None


def test_an_empty_pane_is_skipped() -> None:
    state = walk(DETECTOR, [np.array([9, 7, 4])])

    assert shift_detector.step(DETECTOR, state, np.zeros(3, dtype=np.int64)) is state


def test_an_alarm_latches_and_nothing_more_is_learned() -> None:
    state = walk(DETECTOR, [np.array([0, 0, 500])])

    assert state.alarm is not None
    assert shift_detector.step(DETECTOR, state, np.array([9, 7, 4])) is state


def test_late_predictions_are_a_pane_of_their_own() -> None:
    late, pane = np.array([1, 0, 2]), np.array([8, 7, 5])

    first, second = walk(DETECTOR, [pane, late]), walk(DETECTOR, [late, pane])

    assert first.steps == second.steps == 2
    assert first.baseline.tolist() == second.baseline.tolist()


@given(st.lists(arrays(np.int64, 3, elements=st.integers(0, 50)), max_size=6), st.randoms())
@settings(deadline=None, max_examples=50)
def test_what_is_learned_depends_neither_on_the_order_nor_the_grouping_of_panes(
    panes: list[Counts], random: np.random.RandomState
) -> None:
    unalarmed = shift_detector.prepare(THREE, 1e300)
    shuffled = list(panes)
    random.shuffle(shuffled)
    together = [np.sum(panes, axis=0)] if panes else []

    baselines = [walk(unalarmed, some).baseline.tolist() for some in (panes, shuffled, together)]

    assert baselines[0] == baselines[1] == baselines[2]


@given(st.permutations(range(3)), arrays(np.int64, (4, 3), elements=st.integers(0, 30)))
@settings(deadline=None, max_examples=50)
def test_evidence_does_not_depend_on_the_order_of_labels(order: list[int], panes: Counts) -> None:
    other = shift_detector.prepare(Reference(THREE.counts[np.ix_(order, order)]), 1e300)
    same = shift_detector.prepare(THREE, 1e300)

    here = walk(same, list(panes))
    there = walk(other, [pane[order] for pane in panes])

    assert np.sort(there.log_m) == pytest.approx(np.sort(here.log_m), abs=1e-8)


def test_counts_over_phi_are_effective_counts() -> None:
    halved = walk(DETECTOR, [np.array([8, 6, 4])], phi=2.0)
    half = walk(DETECTOR, [np.array([4, 3, 2])])

    assert halved.log_m.tolist() == half.log_m.tolist()
    assert halved.baseline.tolist() == half.baseline.tolist()


def test_a_frozen_baseline_is_what_had_been_learned_at_the_onset() -> None:
    before, after = np.array([9, 7, 4]), np.array([0, 1, 19])
    state = walk(shift_detector.prepare(THREE, 1e300), [before, after, after])

    frozen = shift_detector.frozen(state, 2 * after)

    assert frozen.tolist() == (THREE.predicted + before).tolist()


def test_restarted_from_frozen_it_alarms_while_the_change_lasts_and_not_after() -> None:
    rng = np.random.default_rng(2)
    old = [rng.multinomial(20, THREE.predicted / THREE.n) for _ in range(60)]
    new = [rng.multinomial(20, [0.1, 0.1, 0.8]) for _ in range(20)]
    state = walk(DETECTOR, old + new)
    assert state.alarm is not None
    since = np.sum((old + new)[state.alarm.onset : state.alarm.at + 1], axis=0)

    again = back = shift_detector.start(DETECTOR, shift_detector.frozen(state, since))
    for pane in new:
        again = shift_detector.step(DETECTOR, again, pane)
    for pane in old:
        back = shift_detector.step(DETECTOR, back, pane)

    assert again.alarm is not None
    assert back.alarm is None


def test_an_accepted_mix_is_the_new_baseline() -> None:
    rng = np.random.default_rng(3)
    new = [rng.multinomial(20, [0.1, 0.1, 0.8]) for _ in range(80)]

    state = shift_detector.start(DETECTOR, np.sum(new[:40], axis=0))
    for pane in new[40:]:
        state = shift_detector.step(DETECTOR, state, pane)

    assert state.alarm is None


def test_a_stored_state_goes_on_exactly_as_the_one_in_memory() -> None:
    rng = np.random.default_rng(4)
    panes = list(rng.multinomial(20, THREE.predicted / THREE.n, size=20))
    state = walk(DETECTOR, panes)

    stored = sequential.from_json(json.loads(json.dumps(sequential.to_json(state))))
    here = shift_detector.step(DETECTOR, state, panes[0], phi=1.7)
    there = shift_detector.step(DETECTOR, stored, panes[0], phi=1.7)

    assert sequential.to_json(here) == sequential.to_json(there)


def test_streams_side_by_side_get_the_bets_they_would_get_alone() -> None:
    rng = np.random.default_rng(5)
    counts = rng.multinomial(20, [0.2, 0.3, 0.5], size=6).astype(np.float64)
    baseline = DETECTOR.predicted + rng.integers(1, 50, (6, 3))
    recent = rng.random((6, 4, 3))

    together = shift_detector.log_bets(DETECTOR, baseline, recent, counts)
    alone = [
        shift_detector.log_bets(DETECTOR, b, s, c)
        for b, s, c in zip(baseline, recent, counts, strict=True)
    ]

    assert together == pytest.approx(np.array(alone), abs=1e-10)


@given(any_confusion, st.lists(st.integers(0, 10**9), min_size=6, max_size=6))
@settings(deadline=None)
def test_no_counts_give_anything_but_finite_evidence(confusion: Counts, six: list[int]) -> None:
    k = len(confusion)
    detector = shift_detector.prepare(from_confusion(confusion), 1e300)
    single = np.zeros(k, dtype=np.int64)
    single[0] = 1

    state = walk(detector, [np.array(six[:k]), single, np.array(six[:k])])

    for part in (state.baseline, state.recent, state.log_m, state.cusum):
        assert np.isfinite(part).all()


def test_a_thousand_labels() -> None:
    rng = np.random.default_rng(6)
    confusion = np.eye(1000, dtype=np.int64) * 20 + rng.poisson(0.01, (1000, 1000))
    detector = shift_detector.prepare(from_confusion(confusion), 1e4)

    state = walk(detector, [rng.multinomial(100, np.full(1000, 0.001)) for _ in range(3)])

    assert state.alarm is None
    assert np.isfinite(state.log_m).all()


def test_a_model_of_one_label_has_nothing_to_watch() -> None:
    detector = shift_detector.prepare(from_confusion(np.array([[10]])), 2.0)

    state = walk(detector, [np.array([5])] * 9)

    assert state.steps == 0
    assert state.alarm is None
