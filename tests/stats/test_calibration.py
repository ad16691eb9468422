"""Matrix scaling of softmax rows."""

import numpy as np
import pytest

from app.stats import calibration
from app.stats.calibration import Calibration
from app.stats.moments import Counts, Floats
from tests import fashion

ALL = np.arange(fashion.LABELS)


def softmax(z: Floats) -> Floats:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def surprise(rows: Floats, actual: Counts) -> float:
    """Mean negative log-likelihood of the true labels."""
    return float(-np.log(rows[np.arange(len(rows)), actual]).mean())


def labelled(rng: np.random.Generator, honest: Floats) -> Counts:
    """Labels drawn from rows of probabilities."""
    return np.asarray((rng.random((len(honest), 1)) > honest.cumsum(axis=1)).sum(axis=1))


def objective(fitted: Calibration, rows: Floats, actual: Counts) -> float:
    """What a fit minimises, written out: the penalty is 30 records times the spread of a column off
    the diagonal, and one record for each slope and bias."""
    x = np.log(np.maximum(rows, 1e-6))
    x = x - x.mean(axis=0)
    W = fitted.slope
    off = 30.0 * x.var(axis=0)[:, None] * (W * (1.0 - np.eye(len(W)))) ** 2
    penalty = (
        off.sum() + ((np.diag(W) - 1.0) ** 2).sum() + ((fitted.bias - fitted.centre) ** 2).sum()
    )
    return float(len(rows) * surprise(softmax(x @ W + fitted.bias), actual) + penalty / 2.0)


def test_a_known_distortion_is_undone_by_a_matrix() -> None:
    rng = np.random.default_rng(1)
    honest = softmax(rng.normal(size=(20_000, 3)))
    actual = labelled(rng, honest)
    # Label 0 takes from label 1 what no temperature could give back.
    mixing = np.array([[2.0, 0.6, 0.0], [0.0, 1.5, 0.0], [0.0, 0.0, 1.0]])
    distorted = softmax(np.log(honest) @ mixing + np.array([0.5, 0.0, -0.5]))

    fitted = calibration.fit(distorted, actual, np.arange(3))

    found = calibration.calibrated(fitted, distorted)
    # Twelve parameters fitted to 20,000 records: probabilities to a part in sqrt(20,000 / 12).
    assert np.abs(found - honest).mean() < 0.02
    assert np.abs(distorted - honest).mean() > 0.1
    # Sharper rows give flatter slopes.
    assert fitted.slope[0, 0] < 0.7


def test_honest_rows_are_left_alone() -> None:
    rng = np.random.default_rng(2)
    honest = softmax(rng.normal(size=(5000, 4)))

    fitted = calibration.fit(honest, labelled(rng, honest), np.arange(4))

    # 16 slopes and 4 biases of 5000 records: root mean square near sqrt(20 / 5000) of a share.
    assert np.abs(calibration.calibrated(fitted, honest) - honest).mean() < 0.03


def test_few_records_hardly_change_anything() -> None:
    rows = fashion.outputs("good", "validation").rows[:20]

    fitted = calibration.fit(rows, rows.argmax(axis=1), ALL)

    off_diagonal = fitted.slope - np.diag(np.diag(fitted.slope))
    assert np.abs(off_diagonal).max() < 0.05


def test_no_other_calibration_near_by_is_better() -> None:
    sample = fashion.outputs("weak", "validation")
    rows, actual = sample.rows[:400, :4], sample.labels[:400] % 4
    rows = rows / rows.sum(axis=1, keepdims=True)
    fitted = calibration.fit(rows, actual, np.arange(4))
    least = objective(fitted, rows, actual)
    step = 1e-3

    # Convex, so a derivative of zero is a minimum. Its unit is records per unit of a slope.
    for place in np.ndindex(4, 4):
        moved = np.zeros((4, 4))
        moved[place] = step
        up, down = (
            objective(
                Calibration(
                    fitted.present, fitted.slope + sign * moved, fitted.bias, fitted.centre
                ),
                rows,
                actual,
            )
            for sign in (1.0, -1.0)
        )
        assert min(up, down) > least - 1e-6
        assert (up - down) / (2 * step) == pytest.approx(0.0, abs=0.01)
    for label in range(4):
        bias = fitted.bias + step * np.eye(4)[label]
        moved_bias = Calibration(fitted.present, fitted.slope, bias, fitted.centre)
        slope = (objective(moved_bias, rows, actual) - least) / step
        assert slope == pytest.approx(0.0, abs=0.1)


