"""What a real classifier says of pictures of clothes (`README.md` beside this file)."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PLACE = Path(__file__).with_name("fashion.npz")
LABELS = (
    "t-shirt",
    "trousers",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "boot",
)
# What is stored of each probability is -256 log(p / largest p).
STEPS = 256.0

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Outputs:
    """Softmax rows and the true label of each."""

    rows: Floats
    labels: Labels

    @property
    def mix(self) -> Floats:
        """The share of each label."""
        return np.bincount(self.labels, minlength=len(LABELS)) / self.labels.size


@dataclass(frozen=True, slots=True)
class Shipped:
    """`reference` is of other pictures than the traffic; `noisy` is of the same as `clean`."""

    reference: Outputs
    clean: Outputs
    noisy: Outputs


@cache
def shipped() -> Shipped:
    with np.load(PLACE) as data:
        stored = {name: data[name] for name in data.files}

    def outputs(part: str, labels: str) -> Outputs:
        steps = 256.0 * stored[f"{part}_high"].T + stored[f"{part}_low"].T
        rows = np.exp(-steps / STEPS)
        rows /= rows.sum(axis=1, keepdims=True)
        return Outputs(rows, stored[labels].astype(np.int64))

    return Shipped(
        outputs("reference", "reference_labels"),
        outputs("clean", "traffic_labels"),
        outputs("noisy", "traffic_labels"),
    )


def draw(pool: Outputs, mix: Floats, size: int, rng: np.random.Generator) -> Floats:
    """Softmax rows of `size` pictures whose true labels come from `mix`, with replacement."""
    weights = (mix / pool.mix)[pool.labels]
    return pool.rows[rng.choice(pool.labels.size, size, p=weights / weights.sum())]
