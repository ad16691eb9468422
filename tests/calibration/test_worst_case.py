"""False alarms and delays of the worst-case detector (the design study, F2), over many streams."""

import numpy as np
import pytest

from app.stats import worst_case
from app.stats.moments import Floats
from tests.calibration import streams

ARL = 10_000.0
QUIET = 100


def alarms(n: int, after: Floats | None, length: int, seed: int, **options: float) -> Floats:
    """First alarms of 100 streams whose label mix changes to `after` at pane 100, if it does."""
    rng = np.random.default_rng(seed)
    joint = streams.confusion()
    drawn = streams.references(joint, n, 100, rng)
    detector = streams.stacked_worst_case(
        [worst_case.prepare(one, ARL, **options) for one in drawn]
    )

    def panes(t: int) -> Floats:
        moved = joint / joint.sum(axis=0) @ after if after is not None and t >= QUIET else None
        mix = joint.sum(axis=1) if moved is None else moved
        return rng.multinomial(20, mix, size=100).astype(np.float64)

    return streams.first_worst_case_alarms(detector, panes, length).astype(np.float64)


# The bound is .4, plus .025 for references whose confidence set misses the truth.
@pytest.mark.slow
@pytest.mark.parametrize("n", [1_000, 10_000])
def test_a_quiet_stream_raises_next_to_no_alarm(n: int) -> None:
    first = alarms(n, None, 4_000, seed=41)

    assert np.mean(first < 4_000) <= 0.06  # .025 and two standard errors of 100 streams


# The design study's delays times 1.3; the median of 100 delays has a standard error of about 6 %.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "change", "at_most"),
    [(1_000, 0.1, 1.3 * 90), (10_000, 0.1, 1.3 * 25), (10_000, 0.05, 1.3 * 95)],
)
def test_median_delay(n: int, change: float, at_most: float) -> None:
    nu = streams.confusion().sum(axis=0)

    first = alarms(n, streams.grown(nu, 3, change), QUIET + 600, seed=42)

    assert np.median(first - QUIET + 1) <= at_most


@pytest.mark.slow
def test_a_change_within_reference_error_stays_unseen() -> None:
    nu = streams.confusion().sum(axis=0)

    first = alarms(1_000, streams.grown(nu, 3, 0.05), QUIET + 600, seed=43)

    assert np.mean(first < QUIET + 600) < 0.5


@pytest.mark.slow
def test_a_tolerated_change_stays_unseen() -> None:
    nu = streams.confusion().sum(axis=0)

    first = alarms(10_000, streams.grown(nu, 3, 0.05), QUIET + 600, seed=44, tolerance=0.02)

    assert np.mean(first < QUIET + 600) == 0.0


@pytest.mark.slow
def test_a_drift_too_slow_to_notice_from_pane_to_pane_is_not_absorbed() -> None:
    rng = np.random.default_rng(45)
    joint = streams.confusion()
    nu = joint.sum(axis=0)
    drawn = streams.references(joint, 10_000, 100, rng)
    detector = streams.stacked_worst_case([worst_case.prepare(one, ARL) for one in drawn])

    def panes(t: int) -> Floats:
        mix = joint / nu @ streams.grown(nu, 3, 0.3 * t / 3_000)
        return rng.multinomial(20, mix, size=100).astype(np.float64)

    first = streams.first_worst_case_alarms(detector, panes, 3_000)

    assert np.median(first) < 900  # the label has grown from .10 to less than .19
