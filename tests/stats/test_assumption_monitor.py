import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from app.stats import assumption_monitor, reference, sequential
from app.stats.assumption_monitor import RATES, AssumptionMonitor
from app.stats.moments import Counts
from app.stats.reference import Reference, from_confusion
from tests import fashion
from tests.fashion import LABELS


def fashion_reference(order: list[int] | None = None) -> Reference:
    pool = fashion.outputs("good", "validation")
    rows, labels = pool.rows[:8_000], pool.labels[:8_000]
    if order is not None:
        rows, labels = rows[:, order], np.argsort(order)[labels]
    return reference.from_sample(LABELS, rows.argmax(axis=1), labels, rows)


def prepared(made: Reference, arl: float = 1e4) -> AssumptionMonitor:
    monitor = assumption_monitor.prepare(made, arl)
    assert monitor is not None
    return monitor


MONITOR = prepared(fashion_reference())


@pytest.mark.parametrize("rate", range(len(RATES)))
def test_under_no_true_label_does_a_bet_win_on_average(rate: int) -> None:
    pool = fashion.outputs("good", "validation")
    rows, labels = pool.rows[:8_000], pool.labels[:8_000]
    offsets = MONITOR.log_offsets[rate][pool.predicted[:8_000]]
    e = np.exp(RATES[rate] * rows.max(axis=1) + offsets)

    means = np.array([e[labels == label].mean() for label in range(LABELS)])

    assert (means < 1.0).all()
    assert means.max() > 0.9  # nor is it hopeless


def test_labels_count_alike_so_that_no_mix_is_worse_than_another() -> None:
    pool = fashion.outputs("good", "validation")
    e = np.exp(0.25 * pool.rows.max(axis=1) + MONITOR.log_offsets[0][pool.predicted])[:8_000]

    means = np.array([e[pool.labels[:8_000] == label].mean() for label in range(LABELS)])

    assert means.max() - means.min() < 1e-3  # up to the width of confidence bins


def test_lost_confidence_raises_an_alarm_and_label_shift_does_not() -> None:
    pool = fashion.outputs("good", "test")
    trousers = np.flatnonzero(pool.labels == 1)
    lost = shifted = assumption_monitor.start(MONITOR)
    for t in range(40):
        rows, only = pool.rows[20 * t : 20 * t + 20], pool.rows[trousers[20 * t : 20 * t + 20]]
        counts = np.bincount(rows.argmax(axis=1), minlength=LABELS)
        lost = assumption_monitor.step(MONITOR, lost, counts, rows.max(axis=1).sum() - 2.0)
        counts = np.bincount(only.argmax(axis=1), minlength=LABELS)
        shifted = assumption_monitor.step(MONITOR, shifted, counts, only.max(axis=1).sum())

    assert lost.alarm is not None
    assert RATES[lost.alarm.bet] < 0.0
    assert shifted.alarm is None


def test_empty_panes_are_skipped_and_alarms_latch() -> None:
    counts = np.full(LABELS, 50)
    fresh = assumption_monitor.start(MONITOR)
    alarmed = assumption_monitor.step(MONITOR, fresh, counts, 200.0)

    assert alarmed.alarm is not None
    assert assumption_monitor.step(MONITOR, alarmed, counts, 400.0) is alarmed
    assert assumption_monitor.step(MONITOR, fresh, np.zeros(LABELS, dtype=np.int64), 0.0) is fresh


def test_evidence_of_clusters_is_divided_by_phi() -> None:
    counts, fresh = np.full(LABELS, 5), assumption_monitor.start(MONITOR)

    plain = assumption_monitor.step(MONITOR, fresh, counts, 40.0)
    clustered = assumption_monitor.step(MONITOR, fresh, counts, 40.0, phi=4.0)

    assert clustered.log_m == pytest.approx(plain.log_m / 4.0)


def test_hard_predictions_and_references_of_nobody_have_no_monitor() -> None:
    rows = np.array([[0.9, 0.1], [0.2, 0.8]])
    few = reference.from_sample(2, np.array([0, 1]), np.array([0, 1]), rows)

    assert assumption_monitor.prepare(from_confusion(np.array([[9, 1], [1, 9]])), 100.0) is None
    assert assumption_monitor.prepare(few, 100.0) is None


def test_the_order_of_labels_is_irrelevant() -> None:
    order = [3, 1, 4, 0, 5, 9, 2, 6, 8, 7]

    permuted = prepared(fashion_reference(order))

    assert permuted.log_offsets == pytest.approx(MONITOR.log_offsets[:, order], abs=1e-9)


def test_a_stored_state_goes_on_exactly_as_the_one_in_memory() -> None:
    counts = np.full(LABELS, 2)
    state = assumption_monitor.step(MONITOR, assumption_monitor.start(MONITOR), counts, 17.3)

    stored = sequential.from_json(json.loads(json.dumps(sequential.to_json(state))))
    here = assumption_monitor.step(MONITOR, state, counts, 16.1)
    there = assumption_monitor.step(MONITOR, stored, counts, 16.1)

    assert sequential.to_json(here) == sequential.to_json(there)


@given(
    st.sampled_from([2, 3, 5]).flatmap(
        lambda k: arrays(np.float64, (30, k), elements=st.floats(0.0, 1.0))
    ),
    st.lists(st.integers(0, 4), min_size=30, max_size=30),
    st.integers(0, 10**9),
)
@settings(deadline=None)
def test_no_sample_gives_anything_but_finite_evidence(
    weights: Counts, actual: list[int], count: int
) -> None:
    k = weights.shape[1]
    rows = (weights + 1e-9) / (weights + 1e-9).sum(axis=1, keepdims=True)
    labels = np.array(actual) % k
    made = reference.from_sample(k, rows.argmax(axis=1), labels, rows)
    monitor = prepared(made)

    state = assumption_monitor.start(monitor)
    for counts in (np.full(k, count), np.eye(k, dtype=np.int64)[0]):
        state = assumption_monitor.step(monitor, state, counts, 0.7 * counts.sum())

    assert np.isfinite(monitor.log_offsets).all()
    assert np.isfinite(state.log_m).all()
