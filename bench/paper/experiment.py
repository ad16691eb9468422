"""What an experiment is: independent jobs that give rows of numbers, and how to show them."""

import csv
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SEED = 2018

Row = dict[str, str | float]
Rows = list[Row]
Job = Callable[[], Rows]


@dataclass(frozen=True, slots=True)
class Panels:
    """A figure of small panels, all with the same axes: one curve for each value of `line`.

    `across` and `down` are the columns whose values make the panels. `where` keeps some rows only,
    `hidden` names a curve to leave out.
    `guide` is a thin line to compare with: a height, or the diagonal.
    """

    x: str
    y: str
    line: str
    x_label: str
    y_label: str
    across: str = ""
    down: str = ""
    where: tuple[str, str] | None = None
    hidden: str = ""
    log: str = ""
    guide: float | str | None = None
    y_limits: tuple[float, float] | None = None
    markers: bool = True


@dataclass(frozen=True, slots=True)
class Headline:
    """One number worth remembering, and the paper's word on it where it has one."""

    what: str
    value: str


@dataclass(frozen=True, slots=True)
class Experiment:
    """`jobs(quick)` may run in any order and anywhere; their rows are kept in this order."""

    name: str
    title: str
    jobs: Callable[[bool], Sequence[Job]]
    figures: dict[str, Panels]
    headlines: Callable[[Rows], list[Headline]]


def random(*words: object) -> np.random.Generator:
    """A generator of its own for each job, by what the job is: order and processes do not matter.

    >>> int(random("power", 0.5).integers(1000)) == int(random("power", 0.5).integers(1000))
    True
    """
    return np.random.default_rng([SEED, zlib.crc32(repr(words).encode())])


def averaged(about: Row, column: str, draws: Sequence[float]) -> Row:
    """What a row is about, and the mean over draws with its standard error.

    >>> averaged({"n": 5.0}, "error", [1.0, 3.0])
    {'n': 5.0, 'error': 2.0, 'standard_error': 1.0, 'draws': 2}
    """
    error = float(np.std(draws, ddof=1) / np.sqrt(len(draws)))
    return {**about, column: float(np.mean(draws)), "standard_error": error, "draws": len(draws)}


def select(rows: Rows, **wanted: str | float) -> Rows:
    """The rows that have all these values.

    >>> select([{"n": 1.0, "y": 2.0}, {"n": 3.0, "y": 4.0}], n=3)
    [{'n': 3.0, 'y': 4.0}]
    """
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def number(rows: Rows, column: str, **wanted: str | float) -> float:
    """The one number of a column that is meant."""
    (row,) = select(rows, **wanted)
    return float(row[column])


def values(rows: Rows, column: str) -> list[str | float]:
    """The different values of a column in the order in which they come."""
    return list(dict.fromkeys(row[column] for row in rows))


def write(path: Path, rows: Rows) -> None:
    """Rows as CSV, numbers with six digits: more would be noise, and differ between machines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(rows[0])
        writer.writerows([_shown(cell) for cell in row.values()] for row in rows)


def read(path: Path) -> Rows:
    """What `write` wrote, to six digits."""
    with path.open(newline="") as file:
        return [{name: _parsed(cell) for name, cell in row.items()} for row in csv.DictReader(file)]


def merged(parts: Iterable[Rows]) -> Rows:
    return [row for part in parts for row in part]


def _shown(cell: str | float) -> str:
    return cell if isinstance(cell, str) else f"{cell:.6g}"


def _parsed(cell: str) -> str | float:
    try:
        return float(cell)
    except ValueError:
        return cell
