"""Are promises made from the reference alone kept by windows that follow?"""

import numpy as np
import pytest

from app.stats import bbsd, planning
from app.stats import reference as references
from app.stats.moments import Floats, Sums
from app.stats.planning import Needed
from app.stats.reference import Reference
from tests import fashion
from tests.calibration import answers

pytestmark = pytest.mark.slow

K = 10
UNIFORM = np.full(K, 0.1)


def confusion() -> Floats:
    pool = fashion.outputs("good", "all")
    return references.from_sample(K, pool.predicted, pool.labels).conditional()


def reference_of(n: int, rng: np.random.Generator) -> Reference:
    return Reference(rng.multinomial(n, (confusion() * UNIFORM).ravel()).reshape(K, K))


@pytest.mark.parametrize(("label", "mass"), [(1, 0.15), (5, 0.2), (6, 0.2)])
def test_windows_of_the_promised_size_have_about_the_promised_power(
    label: int, mass: float
) -> None:
    rng = np.random.default_rng(label)
    q = np.where(np.arange(K) == label, mass, (1.0 - mass) / 9)
    detected = []
    for _ in range(1000):
        reference = reference_of(5000, rng)
        size = planning.predictions_to_detect(answers.hard(reference), q, power=0.8)
        assert isinstance(size, Needed)
        window = rng.multinomial(size.predictions, confusion() @ q)
        detected.append(bbsd.chi_square(reference.predicted, window).p_value < 0.05)

    # Each reference's own noise moves its promise; the design study finds .73 to .85. The
    # Monte-Carlo standard error is .013.
    assert 0.73 - 0.026 <= np.mean(detected) <= 0.85 + 0.026


@pytest.mark.parametrize("label", [1, 6])
def test_windows_of_the_promised_size_have_the_promised_half_width(label: int) -> None:
    rng = np.random.default_rng(label)
    q = np.where(np.arange(K) == label, 0.3, 0.7 / 9)
    half = 0.03
    widths = []
    for _ in range(100):
        on = answers.hard(reference_of(10_000, rng))
        size = planning.predictions_for_half_width(on, q, half)[label]
        assert isinstance(size, Needed)
        window = Sums(rng.multinomial(size.predictions, confusion() @ q))
        found = answers.answer(on, window).shares()
        widths.append((found.upper - found.lower)[label] / 2)

    assert np.mean(widths) == pytest.approx(half, rel=0.05)
