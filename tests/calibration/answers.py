"""The default estimate of a window and its intervals, without the rest of an analysis."""

from dataclasses import dataclass

from app.stats import accuracy as accuracies
from app.stats import cells, diagnosis, estimator, intervals
from app.stats.accuracy import Accuracy
from app.stats.estimator import Estimate, Operator
from app.stats.intervals import Design, Intervals
from app.stats.moments import Floats, Sums
from app.stats.reference import Reference


@dataclass(frozen=True, slots=True)
class Answer:
    """Numbers per label of the model; NaN for labels that are not estimated."""

    on: Operator
    at: Design
    estimate: Estimate

    @property
    def q(self) -> Floats:
        return self.on.spread(self.estimate.q)

    @property
    def w(self) -> Floats:
        return self.on.spread(self.estimate.q / self.on.nu)

    def shares(self, *, simultaneous: bool = False) -> Intervals:
        """Of the labels that are estimated."""
        return intervals.shares(self.at, self.estimate, simultaneous=simultaneous)

    def accuracy(self) -> Accuracy:
        """What it was in the reference does not matter here."""
        return accuracies.accuracy(self.at, self.estimate, reference=0.0)


def answer(on: Operator, window: Sums) -> Answer:
    """To a window of at least one prediction that the reference knows."""
    estimate = estimator.estimate(on, cells.in_window(on.table, window).counts)
    return Answer(on, intervals.design(on, estimate), estimate)


def hard(reference: Reference) -> Operator:
    """What estimates of hard predictions use; at least two labels must be there."""
    operator, _ = diagnosis.operators(reference)
    assert operator is not None
    return operator


def soft(reference: Reference) -> Operator:
    """The same of softmax rows."""
    _, operator = diagnosis.operators(reference)
    assert operator is not None
    return operator
