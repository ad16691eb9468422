"""Real classifier outputs for tests: two perceptrons on Fashion-MNIST (see `data/README.md`)."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from app.stats.moments import Counts, Floats

DATA = Path(__file__).parent / "data" / "fashion.npz"
STEPS = 256.0
LABELS = 10
UNIFORM = np.full(LABELS, 1.0 / LABELS)

Classifier = Literal["good", "weak"]
Part = Literal["validation", "test", "all"]

# Dirichlet with this parameter, or one label (any) at this share and the others even.
SHIFTS = ("dirichlet .1", "dirichlet 1", "dirichlet 10", "tweak .1", "tweak .5", "tweak .9")


@dataclass(frozen=True, slots=True)
class Outputs:
    """Softmax rows, each summing to one, and the true labels beside them."""

    rows: Floats
    labels: Counts

    @property
    def predicted(self) -> Counts:
        return np.asarray(self.rows.argmax(axis=1), dtype=np.int64)


@cache
def outputs(classifier: Classifier, part: Part) -> Outputs:
    """The 20,000 `validation` or 20,000 `test` outputs of a classifier, or both together.

    References come from `validation` and windows from `test`, as in life. Where a simulation
    needs the truth exactly, as coverage does, draw both with replacement from `all`: that pool
    then is the population, and no difference between two finite pools passes for bias.
    """
    if part == "all":
        halves = [outputs(classifier, "validation"), outputs(classifier, "test")]
        return Outputs(
            np.concatenate([half.rows for half in halves]),
            np.concatenate([half.labels for half in halves]),
        )
    with np.load(DATA) as data:
        high = data[f"{classifier}_{part}_high"].astype(np.float64)
        low = data[f"{classifier}_{part}_low"].astype(np.float64)
        labels = data[f"{part}_labels"].astype(np.int64)
    rows = np.exp(-(256.0 * high + low).T / STEPS)
    rows /= rows.sum(axis=1, keepdims=True)
    for array in (rows, labels):
        array.flags.writeable = False  # the cache hands the same arrays to every test
    return Outputs(rows, labels)


def draw(pool: Outputs, q: Floats, size: int, rng: np.random.Generator) -> Outputs:
    """`size` outputs with replacement, their labels drawn from `q`: a label shift by construction.

    >>> only_trousers = np.eye(LABELS)[1]
    >>> draw(outputs("good", "test"), only_trousers, 3, np.random.default_rng(1)).labels.tolist()
    [1, 1, 1]
    """
    members = [np.flatnonzero(pool.labels == label) for label in range(len(q))]
    counts = rng.multinomial(size, q)
    chosen = np.concatenate([rng.choice(of, n) for of, n in zip(members, counts, strict=True)])
    return Outputs(pool.rows[chosen], pool.labels[chosen])


def shifted(kind: str, rng: np.random.Generator, labels: int = LABELS) -> Floats:
    """A label mix of one of the `SHIFTS`.

    >>> shifted("tweak .1", np.random.default_rng(1)).round(6).tolist()
    [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]
    """
    family, size = kind.split()
    if family == "dirichlet":
        return rng.dirichlet(np.full(labels, float(size)))
    return tweaked(int(rng.integers(labels)), float(size), labels)


def tweaked(label: int, share: float, labels: int = LABELS) -> Floats:
    """One label at this share, the others even: the paper's tweak-one shift.

    >>> tweaked(1, 0.55).round(3).tolist()[:3]
    [0.05, 0.55, 0.05]
    """
    q = np.full(labels, (1.0 - share) / (labels - 1))
    q[label] = share
    return q


def knocked_out(label: int, delta: float) -> Floats:
    """The uniform mix after a share `delta` of one label has gone: the paper's knock-out shift.

    >>> knocked_out(0, 1.0).round(3).tolist()[:3]
    [0.0, 0.111, 0.111]
    """
    q = np.where(np.arange(LABELS) == label, 1.0 - delta, 1.0)
    return np.asarray(q / q.sum())
