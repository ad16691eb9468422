"""Evidence: what an alarm rests on can be computed again from nothing but itself."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.domain import evidence, watch
from app.domain.evidence import Case
from app.domain.model import AlarmPolicy, Model, ModelSettings
from app.domain.watch import Detectors, Part, Watch, advance, merged
from app.stats import analysis, moments
from app.stats.analysis import Basis
from app.stats.moments import Counts, Floats, Sums
from app.stats.reference import Reference, from_sample
from tests import fashion
from tests.calibration.streams import grown
from tests.fashion_corrupted import corrupted

ARL = 10_000.0
SEED = 20261118
POLICY = AlarmPolicy(overdispersion=1.5)


def model(k: int) -> Model:
    return Model(1, "m", ModelSettings(tuple(f"label-{i}" for i in range(k))), 1)


def reference(*, soft: bool) -> Reference:
    pool = fashion.outputs("good", "validation")
    chosen = np.random.default_rng(SEED).choice(len(pool.labels), 5_000)
    rows = pool.rows[chosen]
    own = rows if soft else None
    return from_sample(fashion.LABELS, moments.argmax(rows), pool.labels[chosen], own)


def raised(own: Detectors, pool: fashion.Outputs, q: Floats, *, soft: bool) -> tuple[Watch, Sums]:
    """A watch that has called, and the sums of what it was fed."""
    rng = np.random.default_rng(SEED)
    rows = [fashion.draw(pool, q, 40, rng).rows for _ in range(40)]
    sums = [
        moments.sums(fashion.LABELS, moments.argmax(one), one if soft else None) for one in rows
    ]
    parts = [_part(60 * i, one) for i, one in enumerate(sums)]

    def between(first: int, last: int) -> Part:
        some = [part for part in parts if first <= part.mark <= last]
        return merged(replace(part, mark=last) for part in some)[0]

    found, _ = advance(Watch(), own, parts, POLICY, between)
    return found, moments.total(sums)


def _part(mark: int, sums: Sums) -> Part:
    none = np.zeros(len(sums.counts), dtype=np.int64)
    if sums.soft is None:
        return Part(mark, sums.counts, none, 0.0)
    return Part(mark, sums.counts, sums.counts, sums.soft.score)


def case(known: Reference, on: Basis, sums: Sums) -> Case:
    found = analysis.analyse(on, sums, phi=1.5, seed=7)
    return Case("v1", known, sums, found, 1.5, 7)


def same(found: Any, shown: Any) -> None:
    """Equal to twelve digits, all the way down."""
    match found:
        case dict():
            assert found.keys() == shown.keys()
            for name in found:
                same(found[name], shown[name])
        case list():
            assert len(found) == len(shown)
            for one, other in zip(found, shown, strict=True):
                same(one, other)
        case float():
            assert found == pytest.approx(shown, rel=1e-12, abs=1e-300)
        case _:
            assert found == shown


@pytest.mark.parametrize("soft", [False, True])
def test_the_evidence_of_a_shift_can_be_computed_again(soft: bool) -> None:
    known = reference(soft=soft)
    on = analysis.basis(known)
    own = watch.detectors(known, ARL, on.check)
    q = grown(known.nu, 3, 0.2)
    called, sums = raised(own, fashion.outputs("good", "test"), q, soft=soft)

    shown = evidence.of_shift(model(10), case(known, on, sums), own, called, ARL)
    stored = json.loads(json.dumps(shown))
    found = evidence.recomputed(stored)

    assert found.keys() == {"tests", "effect", "assumption", "statistic"}
    same(found, {name: stored[name] for name in found})
    assert stored["statistic"] >= stored["threshold"]
    assert stored["label"] in {*model(10).labels, None}


def test_the_evidence_of_a_violation_can_be_computed_again() -> None:
    known = reference(soft=True)
    on = analysis.basis(known)
    own = watch.detectors(known, ARL, on.check)
    called, sums = raised(own, corrupted("dimmed"), known.nu, soft=True)

    shown = evidence.of_violation(model(10), case(known, on, sums), own, called, ARL)
    stored = json.loads(json.dumps(shown))
    found = evidence.recomputed(stored)

    same(found, {name: stored[name] for name in found})
    assert found["statistic"] >= stored["threshold"]


def test_with_many_labels_what_rests_on_softmax_moments_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evidence, "MOST_LABELS_IN_FULL", 9)
    known = reference(soft=True)
    on = analysis.basis(known)
    own = watch.detectors(known, ARL, on.check)
    dimmed, sums = raised(own, corrupted("dimmed"), known.nu, soft=True)

    violation = evidence.of_violation(model(10), case(known, on, sums), own, dimmed, ARL)
    by_labels = replace(case(known, on, sums), sums=Sums(sums.counts))
    of_labels = evidence.of_violation(model(10), by_labels, own, dimmed, ARL)

    assert violation["check"]["reference_soft"] is None
    assert evidence.recomputed(violation) == {}
    assert evidence.recomputed(of_labels).keys() == {"tests", "effect", "assumption"}


def test_what_is_fed_is_kept_as_json() -> None:
    counts: Counts = np.array([1, 2, 3])
    part = Part(60, counts, counts, 5.25)

    found = evidence.part_from_json(json.loads(json.dumps(evidence.part_to_json(part))))

    assert (found.mark, found.score) == (60, 5.25)
    assert found.counts.tolist() == found.soft.tolist() == [1, 2, 3]
