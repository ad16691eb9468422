"""Mistakes made on purpose, to show that what avoids them is needed."""

from dataclasses import replace

from app.stats.bbse import Prepared


def without_reference_noise(on: Prepared) -> Prepared:
    """The mistake: to take the confusion matrix for known."""
    return replace(on, given=replace(on.given, n_j=on.given.n_j * 10**9))
