"""Alarms through the real service, on simulated days: hardly a false one, and true ones soon.

`python -m bench.false_alarms` does the same for 200 months.
"""

import numpy as np
import pytest

from app.storage.db import Database
from tests.calibration.months import REFERENCE_SIZES, quiet_month, shifted_day

pytestmark = pytest.mark.slow

# Median panes from a label's growth from .10 to .20 to the alarm, by the size of the reference:
# STATISTICS of the design study, at predictions that come in panes of 20.
SPECIFIED_DELAY = {1_000: 23, 10_000: 22}


def test_false_alarms_stay_within_the_budget_and_a_fixed_p_value_does_not(
    database: Database,
) -> None:
    weeks = [quiet_month(database, number, days_in_all=7) for number in range(24)]

    ours = np.mean([week.alarms for week in weeks])
    rule = np.mean([week.rule for week in weeks])

    # A week's share of one a month, and what chance adds to it in 24 weeks.
    budget = 7 / 30
    assert ours <= budget + 2 * np.sqrt(budget / 24)
    assert rule > 40 * budget


def test_a_label_that_doubles_is_told_of_soon(database: Database) -> None:
    days = [shifted_day(database, number) for number in range(40)]

    for n in REFERENCE_SIZES:
        delays = [day.delay_panes for day in days if day.n == n]
        assert all(delay is not None for delay in delays)
        assert np.median([delay for delay in delays if delay]) <= 1.5 * SPECIFIED_DELAY[n]
