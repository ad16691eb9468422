"""A whole window analysis: what it says, and that it always says something."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.stats import (
    analysis,
    assumption,
    bbse,
    cells,
    estimator,
    identification,
    intervals,
    moments,
)
from app.stats import reference as references
from app.stats.analysis import Analysis, Basis, Labels
from app.stats.estimator import Estimate, Operator
from app.stats.moments import Counts, Floats, Sums
from tests import fashion
from tests.stats import golden


def basis_of(counts: Counts) -> Basis:
    return analysis.basis(references.from_confusion(counts))


TWO = basis_of(np.array([[900, 200], [100, 800]]))
WINDOW = Sums(np.array([270, 730]))
TWINS = basis_of(golden.TWINS * 10)


def labels_of(found: Analysis) -> Labels:
    assert found.labels is not None
    return found.labels


def confusion(style: str, k: int, rng: np.random.Generator) -> Counts:
    match style:
        case "good":
            return rng.poisson(1.0, size=(k, k)) + np.diag(rng.poisson(60, size=k))
        case "guessing":
            return rng.multinomial(50 * k, np.full(k * k, k**-2.0)).reshape(k, k)
        case "partly absent":
            return np.diag(rng.integers(0, 40, size=k))
        case "one prediction":
            return np.outer(np.eye(k, dtype=np.int64)[0], rng.integers(0, 90, size=k))
        case _:
            return np.zeros((k, k), dtype=np.int64)


@pytest.fixture(scope="module")
def by_rows() -> Basis:
    sample = fashion.draw(
        fashion.outputs("good", "validation"), np.full(10, 0.1), 3000, np.random.default_rng(1)
    )
    return analysis.basis(references.from_sample(10, sample.predicted, sample.labels, sample.rows))


@pytest.fixture(scope="module")
def shifted() -> Sums:
    """1500 predictions, half of them of label 5."""
    window = fashion.draw(
        fashion.outputs("good", "test"), fashion.tweaked(5, 0.5), 1500, np.random.default_rng(2)
    )
    return moments.sums(10, window.predicted, window.rows)


def assert_sane(found: Analysis) -> None:
    assert all(0.0 <= test.p_value <= 1.0 for test in found.tests)
    assert found.status
    assert len(set(found.status)) == len(found.status)
    if found.labels is None or found.accuracy is None:
        return
    labels = found.labels
    known = ~np.isnan(labels.q)
    assert labels.q[known].sum() == pytest.approx(1.0)
    assert (labels.q_lower[known] <= labels.q[known] + 1e-12).all()
    assert (labels.q_upper[known] >= labels.q[known] - 1e-12).all()
    assert found.accuracy.lower <= found.accuracy.estimate <= found.accuracy.upper
    for group in found.groups:
        assert 0.0 <= group.lower <= group.q <= group.upper <= 1.0


def test_every_part_of_an_analysis_of_hard_predictions() -> None:
    found = analysis.analyse(TWO, WINDOW)

    labels = labels_of(found)
    assert labels.q == pytest.approx([0.1, 0.9], abs=0.001)
    assert labels.raw == pytest.approx([0.1, 0.9])
    assert labels.w == pytest.approx([0.2, 1.8], abs=0.002)
    assert labels.p.tolist() == [0.5, 0.5]
    assert labels.predicted.tolist() == [0.27, 0.73]
    assert labels.recall.estimate.tolist() == [0.9, 0.8]
    # .9 of the tenth that is label 0, of .27 predicted so.
    assert labels.precision.estimate[0] == pytest.approx(1 / 3, abs=0.003)
    assert labels.moved.all()
    assert [test.test for test in found.tests] == ["chi2", "ks"]
    assert found.total_variation == pytest.approx(0.4, abs=0.001)
    assert found.accuracy is not None
    assert found.accuracy.estimate == pytest.approx(0.81, abs=0.001)
    assert found.accuracy.reference == 0.85
    assert found.reference_share is not None
    assert 0.0 < found.reference_share < 1.0
    assert (found.n, found.method) == (1000, "bbse-cells")
    assert found.status == ("ok", "assumption_untestable_hard_only")


def test_numbers_are_those_of_the_estimator_and_its_intervals() -> None:
    on = golden.hard(np.array([[900, 200], [100, 800]]))
    estimate = estimator.estimate(on, np.array([270.0, 730.0]), 2.0)
    expected = intervals.shares(intervals.design(on, estimate), estimate, level=0.9)

    labels = labels_of(analysis.analyse(TWO, WINDOW, level=0.9, phi=2.0))

    assert labels.q.tolist() == estimate.q.tolist()
    assert labels.q_lower.tolist() == expected.lower.tolist()
    assert labels.q_upper.tolist() == expected.upper.tolist()
    assert labels.w_upper == pytest.approx(expected.upper / 0.5)


def test_a_window_like_the_reference_has_not_moved() -> None:
    found = analysis.analyse(TWO, Sums(np.array([550, 450])))

    assert not labels_of(found).moved.any()
    assert found.total_variation == pytest.approx(0.0, abs=0.001)
    # The strongest pull that is tried: 25.6 records a label.
    assert found.pull == pytest.approx(2 * 25.6)
    assert found.unseen_share == 0.0


def test_softmax_rows_bring_the_combined_test_and_a_verdict_on_the_assumption(
    by_rows: Basis, shifted: Sums
) -> None:
    found = analysis.analyse(by_rows, shifted)

    assert found.method == "bbse-cells"
    assert found.tests[0].test == "combined"
    assert found.assumption is not None
    assert found.assumption.verdict == "label_shift_consistent"
    assert labels_of(found).moved[5]
    assert labels_of(found).q == pytest.approx(fashion.tweaked(5, 0.5), abs=0.04)
    assert "codes_missing" not in found.status


def test_hard_predictions_are_analysed_on_a_reference_of_rows(by_rows: Basis) -> None:
    found = analysis.analyse(by_rows, Sums(np.full(10, 100)))

    assert labels_of(found).q.sum() == pytest.approx(1.0)
    assert "assumption_untestable_hard_only" in found.status
    # There were none to lose.
    assert "codes_missing" not in found.status


def test_sums_that_lost_their_codes_are_estimated_by_label(by_rows: Basis, shifted: Sums) -> None:
    found = analysis.analyse(by_rows, moments.without_codes(shifted))

    by_label = analysis.analyse(by_rows, Sums(shifted.counts))
    assert found.status.count("codes_missing") == 1
    assert labels_of(found).q.tolist() == labels_of(by_label).q.tolist()
    assert labels_of(found).q_lower.tolist() == labels_of(by_label).q_lower.tolist()
    # Means of softmax rows are still there.
    assert found.tests[0].test == "combined"
    assert found.paper is not None
    assert found.paper.moments == "soft"


def test_a_reference_without_rows_misses_no_codes(shifted: Sums) -> None:
    on = basis_of(np.diag(np.full(10, 50)) + 2)

    assert "codes_missing" not in analysis.analyse(on, moments.without_codes(shifted)).status


@pytest.mark.parametrize(("wanted", "soft"), [("bbse-hard", False), ("bbse-soft", True)])
def test_the_papers_estimate_takes_the_place_of_the_default(
    by_rows: Basis, shifted: Sums, wanted: analysis.Estimator, soft: bool
) -> None:
    default = analysis.analyse(by_rows, shifted)

    found = analysis.analyse(by_rows, shifted, wanted=wanted)

    solver = by_rows.soft if soft else by_rows.hard
    assert solver is not None
    paper = bbse.estimate(solver.paper, shifted)
    assert paper.q is not None
    assert found.method == wanted
    labels = labels_of(found)
    assert labels.raw.tolist() == paper.q.tolist()
    assert labels.q == pytest.approx(bbse.clipped(paper.q))
    assert labels.w == pytest.approx(labels.q / labels.p)
    # What the window means does not depend on what is shown of it.
    assert found.total_variation == default.total_variation
    # Intervals are for the shares, whatever estimated them, and so is the accuracy.
    assert labels.q_lower.tolist() == labels_of(default).q_lower.tolist()
    assert found.accuracy == default.accuracy


def test_negative_shares_of_the_papers_estimate_become_zero() -> None:
    found = analysis.analyse(TWO, Sums(np.array([15, 85])), wanted="bbse-hard")

    # (.15 - .2) / .7.
    assert labels_of(found).raw[0] == pytest.approx(-0.05 / 0.7)
    assert labels_of(found).q.tolist() == [0.0, 1.0]


def test_without_rows_the_papers_soft_estimate_is_its_hard_one() -> None:
    found = analysis.analyse(TWO, WINDOW, wanted="bbse-soft")

    assert found.method == "bbse-hard"
    assert labels_of(found).q == pytest.approx([0.1, 0.9])


def test_up_to_delta_the_paper_says_nothing_moved() -> None:
    sigma = TWO.hard.paper.sigma_min

    below = analysis.analyse(TWO, WINDOW, wanted="bbse-hard", delta=sigma * 1.001)
    above = analysis.analyse(TWO, WINDOW, wanted="bbse-hard", delta=sigma * 0.999)
    default = analysis.analyse(TWO, WINDOW, delta=1.0)

    assert below.status[0] == "degenerate_w1"
    assert labels_of(below).w.tolist() == [1.0, 1.0]
    assert labels_of(below).q.tolist() == [0.5, 0.5]
    assert np.isnan(labels_of(below).raw).all()
    assert below.total_variation == above.total_variation == default.total_variation
    assert "degenerate_w1" not in above.status
    # The default has no such rule.
    assert "degenerate_w1" not in default.status


def test_a_singular_matrix_leaves_the_papers_weights_at_one() -> None:
    found = analysis.analyse(TWINS, Sums(np.array([100, 200, 200])), wanted="bbse-hard")

    assert "degenerate_w1" in found.status
    assert labels_of(found).w.tolist() == [1.0, 1.0, 1.0]
    assert found.paper is not None
    assert found.paper.singular == bbse.Singular("alike")


def test_a_label_without_records_has_no_weight_even_at_one() -> None:
    on = basis_of(np.array([[90, 20, 0], [10, 80, 0], [0, 0, 0]]))

    found = analysis.analyse(on, Sums(np.array([27, 73, 0])), wanted="bbse-hard")

    assert labels_of(found).w[:2].tolist() == [1.0, 1.0]
    assert np.isnan(labels_of(found).w[2])
    assert found.paper is not None
    assert found.paper.singular == bbse.Singular("missing", (2,))


def test_no_predictions_are_no_data() -> None:
    found = analysis.analyse(TWO, Sums(np.zeros(2, dtype=np.int64)))

    assert found.status == ("no_data", "ok")
    assert (found.labels, found.accuracy, found.tests) == (None, None, ())


def test_fewer_than_fifty_predictions_are_said_to_be_insufficient() -> None:
    assert analysis.analyse(TWO, Sums(np.array([20, 29]))).status[0] == "insufficient_data"
    assert "insufficient_data" not in analysis.analyse(TWO, Sums(np.array([20, 30]))).status


def test_an_impossible_window_is_noticed() -> None:
    # 95 % of predictions are label 0, but no mix of labels gives more than 90 %.
    found = analysis.analyse(TWO, Sums(np.array([9_500, 500])))
    possible = analysis.analyse(TWO, Sums(np.array([9_000, 1_000])))

    assert found.status.count("A1_or_A2_violated") == 1
    assert "A1_or_A2_violated" not in possible.status


def test_predictions_new_to_the_reference_are_named() -> None:
    on = basis_of(np.array([[90, 10, 0], [10, 90, 0], [0, 0, 0]]))

    some = analysis.analyse(on, Sums(np.array([50, 40, 30])))
    only = analysis.analyse(on, Sums(np.array([0, 0, 90])))

    assert "unseen_prediction" in some.status
    assert (some.unseen_share, only.unseen_share) == (30 / 120, 1.0)
    assert some.accuracy is not None
    # Of predictions that are all new nothing can be said.
    assert only.status.count("unseen_prediction") == 1
    assert (only.accuracy, only.total_variation, only.groups) == (None, None, ())
    assert np.isnan(labels_of(only).q).all()
    assert labels_of(only).predicted.tolist() == [0.0, 0.0, 1.0]


def test_what_moved_within_labels_that_look_alike_is_not_counted() -> None:
    calm = analysis.analyse(TWINS, Sums(np.array([220, 190, 190])))
    moved = analysis.analyse(TWINS, Sums(np.array([100, 200, 200])))

    # Label 0 lost what labels 1 and 2 gained, whatever each of them gained.
    mix = moved.mix
    assert mix is not None
    assert calm.together == moved.together == ((1, 2),)
    assert calm.total_variation == pytest.approx(0.0, abs=0.001)
    assert moved.total_variation == pytest.approx(1 / 3 - mix[0])


def test_labels_of_which_nothing_is_known_count_as_one() -> None:
    known = identification.Identification(np.full(5, 0.5), (1, 2, 3, 4), (), ((1, 2),))

    assert known.together == ((1, 2), (3, 4))
    assert identification.Identification(np.zeros(2), (), (), ()).together == ()


def test_a_reference_that_separates_nothing_claims_nothing() -> None:
    on = basis_of(np.array([[50, 25], [50, 25]]))

    found = analysis.analyse(on, Sums(np.array([90, 10])))

    assert {"not_identified", "interval_vacuous"} <= set(found.status)
    assert found.not_identified == (0, 1)
    assert labels_of(found).q_lower.tolist() == [0.0, 0.0]
    assert labels_of(found).q_upper.tolist() == [1.0, 1.0]
    assert not labels_of(found).moved.any()
    assert found.total_variation is None
    # That predictions changed is seen all the same.
    assert found.tests[0].p_value < 0.001


def test_a_rare_label_that_grew_has_moved() -> None:
    N = np.array([[290, 10, 0, 0, 0], [10, 290, 0, 0, 0], [0, 0, 300, 0, 0]])
    on = basis_of(np.vstack([N, np.eye(5, dtype=np.int64)[3:] * 6]))

    found = labels_of(analysis.analyse(on, Sums(np.array([1750, 1750, 1500, 5000, 0]))))

    assert found.w[3] > 50.0
    assert found.moved[3]
    # Six records are compatible with none in ten thousand.
    assert not found.moved[4]


def test_without_predictions_the_reference_is_told_of_all_the_same() -> None:
    found = analysis.analyse(TWINS, Sums(np.zeros(3, dtype=np.int64)))

    assert found.status == ("no_data", "not_identified")
    assert found.not_identified == (1, 2)


def test_groups_of_labels_that_look_alike_are_reported_with_their_sum() -> None:
    found = analysis.analyse(TWINS, Sums(np.array([100, 200, 200])))

    (group,) = found.groups
    labels = labels_of(found)
    assert group.labels == (1, 2)
    assert group.q == pytest.approx(labels.q[1:].sum())
    assert 1.0 - group.upper == pytest.approx(labels.q_lower[0])
    assert 1.0 - group.lower == pytest.approx(labels.q_upper[0])
    assert labels.q_lower[1:].tolist() == [0.0, 0.0]
    assert labels.q_upper[1:].tolist() == [1.0, 1.0]
    assert found.not_identified == (1, 2)
    assert {"not_identified", "interval_vacuous"} <= set(found.status)
    assert found.accuracy is not None
    assert found.accuracy.upper - found.accuracy.lower < 0.2


def test_groups_are_named_by_position_in_the_model() -> None:
    # Label 1 is absent.
    counts = np.array([[1800, 0, 200, 200], [0, 0, 0, 0], [100, 2, 900, 900], [100, 1, 900, 900]])

    found = analysis.analyse(basis_of(counts), Sums(np.array([100, 0, 200, 200])))

    assert [group.labels for group in found.groups] == [(2, 3)]
    assert found.groups[0].q == pytest.approx(np.nansum(labels_of(found).q[2:]))
    assert "A2_class_absent" in found.status


def test_labels_told_apart_poorly_are_named() -> None:
    on = basis_of(np.array([[450, 50, 50], [25, 270, 180], [25, 180, 270]]))

    found = analysis.analyse(on, Sums(np.array([300, 300, 400])))

    assert found.weakly_identified == (1, 2)
    assert found.status.count("weakly_identified") == 1
    assert found.not_identified == ()


def test_what_is_identified_depends_on_the_kind_of_predictions() -> None:
    # All predictions are label 0; only softmax rows tell labels apart.
    actual = np.random.default_rng(3).integers(3, size=3000)
    rows = np.full((3000, 3), 0.1)
    rows[np.arange(3000), actual] += 0.2
    rows[:, 0] += np.where(actual == 0, 0.6, 0.4)
    rows /= rows.sum(axis=1, keepdims=True)
    predicted = moments.argmax(rows)
    on = analysis.basis(references.from_sample(3, predicted, actual, rows))

    by_code = analysis.analyse(on, moments.sums(3, predicted[:900], rows[:900]))
    by_label = analysis.analyse(on, moments.sums(3, predicted[:900]))

    assert by_code.not_identified == ()
    assert by_label.not_identified == (0, 1, 2)
    assert "not_identified" not in by_code.status
    assert "not_identified" in by_label.status


def test_one_label_is_trivial() -> None:
    found = analysis.analyse(basis_of(np.array([[80]])), Sums(np.array([90])))

    assert "trivial" in found.status
    assert "not_identified" not in found.status
    assert labels_of(found).q.tolist() == [1.0]
    assert labels_of(found).w.tolist() == [1.0]


def test_one_present_label_of_several_leaves_nothing_to_estimate() -> None:
    found = analysis.analyse(basis_of(np.array([[80, 1], [9, 2]])), Sums(np.array([60, 30])))

    assert {"A2_class_absent", "not_identified"} <= set(found.status)
    assert np.isnan(labels_of(found).q).all()
    assert labels_of(found).recall.estimate[0] == pytest.approx(80 / 89)
    assert (found.accuracy, found.groups) == (None, ())


STYLES = ["good", "guessing", "partly absent", "one prediction"]
EMPTY = "empty"


@pytest.mark.parametrize("style", [*STYLES, EMPTY])
@settings(deadline=None, max_examples=10)
@given(k=st.sampled_from([2, 3, 10, 70]), seed=st.integers(0, 10_000))
@example(k=2, seed=4)
def test_any_reference_and_window_can_be_analysed(style: str, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    on = basis_of(confusion(style, k, rng))

    for counts in (
        np.zeros(k, dtype=np.int64),
        np.eye(k, dtype=np.int64)[0],
        10**9 * np.eye(k, dtype=np.int64)[-1],
        rng.multinomial(200, rng.dirichlet(np.full(k, 0.2))),
    ):
        assert_sane(analysis.analyse(on, Sums(counts)))


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(STYLES), st.integers(2, 6), st.integers(0, 10_000), st.sampled_from([5, 60]))
def test_any_reference_of_rows_can_be_analysed(style: str, k: int, seed: int, m: int) -> None:
    rng = np.random.default_rng(seed)
    predicted, actual = np.indices((k, k)).reshape(2, -1)
    times = confusion(style, k, rng).ravel()
    predicted, actual = predicted.repeat(times), actual.repeat(times)
    rows = rng.dirichlet(np.full(k, 0.5), size=len(actual)) + np.eye(k)[predicted]
    rows /= rows.sum(axis=1, keepdims=True)
    seen = rng.dirichlet(np.full(k, 0.3), size=m)

    on = analysis.basis(references.from_sample(k, moments.argmax(rows), actual, rows))

    for wanted in ("default", "bbse-hard", "bbse-soft"):
        found = analysis.analyse(
            on,
            moments.sums(k, moments.argmax(seen), seen),
            wanted=wanted,
        )
        assert all(0.0 <= test.p_value <= 1.0 for test in found.tests)
        assert found.status


def test_predictions_are_estimated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate, estimated = estimator.estimate, []

    def counted(on: Operator, counts: Floats, phi: float = 1.0) -> Estimate:
        estimated.append(counts)
        return estimate(on, counts, phi)

    monkeypatch.setattr(estimator, "estimate", counted)

    analysis.analyse(TWO, WINDOW)

    assert len(estimated) == 1


@pytest.mark.parametrize("style", STYLES)
@settings(deadline=None, max_examples=12)
@given(k=st.integers(2, 8), seed=st.integers(0, 2**32 - 1))
@example(k=2, seed=4)
def test_the_check_of_the_assumption_is_what_it_would_be_alone(
    style: str, k: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    counts = confusion(style, k, rng)
    counts[0, 0] += 1
    on = basis_of(counts)
    window = Sums(rng.multinomial(300, rng.dirichlet(np.full(k, 0.5))))

    found = analysis.analyse(on, window).assumption

    assert found == assumption.assess(on.check, window)


@settings(deadline=None, max_examples=20)
@given(st.integers(2, 7), st.integers(0, 10_000))
def test_the_order_of_labels_does_not_matter(k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = confusion("good", k, rng)
    window = rng.multinomial(300, rng.dirichlet(np.ones(k)))
    order = rng.permutation(k)

    one = analysis.analyse(basis_of(counts), Sums(window))
    other = analysis.analyse(basis_of(counts[np.ix_(order, order)]), Sums(window[order]))

    for field in fields(Labels)[:9]:
        before, after = getattr(labels_of(one), field.name), getattr(labels_of(other), field.name)
        assert after == pytest.approx(before[order], abs=1e-4, nan_ok=True)
    assert other.tests[0].p_value == pytest.approx(one.tests[0].p_value, abs=1e-9)


def test_intervals_of_an_adaptive_window_reach_over_those_of_its_newest_quarter() -> None:
    whole = analysis.analyse(TWO, Sums(np.array([500, 500])))
    recent = analysis.analyse(TWO, Sums(np.array([100, 150])))

    found = labels_of(analysis.widened(whole, recent))

    assert found.q.tolist() == labels_of(whole).q.tolist()
    for name, hull in (("lower", np.minimum), ("upper", np.maximum)):
        for letter in "qw":
            bounds = [getattr(labels_of(one), f"{letter}_{name}") for one in (whole, recent)]
            assert getattr(found, f"{letter}_{name}").tolist() == hull(*bounds).tolist()


def test_groups_are_widened_too() -> None:
    whole = analysis.analyse(TWINS, Sums(np.array([300, 200, 200])))
    recent = analysis.analyse(TWINS, Sums(np.array([30, 60, 80])))

    found = analysis.widened(whole, recent)

    assert len(found.groups) == len(whole.groups) == 1
    assert found.groups[0].q == whole.groups[0].q
    assert found.groups[0].lower == min(whole.groups[0].lower, recent.groups[0].lower)
    assert found.groups[0].upper == max(whole.groups[0].upper, recent.groups[0].upper)


def test_nothing_is_widened_by_nothing() -> None:
    none = analysis.analyse(TWO, Sums(np.array([0, 0])))

    assert analysis.widened(none, none) is none


def test_a_newest_quarter_of_unseen_predictions_widens_nothing() -> None:
    # TWINS and a label without records.
    counts = np.zeros((4, 4), dtype=np.int64)
    counts[:3, :3] = golden.TWINS * 10
    on = basis_of(counts)
    whole = analysis.analyse(on, Sums(np.array([100, 200, 200, 60])))
    recent = analysis.analyse(on, Sums(np.array([0, 0, 0, 60])))

    found = analysis.widened(whole, recent)

    assert found.groups == whole.groups
    assert labels_of(found).q_lower[:3].tolist() == labels_of(whole).q_lower[:3].tolist()


def test_a_table_of_cells_is_prepared_once_for_each_kind(by_rows: Basis, shifted: Sums) -> None:
    assert by_rows.soft is not None
    assert by_rows.for_window(shifted) is by_rows.soft
    assert by_rows.for_window(Sums(shifted.counts)) is by_rows.hard
    assert by_rows.for_window(moments.without_codes(shifted)) is by_rows.hard
    assert by_rows.hard.operator is not None
    assert by_rows.soft.operator is not None
    found = cells.in_window(by_rows.soft.operator.table, shifted)
    assert found.counts.sum() == shifted.n
    assert replace(by_rows, soft=None).for_window(shifted) is by_rows.hard