def test_calibrated_probabilities_of_a_label_add_up_to_its_records() -> None:
    sample = fashion.outputs("weak", "validation")

    rows = calibration.calibrated(calibration.fit(sample.rows, sample.labels, ALL), sample.rows)

    # Exact but for the pull on the bias: one record per unit that it has moved.
    assert rows.sum(axis=0) == pytest.approx(np.bincount(sample.labels), abs=5.0)
    assert rows.sum(axis=1) == pytest.approx(np.ones(len(rows)))


@pytest.mark.parametrize("classifier", ["good", "weak"])
def test_labels_not_used_for_fitting_become_more_likely(classifier: fashion.Classifier) -> None:
    fitted_on = fashion.outputs(classifier, "validation")
    other = fashion.outputs(classifier, "test")

    fitted = calibration.fit(fitted_on.rows[:2000], fitted_on.labels[:2000], ALL)

    after = surprise(calibration.calibrated(fitted, other.rows), other.labels)
    assert after < surprise(other.rows, other.labels)


def test_a_label_without_records_gets_probability_zero() -> None:
    rows = softmax(np.random.default_rng(2).normal(size=(200, 3)))

    fitted = calibration.fit(rows, np.arange(200) % 2, np.arange(2))

    found = calibration.calibrated(fitted, rows)
    assert fitted.k == 2
    assert not found[:, 2].any()
    assert found.sum(axis=1) == pytest.approx(np.ones(200))
    assert calibration.of_present(fitted, rows) == pytest.approx(found[:, :2])


def test_records_of_labels_that_are_not_present_are_left_out() -> None:
    rows = softmax(np.random.default_rng(3).normal(size=(300, 3)))
    actual = np.arange(300) % 3
    kept = actual != 1

    with_them = calibration.fit(rows, actual, np.array([0, 2]))
    without = calibration.fit(rows[kept], actual[kept], np.array([0, 2]))

    assert with_them.slope.tolist() == without.slope.tolist()
    assert with_them.bias.tolist() == without.bias.tolist()


def test_a_classifier_without_mistakes_stays_finite() -> None:
    rows = np.eye(4)[np.arange(40) % 4]

    fitted = calibration.fit(rows, np.arange(40) % 4, np.arange(4))

    assert np.isfinite(fitted.slope).all()
    assert calibration.calibrated(fitted, rows) == pytest.approx(rows, abs=1e-4)


def test_a_classifier_that_is_sure_and_wrong_is_believed_no_longer() -> None:
    rows = np.eye(2)[np.repeat([0, 1], 1000)]
    actual = np.repeat([0, 1, 1, 0], [700, 300, 700, 300])

    found = calibration.calibrated(calibration.fit(rows, actual, np.arange(2)), rows[:1])

    assert found == pytest.approx(np.array([[0.7, 0.3]]), abs=0.02)


@pytest.mark.parametrize(
    "rows",
    [
        np.tile([0.7, 0.2, 0.1], (300, 1)),
        np.column_stack([np.random.default_rng(1).dirichlet(np.ones(2), size=300), np.zeros(300)]),
    ],
    ids=["every row the same", "a label that no row thinks possible"],
)
def test_what_never_varies_has_nothing_to_learn_from(rows: Floats) -> None:
    fitted = calibration.fit(rows, np.random.default_rng(2).integers(3, size=300), np.arange(3))

    assert np.abs(fitted.slope).max() < 2.0
    assert fitted.slope[2].tolist() == pytest.approx([0.0, 0.0, 1.0], abs=1e-3)


