"""References: what a labelled sample said of each version of a model."""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import numpy as np
from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)

from app.domain import reference as domain
from app.domain.model import Model
from app.domain.reference import LabelledRows, ReferenceSummary, StoredReference
from app.errors import Conflict, NotFound
from app.stats.calibration import Calibration
from app.stats.cells import CellTable
from app.stats.diagnosis import Before, Diagnosis, Spectrum
from app.stats.identification import Identification
from app.stats.moments import Floats
from app.stats.orientation import Mixes
from app.stats.reference import Reference, SoftReference
from app.storage import tables
from app.storage.tables import reference

# Where predictions of a version leave a row, whatever became of them. Each has an index that begins
# with model and version.
COUNTED = (tables.pane, tables.rollup, tables.contribution, tables.late, tables.detector)

# Where notes stand, beside the diagnosis: an earlier release passes over what it does not know.
NOTES = "notes"
# Softmax rows are kept up to so many numbers (32 MB). The model is locked while they are inserted,
# and its predictions wait: 0.7 seconds for these, 13 for four times as many.
KEPT_NUMBERS = 2**23
# So many earlier references are compared with a new one.
COMPARED = 3


class Kept(StrEnum):
    """What became of a reference that was put."""

    NEW = "new"
    SAME = "same"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True)
class Packed:
    """The row of a reference without its model. To pack one of many labels takes seconds."""

    version: str
    created_at: datetime
    values: Mapping[str, Any]

    @property
    def fingerprint(self) -> bytes:
        found: bytes = self.values["fingerprint"]
        return found


def packed(stored: StoredReference, rows: LabelledRows | None) -> Packed:
    """A reference as it will be stored; no transaction should wait for it."""
    values = {
        "kind": stored.summary.kind,
        "counts": stored.statistics.counts.ravel(),
        **_prepared(stored),
        "rows": _pack_rows(rows),
        "fingerprint": fingerprint(stored, rows),
    }
    return Packed(stored.summary.version, stored.summary.created_at, values)


def _prepared(stored: StoredReference) -> dict[str, Any]:
    """The columns that a release makes of what came in."""
    return {
        "soft": _pack_soft(stored.statistics.soft),
        "cells": _pack_cells(stored.statistics.table),
        "diagnosis": {
            **_diagnosis_values(stored.summary.diagnosis),
            NOTES: list(stored.summary.notes),
        },
    }


def put(conn: Connection, model: Model, new: Packed) -> Kept:
    """Keep a reference, in the place of one under which nothing was counted.

    The model must be locked: its lock keeps predictions from being counted meanwhile.
    """
    before = conn.execute(
        select(reference.c.fingerprint, reference.c.created_at).where(_is(model, new.version))
    ).one_or_none()
    if before is None:
        key = {"model_id": model.id, "version": new.version, "created_at": new.created_at}
        conn.execute(insert(reference).values(**key, **new.values))
        return Kept.NEW
    if bytes(before.fingerprint) == new.fingerprint:
        return Kept.SAME
    if is_used(conn, model, new.version):
        raise Conflict(
            f"version {new.version!r} of model {model.name!r} has another reference already, and "
            "predictions were counted under it; give the new one a new version"
        )
    # What was prepared of the old one is remembered under its time: even with two clocks, the new
    # one needs another.
    created_at = max(new.created_at, before.created_at + timedelta(microseconds=1))
    conn.execute(
        update(reference).where(_is(model, new.version)).values(created_at=created_at, **new.values)
    )
    return Kept.REPLACED


def forget(conn: Connection, model: Model, version: str) -> None:
    """Delete a reference under which nothing was counted. The model must be locked."""
    if version not in model.versions:
        raise _no_reference(model, version)
    if is_used(conn, model, version):
        raise Conflict(
            f"predictions were counted under version {version!r} of model {model.name!r}, so its "
            "reference stays; delete the model to forget both"
        )
    if version == model.active_version and len(model.versions) > 1:
        raise Conflict(
            f"version {version!r} is the active one of model {model.name!r}; activate another one "
            "before its reference is deleted"
        )
    conn.execute(delete(reference).where(_is(model, version)))


def is_used(conn: Connection, model: Model, version: str) -> bool:
    """Whether predictions were counted under a version, those that came too late included."""
    # In one statement: pruning moves sums from one table to another.
    rows = (
        exists().where(table.c.model_id == model.id, table.c.version == version)
        for table in COUNTED
    )
    return bool(conn.execute(select(or_(*rows))).scalar_one())


def get(conn: Connection, model: Model, version: str) -> StoredReference:
    query = select(reference).where(_is(model, version))
    row = conn.execute(query).one_or_none()
    if row is None:
        raise _no_reference(model, version)
    if _is_old(row.diagnosis):
        return _renewed(conn, model, row)
    return StoredReference(_summary(row), _statistics(model, row))


