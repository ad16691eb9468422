"""Sample sizes from a reference alone."""

import numpy as np
import pytest
from scipy import stats

from app.stats import bbse, intervals, planning
from app.stats import reference as references
from app.stats.bbse import Prepared
from app.stats.diagnosis import diagnose
from app.stats.moments import Counts, Sums
from app.stats.planning import Needed, Unattainable

THREE = np.array([[800, 100, 100], [100, 700, 100], [100, 200, 800]])


def prepared(counts: Counts) -> Prepared:
    reference = references.from_confusion(counts)
    return bbse.prepare(reference, diagnose(reference))


def test_the_noncentrality_gives_the_power_asked_for() -> None:
    for df, alpha, power in ((1, 0.05, 0.8), (9, 0.01, 0.9), (99, 0.05, 0.5)):
        found = planning.noncentrality(df, alpha, power)
        assert stats.ncx2.sf(stats.chi2.isf(alpha, df), df, found) == pytest.approx(power)


def test_a_shift_that_the_reference_cannot_resolve_is_unattainable() -> None:
    on = prepared(THREE)

    found = planning.predictions_to_detect(on, np.array([0.34, 0.33, 0.33]))

    assert isinstance(found, Unattainable)
    # With a reference that much larger, a bit more suffices.
    larger = prepared(THREE * int(np.ceil(found.reference_factor * 1.05)))
    assert isinstance(planning.predictions_to_detect(larger, np.array([0.34, 0.33, 0.33])), Needed)


def test_no_shift_can_never_be_detected_and_a_total_one_at_once() -> None:
    on = prepared(np.diag([500, 500]))

    assert planning.predictions_to_detect(on, np.array([0.5, 0.5])) == Unattainable(np.inf)
    found = planning.predictions_to_detect(on, np.array([1.0, 0.0]), power=0.8)
    assert isinstance(found, Needed)
    assert found.predictions < 20
    rare = prepared(np.diag([100_000, 50]))
    assert planning.predictions_to_detect(rare, np.array([0.0, 1.0])) == Needed(1)


def test_a_larger_shift_needs_fewer_predictions() -> None:
    on = prepared(THREE)
    sizes = [
        planning.predictions_to_detect(on, np.array([1 / 3 + d, 1 / 3 - d, 1 / 3]))
        for d in (0.1, 0.2, 0.3)
    ]

    assert all(isinstance(size, Needed) for size in sizes)
    assert sorted(sizes, key=lambda size: -getattr(size, "predictions", 0)) == sizes


def test_the_promised_window_has_the_promised_interval() -> None:
    on = prepared(THREE * 20)
    q = np.array([0.5, 0.3, 0.2])

    sizes = planning.predictions_for_half_width(on, q, 0.02)

    for label, size in enumerate(sizes):
        assert isinstance(size, Needed)
        window = Sums(np.round(on.given.A @ q * size.predictions).astype(np.int64))
        found = intervals.score(on, bbse.estimate(on, window), window)
        # Wilson's interval and the window's smoothing differ from the plain formula by a little.
        assert (found.upper - found.lower)[label] / 2 == pytest.approx(0.02, rel=0.03)


def test_a_half_width_below_the_references_noise_is_unattainable() -> None:
    sizes = planning.predictions_for_half_width(prepared(THREE), np.full(3, 1 / 3), 0.005)

    assert all(isinstance(size, Unattainable) and size.reference_factor > 1.0 for size in sizes)


def test_delay_shrinks_with_traffic_and_is_endless_without_a_shift() -> None:
    on = prepared(THREE)
    q = np.array([0.5, 0.3, 0.2])

    slow = planning.detection_delay(on, q, per_pane=20, average_run_length=10_000)

    # KL of A q = (.45, .28, .27) from A nu = (1, .9, 1.1) / 3.
    p0, p1 = np.array([1.0, 0.9, 1.1]) / 3, np.array([0.45, 0.28, 0.27])
    expected = (np.log(10_000) + np.log(36)) / (20 * float(p1 @ np.log(p1 / p0)))
    assert slow == pytest.approx(expected)
    assert planning.detection_delay(
        on, q, per_pane=200, average_run_length=10_000
    ) == pytest.approx(slow / 10)
    assert planning.detection_delay(on, on.nu, per_pane=20, average_run_length=10_000) == np.inf
