"""What a worse classifier costs: `sigma_min` of its confusion matrix, and the error of weights.

Outputs are made worse by replacing a share of the predictions by others drawn at random; digits
are classified by models that were trained on more and more of them.
"""

from functools import partial

import numpy as np

from app.stats import bbse
from app.stats import reference as references
from app.stats.moments import Floats, Sums
from app.stats.reference import Reference
from bench.paper import training
from bench.paper.experiment import Experiment, Headline, Job, Panels, Row, Rows, random, select
from bench.paper.naming import CLASSIFIERS
from tests import fashion
from tests.calibration import answers

SIZE = 5000
K = fashion.LABELS
REPLACED = (0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95)
TRAINED = (50, 100, 200, 500, 1000)

RAW, DEFAULT = "plain inverse (paper)", "default"
GOOD, WEAK = "good, predictions replaced", "weak, predictions replaced"
DIGITS = "digits, longer trained"
BOUND = "rule of thumb ∝ 1 / σ_min"


def replaced(classifier: fashion.Classifier, share: float, repeats: int) -> Rows:
    """This share of predictions has nothing to do with the picture."""
    pool = fashion.outputs(classifier, "all")
    A = references.from_sample(K, pool.predicted, pool.labels).conditional()
    worse = (1.0 - share) * A + share * (A @ fashion.UNIFORM)[:, None]
    rng = random("quality", classifier, share)
    return measured(GOOD if classifier == "good" else WEAK, share, worse, repeats, rng)


def trained(size: int, repeats: int) -> Rows:
    """A classifier of digits that has seen so many of them."""
    train, test = training.digits()
    rng = random("quality", "digits", size)
    model = training.logistic(train.draw(fashion.UNIFORM, size, rng))
    A = references.from_sample(K, model.predicted(test.pixels), test.labels).conditional()
    return measured(DIGITS, size, A, repeats, rng)


def measured(
    source: str, setting: float, A: Floats, repeats: int, rng: np.random.Generator
) -> Rows:
    """Root mean squared error of weights under random mixes, by both ways to invert."""
    joint = A * fashion.UNIFORM
    sigma = float(np.linalg.svd(joint, compute_uv=False)[-1])
    found = np.sqrt(np.mean([squared_errors(A, rng) for _ in range(repeats)], axis=0))
    about: Row = {
        "source": source,
        "setting": setting,
        "accuracy": 100.0 * float(np.trace(joint)),
        "sigma_min": sigma,
    }
    rows: Rows = []
    for name, error in zip((RAW, DEFAULT), found.tolist(), strict=True):
        rows.append(about | {"estimator": name, "error": error, "draws": repeats})
        rows.append(
            about | {"source": BOUND, "estimator": name, "error": rule_of_thumb(sigma), "draws": 0}
        )
    return rows


def squared_errors(A: Floats, rng: np.random.Generator) -> list[float]:
    q = rng.dirichlet(np.ones(K))
    reference = Reference(rng.multinomial(SIZE, (A * fashion.UNIFORM).ravel()).reshape(K, K))
    window = Sums(rng.multinomial(SIZE, A @ q))
    # The pseudo-inverse is the inverse where there is one, and does not fail where there is none.
    raw = bbse.minimum_norm(reference.joint(), window.counts / SIZE)
    default = answers.answer(answers.hard(reference), window).w
    return [float(((w - q / fashion.UNIFORM) ** 2).mean()) for w in (raw, default)]


def rule_of_thumb(sigma: float) -> float:
    """Of a single label, with the mean `|w|^2` of a flat Dirichlet."""
    w_squared = K**2 * 2.0 / (K + 1.0)
    return worst_direction_error(sigma, w_squared, SIZE, SIZE) / float(np.sqrt(K))


def worst_direction_error(sigma_min: float, w_squared: float, n: float, m: float) -> float:
    """The paper's Theorem 1 without its logarithms, as a standard error of `w` in any direction.

    `sqrt(1/m + |w|^2 / n) / sigma_min`.
    """
    return float(np.sqrt(1.0 / m + w_squared / n) / sigma_min)


def jobs(quick: bool) -> list[Job]:
    shares = (0.0, 0.8) if quick else REPLACED
    repeats = 40 if quick else 800
    return [
        *(partial(replaced, one, share, repeats) for one in CLASSIFIERS for share in shares),
        *(partial(trained, size, repeats) for size in (TRAINED[:1] if quick else TRAINED)),
    ]


def headlines(rows: Rows) -> list[Headline]:
    def line(share: float) -> Headline:
        raw, default = (
            select(rows, source=GOOD, setting=share, estimator=name)[0] for name in (RAW, DEFAULT)
        )
        return Headline(
            f"error of w, good classifier with {share:g} of predictions at random "
            f"(σ_min {float(raw['sigma_min']):.4f}): paper / default",
            f"{float(raw['error']):.2f} / {float(default['error']):.2f}",
        )

    return [line(share) for share in (0.0, 0.8, 0.95)]


EXPERIMENT = Experiment(
    name="quality",
    title="sigma_min, quality and error",
    jobs=jobs,
    figures={
        "quality_sigma_min": Panels(
            x="accuracy",
            y="sigma_min",
            line="source",
            where=("estimator", RAW),
            hidden=BOUND,
            x_label="accuracy in %",
            y_label="σ_min of the joint confusion matrix",
            log="y",
        ),
        "quality_error": Panels(
            x="sigma_min",
            y="error",
            line="source",
            across="estimator",
            x_label="σ_min of the joint confusion matrix",
            y_label="root mean squared error of w",
            log="xy",
        ),
    },
    headlines=headlines,
)
