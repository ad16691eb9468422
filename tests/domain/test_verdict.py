from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from app.domain.verdict import Verdict, effect, judge
from app.stats.analysis import Analysis
from app.stats.assumption import Assumption
from app.stats.bbsd import Evidence

Checked = Literal["label_shift_consistent", "label_shift_doubtful", "not_label_shift", "untestable"]


def analysis(
    n: int = 1000,
    p_value: float = 0.5,
    effect: float | None = 0.1,
    checked: Checked = "label_shift_consistent",
) -> Analysis:
    return Analysis(
        n=n,
        status=("ok",),
        method="bbse-soft",
        tests=(Evidence("chi2", 1.0, 2, p_value, "asymptotic"),),
        total_variation=effect,
        assumption=Assumption(checked, 0.5),
    )


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (analysis(n=0), Verdict.NO_DATA),
        (analysis(n=49, p_value=1e-9), Verdict.INSUFFICIENT_DATA),
        (analysis(p_value=0.5), Verdict.NO_SHIFT),
        (analysis(p_value=1e-9), Verdict.LABEL_SHIFT),
        (analysis(p_value=1e-9, checked="label_shift_doubtful"), Verdict.LABEL_SHIFT),
        (analysis(p_value=1e-9, checked="untestable"), Verdict.UNDETERMINED),
        (analysis(p_value=1e-9, effect=None), Verdict.UNDETERMINED),
        (analysis(p_value=1e-9, checked="not_label_shift"), Verdict.NOT_LABEL_SHIFT),
        (analysis(p_value=0.5, checked="not_label_shift"), Verdict.NOT_LABEL_SHIFT),
        (analysis(p_value=0.5, effect=None), Verdict.NO_SHIFT),
    ],
)
def test_a_verdict_follows_from_what_was_found(found: Analysis, verdict: Verdict) -> None:
    assert judge(found, min_effect=0.02) is verdict


def test_a_shift_too_small_to_matter_is_none_however_sure_we_are() -> None:
    found = analysis(n=10**9, p_value=0.0, effect=0.019)

    assert judge(found, min_effect=0.02) is Verdict.NO_SHIFT
    assert judge(found, min_effect=0.019) is Verdict.LABEL_SHIFT


def test_the_effect_from_an_accepted_mix_takes_labels_that_look_alike_as_one() -> None:
    normal, mix = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.75, 0.0])
    found = replace(analysis(effect=0.4), mix=mix)

    assert effect(found) == 0.4
    assert effect(found, normal) == 0.5
    assert effect(replace(found, together=((1, 2),)), normal) == 0.25
