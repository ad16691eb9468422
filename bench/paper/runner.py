"""Runs experiments in several processes, writes their numbers, draws their figures."""

from collections.abc import Iterable
from concurrent.futures import Executor
from pathlib import Path

from tqdm import tqdm

from bench.paper import (
    adaptive_window,
    correction,
    coverage,
    delay,
    drawing,
    estimation,
    experiment,
    false_alarms,
    p_values,
    power,
    quality,
    retraining,
)
from bench.paper.experiment import Experiment, Job, Rows

EXPERIMENTS = {
    one.name: one
    for one in (
        p_values.EXPERIMENT,
        power.EXPERIMENT,
        estimation.EXPERIMENT,
        correction.EXPERIMENT,
        retraining.EXPERIMENT,
        retraining.WITH_IMAGES,
        quality.EXPERIMENT,
        coverage.EXPERIMENT,
        false_alarms.EXPERIMENT,
        delay.EXPERIMENT,
        adaptive_window.EXPERIMENT,
    )
}


def numbers(one: Experiment, out: Path) -> Path:
    return out / "numbers" / f"{one.name}.csv"


def measure(one: Experiment, pool: Executor, out: Path, *, quick: bool) -> None:
    """Run all jobs of an experiment and write the numbers down."""
    jobs = one.jobs(quick)
    if not jobs:
        print(f"{one.name}: left out, as there are no pictures of Fashion-MNIST here (Debian has")
        print("  them as dataset-fashion-mnist); the digits of scikit-learn have to do")
        return
    done = tqdm(pool.map(run, jobs), desc=f"{one.name}: {one.title}", total=len(jobs))
    experiment.write(numbers(one, out), experiment.merged(done))


def run(job: Job) -> Rows:
    return job()


def show(one: Experiment, out: Path) -> None:
    """Draw an experiment's figures from the numbers that were written."""
    rows = experiment.read(numbers(one, out))
    for name, panels in one.figures.items():
        drawing.save(drawing.draw(rows, panels), out / "figures" / name)


def headlines(chosen: Iterable[Experiment], out: Path) -> str:
    """What to remember of the numbers that were written, as a table for docs/paper.md."""
    lines = [line for one in chosen for line in one.headlines(experiment.read(numbers(one, out)))]
    return "\n".join(
        ["| what | measured |", "|---|---|", *(f"| {line.what} | {line.value} |" for line in lines)]
    )
