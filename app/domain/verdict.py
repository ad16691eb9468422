"""From the statistics of a window to a statement about the model."""

from enum import StrEnum

from app.stats.analysis import ENOUGH, Analysis


class Verdict(StrEnum):
    NO_DATA = "no_data"
    INSUFFICIENT_DATA = "insufficient_data"
    NO_SHIFT = "no_shift"
    LABEL_SHIFT = "label_shift"
    NOT_LABEL_SHIFT = "not_label_shift"
    UNDETERMINED = "undetermined"


# One look at one window: small enough that asking now and then does not cry wolf. Watching a
# stream window after window takes a sequential test instead.
SHIFTED_BELOW = 0.01


def judge(analysis: Analysis, min_effect: float) -> Verdict:
    """What one look at a window means.

    A shift must be both significant and as large as `min_effect`, in total variation of the label
    mix: with enough predictions any difference is significant, and most do not matter.
    """
    if not analysis.n:
        return Verdict.NO_DATA
    if analysis.n < ENOUGH:
        return Verdict.INSUFFICIENT_DATA
    checked = analysis.assumption.verdict if analysis.assumption else "untestable"
    if checked == "not_label_shift":
        return Verdict.NOT_LABEL_SHIFT
    if not _shifted(analysis, min_effect):
        return Verdict.NO_SHIFT
    if checked == "untestable" or analysis.total_variation is None:
        return Verdict.UNDETERMINED
    return Verdict.LABEL_SHIFT


def _shifted(analysis: Analysis, min_effect: float) -> bool:
    significant = bool(analysis.tests) and analysis.tests[0].p_value < SHIFTED_BELOW
    # Without an estimate there is no effect to measure, so significance must do.
    effect = analysis.total_variation
    return significant and (effect is None or effect >= min_effect)
