"""The paper's claims at a small scale, and the files that its reproduction leaves behind."""

import csv
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from bench.paper import (
    adaptive_window,
    coverage,
    delay,
    estimation,
    experiment,
    quality,
    retraining,
    runner,
)
from bench.paper.experiment import Row, Rows, number, select
from bench.paper.naming import CORRECTIONS, OURS, RULES, TESTS, TWEAK

HOME = Path(runner.__file__).parent
DOCUMENT = HOME.parents[1] / "docs/paper.md"


class Inline(Executor):
    """Runs every job here and now: another process would take longer to start."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quick version of every experiment but the one that needs a download."""
    place = tmp_path_factory.mktemp("paper")
    for name, one in runner.EXPERIMENTS.items():
        if name != retraining.WITH_IMAGES.name:
            runner.measure(one, Inline(), place, quick=True)
    return place


def measured(out: Path, name: str) -> Rows:
    return experiment.read(runner.numbers(runner.EXPERIMENTS[name], out))


# Seeds are the experiments' own and fixed; limits leave about three standard errors, so that a
# change of NumPy's generators should not fail them either.


def test_p_values_are_uniform_without_a_shift(out: Path) -> None:
    calm = select(measured(out, "p_values"), shift="δ = 0")

    # Kolmogorov's distance of 200 uniform draws is above .14 once in a thousand.
    for classifier in ("good", "weak"):
        for row in select(calm, classifier=classifier, test=TESTS["chi2"]):
            assert float(row["share"]) == pytest.approx(float(row["p"]), abs=0.14)


def test_the_combined_test_promises_no_more_than_it_keeps_where_it_matters(out: Path) -> None:
    calm = select(measured(out, "p_values"), shift="δ = 0", test=TESTS["combined"])

    # Cauchy's combination is right in its tail only; standard error .015 at .05.
    small = [row for row in calm if 0.0 < float(row["p"]) <= 0.1]
    assert len(small) == 8
    for row in small:
        assert float(row["share"]) <= float(row["p"]) + 0.06


def test_power_rises_with_the_shift_and_the_oracle_has_most(out: Path) -> None:
    found = select(measured(out, "power"), setting="sandals knocked out, n = m = 1,000")

    def power(test: str, classifier: str, delta: float) -> float:
        at: Row = {"classifier": classifier, "size": delta}
        return number(found, "power", test=TESTS[test], **at)

    for classifier in ("good", "weak"):
        for test in ("combined", "chi2", "oracle"):
            calm, some, most = (power(test, classifier, delta) for delta in (0.0, 0.4, 0.8))
            assert calm < 0.15
            assert calm <= some < most
        for delta in (0.4, 0.8):
            # The same draws: the difference has a standard error of at most .05.
            assert power("oracle", classifier, delta) >= power("combined", classifier, delta) - 0.1
            assert power("oracle", classifier, delta) >= power("chi2", classifier, delta) - 0.1
    assert power("combined", "good", 0.8) > power("ks", "good", 0.8) + 0.3
    assert power("combined", "good", 0.8) > power("combined", "weak", 0.8)


def test_errors_fall_with_the_size_of_the_samples(out: Path) -> None:
    found = select(measured(out, "estimation"), shift="dirichlet 1")

    for name in (estimation.HARD, estimation.SOFT, estimation.DEFAULT, estimation.TRUTH):
        for classifier in ("good", "weak"):
            at: Row = {"classifier": classifier, "estimator": name}
            small, large = (number(found, "mse", size=size, **at) for size in (500.0, 4000.0))
            # By 8 in theory; a mean of 12 errors is known to a factor of two or so.
            assert large < small / 2.0


def test_correction_pays_under_a_large_shift_and_hardly_costs_without_one(out: Path) -> None:
    found = select(measured(out, "correction"), shift=TWEAK, classifier="good")

    def accuracy(way: str, share: float) -> float:
        return number(found, "accuracy", method=CORRECTIONS[way], size=share)

    assert accuracy("shrunken", 0.9) > accuracy("calibrated", 0.9) + 3.0
    assert accuracy("shrunken", 0.1) == pytest.approx(accuracy("calibrated", 0.1), abs=0.3)
    assert accuracy("oracle", 0.9) >= accuracy("always", 0.9)


