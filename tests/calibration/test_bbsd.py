"""Level and power of the window tests, on real classifier outputs.

Predictions are drawn as counts from the confusion matrix of all 40,000 outputs, which is the
same as drawing the outputs; tests on scores draw the rows.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

from app.stats import bbsd
from app.stats import reference as references
from app.stats.moments import Floats
from app.stats.overdispersion import overdispersion
from bench.paper import mmd
from tests import fashion

pytestmark = pytest.mark.slow

K = fashion.LABELS
UNIFORM = fashion.UNIFORM


def confusion() -> Floats:
    pool = fashion.outputs("good", "all")
    return references.from_sample(K, pool.predicted, pool.labels).conditional()


@dataclass(frozen=True)
class Rejections:
    chi_square: float
    oracle: float
    paper: float


def rejections(q: Floats, n: int, m: int, repeats: int, seed: int) -> Rejections:
    """How often each test rejects at .05; the oracle is chi-square on the true labels."""
    rng = np.random.default_rng(seed)
    A = confusion()
    found = np.zeros(3)
    for _ in range(repeats):
        of_reference = rng.multinomial(n, (A * UNIFORM).ravel()).reshape(K, K)
        of_window = rng.multinomial(m, (A * q).ravel()).reshape(K, K)
        predicted = of_reference.sum(axis=1), of_window.sum(axis=1)
        actual = of_reference.sum(axis=0), of_window.sum(axis=0)
        tests = bbsd.chi_square(*predicted), bbsd.chi_square(*actual), bbsd.ks_labels(*predicted)
        found += [test.p_value < 0.05 for test in tests]
    return Rejections(*(found / repeats))


def p_values(p: Floats, n: int, m: int, repeats: int, seed: int | None) -> Floats:
    rng = np.random.default_rng(42)
    draws = rng.multinomial(n, p, size=repeats), rng.multinomial(m, p, size=repeats)
    return np.array(
        [bbsd.chi_square(*pair, seed=seed).p_value for pair in zip(*draws, strict=True)]
    )


def level(values: Floats, alpha: float = 0.05) -> float:
    return float((values <= alpha).mean())


def within(repeats: int, alpha: float = 0.05, errors: float = 3.0) -> float:
    """So many Monte-Carlo standard errors of a level."""
    return float(errors * np.sqrt(alpha * (1.0 - alpha) / repeats))


@pytest.mark.parametrize(("n", "m"), [(1000, 1000), (10_000, 500)])
def test_p_values_are_uniform_when_nothing_shifted(n: int, m: int) -> None:
    values = p_values(confusion() @ UNIFORM, n, m, 2000, seed=None)

    # One seed in a thousand would fail a perfect test.
    assert stats.kstest(values, "uniform").pvalue > 0.001
    assert level(values) == pytest.approx(0.05, abs=within(2000))


def test_resampled_p_values_keep_their_level_in_small_windows() -> None:
    p = confusion() @ np.array([0.5, 0.3, 0.1, 0.05, 0.02, 0.01, 0.01, 0.005, 0.003, 0.002])

    values = p_values(p, 1000, 40, 600, seed=5)

    # Ties make it conservative, never the contrary.
    assert 0.02 <= level(values) <= 0.05 + within(600)


@pytest.mark.parametrize(
    ("k", "n", "m", "concentration"),
    [
        (300, 600, 300, 100.0),
        (300, 3000, 300, 0.3),
        (1000, 10_000, 1000, 0.5),
        (1000, 5000, 100, 0.3),
    ],
)
def test_matched_moments_keep_the_level_of_sparse_tables(
    k: int, n: int, m: int, concentration: float
) -> None:
    p = np.random.default_rng(1).dirichlet(np.full(k, concentration))

    values = p_values(p, n, m, 1500, seed=None)

    assert level(values) == pytest.approx(0.05, abs=within(1500))
    assert level(values, 0.01) == pytest.approx(0.01, abs=within(1500, 0.01))


def test_matched_moments_see_shifts_where_pooling_is_blind() -> None:
    rng = np.random.default_rng(2)
    p = np.full(1000, 1e-3)
    q = rng.permutation(np.repeat([0.4e-3, 1.6e-3], 500))
    windows = rng.multinomial(5000, p, size=200), rng.multinomial(1000, q, size=200)

    matched, pooled = [], []
    for pair in zip(*windows, strict=True):
        matched.append(bbsd.chi_square(*pair).p_value < 0.05)
        pooled.append(bbsd.pooled_chi_square(*pair).p_value < 0.05)

    assert np.mean(matched) > 0.95
    assert np.mean(pooled) == 0.0


@pytest.mark.parametrize("label", [1, 8])  # trousers and bags: well separated
@pytest.mark.parametrize("delta", [0.3, 0.4, 0.5, 0.6])
def test_power_is_close_to_that_of_an_oracle_and_above_the_papers(label: int, delta: float) -> None:
    found = rejections(fashion.knocked_out(label, delta), 1000, 1000, repeats=1000, seed=label)

    # Two rates from the same draws: their difference has a standard error below .015.
    assert found.chi_square >= found.oracle - 0.06
    assert found.chi_square > found.paper


def test_the_papers_test_is_conservative() -> None:
    found = rejections(UNIFORM, 1000, 1000, repeats=2000, seed=3)

    assert found.chi_square == pytest.approx(0.05, abs=within(2000))
    assert found.paper < 0.03


@pytest.mark.parametrize("copies", [2, 4])
def test_repeated_records_break_the_level_and_phi_mends_it(copies: int) -> None:
    rng = np.random.default_rng(copies)
    p = confusion() @ UNIFORM
    naive, mended = [], []
    for _ in range(500):
        reference = rng.multinomial(10_000, p)
        panes = copies * rng.multinomial(20 // copies, p, size=100)
        phi = overdispersion(panes).phi
        naive.append(bbsd.chi_square(reference, panes.sum(axis=0)).p_value)
        mended.append(bbsd.chi_square(reference, panes.sum(axis=0), phi=phi).p_value)

    # The design study finds .42 and .83 unmended, .04 and .055 mended.
    assert level(np.array(naive)) > 0.3
    assert level(np.array(mended)) <= 0.05 + within(500)


def drawn_rows(size: int, q: Floats, rng: np.random.Generator) -> Floats:
    return fashion.draw(fashion.outputs("good", "all"), q, size, rng).rows


def score_tests(q: Floats, repeats: int) -> tuple[Floats, Floats]:
    """P-values of the kernel test and the smallest of the per-label tests."""
    rng = np.random.default_rng(9)
    kernel, labels = [], []
    for _ in range(repeats):
        reference, window = drawn_rows(1000, UNIFORM, rng), drawn_rows(1000, q, rng)
        embedding = mmd.embed(reference, seed=1)
        kernel.append(mmd.mmd(embedding, embedding.features.of(window).sum(axis=0), 1000).p_value)
        histograms = bbsd.logit_histograms(reference), bbsd.logit_histograms(window)
        labels.append(bbsd.ks_scores(*histograms).holm.min())
    return np.array(kernel), np.array(labels)


def test_tests_on_scores_keep_their_level() -> None:
    kernel, labels = score_tests(UNIFORM, 500)

    assert level(kernel) == pytest.approx(0.05, abs=within(500) + 0.013)  # design: to .063
    assert level(labels) <= 0.05 + within(500)


def test_tests_on_scores_see_a_knock_out_too() -> None:
    q = fashion.knocked_out(5, 0.6)

    kernel, labels = score_tests(q, 200)

    power = rejections(q, 1000, 1000, repeats=500, seed=1).chi_square
    assert 0.05 < level(labels) < power
    # On this classifier the kernel test is as good: three standard errors of their difference.
    assert level(kernel) == pytest.approx(power, abs=3 * 0.023)
