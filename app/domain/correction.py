"""Whether to correct for a label shift, by how much, and why not: the sporadic-shift rule.

Shifts are sporadic, and a correction made without one only adds the noise of its estimate. So
nothing is corrected until a shift was found that a changed label mix explains.
"""

from dataclasses import dataclass

import numpy as np

from app.domain.verdict import Verdict
from app.errors import Conflict
from app.stats import calibration as calibrations
from app.stats import correction
from app.stats.analysis import ENOUGH, Analysis
from app.stats.calibration import Calibration
from app.stats.moments import Floats

# Words of an analysis whose estimate is shown, but not to be acted upon.
UNTRUSTED = {"A1_or_A2_violated", "unseen_prediction"}


@dataclass(frozen=True, slots=True)
class Correction:
    """What to do about a window, and the reason.

    `w` has a weight for each label: ones unless `applied`, and NaN for labels that the reference
    does not have. `gamma` is how much of the estimated change was believed.
    """

    applied: bool
    reason: str
    w: Floats
    gamma: float | None = None


def decide(
    analysis: Analysis, verdict: Verdict, k: int, *, alarm: bool | None, force: bool = False
) -> Correction:
    """The correction that a window calls for.

    The `alarm` of a watched stream decides whether there is a shift; where it is None, the window
    speaks for itself. `force` corrects without a shift, but never by weights that must be wrong.
    """
    closed = _closed(analysis, verdict, alarm)
    if closed is not None and not force:
        return Correction(False, closed, np.ones(k))
    if verdict is Verdict.NOT_LABEL_SHIFT:
        raise Conflict(f"weights cannot be forced: {closed}")
    if analysis.labels is None:
        return Correction(False, _EMPTY, np.ones(k))
    without = _without_weights(analysis)
    if without is not None:
        return Correction(False, without, np.ones(k))
    gamma = _shrinkage(analysis)
    if not gamma:
        return Correction(False, "the change is no larger than chance makes it", np.ones(k), gamma)
    w = correction.shrunken(analysis.labels.w, gamma)
    return Correction(True, _opened(analysis, closed, alarm), w, gamma)


def corrected(rows: Floats, w: Floats, calibration: Calibration | None) -> Floats:
    """Softmax rows calibrated to the reference, then weighed by `w`.

    Nothing is known of labels without a weight (NaN): they keep the probability they had, and the
    others share the rest.

    >>> w = np.array([0.5, 2.0, np.nan])
    >>> corrected(np.array([[0.4, 0.4, 0.2], [0.0, 0.0, 1.0]]), w, None).round(2).tolist()
    [[0.16, 0.64, 0.2], [0.0, 0.0, 1.0]]
    """
    kept = np.where(np.isnan(w), rows, 0.0)
    believed = rows if calibration is None else calibrations.calibrated(calibration, rows)
    weighed = correction.corrected(believed, np.where(np.isnan(w), 0.0, w))
    return np.asarray((1.0 - kept.sum(axis=1, keepdims=True)) * weighed + kept)


_EMPTY = "the window holds no predictions"
_INSEPARABLE = "nothing could be estimated from this reference, so there are no weights"
_ALL_ONE = "the paper's weights are all one: its matrix is singular, or nearly so"


def _closed(analysis: Analysis, verdict: Verdict, alarm: bool | None) -> str | None:
    """Why not to correct; None if a shift calls for it."""
    match verdict:
        case Verdict.NO_DATA:
            return _EMPTY
        case Verdict.INSUFFICIENT_DATA:
            return f"the window holds {analysis.n} predictions, and {ENOUGH} are needed"
        case Verdict.NOT_LABEL_SHIFT:
            return "something other than the label mix has changed, so weights would be wrong"
    without = _without_weights(analysis)
    if without is not None:
        return without
    p_value = analysis.tests[0].p_value
    if not correction.called_for(p_value, consistent=True, alarm=alarm):
        return f"no shift was found {_where(p_value, alarm)}"
    # With enough predictions every window differs; an alarm has its own idea of what matters.
    if alarm is None and verdict is Verdict.NO_SHIFT:
        return f"the shift that was found {_where(p_value, alarm)} is too small to matter"
    return _doubt(analysis)


def _without_weights(analysis: Analysis) -> str | None:
    """Why there are no weights, if there are none."""
    if analysis.total_variation is None:
        return _INSEPARABLE
    return _ALL_ONE if "degenerate_w1" in analysis.status else None


def _doubt(analysis: Analysis) -> str | None:
    """Why a shift may be one of more than the label mix; None if nothing speaks for that."""
    if not UNTRUSTED.isdisjoint(analysis.status):
        return "a shift was found, but no mix of the reference's labels explains it well"
    match analysis.assumption.verdict if analysis.assumption else "untestable":
        case "label_shift_consistent":
            return None
        case "label_shift_doubtful":
            return "a shift was found, but it is doubtful that only the label mix has changed"
    return "a shift was found, but without softmax rows it cannot be told from other changes"


def _opened(analysis: Analysis, closed: str | None, alarm: bool | None) -> str:
    if closed is not None:
        return f"forced, although {closed}"
    where = _where(analysis.tests[0].p_value, alarm)
    return f"a shift was found {where}, and a changed label mix explains it"


def _where(p_value: float, alarm: bool | None) -> str:
    return f"in this window (p = {p_value:.2g})" if alarm is None else "by the stream's alarm"


def _shrinkage(analysis: Analysis) -> float:
    found = next(test for test in analysis.tests if test.test == "chi2")
    # Labels predicted neither in the reference nor in the window say nothing of the shift.
    return correction.shrinkage(found.statistic, (found.df or 0) + 1)