def summary(conn: Connection, model: Model, version: str) -> ReferenceSummary:
    """One reference without its sums."""
    query = select(*_SUMMARY).where(_is(model, version))
    row = conn.execute(query).one_or_none()
    if row is None:
        raise _no_reference(model, version)
    return get(conn, model, version).summary if _is_old(row.diagnosis) else _summary(row)


def active_since(conn: Connection, model: Model) -> datetime | None:
    """When the active version last became so."""
    query = select(reference.c.activated_at).where(_is(model, model.active_version or ""))
    found: datetime | None = conn.execute(query).scalar_one_or_none()
    return found


def oldest(conn: Connection, model: Model) -> datetime | None:
    """When the first reference of a model came in."""
    query = select(func.min(reference.c.created_at)).where(reference.c.model_id == model.id)
    found: datetime | None = conn.execute(query).scalar_one()
    return found


def page(
    conn: Connection, model: Model, before: tuple[datetime, str] | None, limit: int
) -> list[ReferenceSummary]:
    """Up to `limit` references of a model, newest first, without their sums."""
    place = (reference.c.created_at, reference.c.version)
    query = (
        select(*_SUMMARY)
        .where(reference.c.model_id == model.id)
        .order_by(*(column.desc() for column in place))
        .limit(limit)
    )
    if before is not None:
        created_at, version = before
        query = query.where(
            (place[0] < created_at) | ((place[0] == created_at) & (place[1] < version))
        )
    return [
        get(conn, model, row.version).summary if _is_old(row.diagnosis) else _summary(row)
        for row in conn.execute(query).all()
    ]


def mixes(conn: Connection, model: Model, but: str) -> list[Mixes]:
    """True and predicted labels of the newest references other than that of one version."""
    query = (
        select(reference.c.counts)
        .where(reference.c.model_id == model.id, reference.c.version != but)
        .order_by(reference.c.created_at.desc())
        .limit(COMPARED)
    )
    matrices = (counts.reshape(model.k, model.k) for counts in conn.execute(query).scalars())
    return [Mixes(matrix.sum(axis=1), matrix.sum(axis=0)) for matrix in matrices]


def labelled_rows(conn: Connection, model: Model, version: str) -> LabelledRows | None:
    """The softmax rows that the reference came from, where there were any and not too many."""
    packed = conn.execute(select(reference.c.rows).where(_is(model, version))).scalar_one_or_none()
    if packed is None:
        return None
    return _labelled_rows(packed)


def fingerprint(stored: StoredReference, rows: LabelledRows | None) -> bytes:
    """Equal for equal content: the counts, and the rows in the precision they are kept in."""
    content = hashlib.sha256(stored.statistics.counts.astype("<i8").tobytes())
    if rows is not None:
        content.update(np.ascontiguousarray(rows.rows, dtype="<f4").data)
        content.update(rows.actual.astype("<i8").tobytes())
        content.update(rows.predicted.astype("<i8").tobytes())
    return content.digest()


def _is(model: Model, version: str) -> ColumnElement[bool]:
    return (reference.c.model_id == model.id) & (reference.c.version == version)


def _no_reference(model: Model, version: str) -> NotFound:
    return NotFound(f"model {model.name!r} has no reference {version!r}")


def _labelled_rows(packed: bytes) -> LabelledRows:
    content = _unpack(packed)
    return LabelledRows(
        content["rows"], content["actual"].astype(int), content["predicted"].astype(int)
    )


def _is_old(diagnosis: Mapping[str, Any]) -> bool:
    """Whether an earlier release made it, one that merged labels."""
    return "identified" not in diagnosis


def _renewed(conn: Connection, model: Model, row: Row[Any]) -> StoredReference:
    """A reference of an earlier release, prepared anew from what was kept of it, once.

    Two readers may do it at once: both come to the same. One that is replaced meanwhile stays.
    """
    statistics = _statistics(model, row)
    if row.rows is not None:
        statistics = domain.statistics(statistics.counts, _labelled_rows(row.rows))
    before = Before(
        status=tuple(row.diagnosis["status"]),
        groups=tuple(tuple(column) for column in row.diagnosis["columns"] if len(column) > 1),
    )
    notes = tuple(row.diagnosis.get(NOTES, ()))
    stored = domain.renewed(
        domain.diagnosed(row.version, statistics, row.created_at, notes), before
    )
    conn.execute(
        update(reference)
        .where(_is(model, row.version), reference.c.fingerprint == row.fingerprint)
        .values(**_prepared(stored))
    )
    return replace(stored, summary=replace(stored.summary, activated_at=row.activated_at))


