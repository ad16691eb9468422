"""A whole window analysis: what it says, and that it always says something."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.stats import analysis, assumption, bbse, moments
from app.stats import reference as references
from app.stats.analysis import Analysis, Basis
from app.stats.bbse import Estimate, Prepared
from app.stats.moments import Counts, Sums
from tests import fashion

TWO = analysis.basis(references.from_confusion(np.array([[900, 200], [100, 800]])))


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


def fashion_basis(n: int = 3000) -> Basis:
    sample = fashion.draw(
        fashion.outputs("good", "validation"), np.full(10, 0.1), n, np.random.default_rng(1)
    )
    return analysis.basis(references.from_sample(10, sample.predicted, sample.labels, sample.rows))


def assert_sane(found: Analysis) -> None:
    assert all(0.0 <= test.p_value <= 1.0 for test in found.tests)
    if found.labels is None or found.accuracy is None:
        return
    labels = found.labels
    known = ~np.isnan(labels.q)
    assert labels.q[known].sum() == pytest.approx(1.0)
    assert (labels.q_lower[known] <= labels.q[known] + 1e-12).all()
    assert (labels.q_upper[known] >= labels.q[known] - 1e-12).all()
    assert found.accuracy.lower <= found.accuracy.estimate <= found.accuracy.upper


def test_every_part_of_an_analysis_of_hard_predictions() -> None:
    found = analysis.analyse(TWO, Sums(np.array([270, 730])))

    assert found.labels is not None
    assert found.labels.q == pytest.approx([0.1, 0.9])
    assert found.labels.w == pytest.approx([0.2, 1.8])
    assert found.labels.moved.all()
    assert [test.test for test in found.tests] == ["chi2", "ks"]
    assert found.total_variation == pytest.approx(0.4)
    assert found.accuracy is not None
    assert found.accuracy.estimate == pytest.approx(0.81)
    assert found.method == "bbse-hard"


def test_softmax_rows_bring_the_combined_test_and_a_verdict_on_the_assumption() -> None:
    on = fashion_basis()
    q = np.where(np.arange(10) == 5, 0.5, 0.5 / 9)
    window = fashion.draw(fashion.outputs("good", "test"), q, 1500, np.random.default_rng(2))

    found = analysis.analyse(on, moments.sums(10, window.predicted, window.rows))

    assert found.method == "bbse-soft"
    assert found.tests[0].test == "combined"
    assert found.assumption is not None
    assert found.assumption.verdict == "label_shift_consistent"
    assert found.labels is not None
    assert found.labels.moved[5]


def test_hard_predictions_are_analysed_on_a_soft_reference() -> None:
    found = analysis.analyse(fashion_basis(), Sums(np.full(10, 100)))

    assert found.method == "bbse-hard"
    assert "assumption_untestable_hard_only" in found.status


def test_no_predictions_are_no_data() -> None:
    found = analysis.analyse(TWO, Sums(np.zeros(2, dtype=np.int64)))

    assert found.status[0] == "no_data"
    assert (found.labels, found.accuracy, found.tests) == (None, None, ())


def test_few_predictions_are_said_to_be_insufficient() -> None:
    assert analysis.analyse(TWO, Sums(np.array([20, 20]))).status[0] == "insufficient_data"


def test_an_impossible_window_is_noticed() -> None:
    # 95 % of predictions are label 0, but no mix of labels gives more than 90 %.
    found = analysis.analyse(TWO, Sums(np.array([9_500, 500])))

    assert found.status.count("A1_or_A2_violated") == 1


def test_predictions_new_to_the_reference_are_named() -> None:
    on = analysis.basis(references.from_confusion(np.array([[90, 10, 0], [10, 90, 0], [0, 0, 0]])))

    some = analysis.analyse(on, Sums(np.array([50, 40, 30])))
    only = analysis.analyse(on, Sums(np.array([0, 0, 90])))

    assert "unseen_prediction" in some.status
    assert {"unseen_prediction", "degenerate_w1"} <= set(only.status)
    assert only.accuracy is None


def test_a_reference_that_separates_nothing_claims_nothing() -> None:
    on = analysis.basis(references.from_confusion(np.array([[50, 25], [50, 25]])))

    found = analysis.analyse(on, Sums(np.array([90, 10])))

    assert "degenerate_w1" in found.status
    assert found.labels is not None
    assert found.labels.w.tolist() == [1.0, 1.0]
    assert np.isnan(found.labels.q_lower).all()
    assert found.accuracy is None
    assert found.tests[0].p_value < 0.001


def test_groups_are_reported_with_what_they_hide() -> None:
    on = analysis.basis(
        references.from_confusion(np.array([[90, 10, 20], [5, 46, 88], [5, 44, 92]]))
    )

    found = analysis.analyse(on, Sums(np.array([180, 210, 210])))

    assert found.labels is not None
    (group,) = found.groups
    assert group.labels == (1, 2)
    assert group.q == pytest.approx(found.labels.q[1:].sum())
    assert found.labels.q_lower[1:].tolist() == [0.0, 0.0]
    assert found.labels.q_upper[1:].tolist() == [group.upper, group.upper]
    assert group.bias > 0.0


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(["good", "guessing", "partly absent", "one prediction", "empty"]),
    st.sampled_from([2, 3, 10, 70]),
    st.integers(0, 10_000),
)
def test_any_reference_and_window_can_be_analysed(style: str, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    on = analysis.basis(references.from_confusion(confusion(style, k, rng)))

    for counts in (
        np.zeros(k, dtype=np.int64),
        np.eye(k, dtype=np.int64)[0],
        10**9 * np.eye(k, dtype=np.int64)[-1],
        rng.multinomial(200, rng.dirichlet(np.full(k, 0.2))),
    ):
        assert_sane(analysis.analyse(on, Sums(counts)))


def test_hard_predictions_are_estimated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate, estimated = bbse.estimate, []

    def counted(prepared: Prepared, sums: Sums, phi: float = 1.0) -> Estimate:
        estimated.append(sums)
        return estimate(prepared, sums, phi)

    monkeypatch.setattr(bbse, "estimate", counted)

    analysis.analyse(TWO, Sums(np.array([270, 730])))

    assert len(estimated) == 1


@settings(deadline=None, max_examples=50)
@given(
    st.sampled_from(["good", "guessing", "partly absent", "one prediction"]),
    st.integers(2, 8),
    st.integers(0, 2**32 - 1),
)
def test_the_check_of_the_assumption_is_what_it_would_be_alone(
    style: str, k: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    counts = confusion(style, k, rng)
    counts[0, 0] += 1
    on = analysis.basis(references.from_confusion(counts))
    window = Sums(rng.multinomial(300, rng.dirichlet(np.full(k, 0.5))))

    found = analysis.analyse(on, window).assumption

    assert found == assumption.assess(on.check, window)


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 7), st.integers(0, 10_000))
def test_the_order_of_labels_does_not_matter(k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = confusion("good", k, rng)
    window = rng.multinomial(300, rng.dirichlet(np.ones(k)))
    order = rng.permutation(k)

    one = analysis.analyse(analysis.basis(references.from_confusion(counts)), Sums(window))
    other = analysis.analyse(
        analysis.basis(references.from_confusion(counts[np.ix_(order, order)])), Sums(window[order])
    )

    assert one.labels is not None
    assert other.labels is not None
    for field in fields(one.labels)[:9]:
        before, after = getattr(one.labels, field.name), getattr(other.labels, field.name)
        assert after == pytest.approx(before[order], abs=1e-6, nan_ok=True)
    assert other.tests[0].p_value == pytest.approx(one.tests[0].p_value, abs=1e-9)


def test_intervals_of_an_adaptive_window_reach_over_those_of_its_newest_quarter() -> None:
    whole = analysis.analyse(TWO, Sums(np.array([500, 500])))
    recent = analysis.analyse(TWO, Sums(np.array([100, 150])))

    found = analysis.widened(whole, recent)

    assert found.labels is not None
    assert whole.labels is not None
    assert recent.labels is not None
    assert found.labels.q.tolist() == whole.labels.q.tolist()
    for name, hull in (("lower", np.minimum), ("upper", np.maximum)):
        for letter in "qw":
            bounds = [getattr(one.labels, f"{letter}_{name}") for one in (whole, recent)]
            assert getattr(found.labels, f"{letter}_{name}").tolist() == hull(*bounds).tolist()


def test_groups_are_widened_too() -> None:
    counts = np.array([[80, 75, 5], [75, 80, 5], [5, 5, 90]])
    merged = analysis.basis(references.from_confusion(10 * counts))
    whole = analysis.analyse(merged, Sums(np.array([400, 400, 200])))
    recent = analysis.analyse(merged, Sums(np.array([60, 60, 80])))

    found = analysis.widened(whole, recent)

    assert len(found.groups) == len(whole.groups) > 0
    assert found.groups[0].lower == min(whole.groups[0].lower, recent.groups[0].lower)
    assert found.groups[0].upper == max(whole.groups[0].upper, recent.groups[0].upper)


def test_nothing_is_widened_by_nothing() -> None:
    none = analysis.analyse(TWO, Sums(np.array([0, 0])))

    assert analysis.widened(none, none) is none
