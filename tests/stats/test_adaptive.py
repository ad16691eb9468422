"""How far back an adaptive window looks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from app.stats import adaptive, bbsd, cells, estimator, intervals, moments
from app.stats.adaptive import Span
from app.stats.estimator import Operator
from app.stats.moments import Counts, Sums
from tests import fashion
from tests.stats import golden
from tests.stats.golden import hard

PERFECT = hard(np.diag([10**9, 10**9]))
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


def spans_of(on: Operator, panes: list[Sums]) -> list[Span]:
    by = intervals.planned(on, on.even, adaptive.TYPICAL_PREDICTIONS).ridge(adaptive.RIDGE)
    return adaptive._spans(on, by, panes, 1.0)


def test_two_lengths_weighed_by_hand() -> None:
    # Two labels told apart perfectly: the noise has one direction, of variance 2 mu (1 - mu) / m.
    panes = [Sums(np.array([40, 60])), Sums(np.array([60, 40]))]
    kappa = 4.7093  # chi-square with 1 degree of freedom, .97 quantile
    short = kappa * 2 * 0.4 * 0.6 / 100
    long = kappa * 2 * 0.5 * 0.5 / 200
    drift = max(0.0, 2 * 0.1**2 - short)

    spans = spans_of(PERFECT, panes)

    # The ridge is a record in 2000, so that squares are smaller by one in 1000.
    assert adaptive._risks(spans) == pytest.approx([short, long + drift], rel=2e-3)


def test_a_drift_worked_by_hand() -> None:
    # By far more than noise: the squared distance is 2 .4^2, less what noise alone may be.
    panes = [Sums(np.array([100, 900])), Sums(np.array([900, 100]))]
    kappa = 4.7093
    short = kappa * 2 * 0.1 * 0.9 / 1000

    risks = adaptive._risks(spans_of(PERFECT, panes))

    assert risks[1] == pytest.approx(2 * 0.4**2 - short + kappa * 2 * 0.25 / 2000, rel=2e-3)


def test_what_made_it_stop_is_a_test_of_homogeneity() -> None:
    panes = [NEW] * 8 + [OLD] * 8

    chosen = adaptive.choose(PERFECT, panes)

    assert chosen is not None
    expected = bbsd.chi_square(np.array([240, 560]), np.array([560, 240])).p_value
    assert chosen.stopped_by == expected


def test_the_first_length_has_enough_predictions() -> None:
    few = Sums(np.array([5, 5]))

    spans = spans_of(PERFECT, [few] * 40)

    assert [span.panes for span in spans] == [8, 16, 32, 40]


def test_too_few_predictions_make_no_window() -> None:
    assert adaptive.choose(PERFECT, [Sums(np.array([24, 25]))]) is None
    assert adaptive.choose(PERFECT, []) is None


def test_once_the_reference_is_the_bottleneck_it_looks_no_further() -> None:
    small = hard(np.array([[45, 5], [5, 45]]))

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


def test_the_newest_quarter_has_enough_predictions_too() -> None:
    few = Sums(np.array([5, 5]))

    chosen = adaptive.choose(PERFECT, [few] * 16)

    assert chosen is not None
    assert chosen.panes == 16
    assert chosen.recent.n == adaptive.LEAST_PREDICTIONS


def test_panes_of_predictions_that_the_reference_never_saw_make_no_window() -> None:
    on = hard(np.array([[90, 10, 0], [10, 90, 0], [0, 0, 0]]))
    unseen, seen = Sums(np.array([0, 0, 60])), Sums(np.array([40, 20, 0]))

    assert adaptive.choose(on, [unseen] * 3) is None
    behind = adaptive.choose(on, [unseen, seen])
    assert behind is not None
    assert behind.panes == 2


def test_labels_that_look_alike_do_not_drown_a_change_of_another() -> None:
    # Only the ridge keeps labels 1 and 2, which nothing tells apart, from having endless noise.
    on = hard(golden.TWINS * 1000)
    old, new = Sums(np.array([60, 20, 20])), Sums(np.array([20, 40, 40]))

    chosen = adaptive.choose(on, [new] * 8 + [old] * 56)

    assert chosen is not None
    assert chosen.panes == 8


@pytest.fixture(scope="module")
def by_codes() -> Operator:
    pool = fashion.outputs("good", "validation")
    table = cells.of_rows(pool.rows[:5000], pool.labels[:5000], np.arange(10))
    return estimator.prepare(table)


def test_softmax_panes_work_as_well(by_codes: Operator) -> None:
    test = fashion.outputs("good", "test")
    panes = [
        moments.sums(10, test.predicted[t : t + 50], test.rows[t : t + 50])
        for t in range(0, 1_600, 50)
    ]

    chosen = adaptive.choose(by_codes, panes)

    assert chosen is not None
    assert chosen.panes == 32
    assert chosen.sums.soft is not None
    assert chosen.recent.n == 400


def test_a_change_of_softmax_panes_ends_the_window(by_codes: Operator) -> None:
    rng, pool = np.random.default_rng(1), fashion.outputs("good", "test")
    drawn = [
        fashion.draw(pool, q, 100, rng)
        for q in [fashion.tweaked(2, 0.6)] * 4 + [fashion.UNIFORM] * 12
    ]
    panes = [moments.sums(10, part.predicted, part.rows) for part in drawn]

    chosen = adaptive.choose(by_codes, panes)

    assert chosen is not None
    assert chosen.panes == 4
    assert chosen.stopped_by is not None
    assert chosen.stopped_by < 1e-6


@given(arrays(np.int64, (5, 3), elements=st.integers(0, 10**9)))
@settings(deadline=None, max_examples=50)
def test_any_counts_make_a_window_or_none(panes: Counts) -> None:
    on = hard(np.array([[80, 10, 5], [15, 60, 10], [5, 10, 45]]))

    chosen = adaptive.choose(on, [Sums(counts) for counts in panes])

    assert (chosen is None) == (panes.sum() < adaptive.LEAST_PREDICTIONS)
    assert chosen is None or chosen.stopped_by is None or 0.0 <= chosen.stopped_by <= 1.0


@given(st.permutations(range(3)), arrays(np.int64, (9, 3), elements=st.integers(0, 60)))
@settings(deadline=None, max_examples=50)
def test_the_order_of_labels_is_irrelevant(order: list[int], panes: Counts) -> None:
    confusion = np.array([[80, 10, 5], [15, 60, 10], [5, 10, 45]])

    here = adaptive.choose(hard(confusion), [Sums(c) for c in panes])
    there = adaptive.choose(hard(confusion[np.ix_(order, order)]), [Sums(c[order]) for c in panes])

    assert (here and here.panes) == (there and there.panes)
