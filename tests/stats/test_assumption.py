from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import norm

from app.stats import assumption, moments, over_identification, reference
from app.stats.assumption import Assumption, Check, ScoreGap
from app.stats.moments import Counts, Floats, Sums
from app.stats.over_identification import Fit, Misfit
from app.stats.reference import from_confusion
from tests import fashion, fashion_corrupted
from tests.fashion import LABELS, Outputs

# Records of two labels, two predictions and two confidences: (predicted, actual, score, how many).
SAMPLE = [(0, 0, 0.9, 40), (0, 0, 0.6, 10), (1, 0, 0.6, 10), (0, 1, 0.6, 5), (1, 1, 0.8, 45)]


def two_labels(records: list[tuple[int, int, float, int]]) -> tuple[Counts, Counts, Floats]:
    predicted = np.repeat([r[0] for r in records], [r[3] for r in records])
    actual = np.repeat([r[1] for r in records], [r[3] for r in records])
    score = np.repeat([r[2] for r in records], [r[3] for r in records])
    first = np.where(predicted == 0, score, 1.0 - score)
    return predicted, actual, np.column_stack([first, 1.0 - first])


def fashion_check(n: int = 8_000) -> Check:
    pool = fashion.outputs("good", "validation")
    return assumption.prepare(
        reference.from_sample(LABELS, pool.predicted[:n], pool.labels[:n], pool.rows[:n])
    )


def window(pool: Outputs, m: int = 2_000) -> Sums:
    return moments.sums(LABELS, pool.predicted[:m], pool.rows[:m])


FASHION = fashion_check()
CLEAN = fashion.outputs("good", "test")


def test_the_score_gap_by_hand() -> None:
    predicted, actual, rows = two_labels(SAMPLE)
    check = assumption.prepare(reference.from_sample(2, predicted, actual, rows))
    assert check.scores is not None
    # A' h = mean score: [50/60 h0 + 10/60 h1 = .8, 5/50 h0 + 45/50 h1 = .78].
    h = np.array([(0.72 - 0.13) / (0.75 - 1 / 60), (0.65 - 0.08) / (0.75 - 1 / 60)])
    seen, _, softmax = two_labels([(0, 0, 0.7, 60), (1, 0, 0.8, 40)])
    sums = moments.sums(2, seen, softmax)
    assert sums.soft is not None
    v = np.where(seen == 0, 0.7 - h[0], 0.8 - h[1])
    score = np.maximum(rows[:, 0], rows[:, 1]) - h[predicted]
    q, most, square = np.array([0.7, 0.3]), np.array([0.8, 0.4]), np.array([0.5, 0.1])
    # Each label's own records and three strayed ones, of which one has gone into the mean.
    squares = np.array([np.sum(score[actual == 0] ** 2), np.sum(score[actual == 1] ** 2)])
    variance = (squares + 3.0 * np.mean(score**2)) / (np.array([60, 50]) + 2.0)
    within = q @ variance
    t = square @ (variance / [60, 50]) / within
    both = (v.var() * 100 + within / t) / (100 + 1 / t)

    found = assumption.score_gap(check.scores, Fit(q, most, square, None), sums.counts, sums.soft)

    assert check.scores.h == pytest.approx(h)
    assert found.gap == pytest.approx(v.mean())
    assert found.error == pytest.approx(np.sqrt(both * (1 / 100 + t)))
    assert found.p_value == pytest.approx(2 * norm.sf(abs(v.mean()) / found.error))


