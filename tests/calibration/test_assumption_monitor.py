"""False alarms under label drift, and delays under corruption (the design study, F3)."""

from collections.abc import Callable

import numpy as np
import pytest

from app.stats import assumption_monitor, reference, sequential
from app.stats.assumption_monitor import AssumptionMonitor
from app.stats.moments import Counts, Floats
from tests import fashion, fashion_corrupted
from tests.fashion import LABELS, Outputs
from tests.fashion_corrupted import Corruption

ARL = 10_000.0
STREAMS = 100
PER_PANE = 20


def monitors(n: int, rng: np.random.Generator) -> AssumptionMonitor:
    """Monitors of one reference for each stream, on a leading axis."""
    pool = fashion.outputs("good", "validation")
    made = []
    for _ in range(STREAMS):
        chosen = rng.integers(0, len(pool.labels), n)
        drawn = reference.from_sample(
            LABELS, pool.predicted[chosen], pool.labels[chosen], pool.rows[chosen]
        )
        monitor = assumption_monitor.prepare(drawn, ARL)
        assert monitor is not None
        made.append(monitor)
    offsets = np.stack([monitor.log_offsets for monitor in made])
    return AssumptionMonitor(offsets, made[0].log_weights, made[0].log_arl)


def first_alarms(
    monitor: AssumptionMonitor,
    pool: Outputs,
    mix: Callable[[int], Floats],
    length: int,
    rng: np.random.Generator,
) -> Counts:
    """The pane of each stream's first alarm; `mix(t)` is each stream's label mix at pane `t`."""
    members = [np.flatnonzero(pool.labels == label) for label in range(LABELS)]
    table = np.stack([rng.choice(of, 5_000) for of in members])
    predicted, score = pool.predicted, pool.rows.max(axis=1)
    log_m = np.full((STREAMS, len(monitor.log_weights)), -sequential.LIMIT)
    first = np.full(STREAMS, length)
    for t in range(length):
        bounds = np.cumsum(mix(t), axis=1)[:, None, :-1]
        labels = (rng.random((STREAMS, PER_PANE, 1)) > bounds).sum(axis=2)
        rows = table[labels, rng.integers(0, table.shape[1], labels.shape)]
        counts = (predicted[rows][..., None] == np.arange(LABELS)).sum(axis=1)
        log_e = bets(monitor, counts, score[rows].sum(axis=1))
        log_m = sequential.grown(log_m, log_e)
        raised = sequential.log_mean(log_m, monitor.log_weights) >= monitor.log_arl
        first[raised & (first == length)] = t
    return first


def bets(monitor: AssumptionMonitor, counts: Counts, score: Floats) -> Floats:
    """`log_bets` of each stream's own monitor."""
    own = zip(monitor.log_offsets, counts, score, strict=True)
    return np.stack(
        [
            assumption_monitor.log_bets(
                AssumptionMonitor(offsets, monitor.log_weights, monitor.log_arl), c, s
            )
            for offsets, c, s in own
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("n", [2_000, 10_000])
def test_label_drift_raises_no_alarm(n: int) -> None:
    rng = np.random.default_rng(51)
    monitor = monitors(n, rng)
    mixes = rng.dirichlet(np.ones(LABELS), size=(30, STREAMS))

    first = first_alarms(
        monitor, fashion.outputs("good", "test"), lambda t: mixes[t // 100], 3_000, rng
    )

    assert np.mean(first < 3_000) == 0.0  # the bound is .30; measured 0 of 100


# Median delays of the design study times 1.3; such a median has a standard error of about 6 %.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("corruption", "n", "at_most"),
    [
        ("dimmed", 2_000, 1.3 * 29),
        ("dimmed", 10_000, 1.3 * 17),
        ("noisy", 2_000, 1.3 * 48),
        ("noisy", 10_000, 1.3 * 10),
        ("moved", 10_000, 1.3 * 46),
    ],
)
def test_median_delay(corruption: Corruption, n: int, at_most: float) -> None:
    rng = np.random.default_rng(52)
    monitor = monitors(n, rng)
    pool = fashion_corrupted.corrupted(corruption)
    even = np.full((STREAMS, LABELS), 1.0 / LABELS)

    first = first_alarms(monitor, pool, lambda _: even, 200, rng)

    assert np.median(first + 1) <= at_most


@pytest.mark.slow
def test_a_small_reference_makes_the_monitor_silent_rather_than_wrong() -> None:
    rng = np.random.default_rng(53)
    monitor = monitors(500, rng)
    mixes = rng.dirichlet(np.ones(LABELS), size=(10, STREAMS))
    clean = fashion.outputs("good", "test")

    first = first_alarms(monitor, clean, lambda t: mixes[t // 100], 1_000, rng)

    assert np.mean(first < 1_000) <= 0.1
