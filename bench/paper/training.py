"""Labelled pictures to train on, and the classifiers of the paper's Algorithm 1."""

import gzip
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from app.stats.moments import Counts, Floats

LABELS = 10

# Where Debian's package dataset-fashion-mnist has the pictures: installed, or unpacked as
# `make tools` unpacks others.
PLACES = (Path("/usr"), Path(".tools/usr"))


@dataclass(frozen=True, slots=True)
class Pictures:
    """Pixels from 0 to 1, a row a picture, and labels."""

    pixels: Floats
    labels: Counts

    def draw(self, q: Floats, size: int, rng: np.random.Generator) -> "Pictures":
        """Pictures with replacement, their labels drawn from `q`, in random order."""
        counts = rng.multinomial(size, q)
        members = [np.flatnonzero(self.labels == label) for label in range(LABELS)]
        chosen = [rng.choice(of, n) for of, n in zip(members, counts, strict=True)]
        return self.part(rng.permutation(np.concatenate(chosen)))

    def part(self, chosen: Counts | slice) -> "Pictures":
        return Pictures(self.pixels[chosen], self.labels[chosen])


@cache
def digits() -> tuple[Pictures, Pictures]:
    """scikit-learn's 1,797 small digits: 1,000 to train on, the rest to test on."""
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    both = Pictures(pixels[order] / 16.0, labels[order])
    return both.part(slice(1000)), both.part(slice(1000, None))


def images_folder() -> Path | None:
    """Where Fashion-MNIST is, if anywhere."""
    folders = [place / "share/datasets/fashion-mnist" for place in PLACES]
    return next((folder for folder in folders if folder.is_dir()), None)


@cache
def images() -> tuple[Pictures, Pictures]:
    """Fashion-MNIST: 60,000 pictures to train on, 10,000 to test on."""
    folder = images_folder()
    assert folder is not None
    train, test = (
        Pictures(
            _unpacked(folder / f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 784) / 255.0,
            _unpacked(folder / f"{part}-labels-idx1-ubyte.gz", 8).astype(np.int64),
        )
        for part in ("train", "t10k")
    )
    return train, test


@dataclass(frozen=True, slots=True)
class Fitted:
    """A trained model; it may not have seen every label."""

    model: LogisticRegression | MLPClassifier

    def rows(self, pixels: Floats) -> Floats:
        """Probabilities of all labels."""
        found = np.zeros((len(pixels), LABELS))
        found[:, self.model.classes_] = self.model.predict_proba(pixels)
        return found

    def predicted(self, pixels: Floats) -> Counts:
        return np.asarray(self.rows(pixels).argmax(axis=1), dtype=np.int64)


def logistic(sample: Pictures, weights: Floats | None = None) -> Fitted:
    """A linear classifier: too simple to be right everywhere, so that weights can matter."""
    model = LogisticRegression(max_iter=2000)
    return _fitted(model, sample, weights)


def perceptron(sample: Pictures, weights: Floats | None = None) -> Fitted:
    """The paper's: two layers with 256 units between them, five epochs."""
    model = MLPClassifier((256,), max_iter=5, random_state=0)
    return _fitted(model, sample, weights)


def _fitted(
    model: LogisticRegression | MLPClassifier, sample: Pictures, weights: Floats | None
) -> Fitted:
    with warnings.catch_warnings():
        # Five epochs are the paper's choice, not a failure.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(sample.pixels, sample.labels, sample_weight=weights)
    return Fitted(model)


def _unpacked(path: Path, header: int) -> Floats:
    with gzip.open(path) as file:
        return np.frombuffer(file.read(), np.uint8, offset=header).astype(np.float32)