def test_a_bias_that_a_label_mix_can_make_is_no_gap() -> None:
    # Both labels are always predicted 0, label 0 with .6 and label 1 with .9.
    rows = np.repeat([[0.6, 0.4], [0.9, 0.1]], 500, axis=0)
    check = assumption.prepare(
        reference.from_sample(2, np.zeros(1_000, dtype=np.int64), np.arange(1_000) // 500, rows)
    )
    assert check.scores is not None
    one_of_both = Fit(np.full(2, 0.5), np.ones(2), np.full(2, 0.5), None)

    def gap(score: float) -> ScoreGap:
        window = moments.sums(
            2, np.zeros(200, dtype=np.int64), np.full((200, 2), [score, 1 - score])
        )
        assert check.scores is not None
        assert window.soft is not None
        return assumption.score_gap(check.scores, one_of_both, window.counts, window.soft)

    assert check.scores.bias == pytest.approx([-0.15, 0.15])
    assert gap(0.62).gap == pytest.approx(0.0)
    assert gap(0.62).p_value >= 0.5
    assert gap(0.94).gap == pytest.approx(0.04)
    assert gap(0.94).p_value < 0.01


def test_scores_have_mean_zero_given_every_label() -> None:
    pool = fashion.outputs("good", "validation")
    assert FASHION.scores is not None
    v = pool.rows[:8_000].max(axis=1) - FASHION.scores.h[pool.predicted[:8_000]]

    means = [v[pool.labels[:8_000] == label].mean() for label in range(LABELS)]

    assert means == pytest.approx(np.zeros(LABELS), abs=1e-10)


def test_clean_windows_are_consistent_with_label_shift() -> None:
    found = assumption.assess(FASHION, window(CLEAN))

    assert found.verdict == "label_shift_consistent"
    assert found.p_value is not None
    assert found.p_value > 0.05


@pytest.mark.parametrize("corruption", fashion_corrupted.CORRUPTIONS)
def test_corrupted_pictures_are_not_label_shift(
    corruption: fashion_corrupted.Corruption,
) -> None:
    found = assumption.assess(FASHION, window(fashion_corrupted.corrupted(corruption)))

    assert found.verdict == "not_label_shift"
    assert found.gap is not None
    assert found.gap.gap < -assumption.LEAST_GAP


def test_overdispersion_weakens_the_evidence() -> None:
    moved = window(fashion_corrupted.corrupted("moved"), 200)

    plain = assumption.assess(FASHION, moved)
    clustered = assumption.assess(FASHION, moved, phi=4.0)

    assert plain.p_value is not None
    assert clustered.p_value is not None
    assert clustered.p_value > plain.p_value


def test_p_values_are_combined_by_bonferroni() -> None:
    found = assumption.assess(FASHION, window(CLEAN, 500))

    assert found.gap is not None
    assert found.misfit is not None
    assert found.p_value == min(1.0, 2.0 * min(found.gap.p_value, found.misfit.p_value))


@pytest.mark.parametrize(
    ("p", "gap", "size", "verdict"),
    [
        (0.5, 0.05, 0.05, "label_shift_consistent"),
        (0.03, 0.05, 0.0, "label_shift_doubtful"),
        (0.001, 0.05, 0.0, "not_label_shift"),
        (0.001, -0.05, 0.0, "not_label_shift"),
        (0.001, 0.0, 0.05, "not_label_shift"),
        (1e-9, 0.009, 0.019, "label_shift_consistent"),
    ],
)
def test_a_violation_is_significant_and_large(
    p: float, gap: float, size: float, verdict: str
) -> None:
    found = assumption._verdict(p, ScoreGap(gap, 0.01, p), Misfit(9.0, 3, p, size))

    assert found == verdict


def test_few_predictions_are_not_judged() -> None:
    found = assumption.assess(FASHION, window(CLEAN, 49))

    assert found == Assumption("untestable", None, status=("insufficient_data",))


def test_no_prediction_at_all_is_not_judged() -> None:
    found = assumption.assess(FASHION, moments.empty(LABELS, soft=True))

    assert found.verdict == "untestable"


def test_hard_predictions_say_next_to_nothing() -> None:
    found = assumption.assess(FASHION, Sums(window(CLEAN).counts))

    assert found.verdict == "untestable"
    assert found.status == ("assumption_untestable_hard_only",)
    assert found.misfit is not None


def test_hard_predictions_that_need_negative_frequencies_are_not_label_shift() -> None:
    check = assumption.prepare(from_confusion(np.array([[700, 300], [300, 700]])))

    found = assumption.assess(check, Sums(np.array([990, 10])))

    assert found.verdict == "not_label_shift"


def test_a_label_absent_from_the_reference_that_came_back_is_not_label_shift() -> None:
    check = assumption.prepare(
        from_confusion(np.array([[800, 100, 0], [100, 800, 0], [100, 100, 0]]))
    )

    found = assumption.assess(check, Sums(np.array([300, 300, 400])))

    assert found.verdict == "not_label_shift"
    assert found.status == ("A1_or_A2_violated",)


@pytest.mark.parametrize("m", [100, 300, 400, 1000])
def test_windows_of_one_true_label_are_seldom_called_something_else(m: int) -> None:
    """A corner of the simplex, where a window has hardly any noise of its own to go by."""
    rng = np.random.default_rng(1)
    check = assumption.prepare(
        from_confusion(np.array([[9000, 30, 12], [60, 500, 9], [40, 20, 329]]))
    )
    given = np.array([9000, 60, 40]) / 9100

    found = [assumption.assess(check, Sums(rng.multinomial(m, given))) for _ in range(400)]

    assert np.mean([one.verdict == "not_label_shift" for one in found]) <= 0.02


def test_a_reference_that_tells_nothing_apart_tests_nothing() -> None:
    check = assumption.prepare(from_confusion(np.full((2, 2), 50)))

    found = assumption.assess(check, Sums(np.array([40, 60])))

    assert found == Assumption("untestable", None, status=("degenerate",))


def test_hard_predictions_of_very_many_labels_are_not_tested() -> None:
    k = over_identification.MOST_LABELS + 1
    check = assumption.prepare(from_confusion(np.eye(k, dtype=np.int64) * 9 + 1))

    found = assumption.assess(check, Sums(np.full(k, 3)))

    assert (found.verdict, found.p_value, found.misfit) == ("untestable", None, None)


def test_confidence_that_never_varies_is_either_the_same_or_not() -> None:
    rows = np.tile([0.8, 0.2], (200, 1))
    zeros = np.zeros(200, dtype=np.int64)
    check = assumption.prepare(reference.from_sample(2, zeros, np.arange(200) % 2, rows))

    same = assumption.assess(check, moments.sums(2, zeros, rows))
    other = assumption.assess(check, moments.sums(2, zeros, np.tile([0.7, 0.3], (200, 1))))

    assert same.verdict == "label_shift_consistent"
    assert other.verdict == "not_label_shift"


def test_predictions_that_tell_nothing_apart_are_tested_by_their_confidence() -> None:
    rng = np.random.default_rng(2)
    actual = rng.integers(0, 2, 4_000)
    # Everything is predicted 0, with a confidence that tells the labels apart.
    score = np.where(actual == 0, rng.uniform(0.5, 0.9, 4_000), rng.uniform(0.7, 1.0, 4_000))
    rows = np.column_stack([score, 1.0 - score])
    zeros = np.zeros(4_000, dtype=np.int64)
    check = assumption.prepare(reference.from_sample(2, zeros, actual, rows))

    shifted = assumption.assess(check, moments.sums(2, zeros[:400], rows[actual == 1][:400]))
    surer = assumption.assess(check, moments.sums(2, zeros[:400], np.full((400, 2), [0.9, 0.1])))

    assert shifted.verdict == "label_shift_consistent"
    assert surer.verdict == "not_label_shift"


def test_a_window_of_predictions_that_the_reference_never_made() -> None:
    predicted, actual, rows = two_labels([*SAMPLE, (0, 0, 0.7, 100), (0, 1, 0.97, 100)])
    three = np.column_stack([rows, np.zeros(len(rows))])
    check = assumption.prepare(reference.from_sample(3, predicted, actual, three))
    unseen = np.tile([0.1, 0.1, 0.8], (60, 1))

    found = assumption.assess(check, moments.sums(3, np.full(60, 2), unseen))

    assert found == Assumption("untestable", None, unseen=(2,), status=("unseen_prediction",))


def test_predictions_that_the_reference_never_made_do_not_count_for_the_gap() -> None:
    predicted, actual, rows = two_labels([*SAMPLE, (0, 0, 0.7, 100), (0, 1, 0.97, 100)])
    three = np.column_stack([rows, np.zeros(len(rows))])
    check = assumption.prepare(reference.from_sample(3, predicted, actual, three))
    seen = three[np.random.default_rng(5).integers(0, len(three), 300)]
    stray = np.vstack([seen, [[0.1, 0.1, 0.8]]])

    without = assumption.assess(check, moments.sums(3, seen.argmax(axis=1), seen)).gap
    found = assumption.assess(check, moments.sums(3, stray.argmax(axis=1), stray)).gap

    assert without is not None
    assert found is not None
    assert found.gap == pytest.approx(without.gap)
    assert found.error == pytest.approx(without.error)


def test_every_label_with_a_record_takes_part() -> None:
    check = assumption.prepare(from_confusion(np.array([[80, 10, 1], [10, 80, 0], [10, 10, 3]])))

    assert check.predictions.n_j.tolist() == [100, 100, 4]


def test_labels_that_look_alike_may_shift_against_each_other() -> None:
    # 1 and 2 are predicted alike, 1 with more confidence; the window is all of label 2.
    rng = np.random.default_rng(4)
    actual = rng.choice(3, 6_000, p=[0.4, 0.5, 0.1])
    own = np.where(actual == 0, 0, rng.integers(1, 3, 6_000))
    score = rng.beta(np.where(actual == 1, 12.0, 4.0), 3.0) * 0.4 + 0.6
    rows = ((1.0 - score) / 2.0)[:, None] * np.ones(3)
    rows[np.arange(6_000), own] = score
    check = assumption.prepare(reference.from_sample(3, own[:4_000], actual[:4_000], rows[:4_000]))
    only = np.flatnonzero(actual[4_000:] == 2) + 4_000

    found = assumption.assess(check, moments.sums(3, own[only], rows[only]))

    assert len(only) > 150
    assert found.verdict == "label_shift_consistent"


def test_the_chance_of_unseen_predictions_by_hand() -> None:
    # All two records of the new label among the 20 of the window, of 40: 20/40 * 19/39 = .24.
    # All ten: prod (20 - s) / (40 - s) = .00022.
    reference_, two, ten = np.array([20, 0]), np.array([18, 2]), np.array([10, 10])

    assert assumption.unseen_predictions(reference_, two) == ()
    assert assumption.unseen_predictions(reference_, ten) == (1,)


def test_the_order_of_labels_is_irrelevant() -> None:
    order = [3, 1, 4, 0, 5, 9, 2, 6, 8, 7]
    pool = fashion.outputs("good", "validation")
    rows, labels = pool.rows[:8_000, order], np.argsort(order)[pool.labels[:8_000]]
    made = reference.from_sample(LABELS, rows.argmax(axis=1), labels, rows)
    there = CLEAN.rows[:500, order]

    here = assumption.assess(FASHION, window(CLEAN, 500))
    found = assumption.assess(
        assumption.prepare(made), moments.sums(LABELS, there.argmax(axis=1), there)
    )

    assert here.gap is not None
    assert found.gap is not None
    assert here.misfit is not None
    assert found.misfit is not None
    assert found.gap.p_value == pytest.approx(here.gap.p_value, rel=1e-6)
    assert found.misfit.p_value == pytest.approx(here.misfit.p_value, rel=1e-6)


@given(
    st.sampled_from([2, 3, 5]).flatmap(
        lambda k: arrays(np.float64, (120, k), elements=st.floats(0.0, 1.0))
    ),
    st.lists(st.integers(0, 4), min_size=60, max_size=60),
    st.floats(1.0, 9.0),
)
@settings(deadline=None)
def test_p_values_are_probabilities_for_any_sample(
    weights: Floats, actual: list[int], phi: float
) -> None:
    k = weights.shape[1]
    rows = (weights + 1e-9) / (weights + 1e-9).sum(axis=1, keepdims=True)
    known, new = rows[:60], rows[60:]
    made = reference.from_sample(k, known.argmax(axis=1), np.array(actual) % k, known)
    sums = moments.sums(k, new.argmax(axis=1), new)

    for seen in (sums, replace(sums, soft=None)):
        found = assumption.assess(assumption.prepare(made), seen, phi=phi)
        for test in (found.gap, found.misfit):
            assert test is None or 0.0 <= test.p_value <= 1.0


@given(arrays(np.int64, 4, elements=st.integers(0, 10**9)))
@settings(deadline=None)
def test_huge_and_empty_counts_are_judged_without_a_nan(counts: Counts) -> None:
    check = assumption.prepare(from_confusion(np.eye(4, dtype=np.int64) * 50 + 2))

    found = assumption.assess(check, Sums(counts))

    assert found.p_value is None or 0.0 <= found.p_value <= 1.0


def test_a_single_label_window_is_judged() -> None:
    trousers = np.flatnonzero(CLEAN.predicted == 1)[:300]

    found = assumption.assess(FASHION, moments.sums(LABELS, np.full(300, 1), CLEAN.rows[trousers]))

    assert found.p_value is not None
    assert 0.0 <= found.p_value <= 1.0
