"""Are p-values uniform when nothing shifted, and small when something did (figure 1, a and b)?"""

from functools import partial

import numpy as np

from bench.paper.experiment import Experiment, Headline, Job, Panels, Row, Rows, number, random
from bench.paper.naming import CLASSIFIERS, TESTS
from tests import fashion
from tests.calibration.window_tests import p_values

LABEL = 5  # the paper's choice: sandals here
DELTAS = (0.0, 0.6)
SIZE = 1000
GRID = np.linspace(0.0, 1.0, 41)


def distribution(classifier: fashion.Classifier, delta: float, repeats: int) -> Rows:
    """The share of draws with a p-value up to each point of a grid."""
    q = fashion.knocked_out(LABEL, delta)
    found = p_values(classifier, q, SIZE, SIZE, repeats, random("p_values", classifier, delta))
    return [
        {
            "classifier": classifier,
            "shift": f"δ = {delta:g}",
            "test": TESTS[test],
            "p": float(p),
            "share": float((found[test] <= p).mean()),
            "draws": repeats,
        }
        for test in TESTS
        for p in GRID
    ]


def jobs(quick: bool) -> list[Job]:
    repeats = 200 if quick else 5000
    return [
        partial(distribution, classifier, delta, repeats)
        for classifier in CLASSIFIERS
        for delta in DELTAS
    ]


def headlines(rows: Rows) -> list[Headline]:
    def share(test: str, shift: str) -> str:
        at: Row = {"classifier": "good", "shift": shift, "test": TESTS[test], "p": 0.05}
        return f"{number(rows, 'share', **at):.3f}"

    return [
        Headline(
            "p ≤ .05 at no shift, n = m = 1,000: soft / hard / the paper's KS",
            " / ".join(share(test, "δ = 0") for test in ("combined", "chi2", "ks")),
        ),
        Headline(
            "p ≤ .05 with .6 of sandals knocked out: soft / hard / KS / oracle",
            " / ".join(share(test, "δ = 0.6") for test in ("combined", "chi2", "ks", "oracle")),
        ),
    ]


EXPERIMENT = Experiment(
    name="p_values",
    title="distribution of p-values",
    jobs=jobs,
    figures={
        "p_values": Panels(
            x="p",
            y="share",
            line="test",
            across="shift",
            down="classifier",
            x_label="p-value",
            y_label="share of windows",
            guide="diagonal",
            markers=False,
        )
    },
    headlines=headlines,
)
