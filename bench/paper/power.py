"""How often each test notices a shift, against the size of the shift (figure 1, c)."""

from functools import partial

import numpy as np

from app.stats.moments import Floats
from bench.paper.experiment import Experiment, Headline, Job, Panels, Row, Rows, number, random
from bench.paper.naming import CLASSIFIERS, TESTS
from tests import fashion
from tests.calibration.window_tests import p_values

LABEL = 5
ALPHA = 0.05
SMALL, PAPER = 1000, 20_000

KNOCK_OUT = "sandals knocked out, n = m = {:,}"
TWEAK = "any label tweaked, n = m = {:,}"


def knock_out(classifier: fashion.Classifier, size: int, delta: float, repeats: int) -> Rows:
    """The paper's: part of label 5 is gone."""
    rng = random("knock-out", classifier, size, delta)
    found = p_values(classifier, fashion.knocked_out(LABEL, delta), size, size, repeats, rng)
    return rejected(classifier, KNOCK_OUT.format(size), delta, found)


def tweak_one(classifier: fashion.Classifier, size: int, change: float, repeats: int) -> Rows:
    """Every label in turn goes from .1 to .1 + `change`."""
    rng = random("tweak-one", classifier, size, change)
    each = [
        p_values(classifier, fashion.tweaked(label, 0.1 + change), size, size, repeats // 10, rng)
        for label in range(fashion.LABELS)
    ]
    found = {test: np.concatenate([one[test] for one in each]) for test in TESTS}
    return rejected(classifier, TWEAK.format(size), change, found)


def rejected(classifier: str, setting: str, size: float, found: dict[str, Floats]) -> Rows:
    return [
        {
            "classifier": classifier,
            "setting": setting,
            "test": name,
            "size": size,
            "power": float((found[test] < ALPHA).mean()),
            "draws": len(found[test]),
        }
        for test, name in TESTS.items()
    ]


def jobs(quick: bool) -> list[Job]:
    planned: list[Job] = []
    deltas = (0.0, 0.4, 0.8) if quick else np.arange(11) / 10
    changes = (0.0, 0.05) if quick else np.arange(8) / 100
    fine = () if quick else np.arange(11) / 50
    for classifier in CLASSIFIERS:
        repeats = 100 if quick else 500
        planned += [partial(knock_out, classifier, SMALL, float(d), repeats) for d in deltas]
        planned += [partial(knock_out, classifier, PAPER, float(d), 200) for d in fine]
        planned += [partial(tweak_one, classifier, SMALL, float(c), repeats) for c in changes]
    return planned


def headlines(rows: Rows) -> list[Headline]:
    def power(test: str, classifier: str, size: int, delta: float) -> str:
        at: Row = {"classifier": classifier, "setting": KNOCK_OUT.format(size), "size": delta}
        return f"{number(rows, 'power', test=TESTS[test], **at):.2f}"

    order = ("combined", "chi2", "ks", "oracle")
    return [
        Headline(
            f"power, {what} of sandals knocked out, n = m = {size:,}, {classifier} classifier: "
            "soft / hard / KS / oracle",
            " / ".join(power(test, classifier, size, delta) for test in order),
        )
        for classifier in CLASSIFIERS
        for size, delta, what in ((SMALL, 0.5, ".5"), (PAPER, 0.1, ".1"))
    ]


EXPERIMENT = Experiment(
    name="power",
    title="power against the size of the shift",
    jobs=jobs,
    figures={
        "power": Panels(
            x="size",
            y="power",
            line="test",
            across="setting",
            down="classifier",
            x_label="δ knocked out, or share added",
            y_label="power at level .05",
            guide=ALPHA,
            y_limits=(0.0, 1.03),
        )
    },
    headlines=headlines,
)
