"""From the statistics of a window to a statement about the model."""

from enum import StrEnum

import numpy as np

from app.stats import bbsd
from app.stats.analysis import ENOUGH, Analysis
from app.stats.moments import Floats


class Verdict(StrEnum):
    NO_DATA = "no_data"
    INSUFFICIENT_DATA = "insufficient_data"
    NO_SHIFT = "no_shift"
    LABEL_SHIFT = "label_shift"
    NOT_LABEL_SHIFT = "not_label_shift"
    UNDETERMINED = "undetermined"


class Attention(StrEnum):
    """What the detectors that watch the stream say: nothing yet, all quiet, or what has moved."""

    CALIBRATING = "calibrating"
    QUIET = "quiet"
    SHIFTED = "shifted"
    VIOLATED = "violated"


# One look at one window: small enough that asking now and then does not cry wolf. A stream that is
# looked at all day is left to its detectors as soon as they are armed.
SHIFTED_BELOW = 0.01

# While the detectors are quiet, only what one look in ten thousand would say by mistake overrules
# them: the monitor among them may be deaf for want of labelled records.
BLATANT_BELOW = 1e-4


def judge(
    analysis: Analysis,
    min_effect: float,
    attention: Attention = Attention.CALIBRATING,
    normal: Floats | None = None,
) -> Verdict:
    """What a window means, given what the detectors say of its stream.

    A shift must be both found and as large as `min_effect`, in total variation of the label mix
    from the reference's, or from the `normal` one that was accepted since: with enough predictions
    any difference is significant, and most do not matter.
    """
    if not analysis.n:
        return Verdict.NO_DATA
    if analysis.n < ENOUGH:
        return Verdict.INSUFFICIENT_DATA
    if attention is Attention.VIOLATED or _violated(analysis, attention):
        return Verdict.NOT_LABEL_SHIFT
    if not _shifted(analysis, min_effect, attention, normal):
        return Verdict.NO_SHIFT
    checked = analysis.assumption.verdict if analysis.assumption else "untestable"
    if checked == "untestable" or analysis.total_variation is None:
        return Verdict.UNDETERMINED
    return Verdict.LABEL_SHIFT


def effect(analysis: Analysis, normal: Floats | None = None) -> float | None:
    """How far the label mix has moved at least, in total variation; None where nothing is known."""
    if normal is None or analysis.mix is None or analysis.total_variation is None:
        return analysis.total_variation
    known = np.isfinite(normal) & np.isfinite(analysis.mix)
    before, now = np.where(known, normal, 0.0), np.where(known, analysis.mix, 0.0)
    return bbsd.total_variation(before, now, analysis.together)


def _violated(analysis: Analysis, attention: Attention) -> bool:
    """Whether more than the label mix has moved, by one look at the window."""
    found = analysis.assumption
    if found is None or found.verdict != "not_label_shift":
        return False
    blatant = found.p_value is None or found.p_value < BLATANT_BELOW
    return blatant or attention is not Attention.QUIET


def _shifted(
    analysis: Analysis, min_effect: float, attention: Attention, normal: Floats | None
) -> bool:
    if attention is Attention.QUIET:
        return False
    significant = bool(analysis.tests) and analysis.tests[0].p_value < SHIFTED_BELOW
    if attention is Attention.CALIBRATING and not significant:
        return False
    # Without an estimate there is no effect to measure, so significance must do.
    moved = effect(analysis, normal)
    return moved is None or moved >= min_effect
