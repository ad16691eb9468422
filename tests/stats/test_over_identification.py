import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize
from scipy.stats import chi2, chi2_contingency

from app.stats import over_identification
from app.stats.moments import Counts, Floats
from app.stats.over_identification import Cells, Fit, Misfit
from app.stats.reference import from_confusion


def cells_of(counts: list[list[int]]) -> Cells:
    made = from_confusion(np.array(counts))
    return over_identification.prediction_cells(made, np.flatnonzero(made.support).tolist())


def misfit_of(of: Cells, counts: list[int], phi: float = 1.0) -> Misfit:
    found = over_identification.fit(of, np.array(counts, dtype=np.float64), phi=phi).misfit
    assert found is not None
    return found


def test_a_label_of_its_own_is_the_textbook_test_that_two_samples_are_alike() -> None:
    of = Cells(np.arange(4), np.array([[0.5], [0.2], [0.2], [0.1]]), np.array([200]))

    found = misfit_of(of, [110, 60, 90, 40])

    # But for the scale: the share of the one label need not be one here.
    table = np.array([[110, 60, 90, 40], [100, 40, 40, 20]])
    expected = chi2_contingency(table, correction=False)
    assert found.statistic == pytest.approx(expected.statistic, rel=0.05)
    assert found.df == 3


def test_no_other_mix_explains_a_window_better() -> None:
    rng = np.random.default_rng(1)
    A = rng.dirichlet(np.ones(7), size=3).T
    of = Cells(np.arange(7), A, np.array([300, 200, 500]))
    counts = rng.multinomial(400, A @ [0.2, 0.8, 0.0]).astype(np.float64)
    best = over_identification.fit(of, counts)
    assert best.misfit is not None
    mu = counts / 400
    noise, _ = over_identification._noise(of, mu, best.q, best.square, 400.0)

    def rest(x: Floats) -> float:
        q = np.exp(x) / np.exp(x).sum()
        return float(((mu - A @ q) ** 2 / noise).sum())

    found = min(minimize(rest, rng.normal(size=3), tol=1e-12).fun for _ in range(5))

    assert best.misfit.statistic == pytest.approx(found, rel=0.02)
    assert best.misfit.df == 7 - np.count_nonzero(best.q)
    assert best.misfit.p_value == pytest.approx(chi2.sf(best.misfit.statistic, best.misfit.df))


def test_two_labels_by_hand_where_one_would_have_to_be_negative() -> None:
    of = cells_of([[80, 20], [20, 80]])

    best = over_identification.fit(of, np.array([195.0, 5.0]))

    # All of label 0. Its 100 records and the window's 200 are one kind, so that t = 1/100, but for
    # four records that may have strayed and a 1/201 of the reference's mix.
    A, p = np.array([0.8, 0.2]), np.array([195 + 80, 5 + 20]) / 300
    mu, D = np.array([0.975, 0.025]), p * (1 / 200 + 1 / 100)
    by_hand = mu**2 @ (1 / D) - (mu @ (A / D)) ** 2 / (A @ (A / D))
    assert best.q.tolist() == [1.0, 0.0]
    assert best.misfit is not None
    assert best.misfit.df == 1
    assert best.misfit.statistic == pytest.approx(by_hand, rel=0.05)


def test_a_window_inside_is_explained_without_a_rest() -> None:
    assert misfit_of(cells_of([[90, 20], [10, 80]]), [27, 73]) == Misfit(0.0, 0, 1.0, 0.0)


def test_labels_just_alike_cost_one_degree_of_freedom_between_them() -> None:
    A = np.array([[0.6, 0.6, 0.1], [0.2, 0.2, 0.2], [0.1, 0.1, 0.2], [0.1, 0.1, 0.5]])
    one = Cells(np.arange(4), A[:, 1:], np.array([170, 70]))
    two = Cells(np.arange(4), A, np.array([90, 80, 70]))

    assert misfit_of(two, [50, 30, 30, 40]).df == misfit_of(one, [50, 30, 30, 40]).df == 2


def test_of_a_label_that_looks_like_another_there_may_be_as_much_as_of_both() -> None:
    A = np.array([[0.9, 0.9, 0.0], [0.1, 0.1, 0.0], [0.0, 0.0, 1.0]])
    of = Cells(np.arange(3), A, np.array([9_000, 8_000, 7_000]))

    best = over_identification.fit(of, np.array([5_400.0, 600.0, 4_000.0]))

    assert best.q[:2].sum() == pytest.approx(0.6, abs=1e-3)
    assert best.most == pytest.approx([0.6, 0.6, 0.4], abs=2e-3)


def test_predictions_that_the_reference_never_made_are_left_out() -> None:
    of = cells_of([[8, 1, 0], [0, 0, 0], [2, 9, 0]])

    assert of.place.tolist() == [0, -1, 1]
    assert of.n_j.tolist() == [10, 10]
    assert of.of(np.array([4, 7, 5])).tolist() == [4, 5]