def test_a_handful_of_records_is_enough_to_fit() -> None:
    rows = np.array([[0.3, 0.7], [0.4, 0.6], [0.6, 0.4]])
    fitted = calibration.fit(rows, np.array([1, 1, 0]), np.arange(2))

    found = calibration.calibrated(fitted, rows)

    assert found.sum(axis=1) == pytest.approx(np.ones(3))
    assert found[0, 1] > found[1, 1] > found[2, 1]


def test_the_order_of_labels_does_not_matter() -> None:
    sample = fashion.outputs("good", "validation")
    rows, actual = sample.rows[:1000], sample.labels[:1000]
    order = np.random.default_rng(3).permutation(10)

    plain = calibration.calibrated(calibration.fit(rows, actual, ALL), rows)
    fitted = calibration.fit(rows[:, order], np.argsort(order)[actual], ALL)
    permuted = calibration.calibrated(fitted, rows[:, order])

    # A search ends near the minimum from wherever it comes.
    assert np.abs(permuted - plain[:, order]).max() < 1e-3


def test_rows_in_single_precision_give_the_same() -> None:
    sample = fashion.outputs("weak", "validation")
    single = sample.rows[:1000].astype(np.float32)
    double = single.astype(np.float64)

    of_single = calibration.fit(single, sample.labels[:1000], ALL)
    of_double = calibration.fit(double, sample.labels[:1000], ALL)

    assert of_single.slope.dtype == np.float64
    # np.log of what was raised to 1e-6 in either precision.
    assert of_single.slope == pytest.approx(of_double.slope, abs=1e-6)
    found = calibration.calibrated(of_double, single)
    assert found == pytest.approx(calibration.calibrated(of_double, double), abs=1e-7)


def many(k: int, records: int, seed: int) -> tuple[Floats, Counts]:
    rng = np.random.default_rng(seed)
    actual = np.arange(records) % k
    logits = rng.normal(size=(records, k))
    logits[np.arange(records), actual] += 4.0
    return softmax(logits), actual


@pytest.mark.parametrize(("k", "dimensions"), [(64, 2), (65, 1)])
def test_many_labels_have_one_slope_each(k: int, dimensions: int) -> None:
    rows, actual = many(k, 10 * k, seed=k)

    fitted = calibration.fit(rows, actual, np.arange(k))

    assert fitted.slope.shape == (k,) * dimensions
    found = calibration.calibrated(fitted, rows)
    assert found.sum(axis=1) == pytest.approx(np.ones(len(rows)))
    assert surprise(found, actual) < surprise(rows, actual)


def test_one_slope_each_undoes_one_temperature() -> None:
    rng = np.random.default_rng(5)
    k = 65
    honest = softmax(rng.normal(size=(20_000, k)))
    actual = labelled(rng, honest)
    sharper = softmax(2.0 * np.log(honest))

    fitted = calibration.fit(sharper, actual, np.arange(k))

    # 300 records a label, and a pull of one record towards 1.
    assert fitted.slope.mean() == pytest.approx(0.5, abs=0.03)


def test_a_large_reference_is_thinned_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, actual = many(4, 4002, seed=1)
    monkeypatch.setattr(calibration, "MOST_NUMBERS", 4 * 1400)

    fitted = calibration.fit(rows, actual, np.arange(4))

    # 4002 records are more than twice and less than three times 1400.
    by_hand = calibration.fit(rows[::3], actual[::3], np.arange(4))
    assert fitted.slope.tolist() == by_hand.slope.tolist()
    assert fitted.centre.tolist() == by_hand.centre.tolist()


def test_what_a_softmax_calls_impossible_may_happen() -> None:
    as_they_are = Calibration(np.arange(2), np.eye(2), np.zeros(2), np.zeros(2))

    found = calibration.calibrated(as_they_are, np.array([[1.0, 0.0]]))

    assert found == pytest.approx(np.array([[1.0, 1e-6]]) / (1 + 1e-6))
