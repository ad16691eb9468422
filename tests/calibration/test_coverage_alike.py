"""Do intervals of labels that look alike hold the truth, and say so little only where they must?

Outputs of the good classifier in which nothing tells pullovers from coats but chance: calibration
and least squares take some of that for a difference, so intervals must doubt it.
"""

from collections.abc import Callable

import numpy as np
import pytest

from app.stats import estimator, moments
from app.stats import reference as references
from app.stats.estimator import Operator
from app.stats.moments import Bools, Floats
from tests import fashion
from tests.calibration import answers
from tests.fashion import Outputs

pytestmark = pytest.mark.slow

PULLOVER, COAT = 2, 4
ALIKE = [PULLOVER, COAT]
REFERENCES, WINDOW = 40, 8000


def drawn_at_random(both: Floats, rng: np.random.Generator) -> Floats:
    """Rows stay as they are: the labels alone were drawn anew."""
    return both


def next_to_nothing(both: Floats, rng: np.random.Generator) -> Floats:
    """Rows give both labels nearly the same."""
    return _split(both, 0.5 + 0.02 * rng.uniform(-1.0, 1.0, len(both)))


def at_random_and_surely(both: Floats, rng: np.random.Generator) -> Floats:
    """Rows are sure which of the two it is, and know nothing."""
    return _split(both, rng.beta(0.2, 0.2, len(both)))


def _split(both: Floats, part: Floats) -> Floats:
    total = both.sum(axis=1)
    return np.stack([part * total, (1.0 - part) * total], axis=1)


WAYS = (drawn_at_random, next_to_nothing, at_random_and_surely)


def alike(way: Callable[[Floats, np.random.Generator], Floats]) -> Outputs:
    rng = np.random.default_rng(12)
    pool = fashion.outputs("good", "all")
    rows, labels = pool.rows.copy(), pool.labels.copy()
    rows[:, ALIKE] = way(rows[:, ALIKE], rng)
    either = np.isin(labels, ALIKE)
    labels[either] = rng.choice(ALIKE, size=np.count_nonzero(either))
    return Outputs(rows, labels)


def mixes() -> list[Floats]:
    """Three splits of .4 between the two, all else even."""
    others = np.full(fashion.LABELS, 0.6 / (fashion.LABELS - 2))
    found = []
    for pair in ((0.3, 0.1), (0.02, 0.38), (0.2, 0.2)):
        q = others.copy()
        q[ALIKE] = pair
        found.append(q)
    return found


def held(pool: Outputs, n: int, *, soft: bool) -> Bools:
    """Whether each interval held: by reference and window, and label."""
    rng = np.random.default_rng([13, n])
    found = []
    for _ in range(REFERENCES):
        sample = fashion.draw(pool, fashion.UNIFORM, n, rng)
        rows = sample.rows if soft else None
        made = references.from_sample(fashion.LABELS, sample.predicted, sample.labels, rows)
        on = answers.soft(made) if soft else answers.hard(made)
        for q in mixes():
            drawn = fashion.draw(pool, q, WINDOW, rng)
            sums = moments.sums(fashion.LABELS, drawn.predicted, drawn.rows if soft else None)
            of_q = answers.answer(on, sums).shares()
            found.append((of_q.lower <= q) & (q <= of_q.upper))
    return np.array(found)


@pytest.mark.parametrize("n", [1000, 5000])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("soft", [True, False])
def test_labels_that_only_chance_tells_apart_are_covered(
    way: Callable[[Floats, np.random.Generator], Floats], n: int, *, soft: bool
) -> None:
    found = held(alike(way), n, soft=soft)

    # Three windows of each reference share its error: standard errors are up to .03.
    assert found[:, ALIKE].mean() >= 0.95 - 2 * 0.03
    assert 0.93 <= np.delete(found, ALIKE, axis=1).mean() <= 0.985


def without_doubt(on: Operator, _: estimator.Weighing, times: float = 1.0) -> Floats:
    return np.zeros((on.size, 0))


# Where rows say next to nothing, calibration has nothing to go by, and takes nothing for something.
@pytest.mark.parametrize("way", [drawn_at_random, at_random_and_surely])
def test_intervals_that_believe_in_chance_are_too_sure(
    way: Callable[[Floats, np.random.Generator], Floats], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimator, "doubted", without_doubt)

    assert held(alike(way), 1000, soft=True)[:, ALIKE].mean() < 0.88
