"""Does a 95 % interval hold the truth in 95 % of cases? The paper has no intervals."""

from functools import partial

import numpy as np

from app.stats import bbse, diagnosis, intervals, moments
from app.stats import reference as references
from app.stats.bbse import Prepared
from app.stats.moments import Floats, Sums
from app.stats.reference import Reference
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
from tests import fashion
from tests.calibration.controls import without_reference_noise

WINDOW = 2000
SIZES = (500, 1000, 2000, 5000, 10_000, 20_000)
HARD, SOFT, CONTROL = "hard", "soft", "soft, reference taken as exact"


def prepared(reference: Reference) -> Prepared:
    return bbse.prepare(reference, diagnosis.diagnose(reference))


def covered(on: Prepared, window: Sums, q: Floats, believed: Prepared) -> float:
    """The share of labels, or groups of labels that cannot be told apart, whose interval holds."""
    truth = references.by_column(q, on.columns)
    found = intervals.score(believed, bbse.estimate(on, window), window)
    return float(((found.lower <= truth) & (truth <= found.upper)).mean())


def coverage(classifier: fashion.Classifier, n: int, repeats: int) -> Rows:
    """References and windows from one pool, which thereby is the population."""
    rng = random("coverage", classifier, n)
    pool = fashion.outputs(classifier, "all")
    hits: dict[str, list[float]] = {HARD: [], SOFT: [], CONTROL: []}
    merged = dict.fromkeys(hits, 0)
    for _ in range(repeats):
        sample = fashion.draw(pool, fashion.UNIFORM, n, rng)
        made = references.from_sample(fashion.LABELS, sample.predicted, sample.labels, sample.rows)
        hard, soft = prepared(Reference(made.counts)), prepared(made)
        q = rng.dirichlet(np.ones(fashion.LABELS))
        drawn = fashion.draw(pool, q, WINDOW, rng)
        window = moments.sums(fashion.LABELS, drawn.predicted, drawn.rows)
        exact = without_reference_noise(soft)
        for name, on, believed in ((HARD, hard, hard), (SOFT, soft, soft), (CONTROL, soft, exact)):
            hits[name].append(covered(on, window, q, believed))
            merged[name] += bool(on.diagnosis.groups)
    about: Row = {"classifier": classifier, "n": n}
    return [
        averaged({**about, "interval": name, "merged": merged[name] / repeats}, "coverage", of)
        for name, of in hits.items()
    ]


def jobs(quick: bool) -> list[Job]:
    sizes = (1000,) if quick else SIZES
    repeats = 60 if quick else 400
    return [
        partial(coverage, classifier, n, repeats)
        for n in reversed(sizes)
        for classifier in CLASSIFIERS
    ]


def headlines(rows: Rows) -> list[Headline]:
    def at(classifier: str, name: str, n: int) -> str:
        found = number(rows, "coverage", classifier=classifier, interval=name, n=float(n))
        return f"{found:.3f}"

    return [
        Headline(
            f"coverage of 95 % intervals, n = {n:,}, m = 2,000, {classifier}: "
            "soft / hard / reference taken as exact",
            " / ".join(at(classifier, name, n) for name in (SOFT, HARD, CONTROL)),
        )
        for classifier in CLASSIFIERS
        for n in (1000, 10_000)
    ]


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
