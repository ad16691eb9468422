"""Months of simulated life through the real service: what alarms they bring."""

from dataclasses import dataclass
from datetime import timedelta

import numpy as np

from app.domain.alarm import Alarm, AlarmKind
from app.stats import moments
from app.stats.moments import Counts
from app.stats.reference import Reference, from_sample
from app.storage import alarms, models
from app.storage.db import Database
from tests import fashion
from tests.calibration import rules
from tests.calibration.streams import confusion, grown
from tests.evaluate.simulation import Life, life

DAY_PANES = 1440
MONTH_DAYS = 30
PER_PANE = 20
REFERENCE_SIZES = (1_000, 10_000)


@dataclass(frozen=True, slots=True)
class Month:
    """What one model's month brought: alarms of ours, and of the rule with a fixed p-value."""

    n: int
    alarms: int
    rule: int
    delay_panes: float | None = None


def quiet_month(own: Database, number: int, days_in_all: int = MONTH_DAYS) -> Month:
    """A month in which nothing changes."""
    rng = np.random.default_rng([20261118, number])
    joint = confusion()
    n = REFERENCE_SIZES[number % len(REFERENCE_SIZES)]
    reference = Reference(rng.multinomial(n, joint.ravel()).reshape(joint.shape))
    model = life(own, reference, f"quiet-{number}")
    days = []
    for _ in range(days_in_all):
        days.append(rng.multinomial(PER_PANE, joint.sum(axis=1), size=DAY_PANES))
        model.live(days[-1])
    found = raised(own, model)
    forget(own, model)
    return Month(n, len(found), rule(reference, np.concatenate(days)))


def quiet_soft_month(own: Database, number: int, days_in_all: int = MONTH_DAYS) -> Month:
    """The same with softmax rows of a real classifier, so that confidence is watched as well."""
    rng = np.random.default_rng([11, number])
    pool = fashion.outputs("good", "all")
    n = REFERENCE_SIZES[number % len(REFERENCE_SIZES)]
    chosen = rng.choice(len(pool.labels), n)
    rows = pool.rows[chosen]
    reference = from_sample(fashion.LABELS, moments.argmax(rows), pool.labels[chosen], rows)
    model = life(own, reference, f"quiet-soft-{number}")
    days = []
    for _ in range(days_in_all):
        drawn = rng.integers(0, len(pool.labels), size=(DAY_PANES, PER_PANE))
        days.append(np.stack([np.bincount(pool.predicted[one], minlength=10) for one in drawn]))
        model.live_soft([pool.rows[one] for one in drawn])
    found = raised(own, model)
    forget(own, model)
    return Month(n, len(found), rule(reference, np.concatenate(days)))


def shifted_day(own: Database, number: int) -> Month:
    """Half a day of quiet, then label after label in turn at .20 instead of .10."""
    rng = np.random.default_rng([7, number])
    joint = confusion()
    nu = joint.sum(axis=0)
    n = REFERENCE_SIZES[number % len(REFERENCE_SIZES)]
    reference = Reference(rng.multinomial(n, joint.ravel()).reshape(joint.shape))
    model = life(own, reference, f"shifted-{number}")
    model.live(rng.multinomial(PER_PANE, joint.sum(axis=1), size=DAY_PANES // 2))
    began = model.now
    mix = (joint / nu) @ grown(nu, number // 2 % len(nu), 0.1)
    while model.now < began + timedelta(hours=12) and not raised(own, model):
        model.live(rng.multinomial(PER_PANE, mix, size=1))
    found = raised(own, model)
    forget(own, model)
    fired = found[-1].fired_at if found else None
    delay = None if fired is None else (fired - began) / timedelta(minutes=1)
    return Month(n, len(found), 0, delay)


def raised(own: Database, model: Life) -> list[Alarm]:
    """Alarms that were told of, newest first; those about missing predictions aside."""
    with own.begin() as conn:
        found = [one.alarm for one in alarms.page(conn, model_name=model.name, limit=1000)]
    kinds = (AlarmKind.SHIFT, AlarmKind.ASSUMPTION)
    return [one for one in found if one.kind in kinds and one.fired_at is not None]


def forget(own: Database, model: Life) -> None:
    with own.begin() as conn:
        models.forget(conn, model.name)


def rule(reference: Reference, panes: Counts) -> int:
    """How often p falls below 0.05 in a month, looking once a minute from the first hour on."""
    return int(rules.raised(rules.p_values(reference.predicted, panes) < 0.05).sum())
