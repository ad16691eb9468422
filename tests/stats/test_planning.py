"""Sample sizes from a reference alone."""

import numpy as np
import pytest
from scipy import stats

from app.stats import cells, estimator, intervals, moments, planning
from app.stats.planning import Needed, Unattainable
from tests.stats import golden
from tests.stats.golden import hard

THREE = np.array([[800, 100, 100], [100, 700, 100], [100, 200, 800]])


def test_the_noncentrality_gives_the_power_asked_for() -> None:
    for df, alpha, power in ((1, 0.05, 0.8), (9, 0.01, 0.9), (99, 0.05, 0.5)):
        found = planning.noncentrality(df, alpha, power)
        assert stats.ncx2.sf(stats.chi2.isf(alpha, df), df, found) == pytest.approx(power)


def test_a_shift_that_the_reference_cannot_resolve_is_unattainable() -> None:
    on = hard(THREE)

    found = planning.predictions_to_detect(on, np.array([0.34, 0.33, 0.33]))

    assert isinstance(found, Unattainable)
    # With a reference that much larger, a bit more suffices.
    larger = hard(THREE * int(np.ceil(found.reference_factor * 1.05)))
    assert isinstance(planning.predictions_to_detect(larger, np.array([0.34, 0.33, 0.33])), Needed)


def test_no_shift_can_never_be_detected_and_a_total_one_at_once() -> None:
    on = hard(np.diag([500, 500]))

    assert planning.predictions_to_detect(on, np.array([0.5, 0.5])) == Unattainable(np.inf)
    found = planning.predictions_to_detect(on, np.array([1.0, 0.0]), power=0.8)
    assert isinstance(found, Needed)
    assert found.predictions < 20
    rare = hard(np.diag([100_000, 50]))
    assert planning.predictions_to_detect(rare, np.array([0.0, 1.0])) == Needed(1)


def test_a_larger_shift_needs_fewer_predictions() -> None:
    on = hard(THREE)
    sizes = [
        planning.predictions_to_detect(on, np.array([1 / 3 + d, 1 / 3 - d, 1 / 3]))
        for d in (0.1, 0.2, 0.3)
    ]

    assert all(isinstance(size, Needed) for size in sizes)
    assert sorted(sizes, key=lambda size: -getattr(size, "predictions", 0)) == sizes


@pytest.mark.parametrize("half_width", [0.2, 0.1, 0.05, 0.02])
@pytest.mark.parametrize("counts", [THREE * 20, golden.THREE * 50], ids=["good", "less good"])
def test_the_promised_window_has_the_promised_interval(
    counts: moments.Counts, half_width: float
) -> None:
    on, q = hard(counts), np.array([0.5, 0.3, 0.2])

    sizes = planning.predictions_for_half_width(on, q, half_width)

    for label, size in enumerate(sizes):
        assert isinstance(size, Needed)
        at = intervals.planned(on, q, size.predictions)
        # Rounding up to a whole prediction makes the few of a wide interval a bit too many.
        assert 0.97 < intervals.expected_half_lengths(at)[label] / half_width < 1.01


def test_a_drawn_window_of_the_promised_size_has_about_the_promised_interval() -> None:
    on, q = hard(THREE * 20), np.array([0.5, 0.3, 0.2])
    size = planning.predictions_for_half_width(on, q, 0.02)[0]
    assert isinstance(size, Needed)

    found = estimator.estimate(on, on.A @ q * size.predictions)
    interval = intervals.shares(intervals.design(on, found), found)

    assert interval.upper[0] - interval.lower[0] == pytest.approx(0.04, rel=0.03)


def test_a_higher_level_takes_more_predictions() -> None:
    on, q = hard(THREE * 20), np.array([0.5, 0.3, 0.2])

    few, many = (
        planning.predictions_for_half_width(on, q, 0.05, level=level)[0] for level in (0.9, 0.99)
    )

    assert isinstance(few, Needed)
    assert isinstance(many, Needed)
    # Normal quantiles 1.645 and 2.576, squared, and a little for the reference's noise.
    assert many.predictions / few.predictions == pytest.approx((2.576 / 1.645) ** 2, rel=0.1)


def test_a_half_width_below_the_references_noise_is_unattainable() -> None:
    on, q = hard(THREE), np.full(3, 1 / 3)

    sizes = planning.predictions_for_half_width(on, q, 0.005)

    for label, size in enumerate(sizes):
        assert isinstance(size, Unattainable)
        # With so many times the records, a window without end has it.
        larger = hard(np.rint(THREE * size.reference_factor).astype(np.int64))
        floor = intervals.expected_half_lengths(intervals.planned(larger, q, 1e9))[label]
        assert floor == pytest.approx(0.005, rel=0.06)


