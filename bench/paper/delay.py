"""How long until a shift is told of, against its size: the detector beside fixed p-values."""

from functools import partial

import numpy as np

from app.stats.moments import Counts, Floats
from bench.paper.experiment import Experiment, Headline, Job, Panels, Rows, number, random
from bench.paper.false_alarms import ARL, PER_PANE, SIZES
from bench.paper.naming import ALPHAS, OURS, RULES
from tests.calibration import rules, streams

QUIET = 120
LENGTH = QUIET + 1440
CHANGES = (0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3)


def delays(n: int, change: float, count: int) -> Rows:
    """Median minutes from the change to the alarm, each label changing in a tenth of streams."""
    rng = random("delay", n, change)
    joint = streams.confusion()
    detector = streams.fleet(joint, n, count, ARL, rng)
    panes = changing(joint, change, count, rng)
    first = streams.first_alarms(detector, lambda t: panes[t].astype(np.float64), LENGTH)
    found = {OURS: after_change(first)}
    for alpha in ALPHAS:
        each = [first_low(p, panes[:, s], alpha) for s, p in enumerate(detector.predicted)]
        found[RULES[alpha]] = after_change(np.array(each))
    return [
        {
            "setting": f"n = {n:,}",
            "rule": rule,
            "change": change,
            "median_minutes": float(np.median(minutes)),
            "found": float(np.isfinite(minutes).mean()),
            "streams": len(minutes),
        }
        for rule, minutes in found.items()
    ]


def changing(joint: Floats, change: float, count: int, rng: np.random.Generator) -> rules.Small:
    nu = joint.sum(axis=0)
    mixes = [streams.grown(nu, stream % len(nu), change) for stream in range(count)]
    before, after = joint.sum(axis=1), np.array(mixes) @ (joint / nu).T
    return np.stack(
        [
            rng.multinomial(PER_PANE, before if t < QUIET else after, size=count).astype(np.uint8)
            for t in range(LENGTH)
        ]
    )


def first_low(predicted: Floats, panes: rules.Small, alpha: float) -> int:
    """The first pane from the change on at whose end the last hour has a p-value below `alpha`."""
    low = rules.p_values(predicted, panes)[QUIET - rules.WINDOW_PANES + 1 :] < alpha
    return QUIET + int(low.argmax()) if low.any() else LENGTH


def after_change(first: Counts) -> Floats:
    """Minutes of delay; infinite without an alarm, and false alarms before the change aside."""
    since = first[first >= QUIET] - QUIET + 1.0
    return np.where(since <= LENGTH - QUIET, since, np.inf)


def jobs(quick: bool) -> list[Job]:
    changes = (0.1, 0.3) if quick else CHANGES
    sizes = SIZES[1:] if quick else SIZES
    return [partial(delays, n, change, 20 if quick else 200) for n in sizes for change in changes]


def headlines(rows: Rows) -> list[Headline]:
    def at(rule: str, change: float) -> str:
        found = number(rows, "median_minutes", setting="n = 10,000", rule=rule, change=change)
        return f"{found:.0f}" if np.isfinite(found) else "over 1,440"

    names = (OURS, *RULES.values())
    return [
        Headline(
            f"median delay in minutes, a label from .10 to {0.1 + change:.2f}, n = 10,000: "
            + " / ".join(names),
            " / ".join(at(rule, change) for rule in names),
        )
        for change in (0.05, 0.1, 0.2)
    ]


EXPERIMENT = Experiment(
    name="delay",
    title="delay of the alarm",
    jobs=jobs,
    figures={
        "delay": Panels(
            x="change",
            y="median_minutes",
            line="rule",
            across="setting",
            x_label="growth of one label's share, from .10",
            y_label="median delay in minutes",
            log="y",
        )
    },
    headlines=headlines,
)
