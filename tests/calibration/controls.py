"""Mistakes made on purpose, to show that what avoids them is needed."""

from dataclasses import replace

from app.stats.estimator import Operator


def without_reference_noise(on: Operator) -> Operator:
    """The mistake: to take what is known of the classifier for exact."""
    return replace(on, n_j=on.n_j * 1e9)
