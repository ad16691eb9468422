"""Where references and windows of a comparison come from."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.stats.moments import Floats
from bench.paper.naming import CLASSIFIERS
from bench.peers import synthetic
from tests import fashion
from tests.fashion import Classifier, Outputs

SIZES = (10_000, 1000)


@dataclass(frozen=True, slots=True)
class Setting:
    """References of `n` records whose labels come from `mix`.

    They are drawn from `labelled` and windows from `stream`. Where the two are one pool, that pool
    is the population: label shift holds exactly and the truth is known, so that intervals can be
    judged. Two finite pools differ by chance, which no interval can know of.
    """

    data: str
    n: int
    mix: Floats
    labelled: Outputs
    stream: Outputs

    @property
    def k(self) -> int:
        return len(self.mix)

    @property
    def one_pool(self) -> bool:
        return self.labelled is self.stream

    @property
    def protocol(self) -> str:
        return "one pool" if self.one_pool else "peers' draws"


def settings(data: Path | None) -> Iterator[Setting]:
    """All of them; `data` has files of real outputs to use in place of the project's own."""
    halves = {name: _halves(name, data) for name in CLASSIFIERS}
    for n in SIZES:
        for name, (labelled, stream) in halves.items():
            yield Setting(name, n, fashion.UNIFORM, labelled, stream)
    for n in SIZES:
        for name, both in halves.items():
            whole = joined(*both)
            yield Setting(name, n, fashion.UNIFORM, whole, whole)
    yield from _synthetic()


def _synthetic() -> Iterator[Setting]:
    two, five, eight, sixteen, silent = (synthetic.pool(one) for one in synthetic.FAMILIES)
    for name, n, mix, pool in (
        ("2 clouds", 1000, even(2), two),
        ("5 clouds", 1000, even(5), five),
        ("5 clouds, skewed", 3000, skewed(5), five),
        ("8 clouds", 500, even(8), eight),
        ("16 clouds", 3000, even(16), sixteen),
        ("16 clouds, 2 silent", 3000, even(16), silent),
    ):
        yield Setting(name, n, mix, pool, pool)


def even(k: int) -> Floats:
    return np.full(k, 1.0 / k)


def skewed(k: int) -> Floats:
    """Each label half as frequent as the one before.

    >>> skewed(2).round(3).tolist()
    [0.667, 0.333]
    """
    shares = 0.5 ** np.arange(k)
    return np.asarray(shares / shares.sum())


def joined(one: Outputs, other: Outputs) -> Outputs:
    return Outputs(
        np.concatenate([one.rows, other.rows]), np.concatenate([one.labels, other.labels])
    )


def _halves(name: Classifier, data: Path | None) -> tuple[Outputs, Outputs]:
    """Records for references, and others for windows."""
    if data is None:
        return fashion.outputs(name, "validation"), fashion.outputs(name, "test")
    with np.load(data / f"fashion_mlp_{name}.npz") as stored:
        return (
            _outputs(stored["val_probs"], stored["val_labels"]),
            _outputs(stored["test_probs"], stored["test_labels"]),
        )


def _outputs(rows: Floats, labels: Floats) -> Outputs:
    exact = rows.astype(np.float64)
    return Outputs(exact / exact.sum(axis=1, keepdims=True), labels.astype(np.int64))
