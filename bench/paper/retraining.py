"""Importance-weighted retraining, the paper's Algorithm 1 (figures 2 to 4, bottom rows)."""

from collections.abc import Callable
from functools import partial

import numpy as np

from app.stats import bbsd, bbse, combined, correction, moments
from app.stats import reference as references
from app.stats.moments import Floats, Sums
from app.stats.reference import Reference
from bench.paper import training
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
    values,
)
from bench.paper.training import LABELS, Fitted, Pictures
from tests import fashion
from tests.calibration import answers

DELTA = 1e-3
TARGET = 1000
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)

UNWEIGHTED, TRUE = "unweighted", "weighted by truth"
PAPERS = "weighted by BBSE-hard (paper)"
DEFAULT, RECOMMENDED = "weighted by the default", "as the service recommends"
WAYS = (UNWEIGHTED, PAPERS, DEFAULT, RECOMMENDED, TRUE)

DIGITS, IMAGES = "digits", "Fashion-MNIST"

Learner = Callable[..., Fitted]
Halves = Callable[[], tuple[Pictures, Pictures]]


def estimated(learner: Learner, source: Pictures, target: Pictures) -> dict[str, Floats]:
    """Steps 1 to 3: half of the source trains a classifier, the other half is its reference."""
    half = len(source.labels) // 2
    first, second = source.part(slice(half)), source.part(slice(half, None))
    model = learner(first)
    of_second, of_target = model.rows(second.pixels), model.rows(target.pixels)
    reference = references.from_sample(LABELS, moments.argmax(of_second), second.labels, of_second)
    window = moments.sums(LABELS, moments.argmax(of_target), of_target)
    default = answers.answer(answers.soft(reference), window).w
    return {
        PAPERS: bbse.algorithm_1(reference.joint(), window.counts / window.n, DELTA),
        DEFAULT: default,
        RECOMMENDED: recommended(reference, window, default),
    }


def recommended(reference: Reference, window: Sums, w: Floats) -> Floats:
    """Ones unless there is evidence of a shift, and then no more than it speaks for."""
    test = combined.combined(combined.overall(reference), window)
    if not correction.called_for(test.p_value, consistent=True):
        return np.ones(LABELS)
    change = bbsd.chi_square(reference.predicted, window.counts)
    return correction.shrunken(w, correction.shrinkage(change.statistic, LABELS))


def retrained(learner: Learner, source: Pictures, w: Floats) -> Fitted:
    """Step 4: all of the source, every record weighing as its label does."""
    support = np.bincount(source.labels, minlength=LABELS)
    weights = correction.class_weights(w, support).weights
    return learner(source, weights[source.labels])


def accuracies(
    data: str, halves: Halves, learner: Learner, size: int, share: float, draws: int
) -> Rows:
    """Of every way to train, with one label at `share`: the mean over all ten of them."""
    rng = random("retraining", data, size, share)
    mixes = [fashion.tweaked(label, share) for label in range(LABELS) for _ in range(draws)]
    train, test = halves()
    each = [one_mix(learner, train, test, size, q, rng) for q in mixes]
    about: Row = {"setting": f"{data}, {size:,} records", "share": share}
    return [
        averaged({**about, "method": way}, "accuracy", [one[way] for one in each]) for way in WAYS
    ]


def one_mix(
    learner: Learner,
    train: Pictures,
    test: Pictures,
    size: int,
    q: Floats,
    rng: np.random.Generator,
) -> dict[str, float]:
    """Accuracy in per cent on all test pictures, each label weighed by `q`."""
    source = train.draw(fashion.UNIFORM, size, rng)
    w = estimated(learner, source, test.draw(q, TARGET, rng))
    w[TRUE] = q / fashion.UNIFORM
    models = {UNWEIGHTED: learner(source)}
    models |= {way: retrained(learner, source, of) for way, of in w.items()}
    weights = 100.0 * (q / np.bincount(test.labels, minlength=LABELS))[test.labels]
    return {
        way: float(weights @ (model.predicted(test.pixels) == test.labels))
        for way, model in models.items()
    }


def on_digits(quick: bool) -> list[Job]:
    if quick:
        return [partial(accuracies, DIGITS, training.digits, training.logistic, 200, 0.9, 1)]
    return [
        partial(accuracies, DIGITS, training.digits, training.logistic, size, share, 2)
        for size in (1000, 200)
        for share in SHARES
    ]


def on_images(quick: bool) -> list[Job]:
    if training.images_folder() is None:
        return []
    return [
        partial(accuracies, IMAGES, training.images, training.perceptron, size, share, draws)
        for size, draws in ([(1000, 1)] if quick else [(4000, 1), (500, 2)])
        for share in (SHARES[-2:] if quick else SHARES)
    ]


def headlines(rows: Rows) -> list[Headline]:
    def accuracy(setting: str | float, share: float, way: str) -> str:
        found = number(rows, "accuracy", setting=setting, share=share, method=way)
        return f"{found:.1f}"

    return [
        Headline(
            f"retrained, accuracy in %, one label at {share:g}, {setting}: "
            "unweighted / BBSE-hard / default / as recommended / true weights",
            " / ".join(accuracy(setting, share, way) for way in WAYS),
        )
        for setting in values(rows, "setting")
        for share in (0.1, 0.5, 0.9)
    ]


PANELS = Panels(
    x="share",
    y="accuracy",
    line="method",
    across="setting",
    x_label="share ρ of one label",
    y_label="accuracy in %",
)

EXPERIMENT = Experiment(
    name="retraining",
    title="retraining with weights, digits",
    jobs=on_digits,
    figures={"retraining": PANELS},
    headlines=headlines,
)

WITH_IMAGES = Experiment(
    name="retraining_images",
    title="retraining with weights, Fashion-MNIST",
    jobs=on_images,
    figures={"retraining_images": PANELS},
    headlines=headlines,
)
