"""False alarms of a stream in which nothing changes: a budget against a p-value every minute.

`python -m bench.false_alarms` sends such months through the whole service; here the detector's own
arithmetic runs on hundreds of streams at once.
"""

from functools import partial

import numpy as np

from app.stats.moments import Counts, Floats
from bench.paper.experiment import Experiment, Headline, Job, Panels, Rows, number, random
from bench.paper.naming import ALPHAS, BUDGET, OURS, RULES
from tests.calibration import rules, streams

PER_PANE = 20
DAY = 1440
MONTH_DAYS = 30
SIZES = (1000, 10_000)
ARL = float(MONTH_DAYS * DAY)


def month(n: int, count: int, days: int) -> Rows:
    """Mean number of false alarms so far, day by day, over so many streams and references."""
    rng = random("month", n)
    joint = streams.confusion()
    detector = streams.fleet(joint, n, count, ARL, rng)
    draw = streams.steady(joint, PER_PANE, count, rng)
    panes = np.empty((days * DAY, count, len(joint)), np.uint8)

    def kept(t: int) -> Floats:
        counts = draw(t)
        panes[t] = counts
        return counts

    first = streams.first_alarms(detector, kept, len(panes))
    so_far = {OURS: ours_by_day(first, days)}
    so_far |= rules_by_day(detector.predicted, panes, days)
    so_far[BUDGET] = np.arange(days + 1) / MONTH_DAYS
    return [
        {
            "setting": f"n = {n:,}",
            "rule": rule,
            "day": day,
            "false_alarms": float(value),
            "streams": count,
        }
        for rule, by_day in so_far.items()
        for day, value in enumerate(by_day)
        if day
    ]


def ours_by_day(first: Counts, days: int) -> Floats:
    """Streams with an alarm by the end of each day; none has started anew after its first."""
    ends = np.arange(days + 1) * DAY
    return np.asarray((first[:, None] < ends).mean(axis=0))


def rules_by_day(predicted: Floats, panes: rules.Small, days: int) -> dict[str, Floats]:
    """Alarms that began by the end of each day, of each fixed rule, a stream on average."""
    total = {rule: np.zeros(days + 1) for rule in RULES.values()}
    edges = np.arange(days + 1) * DAY
    for stream, of_reference in enumerate(predicted):
        p = rules.p_values(of_reference, panes[:, stream])
        for alpha in ALPHAS:
            began = np.flatnonzero(rules.raised(p < alpha)) + rules.WINDOW_PANES
            total[RULES[alpha]] += np.searchsorted(began, edges, side="right")
    return {rule: of / len(predicted) for rule, of in total.items()}


def jobs(quick: bool) -> list[Job]:
    count, days = (20, 1) if quick else (120, MONTH_DAYS)
    return [partial(month, n, count, days) for n in SIZES]


def headlines(rows: Rows) -> list[Headline]:
    def at(setting: str, rule: str) -> str:
        found = number(rows, "false_alarms", setting=setting, rule=rule, day=float(MONTH_DAYS))
        return f"{found:.2g}" if found < 1.0 else f"{found:.0f}"

    names = (OURS, *RULES.values())
    return [
        Headline(
            f"false alarms in a quiet month, n = {n:,}: " + " / ".join(names),
            " / ".join(at(f"n = {n:,}", rule) for rule in names),
        )
        for n in SIZES
    ]


EXPERIMENT = Experiment(
    name="false_alarms",
    title="false alarms of a quiet month",
    jobs=jobs,
    figures={
        "false_alarms": Panels(
            x="day",
            y="false_alarms",
            line="rule",
            across="setting",
            x_label="days without any change",
            y_label="false alarms so far, per model",
            log="y",
            markers=False,
        )
    },
    headlines=headlines,
)
