"""The comparison with other tools draws, asks and counts as it says, with or without QuaPy."""

import doctest
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from app.stats import analysis, moments
from app.stats import reference as references
from bench.peers import (
    asking,
    drawing,
    measuring,
    ours,
    plain,
    settings,
    synthetic,
    tables,
)
from bench.peers.drawing import CELLS, Draw, Window
from bench.peers.measuring import Coverage, Measured
from bench.peers.ours import Answer
from bench.peers.settings import Setting
from tests.fashion import Outputs

CELL_SIZES = [m for _, m in CELLS]


def pool(seed: int, size: int = 600, k: int = 3) -> Outputs:
    """Outputs of which no two are the same, so that each can be found again."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(k, size=size)
    return Outputs(rng.dirichlet(np.ones(k) / 2.0, size) * 0.5 + 0.5 * np.eye(k)[labels], labels)


def perfect(size: int = 600, k: int = 3) -> Outputs:
    labels = np.arange(size) % k
    return Outputs(np.eye(k)[labels], labels)


TWO_POOLS = Setting("pool", 300, np.array([0.5, 0.3, 0.2]), pool(1), pool(2))


def places(found: Outputs, among: Outputs) -> list[int]:
    """Where each of these outputs is in a pool."""
    at = {row.tobytes(): place for place, row in enumerate(among.rows)}
    return [at[row.tobytes()] for row in found.rows]


def test_references_and_windows_come_from_their_pools_with_their_labels() -> None:
    drawn = drawing.draw(TWO_POOLS, 0)

    of = places(drawn.reference, TWO_POOLS.labelled)
    assert TWO_POOLS.labelled.labels[of].tolist() == drawn.reference.labels.tolist()
    assert [len(window.outputs.labels) for window in drawn.windows] == CELL_SIZES
    for window in drawn.windows:
        of = places(window.outputs, TWO_POOLS.stream)
        assert TWO_POOLS.stream.labels[of].tolist() == window.outputs.labels.tolist()


def test_labels_are_drawn_from_the_mix_that_is_told() -> None:
    drawn = drawing.draw(TWO_POOLS, 0)

    # Four standard errors of a share that is one half.
    assert shares(drawn.reference) == pytest.approx(TWO_POOLS.mix, abs=2.0 * 300**-0.5)
    for window, m in zip(drawn.windows, CELL_SIZES, strict=True):
        assert shares(window.outputs) == pytest.approx(window.q, abs=2.0 * m**-0.5)


def shares(outputs: Outputs) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.bincount(outputs.labels, minlength=3) / len(outputs.labels)


def test_tweaked_windows_hold_one_label_at_its_share() -> None:
    drawn = drawing.draw(TWO_POOLS, 0)

    for (shift, _), window in zip(CELLS, drawn.windows, strict=True):
        if shift.startswith("tweak"):
            assert float(shift.split()[1]) in window.q
            assert window.q.sum() == pytest.approx(1.0)


def test_a_draw_depends_on_its_number_only() -> None:
    first, other, again = (drawing.draw(TWO_POOLS, number) for number in (0, 1, 0))

    assert np.array_equal(first.reference.rows, again.reference.rows)
    assert not np.array_equal(first.reference.rows, other.reference.rows)
    for window, same in zip(first.windows, again.windows, strict=True):
        assert np.array_equal(window.outputs.rows, same.outputs.rows)


def test_settings_hold_both_protocols_on_both_classifiers() -> None:
    found = {
        (one.protocol, one.data, one.n): (len(one.labelled.labels), len(one.stream.labels))
        for one in settings.settings(None)
        if one.data in ("good", "weak")
    }

    # The validation half and the test half of the outputs, or all of them as one pool.
    assert found == {
        (protocol, data, n): (size, size)
        for protocol, size in (("peers' draws", 20_000), ("one pool", 40_000))
        for data in ("good", "weak")
        for n in (10_000, 1000)
    }


def test_silent_labels_are_never_predicted_and_all_others_are() -> None:
    for family in synthetic.FAMILIES:
        predicted = set(synthetic.pool(family).predicted.tolist())

        assert predicted == set(range(family.k)) - set(family.silent)


def test_other_copies_of_the_outputs_are_read_from_their_directory(tmp_path: Path) -> None:
    labelled, stream = perfect(30), perfect(60)
    for name in ("good", "weak"):
        np.savez(
            tmp_path / f"fashion_mlp_{name}.npz",
            val_probs=labelled.rows,
            val_labels=labelled.labels,
            test_probs=stream.rows,
            test_labels=stream.labels,
        )

    first = next(settings.settings(tmp_path))

    assert (len(first.labelled.labels), len(first.stream.labels)) == (30, 60)
    assert first.stream.predicted.tolist() == first.stream.labels.tolist()


@pytest.mark.parametrize("mean", [[0.3, 0.3, 0.4], [0.9, 0.1, 0.0], [0.0, 0.0, 1.0]])
def test_least_squares_finds_what_trying_all_mixes_finds(mean: list[float]) -> None:
    conditional = np.array([[0.7, 0.2, 0.1], [0.2, 0.6, 0.3], [0.1, 0.2, 0.6]])
    steps = np.linspace(0.0, 1.0, 401)
    grid = np.array([(a, b, max(0.0, 1.0 - a - b)) for a in steps for b in steps if a + b < 1.0001])

    q = plain.least_squares(conditional, np.array(mean))

    best = grid[((grid @ conditional.T - mean) ** 2).sum(axis=1).argmin()]
    assert q == pytest.approx(best, abs=0.004)
    assert q.sum() == pytest.approx(1.0)
    assert q.min() >= 0.0


def test_a_perfect_classifier_leaves_the_error_of_true_labels() -> None:
    exact = Setting("perfect", 300, settings.even(3), perfect(), perfect())
    ticks: list[None] = []

    measured = measuring.measure(exact, 2, None, lambda: ticks.append(None))

    assert len(ticks) == 2
    limit = measured.errors[plain.TRUTH]
    assert limit.shape == (2, len(CELLS))
    for name in (plain.SOFT, plain.HARD):
        assert measured.errors[name] == pytest.approx(limit, abs=1e-5)
    assert measured.coverage["Shiftwatch"].held.shape == (2, len(CELLS), 3)


def test_an_answer_is_what_the_service_would_say() -> None:
    drawn = drawing.draw(TWO_POOLS, 0)
    window = drawn.windows[0].outputs
    made = references.from_sample(3, drawn.reference.predicted, drawn.reference.labels)
    found = analysis.analyse(analysis.basis(made), moments.sums(3, window.predicted))
    assert found.labels is not None
    assert found.accuracy is not None

    first = next(ours.answers(drawn, soft=False))

    assert first.q.tolist() == found.labels.q.tolist()
    assert first.lower.tolist() == found.labels.q_lower.tolist()
    assert first.accuracy == (found.accuracy.lower, found.accuracy.upper)


def test_what_is_not_known_claims_nothing() -> None:
    counts = np.array([[90, 10, 0], [10, 90, 0], [0, 0, 0]])
    on = analysis.basis(references.from_confusion(counts))

    answer = ours.answer(analysis.analyse(on, moments.sums(3, np.repeat([0, 1], 100))))

    assert answer.q[2] == 0.0
    assert (answer.lower[2], answer.upper[2]) == (0.0, 1.0)


def test_coverage_counts_intervals_that_hold_the_truth() -> None:
    q = np.array([0.2, 0.8])
    draw = Draw(perfect(), (Window(q, perfect()), Window(q, perfect())))
    sure = Answer(q, np.array([0.1, 0.7]), np.array([0.3, 0.8]), (0.55, 0.65))
    wrong = Answer(q, np.array([0.3, 0.7]), np.array([0.4, 1.0]), (0.5, 0.55))

    # With recalls of 1 and .5 the accuracy is .2 + .4.
    found = measuring.coverage(draw, [sure, wrong], np.array([1.0, 0.5]))

    assert found.held.tolist() == [[True, True], [False, True]]
    assert found.width == pytest.approx(np.array([[0.2, 0.1], [0.1, 0.3]]))
    assert found.accuracy_held.tolist() == [True, False]


def test_recalls_are_of_the_pool() -> None:
    rows = np.array([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7]])

    assert measuring.recalls(Outputs(rows, np.array([0, 0, 1])), 2).tolist() == [0.5, 1.0]


def handmade() -> Measured:
    def errors(*of_references: float) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        return np.repeat(np.array(of_references)[:, None], len(CELLS), axis=1)

    held = np.ones((2, len(CELLS), 3), dtype=np.bool_)
    held[:, ::2, 1] = False
    coverage = Coverage(held, np.full(held.shape, 0.25), held[:, :, 0])
    return Measured(
        Setting("made", 1000, settings.even(3), perfect(), perfect()),
        {
            "true labels": errors(1.0, 1.0),
            "Shiftwatch": errors(5.0, 6.0),
            "Shiftwatch hard": errors(9.0, 9.0),
            "PACC": errors(7.0, 7.0),
            "LS soft": errors(6.0, 9.0),
            "LS hard": errors(8.0, 8.0),
        },
        {"Shiftwatch": coverage},
    )


def test_the_best_peer_is_compared_reference_by_reference() -> None:
    cells = tables.difference_cells(handmade())

    assert cells["Shiftwatch"] == "-1.50 (0.50), PACC"
    assert cells["Shiftwatch hard"] == "+1.00 (0.00), LS hard"


def test_the_lowest_label_is_told() -> None:
    (cells,) = tables.coverage_cells(handmade())

    assert cells["labels"] == "0.833 (0.500)"
    assert (cells["width"], cells["accuracy"]) == ("0.250", "1.000")


def test_rows_to_keep_are_by_cell_and_by_label() -> None:
    measured = [handmade()]

    assert len(tables.error_rows(measured)) == len(CELLS)
    assert tables.error_rows(measured)[0]["Shiftwatch"] == 5.5
    assert tables.coverage_rows(measured)[0]["coverage"] == pytest.approx(2.0 / 3.0)
    assert [row["coverage"] for row in tables.label_rows(measured)] == [1.0, 0.5, 1.0]


STAND_IN = """
import sys
import numpy as np

