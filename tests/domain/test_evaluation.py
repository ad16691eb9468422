"""Evaluations as they are kept and shown."""

from datetime import UTC, datetime, timedelta

import numpy as np

from app.domain.evaluation import Evaluation, described, result
from app.domain.model import Model, ModelSettings
from app.domain.verdict import Attention, Verdict
from app.stats import analysis
from app.stats.moments import Sums
from app.stats.reference import from_confusion

NOW = datetime(2026, 11, 17, 10, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
CONFUSED = from_confusion(10 * np.array([[80, 75, 5], [75, 80, 5], [5, 5, 90]]))
MODEL = Model(1, "pets", ModelSettings(("cat", "lynx", "dog")), 1)


def evaluation(verdict: Verdict = Verdict.LABEL_SHIFT, *counts: int) -> Evaluation:
    on = analysis.basis(CONFUSED)
    found = analysis.analyse(on, Sums(np.array(counts or (400, 400, 200))))
    kept = result(found, on.nu, verdict, Attention.SHIFTED, more_status=["note"])
    return Evaluation("v1", "1h", NOW - HOUR, NOW, NOW, kept)


def test_what_is_shown_names_every_label() -> None:
    shown = described(evaluation(), MODEL, None)

    assert [label["label"] for label in shown["labels"]] == ["cat", "lynx", "dog"]
    assert (shown["from"], shown["to"]) == ("2026-11-17T09:00:00Z", "2026-11-17T10:00:00Z")
    assert shown["status"][-1] == "note"
    assert [group["labels"] for group in shown["groups"]] == [["cat", "lynx"]]


def test_if_more_than_the_label_mix_moved_only_what_was_seen_is_shown() -> None:
    shown = described(evaluation(Verdict.NOT_LABEL_SHIFT), MODEL, None)

    assert {label["q"] for label in shown["labels"]} == {None}
    assert [label["predicted"] for label in shown["labels"]] == [0.4, 0.4, 0.2]
    assert (shown["groups"], shown["accuracy"]) == ([], None)
    assert shown["effect"] == {"total_variation": None, "at_least": False}


def test_content_is_what_was_looked_at_and_not_what_was_made_of_it() -> None:
    assert evaluation().content == evaluation(Verdict.NO_SHIFT).content
    assert evaluation().content != evaluation(Verdict.NO_SHIFT, 401, 399, 200).content