def _statistics(model: Model, row: Row[Any]) -> Reference:
    counts = row.counts.reshape(model.k, model.k)
    if row.soft is None:
        return Reference(counts)
    stored = _unpack(row.soft)
    soft = SoftReference(**{field.name: stored[field.name] for field in fields(SoftReference)})
    return Reference(counts, soft, None if row.cells is None else _unpack_cells(model.k, row.cells))


_SUMMARY = [
    reference.c[name] for name in ("version", "kind", "diagnosis", "created_at", "activated_at")
]


def _summary(row: Row[Any]) -> ReferenceSummary:
    return ReferenceSummary(
        row.version,
        row.kind,
        _diagnosis(row.diagnosis),
        row.created_at,
        row.activated_at,
        # Rows that an earlier release wrote have none.
        tuple(row.diagnosis.get(NOTES, ())),
    )


def _pack_soft(soft: SoftReference | None) -> bytes | None:
    if soft is None:
        return None
    # The release before this one looks for codes, which nothing of it uses.
    none = np.zeros((0, len(soft.score)), dtype=np.int64)
    unused = {"codes": none[:, 0], "code_counts": none}
    return _pack(unused | {field.name: getattr(soft, field.name) for field in fields(soft)})


# A table of softmax rows has all of these.
_OF_CELLS = ("present", "first", "counts", "rest", "believed", "codes", "cell")
_OF_CALIBRATION = ("slope", "bias", "centre")


def _pack_cells(table: CellTable | None) -> bytes | None:
    if table is None:
        return None
    return _pack(
        {name: getattr(table, name) for name in _OF_CELLS}
        | {name: getattr(table.calibration, name) for name in _OF_CALIBRATION}
    )


def _unpack_cells(k: int, packed: bytes) -> CellTable:
    stored = _unpack(packed)
    calibration = Calibration(stored["present"], *(stored[name] for name in _OF_CALIBRATION))
    return CellTable(k, **{name: stored[name] for name in _OF_CELLS}, calibration=calibration)


def _pack_rows(rows: LabelledRows | None) -> bytes | None:
    if rows is None or rows.rows.size > KEPT_NUMBERS:
        return None
    return _pack(
        {
            "rows": rows.rows,
            "actual": rows.actual.astype(np.int16),
            "predicted": rows.predicted.astype(np.int16),
        }
    )


def _pack(arrays: Mapping[str, Any]) -> bytes:
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)
    return packed.getvalue()


def _unpack(packed: bytes) -> dict[str, Any]:
    with np.load(io.BytesIO(packed), allow_pickle=False) as content:
        return dict(content)


def _diagnosis_values(diagnosis: Diagnosis) -> dict[str, Any]:
    """Plain JSON; NaN and infinity, which JSON does not have, become null."""
    values: dict[str, Any] = _plain(asdict(diagnosis))
    # For the release before this one, which is told that nothing was merged.
    present = [[label] for label in range(len(values["nu"])) if label not in diagnosis.absent]
    for spectrum in filter(None, (values["hard"], values["soft"])):
        spectrum["degenerate"] = False
    return values | {"columns": present}


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {name: _plain(part) for name, part in value.items()}
        case list() | tuple():
            return [_plain(part) for part in value]
        case np.ndarray() | np.generic():
            return _plain(value.tolist())
        case float():
            return value if np.isfinite(value) else None
        case _:
            return value


def _diagnosis(values: Mapping[str, Any]) -> Diagnosis:
    """The inverse of `_diagnosis_values`: null is NaN again, or infinity for a condition number."""
    return Diagnosis(
        n=values["n"],
        nu=_floats(values["nu"]),
        support=np.array(values["support"], dtype=np.int64),
        recall=_floats(values["recall"]),
        precision=_floats(values["precision"]),
        accuracy=np.nan if values["accuracy"] is None else values["accuracy"],
        absent=tuple(values["absent"]),
        missing=tuple(values["missing"]),
        low_support=tuple(values["low_support"]),
        hard=_spectrum(values["hard"]),
        soft=None if values["soft"] is None else _spectrum(values["soft"]),
        moments=values["moments"],
        identified=_identified(values["identified"]),
        status=tuple(values["status"]),
        before=None if values["before"] is None else _before(values["before"]),
    )


def _identified(values: Mapping[str, Any]) -> Identification:
    return Identification(
        floor=_floats(values["floor"]),
        not_identified=tuple(values["not_identified"]),
        weakly_identified=tuple(values["weakly_identified"]),
        groups=_groups(values["groups"]),
    )


def _before(values: Mapping[str, Any]) -> Before:
    return Before(tuple(values["status"]), _groups(values["groups"]))


def _groups(values: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(group) for group in values)


def _floats(values: list[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _spectrum(values: Mapping[str, Any]) -> Spectrum:
    finite: dict[str, Any] = {
        name: np.inf if value is None else value
        for name, value in values.items()
        if name != "degenerate"
    }
    return Spectrum(**finite)
