"""P-values of the window tests over many draws of a reference and a window of real outputs."""

import numpy as np

from app.stats import bbsd, combined, moments
from app.stats.moments import Counts, Floats, Sums
from tests import fashion

# The oracle is chi-square on the true labels, which nobody has.
TESTS = ("chi2", "hotelling", "t", "combined", "ks", "oracle")


def p_values(
    classifier: fashion.Classifier,
    q: Floats,
    n: int,
    m: int,
    repeats: int,
    rng: np.random.Generator,
) -> dict[str, Floats]:
    """Of each of the `TESTS`, a p-value for every draw: all tests look at the same draws."""
    pool = fashion.outputs(classifier, "all")
    found = []
    for _ in range(repeats):
        r, of_r = _sums_and_labels(pool, fashion.UNIFORM, n, rng)
        w, of_w = _sums_and_labels(pool, q, m, rng)
        parts = (
            bbsd.chi_square(r.counts, w.counts),
            combined.hotelling(r, w),
            combined.largest_t(r, w),
            combined.combined(r, w),
            bbsd.ks_labels(r.counts, w.counts),
            bbsd.chi_square(of_r, of_w),
        )
        found.append([part.p_value for part in parts])
    return dict(zip(TESTS, np.array(found).T, strict=True))


def _sums_and_labels(
    pool: fashion.Outputs, q: Floats, size: int, rng: np.random.Generator
) -> tuple[Sums, Counts]:
    drawn = fashion.draw(pool, q, size, rng)
    labels = np.bincount(drawn.labels, minlength=fashion.LABELS)
    return moments.sums(fashion.LABELS, drawn.predicted, drawn.rows), labels
