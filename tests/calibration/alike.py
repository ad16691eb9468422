"""Made-up classifiers whose labels look alike in groups, and label shifts to try on them."""

from dataclasses import dataclass
from functools import cache

import numpy as np

from app.stats import moments, reference
from app.stats.moments import Counts, Floats, Sums
from app.stats.reference import Reference

RECORDS = 500


@dataclass(frozen=True, slots=True)
class Classifier:
    """What it has given out for `RECORDS` inputs of each label, one label after the other."""

    rows: Floats

    @property
    def k(self) -> int:
        return len(self.rows.T)

    def draw(self, q: Floats, size: int, rng: np.random.Generator) -> tuple[Counts, Floats]:
        """Labels drawn from `q`, and an output for each: a label shift by construction."""
        labels = np.repeat(np.arange(self.k), rng.multinomial(size, q))
        return labels, self.rows[labels * RECORDS + rng.integers(0, RECORDS, size)]

    def reference(
        self, nu: Floats, n: int, rng: np.random.Generator, *, soft: bool = True
    ) -> Reference:
        labels, rows = self.draw(nu, n, rng)
        return reference.from_sample(self.k, moments.argmax(rows), labels, rows if soft else None)

    def window(self, q: Floats, m: int, rng: np.random.Generator, *, soft: bool = True) -> Sums:
        _, rows = self.draw(q, m, rng)
        return moments.sums(self.k, moments.argmax(rows), rows if soft else None)


@cache
def classifier(k: int, own: float, *, noise: float = 1.0) -> Classifier:
    """Logits of a label's group of five and of its own stand out by `2.5` and about `own`.

    With `own` 0.6 labels of a group are next to indistinguishable, with 2.2 they are confused, with
    4 hardly. How sure it is differs from label to label, also among those that look alike.
    """
    rng = np.random.default_rng([k, int(10 * own)])
    labels = np.repeat(np.arange(k), RECORDS)
    logits = noise * rng.normal(size=(len(labels), k))
    logits += 2.5 * (labels[:, None] // 5 == np.arange(k) // 5)
    logits[np.arange(len(labels)), labels] += own * np.exp(0.3 * rng.normal(size=k))[labels]
    logits *= 1.3 * np.exp(0.3 * rng.normal(size=k))[labels, None]
    rows = np.exp(logits - logits.max(axis=1, keepdims=True))
    return Classifier(rows / rows.sum(axis=1, keepdims=True))


SHIFTS = ("none", "up 15 points", "to .5", "to .9", "Dirichlet 1", "Dirichlet .1")


def shifted(kind: str, of: Reference, rng: np.random.Generator) -> Floats:
    """A label mix; what is raised, or in a fresh mix at all, has five reference records or more."""
    present = of.support >= 5
    label = rng.choice(np.flatnonzero(present))
    if kind == "none":
        return of.nu
    if kind.startswith("Dirichlet"):
        q = np.zeros(of.k)
        q[present] = rng.dirichlet(np.full(np.count_nonzero(present), float(kind.split()[1])))
        return q
    q = of.nu
    share = 0.15 + 0.85 * q[label] if kind.startswith("up") else float(kind.split()[1])
    q = np.where(np.arange(of.k) == label, 0.0, q)
    q *= (1.0 - share) / q.sum()
    q[label] = share
    return q
