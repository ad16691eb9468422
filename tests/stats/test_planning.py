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


# Rows 1 and 2 are alike: labels 1 and 2 are merged.
MERGED = np.array([[900, 50, 50], [50, 500, 500], [50, 450, 450]])


def test_the_smallest_visible_shift_is_just_visible() -> None:
    on = prepared(THREE * 20)

    growth = planning.smallest_visible_shift(on, 700, alpha=0.01, power=0.9)

    for label in range(3):
        q = planning.moved(on, label, on.nu[label] + growth[label])
        size = planning.predictions_to_detect(on, q, alpha=0.01, power=0.9)
        assert isinstance(size, Needed)
        assert size.predictions == pytest.approx(700, abs=1)


def test_more_predictions_show_smaller_shifts_until_the_reference_is_the_limit() -> None:
    on = prepared(THREE)

    few, many, endless = (planning.smallest_visible_shift(on, m) for m in (100, 1000, 1e12))

    assert (few > many).all()
    assert (many > endless).all()
    assert (endless > 0.03).all()
    larger = planning.smallest_visible_shift(prepared(THREE * 100), 1e12)
    assert larger == pytest.approx(endless / 10, rel=0.1)


def test_what_a_whole_window_of_a_label_does_not_show_is_never_visible() -> None:
    # A label that is nearly everything has no room to grow.
    on = prepared(np.diag([9900, 100]))

    growth = planning.smallest_visible_shift(on, 50)

    assert np.isnan(growth[0])
    assert 0.0 < growth[1] < 0.2


def test_absent_labels_have_no_visible_shift_and_merged_ones_that_of_their_group() -> None:
    merged = prepared(MERGED)
    assert merged.columns == ((0,), (1, 2))
    absent = prepared(np.array([[900, 100, 0], [100, 900, 0], [0, 0, 4]]))

    of_members = planning.smallest_visible_shift(merged, 1000)[1:]

    q = planning.moved(merged, 1, 1 / 3 + of_members[0])
    assert planning.predictions_to_detect(merged, q) in (Needed(1000), Needed(1001))
    assert of_members[0] == pytest.approx(of_members[1])
    assert np.isnan(planning.smallest_visible_shift(absent, 1000)).tolist() == [False, False, True]


@pytest.mark.parametrize("to", [0.0, 0.1, 0.5, 1.0])
def test_one_label_moves_and_the_others_share_the_rest_as_before(to: float) -> None:
    on = prepared(np.diag([500, 300, 200]))

    q = planning.moved(on, 1, to)

    assert q == pytest.approx(np.array([(1.0 - to) * 5 / 7, to, (1.0 - to) * 2 / 7]))


def test_a_label_of_a_group_moves_the_group() -> None:
    q = planning.moved(prepared(MERGED), 1, 0.6)

    # Labels (1/3, 1/3, 1/3) become (.2, .6, .2).
    assert q == pytest.approx(np.array([0.2, 0.8]))


def test_a_reference_that_separates_nothing_promises_nothing() -> None:
    blind = prepared(np.array([[50, 50], [50, 50]]))
    q = blind.nu

    assert not blind.estimable
    assert planning.predictions_to_detect(blind, q) == Unattainable(np.inf)
    assert planning.predictions_for_half_width(blind, q, 0.1) == [Unattainable(np.inf)]
    assert planning.detection_delay(blind, q, per_pane=20, average_run_length=1000) == np.inf
    assert np.isnan(planning.smallest_visible_shift(blind, 1000)).all()
