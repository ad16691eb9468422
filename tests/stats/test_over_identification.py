import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import chi2

from app.stats import bbse, diagnosis, over_identification
from app.stats.moments import Counts, Floats
from app.stats.over_identification import Misfit
from app.stats.reference import from_confusion


def test_over_identification_agrees_with_the_textbook_formula() -> None:
    rng = np.random.default_rng(1)
    A = rng.dirichlet(np.ones(7), size=3).T
    n_j, counts = np.array([300, 200, 500]), rng.multinomial(400, A @ [0.2, 0.5, 0.3])
    mu = counts / 400
    q, J = n_j / 1000, 0.0
    for _ in range(over_identification.ITERATIONS):
        likely = (400 * bbse.clipped(q) + n_j / 1000) / 401
        p = A @ likely
        omega = (np.diag(p) - np.outer(p, p)) / 400
        for j in range(3):
            omega += likely[j] ** 2 / n_j[j] * (np.diag(A[:, j]) - np.outer(A[:, j], A[:, j]))
        W = np.linalg.pinv(omega)
        basis = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
        start = np.array([0.0, 0.0, 1.0])
        left, right = (A @ basis).T @ W, mu - A @ start
        q = start + basis @ np.linalg.solve(left @ A @ basis, left @ right)
        J = (mu - A @ q) @ W @ (mu - A @ q)

    found = over_identification.over_identification(A, n_j, counts, rank=3)

    assert found.statistic == pytest.approx(J, rel=1e-6)
    assert found.df == 4
    assert found.p_value == pytest.approx(chi2.sf(J, 4), rel=1e-6)


def test_identical_columns_cost_a_degree_of_freedom_less() -> None:
    A = np.array([[0.6, 0.6, 0.1], [0.3, 0.3, 0.2], [0.1, 0.1, 0.7]])

    found = over_identification.over_identification(
        A, np.array([90, 80, 70]), np.array([50, 30, 60]), rank=2
    )

    assert found.df == 1
    assert 0.0 <= found.p_value <= 1.0


def test_as_many_labels_as_cells_leave_nothing_to_test() -> None:
    found = over_identification.over_identification(
        np.array([[0.9, 0.2], [0.1, 0.8]]), np.array([50, 50]), np.array([30, 70]), rank=2
    )

    assert found == Misfit(0.0, 0, 1.0, 0.0)


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


def test_predictions_outnumber_labels_when_one_is_absent() -> None:
    made = from_confusion(np.array([[80, 10, 0], [10, 80, 0], [10, 10, 0]]))
    hard = bbse.prepare(made, diagnosis.diagnose(made))

    consistent = over_identification.prediction_misfit(hard, np.array([45, 45, 10]))
    came_back = over_identification.prediction_misfit(hard, np.array([30, 30, 40]))

    assert consistent is not None
    assert consistent.p_value > 0.5
    assert came_back is not None
    assert came_back.df == 1
    assert came_back.p_value < 0.001


def test_predictions_do_not_outnumber_labels_otherwise() -> None:
    made = from_confusion(np.array([[80, 10], [20, 90]]))
    absent = from_confusion(np.array([[80, 10, 0], [20, 80, 0], [0, 10, 0]]))
    hard = bbse.prepare(absent, diagnosis.diagnose(absent))

    square = bbse.prepare(made, diagnosis.diagnose(made))

    assert over_identification.prediction_misfit(square, np.array([5, 5])) is None
    assert over_identification.prediction_misfit(hard, np.array([0, 0, 0])) is None


@given(
    arrays(np.float64, (6, 3), elements=st.sampled_from([0.0, 1e-12, 0.01, 0.3, 1.0])),
    arrays(np.int64, 6, elements=st.integers(0, 10**9)).filter(np.any),
    arrays(np.int64, 3, elements=st.integers(5, 10**9)),
    st.floats(1.0, 50.0),
)
@settings(deadline=None)
def test_any_counts_give_a_probability(
    weights: Floats, counts: Counts, n_j: Counts, phi: float
) -> None:
    A = (weights + 1e-15) / (weights + 1e-15).sum(axis=0)
    rank = int(np.linalg.matrix_rank(A))

    found = over_identification.over_identification(A, n_j, counts, rank=rank, phi=phi)

    assert 0.0 <= found.p_value <= 1.0
    assert np.isfinite([found.statistic, found.size]).all()
