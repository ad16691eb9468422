"""How wrong the shown label mix is after a change, for windows of fixed length and the adaptive.

The paper names the trade-off (section 7, streaming) and leaves it open.
"""

from functools import partial

import numpy as np

from app.stats import adaptive, bbsd, moments
from bench.paper.experiment import (
    Experiment,
    Headline,
    Job,
    Panels,
    Row,
    Rows,
    averaged,
    number,
    random,
)
from tests import fashion
from tests.calibration import answers
from tests.calibration.histories import abrupt, history, prepared

REFERENCE = 10_000
PANES = 2048
AGO = (1, 3, 5, 10, 20, 30, 60, 90, 120, 240, 480, 960, 1440, 1920)
TO = (0.2, 0.4)
HOUR, DAY, ADAPTIVE = "last hour", "last 24 hours", "adaptive"
FIXED = {HOUR: 60, DAY: 1440}


def errors(to: float, ago: int, repeats: int) -> Rows:
    """The share of records given the wrong label, a label having gone from .1 to `to`."""
    rng = random("adaptive", to, ago)
    found: dict[str, list[float]] = {name: [] for name in (*FIXED, ADAPTIVE)}
    lengths = []
    for draw in range(repeats):
        on = prepared(REFERENCE, rng)
        mixes = abrupt(draw % fashion.LABELS, to, ago, PANES)
        panes = history(mixes, rng)
        chosen = adaptive.choose(on, panes)
        assert chosen is not None
        lengths.append(chosen.panes)
        windows = {name: moments.total(panes[:length]) for name, length in FIXED.items()}
        for name, sums in {**windows, ADAPTIVE: chosen.sums}.items():
            q = answers.answer(on, sums).q
            found[name].append(100.0 * bbsd.total_variation(q, mixes[0]))
    about: Row = {"setting": f"a label from 0.1 to {to:g}", "minutes": ago}
    panes_used = {**FIXED, ADAPTIVE: float(np.median(lengths))}
    return [
        averaged({**about, "window": name, "panes": panes_used[name]}, "error", of)
        for name, of in found.items()
    ]


def jobs(quick: bool) -> list[Job]:
    moments_ago = (30, 480) if quick else AGO
    sizes = TO[1:] if quick else TO
    return [partial(errors, to, ago, 10 if quick else 150) for to in sizes for ago in moments_ago]


def headlines(rows: Rows) -> list[Headline]:
    def at(window: str, minutes: int) -> str:
        setting = "a label from 0.1 to 0.4"
        found = number(rows, "error", setting=setting, window=window, minutes=float(minutes))
        return f"{found:.1f}"

    names = (*FIXED, ADAPTIVE)
    return [
        Headline(
            f"error of q in %, {minutes:,} minutes after a label went from .1 to .4: "
            + " / ".join(names),
            " / ".join(at(window, minutes) for window in names),
        )
        for minutes in (10, 60, 480, 1920)
    ]


EXPERIMENT = Experiment(
    name="adaptive",
    title="error of the label mix after a change",
    jobs=jobs,
    figures={
        "adaptive": Panels(
            x="minutes",
            y="error",
            line="window",
            across="setting",
            x_label="minutes since the change",
            y_label="error of q in % (total variation)",
            log="xy",
        )
    },
    headlines=headlines,
)
