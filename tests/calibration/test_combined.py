"""Level and power of the combined window test on real outputs."""

import numpy as np
import pytest

from app.stats.moments import Floats
from tests import fashion
from tests.calibration.window_tests import p_values
from tests.fashion import UNIFORM, knocked_out

SANDAL = 5


def rejections(
    classifier: fashion.Classifier, q: Floats, n: int, m: int, repeats: int, seed: int
) -> dict[str, float]:
    """How often each test has p < .05; the oracle is chi-square on the true labels."""
    found = p_values(classifier, q, n, m, repeats, np.random.default_rng(seed))
    return {name: float((values < 0.05).mean()) for name, values in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("classifier", ["good", "weak"])
def test_the_level_is_kept(classifier: fashion.Classifier) -> None:
    found = rejections(classifier, UNIFORM, 1000, 1000, repeats=4000, seed=301)

    # Standard error sqrt(.05 * .95 / 4000) = .0034.
    assert 0.04 <= found["combined"] <= 0.06


@pytest.mark.slow
@pytest.mark.parametrize(("n", "m"), [(1000, 50), (10_000, 200), (1000, 10_000)])
def test_short_and_long_windows_keep_it_nearly(n: int, m: int) -> None:
    found = rejections("good", UNIFORM, n, m, repeats=1500, seed=302)

    # Standard error .0056. With Welch's t instead of Student's it is .25 at m = 50.
    assert 0.03 <= found["combined"] <= 0.075


@pytest.mark.slow
@pytest.mark.parametrize("delta", [0.3, 0.5, 0.7])
def test_a_separable_label_is_missed_as_if_labels_were_seen(delta: float) -> None:
    found = rejections("good", knocked_out(SANDAL, delta), 1000, 1000, repeats=1000, seed=303)

    # The draws are the oracle's, so the difference has a standard error of about .012.
    assert found["combined"] >= found["oracle"] - 0.03
    assert found["combined"] >= found["chi2"]


@pytest.mark.slow
def test_the_weak_classifier_gains_most() -> None:
    found = rejections("weak", knocked_out(SANDAL, 0.5), 1000, 1000, repeats=1000, seed=304)

    # The design study: .39 against .17; here .37 against .22. Standard errors are .015.
    assert found["combined"] >= 0.39 - 0.045
    assert found["combined"] >= found["chi2"] + 0.1
