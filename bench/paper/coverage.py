"""Does a 95 % interval hold the truth in 95 % of cases? The paper has no intervals."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from app.stats import moments
from app.stats import reference as references
from app.stats.estimator import Operator
from app.stats.moments import Bools, Floats, Sums
from app.stats.reference import Reference
from bench.paper.experiment import (
    Experiment,
    Headline,
    Job,
    Panels,
    Row,
    Rows,
    number,
    random,
)
from bench.paper.naming import CLASSIFIERS
from tests import fashion
from tests.calibration import answers
from tests.calibration.controls import without_reference_noise

K = fashion.LABELS
WINDOW = 2000
SIZES = (500, 1000, 2000, 5000, 10_000, 20_000)
RECORDS = 4_000_000  # in all references of one size together, to bound the time
HARD, SOFT, CONTROL = "hard", "soft", "soft, reference taken as exact"


@dataclass(frozen=True, slots=True)
class Held:
    """Of one window: which intervals hold the truth, how wide they are, how many say nothing."""

    labels: Bools
    accuracy: bool
    width: float
    vacuous: float


def held(on: Operator, window: Sums, q: Floats, accuracy: float) -> Held:
    found = answers.answer(on, window)
    of, overall = found.shares(), found.accuracy()
    return Held(
        labels=(of.lower <= q) & (q <= of.upper),
        accuracy=overall.lower <= accuracy <= overall.upper,
        width=float((of.upper - of.lower).mean()),
        vacuous=float(of.vacuous.mean()),
    )


def coverage(classifier: fashion.Classifier, n: int, repeats: int) -> Rows:
    """References and windows from one pool, which thereby is the population."""
    rng = random("coverage", classifier, n)
    pool = fashion.outputs(classifier, "all")
    recall = np.diag(references.from_sample(K, pool.predicted, pool.labels).conditional())
    found: dict[str, list[Held]] = {HARD: [], SOFT: [], CONTROL: []}
    for _ in range(repeats):
        sample = fashion.draw(pool, fashion.UNIFORM, n, rng)
        made = references.from_sample(K, sample.predicted, sample.labels, sample.rows)
        hard, soft = answers.hard(Reference(made.counts)), answers.soft(made)
        q = rng.dirichlet(np.ones(K))
        drawn = fashion.draw(pool, q, WINDOW, rng)
        window = moments.sums(K, drawn.predicted, drawn.rows)
        for name, on in ((HARD, hard), (SOFT, soft), (CONTROL, without_reference_noise(soft))):
            found[name].append(held(on, window, q, float(recall @ q)))
    about: Row = {"classifier": classifier, "n": n}
    return [{**about, "interval": name, **summed(of)} for name, of in found.items()]


def summed(each: Sequence[Held]) -> Row:
    """Coverage of labels, of the least covered label and of the accuracy."""
    labels = np.array([one.labels for one in each])
    return {
        "coverage": float(labels.mean()),
        "standard_error": float(labels.mean(axis=1).std(ddof=1) / np.sqrt(len(each))),
        "least": float(labels.mean(axis=0).min()),
        "accuracy": float(np.mean([one.accuracy for one in each])),
        "width": float(np.mean([one.width for one in each])),
        "vacuous": float(np.mean([one.vacuous for one in each])),
        "draws": len(each),
    }


def jobs(quick: bool) -> list[Job]:
    sizes = (1000,) if quick else SIZES
    return [
        partial(coverage, classifier, n, 60 if quick else min(400, RECORDS // n))
        for n in reversed(sizes)
        for classifier in CLASSIFIERS
    ]


def headlines(rows: Rows) -> list[Headline]:
    def at(column: str, classifier: str, name: str, n: int) -> str:
        found = number(rows, column, classifier=classifier, interval=name, n=float(n))
        return f"{found:.3f}"

    settings = [(classifier, n) for classifier in CLASSIFIERS for n in (1000, 10_000)]
    of_labels = [
        Headline(
            f"coverage of 95 % intervals, n = {n:,}, m = 2,000, {classifier}: "
            "soft / hard / reference taken as exact",
            " / ".join(at("coverage", classifier, name, n) for name in (SOFT, HARD, CONTROL)),
        )
        for classifier, n in settings
    ]
    of_accuracy = [
        Headline(
            f"coverage of the accuracy's interval, n = {n:,}, m = 2,000, {classifier}: soft / hard",
            " / ".join(at("accuracy", classifier, name, n) for name in (SOFT, HARD)),
        )
        for classifier, n in settings
    ]
    return of_labels + of_accuracy


EXPERIMENT = Experiment(
    name="coverage",
    title="coverage of intervals",
    jobs=jobs,
    figures={
        "coverage": Panels(
            x="n",
            y="coverage",
            line="interval",
            across="classifier",
            x_label="records in the reference, n",
            y_label="share of intervals that hold the truth",
            log="x",
            guide=0.95,
            y_limits=(0.5, 1.0),
        )
    },
    headlines=headlines,
)
