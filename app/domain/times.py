"""Moments as text, the same in answers, notices and evidence."""

from datetime import UTC, datetime

from app.domain.window import EPOCH


def rfc_3339(moment: datetime) -> str:
    """
    >>> rfc_3339(datetime(2026, 11, 17, 10, 0, tzinfo=UTC))
    '2026-11-17T10:00:00Z'
    """
    return moment.isoformat().replace("+00:00", "Z")


def mark_of(moment: datetime) -> int:
    """A moment as detectors know it: whole seconds since the epoch."""
    return int((moment - EPOCH).total_seconds())


def of_mark(mark: int) -> datetime:
    """
    >>> of_mark(mark_of(datetime(2026, 11, 17, 10, 0, tzinfo=UTC))).isoformat()
    '2026-11-17T10:00:00+00:00'
    """
    return datetime.fromtimestamp(mark, UTC)
