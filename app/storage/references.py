"""References: what a labelled sample said of each version of a model."""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from datetime import datetime
from typing import Any

import numpy as np
from sqlalchemy import ColumnElement, Connection, Row, func, select, update
from sqlalchemy.dialects.postgresql import insert

from app.domain import reference as domain
from app.domain.model import Model
from app.domain.reference import LabelledRows, ReferenceSummary, StoredReference
from app.errors import Conflict, NotFound
from app.stats.calibration import Calibration
from app.stats.cells import CellTable
from app.stats.diagnosis import Before, Diagnosis, Spectrum
from app.stats.identification import Identification
from app.stats.moments import Floats
from app.stats.reference import Reference, SoftReference
from app.storage.tables import reference


def put(conn: Connection, model: Model, stored: StoredReference, rows: LabelledRows | None) -> bool:
    """Keep a new reference; says whether it is new. A version that has other content stays."""
    print_of_content = fingerprint(stored, rows)
    added = conn.execute(
        insert(reference)
        .values(
            model_id=model.id,
            version=stored.summary.version,
            kind=stored.summary.kind,
            counts=stored.statistics.counts.ravel(),
            soft=_pack_soft(stored.statistics.soft),
            cells=_pack_cells(stored.statistics.table),
            rows=_pack_rows(rows),
            diagnosis=_diagnosis_values(stored.summary.diagnosis),
            fingerprint=print_of_content,
            created_at=stored.summary.created_at,
        )
        .on_conflict_do_nothing()
        .returning(reference.c.version)
    )
    if added.one_or_none() is not None:
        return True
    version = stored.summary.version
    if _fingerprint_of(conn, model, version) != print_of_content:
        raise Conflict(
            f"version {version!r} of model {model.name!r} has another reference already; "
            "a reference cannot be changed, so give the new one a new version"
        )
    return False


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


def labelled_rows(conn: Connection, model: Model, version: str) -> LabelledRows | None:
    """The softmax rows that the reference came from, where there were any."""
    packed = conn.execute(select(reference.c.rows).where(_is(model, version))).scalar_one_or_none()
    if packed is None:
        return None
    return _labelled_rows(packed)


def fingerprint(stored: StoredReference, rows: LabelledRows | None) -> bytes:
    """Equal for equal content: the counts, and the rows in the precision they are kept in."""
    content = hashlib.sha256(stored.statistics.counts.astype("<i8").tobytes())
    if rows is not None:
        content.update(rows.rows.astype("<f4").tobytes())
        content.update(rows.actual.astype("<i8").tobytes())
        content.update(rows.predicted.astype("<i8").tobytes())
    return content.digest()


def _is(model: Model, version: str) -> ColumnElement[bool]:
    return (reference.c.model_id == model.id) & (reference.c.version == version)


def _no_reference(model: Model, version: str) -> NotFound:
    return NotFound(f"model {model.name!r} has no reference {version!r}")


def _fingerprint_of(conn: Connection, model: Model, version: str) -> bytes:
    found = conn.execute(select(reference.c.fingerprint).where(_is(model, version)))
    return bytes(found.scalar_one())


def _labelled_rows(packed: bytes) -> LabelledRows:
    content = _unpack(packed)
    rows = content["rows"].astype(np.float64)
    return LabelledRows(rows, content["actual"].astype(int), content["predicted"].astype(int))


def _is_old(diagnosis: Mapping[str, Any]) -> bool:
    """Whether an earlier release made it, one that merged labels."""
    return "identified" not in diagnosis


def _renewed(conn: Connection, model: Model, row: Row[Any]) -> StoredReference:
    """A reference of an earlier release, prepared anew from what was kept of it, once.

    Two readers may do it at once: both come to the same.
    """
    sample = None if row.rows is None else _labelled_rows(row.rows)
    counts = row.counts.reshape(model.k, model.k)
    before = Before(
        status=tuple(row.diagnosis["status"]),
        groups=tuple(tuple(column) for column in row.diagnosis["columns"] if len(column) > 1),
    )
    stored = domain.renewed(
        domain.diagnosed(row.version, domain.statistics(counts, sample), row.created_at), before
    )
    found = stored.summary.diagnosis
    conn.execute(
        update(reference)
        .where(_is(model, row.version))
        .values(
            diagnosis=_diagnosis_values(found),
            soft=_pack_soft(stored.statistics.soft),
            cells=_pack_cells(stored.statistics.table),
        )
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
        row.version, row.kind, _diagnosis(row.diagnosis), row.created_at, row.activated_at
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
    if rows is None:
        return None
    return _pack(
        {
            "rows": rows.rows.astype(np.float32),
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
