"""Why an alarm was raised, in numbers that anybody can compute again.

The evidence of an alarm says what was compared with what, and by which test. Its part `check` holds
all that goes into those numbers: `recomputed` gets from it, and from nothing else, to the same
results.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from app.domain import watch as watches
from app.domain.model import Model
from app.domain.times import of_mark, rfc_3339
from app.domain.watch import Detectors, Part, Raised, Watch
from app.stats import analysis as analyses
from app.stats import assumption_monitor, dictionary, sequential, shift_detector
from app.stats.analysis import Analysis
from app.stats.cells import CellTable
from app.stats.moments import Counts, SoftSums, Sums
from app.stats.reference import Reference, SoftReference

# The softmax moments of a reference are as many numbers as the cube of its labels: with more labels
# than this only what rests on predicted labels can be computed again.
MOST_LABELS_IN_FULL = 20


@dataclass(frozen=True, slots=True)
class Case:
    """What an alarm is about: the panes since the onset, as compared with the reference."""

    version: str
    reference: Reference
    sums: Sums
    analysis: Analysis
    phi: float
    seed: int


def of_shift(model: Model, case: Case, own: Detectors, watch: Watch, arl: float) -> dict[str, Any]:
    """The evidence that the mix of predictions has changed."""
    raised = watch.shifted
    assert raised is not None
    label = dictionary.moved_label(own.shift.bets, raised.bet)
    return {
        "detector": "shift",
        "label": None if label is None else model.labels[label],
        **_called(raised, own.shift.log_arl),
        **_compared(model, case),
        "check": {
            **_check(case, arl, watch.phi_upper),
            "state": sequential.to_json(raised.before),
            "part": part_to_json(raised.part),
            "opens": raised.opens,
        },
    }


def of_violation(
    model: Model, case: Case, own: Detectors, watch: Watch, arl: float
) -> dict[str, Any]:
    """The evidence that something other than the label mix has changed."""
    raised, monitor = watch.violated, own.monitor
    assert raised is not None
    assert monitor is not None
    return {
        "detector": "assumption",
        "label": None,
        **_called(raised, monitor.log_arl),
        **_compared(model, case),
        "check": {
            **_check(case, arl, watch.phi_upper),
            "state": sequential.to_json(raised.before),
            "part": part_to_json(raised.part),
            "opens": raised.opens,
        },
    }


def recomputed(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of an evidence, from its `check` alone; those that it does not suffice for are
    left out."""
    check = evidence["check"]
    reference = _reference(check)
    sums = _sums(check)
    found: dict[str, Any] = {}
    # An alarm of an earlier release rests on estimates that are not made any more.
    if check["complete"] and "table" in check:
        on = analyses.basis(reference)
        found |= _numbers(analyses.analyse(on, sums, phi=check["phi"], seed=check["seed"]))
    statistic = _statistic(evidence["detector"], reference, check)
    return found if statistic is None else found | {"statistic": statistic}


def _statistic(detector: str, reference: Reference, check: Mapping[str, Any]) -> float | None:
    own = watches.detectors(reference, check["arl"])
    state = sequential.from_json(check["state"])
    part = part_from_json(check["part"])
    given: dict[str, Any] = {"phi": check["phi_upper"], "mark": part.mark, "opens": check["opens"]}
    if detector == "shift":
        after = shift_detector.step(own.shift, state, part.counts, **given)
        return float(sequential.log_mean(after.log_m, own.shift.log_weights))
    if own.monitor is None:
        return None
    after = assumption_monitor.step(own.monitor, state, part.soft, part.score, **given)
    return float(sequential.log_mean(after.log_m, own.monitor.log_weights))


def _called(raised: Raised, log_arl: float) -> dict[str, Any]:
    return {
        "statistic": raised.statistic,
        "threshold": log_arl,
        "onset": rfc_3339(of_mark(raised.onset)),
        "raised_at": rfc_3339(of_mark(raised.at)),
    }


def _compared(model: Model, case: Case) -> dict[str, Any]:
    return {
        "n": case.sums.n,
        "counts": _by_label(model, case.sums.counts),
        "reference": {
            "version": case.version,
            "n": case.reference.n,
            "predicted": _by_label(model, case.reference.predicted),
        },
        **_numbers(case.analysis),
    }


def _numbers(found: Analysis) -> dict[str, Any]:
    assumption = found.assumption
    return {
        "tests": [
            {"test": one.test, "statistic": one.statistic, "df": one.df, "p_value": one.p_value}
            for one in found.tests
        ],
        "effect": {
            "total_variation": found.total_variation,
            "at_least": bool(found.together),
            "method": found.method,
        },
        "assumption": None
        if assumption is None
        else {"verdict": assumption.verdict, "p_value": assumption.p_value},
    }


def _by_label(model: Model, counts: Counts) -> list[dict[str, Any]]:
    pairs = zip(model.labels, counts.tolist(), strict=True)
    return [{"label": label, "count": count} for label, count in pairs]


def _check(case: Case, arl: float, phi_upper: float) -> dict[str, Any]:
    in_full = case.reference.k <= MOST_LABELS_IN_FULL
    soft, table = case.reference.soft if in_full else None, case.reference.table
    return {
        "complete": in_full or case.sums.soft is None,
        "arl": arl,
        "phi": case.phi,
        "phi_upper": phi_upper,
        "seed": case.seed,
        "confusion": case.reference.counts.tolist(),
        "reference_soft": None if soft is None else _arrays(soft),
        "table": None if soft is None or table is None else _table(table),
        "counts": case.sums.counts.tolist(),
        "soft": _arrays(case.sums.soft) if in_full and case.sums.soft is not None else None,
    }


def _arrays(sums: SoftSums | SoftReference) -> dict[str, Any]:
    named = ((one.name, getattr(sums, one.name)) for one in fields(sums))
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in named
    }


# The calibration has done its work: `believed` is what it made of the reference.
_OF_TABLE = ("present", "first", "counts", "rest", "believed", "codes", "cell")


def _table(table: CellTable) -> dict[str, Any]:
    return {name: getattr(table, name).tolist() for name in _OF_TABLE}


def _reference(check: Mapping[str, Any]) -> Reference:
    counts = np.array(check["confusion"], dtype=np.int64)
    if check["reference_soft"] is None:
        return Reference(counts)
    given = {one.name: np.array(check["reference_soft"][one.name]) for one in fields(SoftReference)}
    stored = check.get("table")
    table = None
    if stored is not None:
        arrays: dict[str, Any] = {name: np.array(values) for name, values in stored.items()}
        table = CellTable(len(counts), **arrays)
    return Reference(counts, SoftReference(**given), table)


def _sums(check: Mapping[str, Any]) -> Sums:
    counts = np.array(check["counts"], dtype=np.int64)
    if check["soft"] is None:
        return Sums(counts)
    none: dict[str, Any] = {"codes": [], "code_counts": []}
    given: dict[str, Any] = {
        name: np.array(value, dtype=np.int64 if name in none else None)
        if isinstance(value, list)
        else value
        for name, value in (none | check["soft"]).items()
    }
    return Sums(counts, SoftSums(**given))


def part_to_json(part: Part) -> dict[str, Any]:
    return {
        "mark": part.mark,
        "counts": part.counts.tolist(),
        "soft": part.soft.tolist(),
        "score": part.score,
    }


def part_from_json(stored: Mapping[str, Any]) -> Part:
    counts, soft = (np.array(stored[name], dtype=np.int64) for name in ("counts", "soft"))
    return Part(stored["mark"], counts, soft, stored["score"])
