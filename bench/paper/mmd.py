"""Maximum mean discrepancy between softmax rows of reference and window, by random features.

A kernel test sees any change in the distribution of scores, not only in the labels. With random
Fourier features (Rahimi and Recht, 2007) its statistic is a distance of two means, so it works
from sums, like everything else here. For label shift alone chi-square is more powerful.
"""

from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2

from app.stats.bbsd import Evidence
from app.stats.moments import Floats

FEATURES = 64
PAIRS = 2000


@dataclass(frozen=True, slots=True)
class Features:
    """A frozen draw of random features `sqrt(2 / D) cos(x.omega + b)` of a Gaussian kernel."""

    omega: Floats
    offset: Floats

    def of(self, rows: Floats) -> Floats:
        scale = np.sqrt(2.0 / len(self.offset))
        return np.asarray(scale * np.cos(rows @ self.omega + self.offset))


@dataclass(frozen=True, slots=True)
class Embedding:
    """The features of a reference: how many rows, their mean and the spectrum of their spread."""

    features: Features
    n: int
    mean: Floats
    eigenvalues: Floats


def embed(rows: Floats, seed: int) -> Embedding:
    """The reference's embedding, its kernel width from the median distance of random pairs."""
    rng = np.random.default_rng(seed)
    first, second = rng.integers(len(rows), size=(2, PAIRS))
    squared = ((rows[first] - rows[second]) ** 2).sum(axis=1)
    gamma = 1.0 / max(float(np.median(squared)), 1e-12)
    omega = rng.normal(scale=np.sqrt(2.0 * gamma), size=(rows.shape[1], FEATURES))
    features = Features(omega, rng.uniform(0.0, 2.0 * np.pi, size=FEATURES))
    phi = features.of(rows)
    spread = np.linalg.eigvalsh(np.cov(phi, rowvar=False, bias=True))
    return Embedding(features, len(rows), phi.mean(axis=0), np.maximum(spread, 0.0))


def mmd(embedding: Embedding, feature_sum: Floats, m: int, *, phi: float = 1.0) -> Evidence:
    """The test of `|mean_window - mean_reference|^2`, from the window's sum of features.

    Under the null it is distributed like `sum_l lambda_l chi2_1`, with `lambda` the eigenvalues of
    the reference's covariance times `1/n + 1/m`.
    """
    if not m:
        return Evidence("mmd", 0.0, None, 1.0, "none")
    statistic = float(((feature_sum / m - embedding.mean) ** 2).sum())
    weights = embedding.eigenvalues * (1.0 / embedding.n + phi / m)
    return Evidence("mmd", statistic, None, mixture_sf(statistic, weights), "asymptotic")


def mixture_sf(statistic: float, weights: Floats) -> float:
    """`P(sum_l weights_l chi2_1 > statistic)` by matching moments (Liu, Tang and Zhang, 2009).

    They match four with a non-central chi-square. Central terms with positive weights, as here,
    never need the non-centrality (`c3^2 <= c2 c4`), and mean, variance and skewness are matched.
    """
    c1, c2, c3 = (float((weights**power).sum()) for power in (1, 2, 3))
    if c2 <= 0.0:
        return 1.0 if statistic <= 0.0 else 0.0
    df = c2**3 / c3**2
    standard = (statistic - c1) / np.sqrt(2.0 * c2)
    return float(chi2.sf(standard * np.sqrt(2.0 * df) + df, df))