def test_retraining_with_weights_pays_under_a_large_shift(out: Path) -> None:
    found = measured(out, "retraining")

    accuracy = {way: number(found, "accuracy", method=way) for way in retraining.WAYS}
    unweighted = accuracy.pop(retraining.UNWEIGHTED)

    assert all(weighted > unweighted for weighted in accuracy.values())


def test_a_smaller_sigma_min_means_a_larger_error(out: Path) -> None:
    found = select(measured(out, "quality"), source="good, predictions replaced")

    for name in (quality.RAW, quality.DEFAULT):
        whole, little = (select(found, estimator=name, setting=at)[0] for at in (0.0, 0.8))
        assert float(little["sigma_min"]) == pytest.approx(0.2 * float(whole["sigma_min"]), rel=0.1)
        assert float(little["error"]) > 2.0 * float(whole["error"])


def test_intervals_hold_unless_the_reference_is_taken_as_exact(out: Path) -> None:
    found = select(measured(out, "coverage"), classifier="good")

    hard, soft, control = (
        number(found, "coverage", interval=name)
        for name in (coverage.HARD, coverage.SOFT, coverage.CONTROL)
    )

    # 600 intervals each, ten to a window: a standard error of about .01.
    assert 0.92 <= hard <= 0.995
    assert 0.92 <= soft <= 0.995
    assert control < 0.9


def test_a_budget_is_kept_where_a_p_value_every_minute_cries_wolf(out: Path) -> None:
    found = measured(out, "false_alarms")

    for setting in ("n = 1,000", "n = 10,000"):
        assert number(found, "false_alarms", setting=setting, rule=OURS) <= 0.15
        assert number(found, "false_alarms", setting=setting, rule=RULES[0.05]) > 3.0


def test_a_large_shift_is_told_of_sooner_than_by_any_fixed_rule(out: Path) -> None:
    found = select(measured(out, "delay"), change=0.3)

    ours = number(found, "median_minutes", rule=OURS)

    assert ours <= 6.0
    assert all(number(found, "median_minutes", rule=rule) > ours for rule in RULES.values())


def test_the_adaptive_window_forgets_the_old_mix(out: Path) -> None:
    found = measured(out, "adaptive")

    for minutes in (30.0, 480.0):
        ours, hour, day = (
            number(found, "error", minutes=minutes, window=window)
            for window in (adaptive_window.ADAPTIVE, *adaptive_window.FIXED)
        )
        assert ours < hour
        assert ours < day / 2.0


def test_the_same_seed_gives_the_same_numbers() -> None:
    job = delay.jobs(True)[0]

    assert job() == job()


def test_figures_and_numbers_are_written(out: Path) -> None:
    one = runner.EXPERIMENTS["delay"]

    runner.show(one, out)
    first = [(out / "figures/delay").with_suffix(kind).read_bytes() for kind in (".png", ".svg")]
    runner.show(one, out)
    again = [(out / "figures/delay").with_suffix(kind).read_bytes() for kind in (".png", ".svg")]

    assert first == again
    assert first[0].startswith(b"\x89PNG")
    assert b"<svg" in first[1]
    assert b"<dc:date>" not in first[1]
    with runner.numbers(one, out).open() as file:
        columns = next(csv.reader(file))
    assert columns == ["setting", "rule", "change", "median_minutes", "found", "streams"]


@pytest.mark.parametrize("one", runner.EXPERIMENTS.values(), ids=lambda one: one.name)
def test_what_is_kept_has_the_columns_that_its_figures_show(one: experiment.Experiment) -> None:
    kept = experiment.read(runner.numbers(one, HOME))

    for name, panels in one.figures.items():
        shown = {panels.x, panels.y, panels.line, panels.across, panels.down} - {""}
        assert shown <= kept[0].keys()
        for kind in (".png", ".svg"):
            assert 0 < (HOME / "figures" / name).with_suffix(kind).stat().st_size < 100_000
            assert f"figures/{name}" in DOCUMENT.read_text()


def test_the_document_shows_the_headlines_of_the_numbers_that_are_kept() -> None:
    assert runner.headlines(runner.EXPERIMENTS.values(), HOME) in DOCUMENT.read_text()
