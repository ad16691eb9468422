"""The metrics that docs/metrics.md promises, and those that an expression asks for."""

import re
from functools import cache
from pathlib import Path

import promql_parser
from promql_parser import Expr

METRICS = Path(__file__).parents[2] / "docs/metrics.md"

# Histograms are more than one series; `process_*` and `python_*` are the client library's.
HISTOGRAMS = re.compile(r"_(duration_seconds|commit_batches)$")
OF_THE_CLIENT = {
    "process_resident_memory_bytes",
    "process_cpu_seconds_total",
    "process_open_fds",
    "process_max_fds",
}


@cache
def documented(kind: str) -> frozenset[str]:
    """Names: of gauges of a `model`, of gauges of the `service`, or of what a `process` counts."""
    text = METRICS.read_text()
    state, _, counted = text.partition("## What a process counts")
    of_models, _, of_service = state.partition("Without labels of a model:")
    match kind:
        case "model":
            return frozenset(_named(of_models))
        case "service":
            return frozenset(_named(of_service))
        case _:
            names = [name for one in _named(counted) for name in _series(one)]
            return frozenset([*names, *OF_THE_CLIENT])


def _named(text: str) -> list[str]:
    return re.findall(r"^\| `((?:shiftwatch|http)_\w+)`", text, re.M)


def _series(name: str) -> list[str]:
    # How long a scrape took is a gauge: it is about the last one only.
    if HISTOGRAMS.search(name) and name != "shiftwatch_scrape_duration_seconds":
        return [f"{name}_{part}" for part in ("bucket", "count", "sum")]
    return [name]


def series_of(expr: Expr) -> set[str]:
    """The metrics that an expression asks for."""
    found: set[str] = set()

    def visit(node: Expr) -> bool:
        if isinstance(node, promql_parser.MatrixSelector):
            node = node.vector_selector
        if isinstance(node, promql_parser.VectorSelector):
            assert node.name is not None, "asks for series without naming them"
            found.add(node.name)
        return True

    promql_parser.walk(expr, visit)
    return found
