"""Accuracy of corrected outputs against uncorrected ones (figure 4's question, without training).

The classifier stays; its softmax rows are calibrated on the reference and multiplied by estimated
weights, which is what `POST .../correct` does.
"""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

import numpy as np

from app.stats.moments import Floats
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
from bench.paper.naming import CLASSIFIERS, CORRECTIONS, DIRICHLET, TWEAK
from tests import fashion
from tests.calibration.gains import gains

REFERENCE, WINDOW = 5000, 1000
SHARES = np.arange(11) / 10
CONCENTRATIONS = tuple(10.0**power for power in range(3, -4, -1))


def tweaked(classifier: fashion.Classifier, share: float, windows: int) -> Rows:
    """One label at this share: the mean over all ten of them."""
    mixes = [fashion.tweaked(label, share) for label in range(fashion.LABELS)]
    return accuracies(classifier, TWEAK, share, mixes, windows)


def dirichlet(classifier: fashion.Classifier, alpha: float, draws: int) -> Rows:
    """Random label mixes, the more uneven the smaller `alpha` is."""
    mixes = random("mixes", alpha).dirichlet(np.full(fashion.LABELS, alpha), size=draws)
    return accuracies(classifier, DIRICHLET, alpha, list(mixes), windows=1)


def accuracies(
    classifier: fashion.Classifier, shift: str, size: float, mixes: Sequence[Floats], windows: int
) -> Rows:
    rng = random("correction", classifier, shift, size)
    each = [asdict(gains(classifier, q, REFERENCE, WINDOW, rng, windows=windows)) for q in mixes]
    about: Row = {"classifier": classifier, "shift": shift, "size": size}
    return [
        averaged({**about, "method": name}, "accuracy", [one[way] for one in each])
        for way, name in CORRECTIONS.items()
    ]


def jobs(quick: bool) -> list[Job]:
    shares = (0.1, 0.9) if quick else SHARES
    alphas = (0.1,) if quick else CONCENTRATIONS
    return [
        job
        for classifier in CLASSIFIERS
        for job in (
            *(partial(tweaked, classifier, float(share), 1 if quick else 2) for share in shares),
            *(partial(dirichlet, classifier, alpha, 4 if quick else 40) for alpha in alphas),
        )
    ]


def headlines(rows: Rows) -> list[Headline]:
    def accuracy(classifier: str, share: float, way: str) -> str:
        at: Row = {"classifier": classifier, "shift": TWEAK, "size": share}
        return f"{number(rows, 'accuracy', method=CORRECTIONS[way], **at):.1f}"

    order = ("plain", "calibrated", "paper", "always", "shrunken", "oracle")
    return [
        Headline(
            f"accuracy in %, one label at {share:g}, {classifier}: "
            "as is / calibrated / BBSE-hard / default / shrunken / true weights",
            " / ".join(accuracy(classifier, share, way) for way in order),
        )
        for classifier in CLASSIFIERS
        for share in (0.1, 0.5, 0.9)
    ]


def panels(shift: str, label: str, log: str) -> Panels:
    return Panels(
        x="size",
        y="accuracy",
        line="method",
        across="classifier",
        where=("shift", shift),
        x_label=label,
        y_label="accuracy in %",
        log=log,
    )


EXPERIMENT = Experiment(
    name="correction",
    title="accuracy of corrected outputs",
    jobs=jobs,
    figures={
        "correction_tweak_one": panels(TWEAK, "share ρ of one label", ""),
        "correction_dirichlet": panels(DIRICHLET, "concentration α of the label mix", "x"),
    },
    headlines=headlines,
)
