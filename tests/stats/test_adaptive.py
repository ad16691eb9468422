import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from app.stats import adaptive, bbsd, bbse, diagnosis, intervals, moments, reference
from app.stats.bbse import Prepared
from app.stats.moments import Counts, Sums
from app.stats.reference import Reference, from_confusion
from tests import fashion
from tests.fashion import LABELS


def prepared(made: Reference) -> Prepared:
    return bbse.prepare(made, diagnosis.diagnose(made))


PERFECT = prepared(from_confusion(np.diag([10**9, 10**9])))
NEW, OLD = Sums(np.array([30, 70])), Sums(np.array([70, 30]))


def test_a_change_ends_the_window() -> None:
    chosen = adaptive.choose(PERFECT, [NEW] * 4 + [OLD] * 60)

    assert chosen is not None
    assert chosen.panes == 4
    assert chosen.sums.counts.tolist() == [120, 280]
    assert chosen.stopped_by is not None
    assert chosen.stopped_by < 1e-6


def test_without_a_change_everything_is_used() -> None:
    chosen = adaptive.choose(PERFECT, [NEW] * 11)

    assert chosen is not None
    assert chosen.panes == 11
    assert chosen.stopped_by is None


def test_two_lengths_weighed_by_hand() -> None:
    # Two labels told apart perfectly: G has one direction, of variance 2 * 2 mu (1 - mu) / m.
    panes = [Sums(np.array([40, 60])), Sums(np.array([60, 40]))]
    kappa = 4.7093  # chi-square with 1 degree of freedom, .97 quantile
    short = kappa * 2 * 0.4 * 0.6 / 100
    long = kappa * 2 * 0.5 * 0.5 / 200
    drift = max(0.0, 2 * 0.1**2 - short)

    spans = adaptive._spans(PERFECT, panes, 1.0)

    assert adaptive._risks(spans) == pytest.approx([short, long + drift], rel=1e-4)


def test_what_made_it_stop_is_a_test_of_homogeneity() -> None:
    panes = [NEW] * 8 + [OLD] * 8

    chosen = adaptive.choose(PERFECT, panes)

    assert chosen is not None
    expected = bbsd.chi_square(np.array([240, 560]), np.array([560, 240])).p_value
    assert chosen.stopped_by == expected


def test_the_first_length_has_enough_predictions() -> None:
    few = Sums(np.array([5, 5]))

    spans = adaptive._spans(PERFECT, [few] * 40, 1.0)

    assert [span.panes for span in spans] == [8, 16, 32, 40]


def test_too_few_predictions_make_no_window() -> None:
    assert adaptive.choose(PERFECT, [Sums(np.array([24, 25]))]) is None
    assert adaptive.choose(PERFECT, []) is None


def test_once_the_reference_is_the_bottleneck_it_looks_no_further() -> None:
    small = prepared(from_confusion(np.array([[45, 5], [5, 45]])))

    chosen = adaptive.choose(small, [Sums(np.array([500, 500]))] * 64)

    assert chosen is not None
    assert chosen.panes < 64


def test_overdispersion_lengthens_the_window() -> None:
    panes = [Sums(np.array([45, 55]))] * 4 + [Sums(np.array([60, 40]))] * 60

    plain = adaptive.choose(PERFECT, panes)
    clustered = adaptive.choose(PERFECT, panes, phi=50.0)

    assert plain is not None
    assert clustered is not None
    assert clustered.panes > plain.panes


def test_the_published_interval_is_a_hull() -> None:
    made = prepared(from_confusion(np.array([[900, 100], [100, 900]])))
    drifting = [Sums(np.array([20 + t, 80 - t])) for t in range(16)]
    chosen = adaptive.choose(made, drifting)
    assert chosen is not None
    estimate = bbse.estimate(made, chosen.sums)

    hull = adaptive.interval(made, chosen, estimate)
    whole = intervals.score(made, estimate, chosen.sums)
    recent = intervals.score(made, bbse.estimate(made, chosen.recent), chosen.recent)

    assert hull.lower.tolist() == np.minimum(whole.lower, recent.lower).tolist()
    assert hull.upper.tolist() == np.maximum(whole.upper, recent.upper).tolist()


def test_the_newest_quarter_has_enough_predictions_too() -> None:
    few = Sums(np.array([5, 5]))

    chosen = adaptive.choose(PERFECT, [few] * 16)

    assert chosen is not None
    assert chosen.panes == 16
    assert chosen.recent.n == adaptive.LEAST_PREDICTIONS


def test_softmax_panes_work_as_well() -> None:
    pool = fashion.outputs("good", "validation")
    made = prepared(reference.from_sample(LABELS, pool.predicted, pool.labels, pool.rows))
    test = fashion.outputs("good", "test")
    panes = [
        moments.sums(LABELS, test.predicted[t : t + 50], test.rows[t : t + 50])
        for t in range(0, 1_600, 50)
    ]

    chosen = adaptive.choose(made, panes)

    assert chosen is not None
    assert chosen.panes == 32
    assert chosen.sums.soft is not None


@given(arrays(np.int64, (5, 3), elements=st.integers(0, 10**9)))
@settings(deadline=None)
def test_any_counts_make_a_window_or_none(panes: Counts) -> None:
    made = prepared(from_confusion(np.array([[80, 10, 5], [15, 60, 10], [5, 10, 45]])))

    chosen = adaptive.choose(made, [Sums(counts) for counts in panes])

    assert (chosen is None) == (panes.sum() < adaptive.LEAST_PREDICTIONS)
    assert chosen is None or chosen.stopped_by is None or 0.0 <= chosen.stopped_by <= 1.0


@given(st.permutations(range(3)), arrays(np.int64, (9, 3), elements=st.integers(0, 60)))
@settings(deadline=None, max_examples=50)
def test_the_order_of_labels_is_irrelevant(order: list[int], panes: Counts) -> None:
    confusion = np.array([[80, 10, 5], [15, 60, 10], [5, 10, 45]])

    here = adaptive.choose(prepared(from_confusion(confusion)), [Sums(c) for c in panes])
    permuted = from_confusion(confusion[np.ix_(order, order)])
    there = adaptive.choose(prepared(permuted), [Sums(c[order]) for c in panes])

    assert (here and here.panes) == (there and there.panes)