def test_no_reference_is_large_enough_for_labels_that_look_alike() -> None:
    sizes = planning.predictions_for_half_width(hard(golden.TWINS * 20), np.full(3, 1 / 3), 0.1)

    assert isinstance(sizes[0], Needed)
    assert sizes[1:] == [Unattainable(np.inf)] * 2


def test_the_shortest_window_that_is_planned_has_ten_predictions() -> None:
    sizes = planning.predictions_for_half_width(hard(THREE * 20), np.array([0.9, 0.05, 0.05]), 0.49)

    assert sizes[1] == Needed(10)


def test_delay_shrinks_with_traffic_and_is_endless_without_a_shift() -> None:
    on = hard(THREE)
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


def test_the_smallest_visible_shift_is_just_visible() -> None:
    on = hard(THREE * 20)

    growth = planning.smallest_visible_shift(on, 700, alpha=0.01, power=0.9)

    for label in range(3):
        q = planning.moved(on, label, on.nu[label] + growth[label])
        size = planning.predictions_to_detect(on, q, alpha=0.01, power=0.9)
        assert isinstance(size, Needed)
        assert size.predictions == pytest.approx(700, abs=1)


def test_more_predictions_show_smaller_shifts_until_the_reference_is_the_limit() -> None:
    on = hard(THREE)

    few, many, endless = (planning.smallest_visible_shift(on, m) for m in (100, 1000, 1e12))

    assert (few > many).all()
    assert (many > endless).all()
    assert (endless > 0.03).all()
    larger = planning.smallest_visible_shift(hard(THREE * 100), 1e12)
    assert larger == pytest.approx(endless / 10, rel=0.1)


def test_what_a_whole_window_of_a_label_does_not_show_is_never_visible() -> None:
    # A label that is nearly everything has no room to grow.
    on = hard(np.diag([9900, 100]))

    growth = planning.smallest_visible_shift(on, 50)

    assert np.isnan(growth[0])
    assert 0.0 < growth[1] < 0.2


def test_absent_labels_have_no_visible_shift() -> None:
    absent = hard(np.array([[900, 100, 0], [100, 900, 0], [0, 0, 4]]))

    found = planning.smallest_visible_shift(absent, 1000)

    assert np.isnan(found).tolist() == [False, False, True]


def test_labels_that_look_alike_are_seen_to_move_alike() -> None:
    # A shift to either is the same shift of predictions.
    found = planning.smallest_visible_shift(hard(golden.TWINS * 5), 1000)

    assert found[1] == pytest.approx(found[2])
    assert found[1] > found[0]


@pytest.mark.parametrize("to", [0.0, 0.1, 0.5, 1.0])
def test_one_label_moves_and_the_others_share_the_rest_as_before(to: float) -> None:
    on = hard(np.diag([500, 300, 200]))

    q = planning.moved(on, 1, to)

    assert q == pytest.approx(np.array([(1.0 - to) * 5 / 7, to, (1.0 - to) * 2 / 7]))


def test_a_label_is_found_by_its_position_in_the_model() -> None:
    on = hard(np.diag([500, 0, 300, 200]))

    # Over the labels that are present.
    assert planning.moved(on, 2, 0.65) == pytest.approx([0.25, 0.65, 0.1])


def test_a_reference_that_separates_nothing_promises_nothing() -> None:
    blind = hard(np.array([[50, 50], [50, 50]]))
    q = np.array([0.9, 0.1])

    assert planning.predictions_to_detect(blind, q) == Unattainable(np.inf)
    assert planning.predictions_for_half_width(blind, q, 0.1) == [Unattainable(np.inf)] * 2
    assert planning.detection_delay(blind, q, per_pane=20, average_run_length=1000) == np.inf
    assert np.isnan(planning.smallest_visible_shift(blind, 1000)).all()


def test_predictions_that_are_all_the_same_show_nothing() -> None:
    silent = estimator.prepare(cells.of_confusion(np.array([[50, 50], [0, 0]]), np.arange(2)))

    assert planning.predictions_to_detect(silent, np.array([0.9, 0.1])) == Unattainable(np.inf)
    assert np.isnan(planning.smallest_visible_shift(silent, 1000)).all()