for line in sys.stdin:
    path = line.strip()
    with np.load(path) as draw:
        parts = np.split(draw["windows"], np.cumsum(draw["sizes"])[:-1])
        first = draw["rows"][0] * draw["labels"][0]
    means = np.stack([part.mean(axis=0) for part in parts])
    np.savez(path + ".npz", **{name: means for name in NAMES}, first=first)
    print(path + ".npz", flush=True)
"""


def test_draws_reach_the_other_environment_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "stand_in.py"
    program.write_text(f"NAMES = {asking.QUAPY}\n{STAND_IN}")
    monkeypatch.setattr(asking, "PROGRAM", program)
    drawn = drawing.draw(TWO_POOLS, 0)

    with asking.quapy(Path(sys.executable)) as quapy:
        quapy.ask(drawn)
        answers = quapy.hear()

    means = np.stack([window.outputs.rows.mean(axis=0) for window in drawn.windows])
    assert answers.keys() == set(asking.QUAPY)
    for estimates in answers.values():
        assert np.array_equal(estimates, means)


def test_a_quapy_that_stops_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "stand_in.py"
    program.write_text("raise SystemExit('out of order')")
    monkeypatch.setattr(asking, "PROGRAM", program)

    with (
        asking.quapy(Path(sys.executable)) as quapy,
        pytest.raises(RuntimeError, match="QuaPy has stopped"),
    ):
        quapy.hear()


@pytest.mark.parametrize(
    "module", [plain, settings, synthetic, tables], ids=lambda one: one.__name__
)
def test_examples_in_docstrings_are_right(module: ModuleType) -> None:
    found = doctest.testmod(module)

    assert found.attempted > 0
    assert found.failed == 0
