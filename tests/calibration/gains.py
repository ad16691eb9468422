"""What correcting softmax rows is worth in accuracy, when weights come from another sample."""

from dataclasses import dataclass

import numpy as np

from app.stats import bbsd, bbse, calibration, correction, moments
from app.stats import reference as references
from app.stats.moments import Floats
from tests import fashion
from tests.calibration import answers

K = fashion.LABELS

# Of the paper's Algorithm 1, which leaves it open; the weak classifier has a sigma_min of .0055.
DELTA = 1e-3


@dataclass(frozen=True)
class Gains:
    """Mean accuracy in per cent: as is, calibrated, corrected in four ways, and by the truth.

    By the paper's weights for hard predictions; by the default's always, on evidence of a shift
    only, and as much as there is evidence.
    """

    plain: float
    calibrated: float
    paper: float
    always: float
    gated: float
    shrunken: float
    oracle: float


def gains(
    classifier: fashion.Classifier,
    q: Floats,
    n: int,
    m: int,
    rng: np.random.Generator,
    *,
    windows: int,
) -> Gains:
    """Weights from windows of m on one reference of n.

    Accuracy is that on all test outputs, each label weighed by `q`: exact, given the weights.
    """
    stream = fashion.outputs(classifier, "test")
    sample = fashion.draw(fashion.outputs(classifier, "validation"), fashion.UNIFORM, n, rng)
    reference = references.from_sample(K, sample.predicted, sample.labels, sample.rows)
    on = answers.soft(reference)
    assert on.table.calibration is not None
    rows = calibration.calibrated(on.table.calibration, stream.rows)
    weights = (q / np.bincount(stream.labels))[stream.labels]

    def accuracy(w: Floats) -> float:
        return float(weights @ (correction.corrected(rows, w).argmax(axis=1) == stream.labels))

    found = np.zeros(4)
    for _ in range(windows):
        seen = fashion.draw(stream, q, m, rng)
        window = moments.sums(K, seen.predicted, seen.rows)
        paper = bbse.algorithm_1(reference.joint(), window.counts / m, DELTA)
        w = answers.answer(on, window).w
        test = bbsd.chi_square(reference.predicted, window.counts)
        gated = w if correction.called_for(test.p_value, consistent=True) else np.ones(K)
        shrunken = correction.shrunken(w, correction.shrinkage(test.statistic, K))
        found += [accuracy(paper), accuracy(w), accuracy(gated), accuracy(shrunken)]
    plain = float(weights @ (stream.predicted == stream.labels))
    each = [plain, accuracy(np.ones(K)), *(found / windows), accuracy(q / reference.nu)]
    return Gains(*(100.0 * np.array(each)).tolist())