def test_predictions_outnumber_labels_when_one_is_absent() -> None:
    of = cells_of([[80, 10, 0], [10, 80, 0], [10, 10, 0]])

    consistent, came_back = misfit_of(of, [45, 45, 10]), misfit_of(of, [30, 30, 40])

    assert consistent.p_value > 0.5
    assert came_back.df == 1
    assert came_back.p_value < 0.001


def test_overdispersion_weakens_the_evidence() -> None:
    of = cells_of([[80, 10, 0], [10, 80, 0], [10, 10, 0]])

    assert misfit_of(of, [40, 40, 20], phi=4.0).p_value > misfit_of(of, [40, 40, 20]).p_value


def test_the_order_of_labels_and_of_cells_is_irrelevant() -> None:
    rng = np.random.default_rng(2)
    A, n_j = rng.dirichlet(np.ones(9), size=4).T, np.array([40, 300, 20, 90])
    counts = rng.multinomial(500, A @ rng.dirichlet(np.ones(4))).astype(np.float64)
    rows, labels = rng.permutation(9), rng.permutation(4)

    here = over_identification.fit(Cells(np.arange(9), A, n_j), counts)
    there = over_identification.fit(
        Cells(np.arange(9), A[np.ix_(rows, labels)], n_j[labels]), counts[rows]
    )

    assert here.misfit is not None
    assert there.misfit is not None
    assert there.misfit.p_value == pytest.approx(here.misfit.p_value, rel=1e-6)
    assert there.q == pytest.approx(here.q[labels], abs=1e-8)


def test_many_labels_get_a_rough_mix_and_no_test() -> None:
    k = over_identification.MOST_LABELS + 1
    of = Cells(np.arange(k), np.eye(k) * 0.9 + 0.1 / k, np.full(k, 50))

    found = over_identification.fit(of, np.arange(k, dtype=np.float64))

    assert found.misfit is None
    assert found.q.sum() == pytest.approx(1.0)


@given(arrays(np.int64, (3, 14), elements=st.integers(0, 400)))
@settings(deadline=None)
def test_coarse_cells_are_runs_of_bins_that_are_well_filled(records: Counts) -> None:
    place = over_identification.coarsening(records).reshape(3, 14)

    for cells, row in zip(place, records, strict=True):
        filled = [row[cells == cell].sum() for cell in np.unique(cells)]
        if not row.any():
            assert (cells == -1).all()
            continue
        assert len(filled) <= over_identification.CELLS_PER_LABEL
        assert (np.diff(cells) >= 0).all()
        assert len(filled) == 1 or min(filled) >= over_identification.RECORDS_PER_CELL


@given(
    arrays(np.int64, (6, 3), elements=st.sampled_from([0, 1, 2, 30, 10**9])),
    arrays(np.int64, 6, elements=st.integers(0, 10**9)),
    st.floats(1.0, 50.0),
)
@settings(deadline=None)
def test_any_counts_give_a_probability(counts: Counts, window: Counts, phi: float) -> None:
    square = np.zeros((6, 6), dtype=np.int64)
    square[:, :3] = counts
    if not counts.any():
        return
    of = cells_of(square.tolist())
    seen = of.of(window)
    if not seen.any():
        return

    found: Fit = over_identification.fit(of, seen, phi=phi)

    assert found.misfit is not None
    assert 0.0 <= found.misfit.p_value <= 1.0
    assert np.isfinite([found.misfit.statistic, found.misfit.size]).all()
    assert found.q.sum() == pytest.approx(1.0)
    assert (found.most >= found.q).all()
    assert (found.most <= 1.0).all()


def test_the_minimum_is_the_same_when_guesses_go_in_circles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(3)
    of = Cells(np.arange(8), rng.dirichlet(np.ones(8), size=4).T, np.full(4, 300))
    counts = rng.multinomial(500, of.A @ [0.7, 0.3, 0.0, 0.0]).astype(np.float64)
    quick = over_identification.fit(of, counts)
    monkeypatch.setattr(over_identification, "MOST_GUESSES", 0)

    slow = over_identification.fit(of, counts)

    assert quick.misfit is not None
    assert slow.misfit is not None
    assert slow.q == pytest.approx(quick.q, abs=1e-9)
    assert slow.misfit.p_value == pytest.approx(quick.misfit.p_value, rel=1e-6)


def test_one_record_where_a_tenth_was_expected_is_not_much_evidence() -> None:
    # Ten records of a label, one of them in a cell that holds 12 of the window's 5,000.
    of = Cells(np.arange(3), np.array([[0.5], [0.4], [0.1]]), np.array([10]))

    found = misfit_of(of, [2_500, 2_488, 12])

    assert found.statistic > chi2.isf(0.05, found.df)
    assert found.p_value > 0.05


def test_no_label_with_a_share_is_a_guess_like_any_other() -> None:
    nobody = np.zeros(2, dtype=np.bool_)

    found = over_identification._least_squares(np.eye(2), np.ones(2), nobody)

    assert found.tolist() == [0.0, 0.0]
