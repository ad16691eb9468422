"""How far estimated weights are off, against the size of both samples (figures 2 and 3, top)."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from app.stats import bbse, moments
from app.stats import reference as references
from app.stats.estimator import Operator
from app.stats.moments import Floats, Sums
from app.stats.reference import Reference
from bench.paper import likelihood, rlls, scaling
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
from bench.paper.naming import CLASSIFIERS
from bench.paper.scaling import Scaling
from tests import fashion
from tests.calibration import answers

SIZES = (500, 1000, 2000, 4000, 8000, 16_000)

# The paper leaves its threshold on sigma_min open (0 < delta < 1/k); the weak classifier has .0055.
DELTA = 1e-3

HARD, SOFT = "BBSE-hard (paper)", "BBSE-soft (paper)"
DEFAULT, DEFAULT_HARD = "default", "default, hard"
REGULARISED, LIKELIHOOD, TRUTH = "RLLS", "MLLS (rows kept)", "true labels"


@dataclass(frozen=True, slots=True)
class Built:
    """What the estimators under comparison make of one reference."""

    reference: Reference
    hard: Operator
    soft: Operator
    scaling: Scaling


def built(sample: fashion.Outputs) -> Built:
    reference = references.from_sample(fashion.LABELS, sample.predicted, sample.labels, sample.rows)
    fitted = scaling.fit(sample.rows, sample.labels)
    return Built(reference, answers.hard(reference), answers.soft(reference), fitted)


def weights(on: Built, window: fashion.Outputs) -> Iterator[tuple[str, Floats]]:
    """Each estimator's name and its `w`."""
    m, nu = len(window.labels), on.reference.nu
    sums = moments.sums(fashion.LABELS, window.predicted, window.rows)
    hard, soft = sums.counts / m, window.rows.mean(axis=0)
    strength = 2.0 / np.sqrt(on.reference.n)
    yield HARD, bbse.algorithm_1(on.reference.joint(), hard, DELTA)
    yield SOFT, bbse.algorithm_1(on.reference.joint(soft=True), soft, DELTA)
    yield REGULARISED, rlls.regularised_weights(on.reference.joint(), hard, strength)
    yield LIKELIHOOD, likelihood.from_rows(on.scaling, nu, window.rows) / nu
    yield DEFAULT_HARD, answers.answer(on.hard, Sums(sums.counts)).w
    yield DEFAULT, answers.answer(on.soft, sums).w
    yield TRUTH, np.bincount(window.labels, minlength=fashion.LABELS) / m / nu


def errors(classifier: fashion.Classifier, size: int, repeats: int) -> Rows:
    """Mean squared error over labels; each reference meets a window of every kind of shift."""
    rng = random("estimation", classifier, size)
    pool = fashion.outputs(classifier, "all")
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(repeats):
        on = built(fashion.draw(pool, fashion.UNIFORM, size, rng))
        for shift in fashion.SHIFTS:
            q = fashion.shifted(shift, rng)
            for name, w in weights(on, fashion.draw(pool, q, size, rng)):
                found[shift, name].append(float(((w - q / fashion.UNIFORM) ** 2).mean()))
    return [
        averaged(
            {"classifier": classifier, "shift": shift, "estimator": name, "size": size}, "mse", of
        )
        for (shift, name), of in found.items()
    ]


def jobs(quick: bool) -> list[Job]:
    sizes = (500, 4000) if quick else SIZES
    repeats = 12 if quick else 100
    return [
        partial(errors, classifier, size, repeats)
        for size in reversed(sizes)  # the long ones first, so that no process waits at the end
        for classifier in CLASSIFIERS
    ]


def headlines(rows: Rows) -> list[Headline]:
    def ratio(name: str, classifier: str, shift: str) -> str:
        at: Row = {"classifier": classifier, "shift": shift, "size": 8000.0}
        mine, papers = (number(rows, "mse", estimator=one, **at) for one in (name, HARD))
        return f"{mine / papers:.2f}"

    order = (SOFT, LIKELIHOOD, DEFAULT_HARD, DEFAULT)
    return [
        Headline(
            f"MSE of w over that of the paper's BBSE-hard, {shift}, n = m = 8,000, "
            f"{classifier}: soft / MLLS / default of hard predictions / default",
            " / ".join(ratio(name, classifier, shift) for name in order),
        )
        for classifier in CLASSIFIERS
        for shift in ("dirichlet 1", "tweak .5", "tweak .9")
    ]


def panels(classifier: str) -> Panels:
    return Panels(
        x="size",
        y="mse",
        line="estimator",
        across="shift",
        where=("classifier", classifier),
        x_label="records in reference and window, n = m",
        y_label="mean squared error of w",
        log="xy",
        y_limits=(8e-4, 30.0),  # RLLS may answer 1 to no shift, which no axis shows
    )


EXPERIMENT = Experiment(
    name="estimation",
    title="error of the estimated weights",
    jobs=jobs,
    figures={f"estimation_{classifier}": panels(classifier) for classifier in CLASSIFIERS},
    headlines=headlines,
)
