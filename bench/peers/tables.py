"""What was measured, as tables to read and as rows to keep."""

from collections.abc import Iterator, Sequence

import numpy as np

from app.stats.moments import Floats
from bench.paper.experiment import Row, Rows
from bench.peers import asking, ours, plain
from bench.peers.drawing import CELLS
from bench.peers.measuring import Coverage, Measured

OURS_SOFT, OURS_HARD = ours.METHODS
HARD_PEERS = ("ACC", plain.HARD)
SOFT_PEERS = (*(name for name in asking.QUAPY if name not in HARD_PEERS), plain.SOFT)
COLUMNS = (plain.TRUTH, OURS_SOFT, *SOFT_PEERS, OURS_HARD, *HARD_PEERS)


def told(measured: Sequence[Measured]) -> str:
    """All tables, with a line above each."""
    parts = []
    for protocol in dict.fromkeys(one.setting.protocol for one in measured):
        here = [one for one in measured if one.setting.protocol == protocol]
        parts += [
            f"{protocol}: mean L1 of the estimated mix x 100, over shifts and window sizes",
            table([error_cells(one) for one in here]),
            f"{protocol}: ours less the best peer (standard error over references)",
            table([difference_cells(one) for one in here]),
        ]
    judged = [one for one in measured if one.setting.one_pool]
    parts += [
        "one pool: coverage of 95 % intervals, mean over labels (lowest label)",
        table([cells for one in judged for cells in coverage_cells(one)]),
    ]
    return "\n\n".join(parts)


def table(rows: Sequence[dict[str, str]]) -> str:
    """Markdown that is aligned in a terminal, too.

    >>> print(table([{"n": "10", "error": "6.5"}]))
    | n  | error |
    |----|-------|
    | 10 | 6.5   |
    """
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    shown = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([shown[0], rule, *shown[1:]])


def named(one: Measured) -> dict[str, str]:
    return {"data": one.setting.data, "n": f"{one.setting.n:,}"}


def error_cells(one: Measured) -> dict[str, str]:
    return named(one) | {name: f"{one.errors[name].mean():.2f}" for name in _columns(one)}


def difference_cells(one: Measured) -> dict[str, str]:
    return named(one) | {
        mine: difference(one, mine, peers)
        for mine, peers in ((OURS_SOFT, SOFT_PEERS), (OURS_HARD, HARD_PEERS))
    }


def difference(one: Measured, mine: str, peers: Sequence[str]) -> str:
    best = min(
        (name for name in peers if name in one.errors), key=lambda name: one.errors[name].mean()
    )
    # Windows of one reference share its error: references are what was drawn independently.
    each = (one.errors[mine] - one.errors[best]).mean(axis=1)
    return f"{each.mean():+.2f} ({standard_error(each):.2f}), {best}"


def standard_error(each: Floats) -> float:
    return float(each.std(ddof=1) / np.sqrt(len(each)))


def coverage_cells(one: Measured) -> Iterator[dict[str, str]]:
    for name, coverage in one.coverage.items():
        by_label = _by_label(coverage)
        yield named(one) | {
            "estimate": name,
            "labels": f"{by_label.mean():.3f} ({by_label.min():.3f})",
            "width": f"{coverage.width.mean():.3f}",
            "accuracy": f"{coverage.accuracy_held.mean():.3f}",
        }


def error_rows(measured: Sequence[Measured]) -> Rows:
    """By setting, shift and window size: the mean error of each estimate."""
    return [
        about | {name: float(one.errors[name][:, cell].mean()) for name in _columns(one)}
        for one in measured
        for cell, about in _cells(one)
    ]


def coverage_rows(measured: Sequence[Measured]) -> Rows:
    """By setting, shift, window size and estimate."""
    return [
        about
        | {
            "estimate": name,
            "coverage": float(coverage.held[:, cell].mean()),
            "width": float(coverage.width[:, cell].mean()),
            "accuracy_coverage": float(coverage.accuracy_held[:, cell].mean()),
        }
        for one in measured
        for cell, about in _cells(one)
        for name, coverage in one.coverage.items()
    ]


def label_rows(measured: Sequence[Measured]) -> Rows:
    """By setting, estimate and label."""
    return [
        _setting(one) | {"estimate": name, "label": label, "coverage": float(share)}
        for one in measured
        for name, coverage in one.coverage.items()
        for label, share in enumerate(_by_label(coverage))
    ]


def _columns(one: Measured) -> list[str]:
    return [name for name in COLUMNS if name in one.errors]


def _by_label(coverage: Coverage) -> Floats:
    return np.asarray(coverage.held.mean(axis=(0, 1)))


def _cells(one: Measured) -> Iterator[tuple[int, Row]]:
    for cell, (shift, m) in enumerate(CELLS):
        yield cell, _setting(one) | {"shift": shift, "m": m}


def _setting(one: Measured) -> Row:
    return {"protocol": one.setting.protocol, "data": one.setting.data, "n": one.setting.n}
