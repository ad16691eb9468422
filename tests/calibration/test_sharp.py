"""The sharp estimate against its peers on real outputs."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import optimize

from app.stats import calibration, mlls, moments, sharp
from app.stats import reference as references
from app.stats.moments import Floats
from tests import fashion

EACH = tuple((label,) for label in range(fashion.LABELS))


@dataclass(frozen=True, slots=True)
class Built:
    """What the estimators under comparison make of one reference."""

    sharp: sharp.Prepared
    A: Floats
    nu: Floats


def built(sample: fashion.Outputs) -> Built:
    reference = references.from_sample(fashion.LABELS, sample.predicted, sample.labels, sample.rows)
    prepared = sharp.prepare(mlls.code_table(sample.rows, sample.labels), EACH)
    return Built(prepared, reference.conditional(soft=True), reference.nu)


def estimates(on: Built, window: fashion.Outputs) -> Iterator[tuple[str, Floats]]:
    """Each estimator's name and answer; peers are those of the design study, section j."""
    sums = moments.sums(fashion.LABELS, window.predicted, window.rows)
    found = sharp.estimate(on.sharp, sums)
    mu = window.rows.mean(axis=0)
    fitted = on.sharp.table.calibration
    as_they_are = calibration.Calibration(1.0, np.zeros(fashion.LABELS))
    assert found is not None
    yield "sharp", found.q
    yield "true labels", np.bincount(window.labels, minlength=fashion.LABELS) / len(window.labels)
    yield "bbse-soft raw", np.linalg.solve(on.A, mu)
    yield "simplex least squares", simplex_least_squares(on.A, mu)
    yield "em on calibrated rows", mlls.from_rows(fitted, on.nu, window.rows)
    yield "em uncalibrated", mlls.from_rows(as_they_are, on.nu, window.rows)


def simplex_least_squares(A: Floats, mu: Floats) -> Floats:
    """The peer's estimate: `|mu - A q|` made least over the simplex, every entry weighing alike.

    Along a ray `x = t q` the least `|(A - mu 1') x|^2 + (1'x - 1)^2` grows with `|mu - A q|`.
    """
    D = np.vstack([A - mu[:, None], np.ones(len(mu))])
    x, _ = optimize.nnls(D, np.append(np.zeros(len(mu)), 1.0))
    return np.asarray(x / x.sum())


def cut(pool: fashion.Outputs, n: int, rng: np.random.Generator) -> fashion.Outputs:
    """A reference of `n` different records of a pool in which labels are even."""
    chosen = rng.permutation(len(pool.labels))[:n]
    return fashion.Outputs(pool.rows[chosen], pool.labels[chosen])


def mean_l1(classifier: fashion.Classifier, n: int, repeats: int, seed: int) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    validation, test = (fashion.outputs(classifier, part) for part in ("validation", "test"))
    errors: dict[str, list[float]] = defaultdict(list)
    for _ in range(repeats):
        on = built(cut(validation, n, rng))
        for kind in fashion.SHIFTS:
            for m in (500, 1000, 2000, 4000, 8000):
                q = fashion.shifted(kind, rng)
                for name, found in estimates(on, fashion.draw(test, q, m, rng)):
                    errors[name].append(100.0 * float(np.abs(found - q).sum()))
    return {name: float(np.mean(of)) for name, of in errors.items()}


@pytest.mark.slow
def test_on_the_good_classifier_it_is_as_sharp_as_the_best_peer_that_keeps_rows() -> None:
    l1 = mean_l1("good", 10_000, repeats=40, seed=101)

    # 1,200 windows: the standard error of the mean of the paired difference is below 0.03.
    best = min(l1["simplex least squares"], l1["em on calibrated rows"])
    assert l1["sharp"] <= 1.03 * best
    assert l1["sharp"] <= 1.03 * 6.42  # the table of the design study
    assert l1["em uncalibrated"] > 1.5 * l1["sharp"]


@pytest.mark.slow
def test_on_the_weak_classifier_it_is_sharper_than_every_peer() -> None:
    l1 = mean_l1("weak", 10_000, repeats=40, seed=102)

    # The margin of 1.2 is seven times the standard error of the paired difference, 0.16.
    best = min(l1["simplex least squares"], l1["em on calibrated rows"])
    assert l1["sharp"] < 0.95 * best
    assert l1["sharp"] < 12.44  # the table of the design study
    assert l1["em uncalibrated"] > 3.0 * l1["sharp"]
