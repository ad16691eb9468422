"""What is measured of ingest: cells, what each showed, and how that is told."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

HttpLimit = Literal["echo", "read", "fastapi-echo", "direct"]
# In requests a second, but for `copy`, which is in predictions.
Limit = Literal[HttpLimit, "copy", "commit"]


class Lost(Exception):
    """The panes do not hold what the service said it had counted."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A load: batches of one format and size, from so many connections."""

    format: str
    batch: int
    connections: int


@dataclass(frozen=True, slots=True)
class Target:
    """A share of a limit that a cell is to reach."""

    cell: Cell
    limit: HttpLimit
    share: float


@dataclass(frozen=True, slots=True)
class Round:
    """One turn of the service, and of each limit right after it.

    Others took `others_cores` of the machine meanwhile: with more than a few tenths of a core of
    two, the service, which is several processes that wait for each other, loses more than a limit.
    """

    requests: int
    failures: int
    requests_per_second: float
    p50_ms: float
    p99_ms: float
    api_cpu_ms: float
    postgres_cpu_ms: float
    limits: Mapping[Limit, float]
    limits_cpu_ms: Mapping[Limit, float] = field(default_factory=dict)
    others_cores: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """What a cell showed: medians over its rounds. `refused` is what the service answered instead.

    `accepted` predictions were answered for, `stored` ones were found in the panes; the rest are
    of requests whose sender did not wait for the answer.
    """

    cell: Cell
    rounds: Sequence[Round] = ()
    refused: int | None = None
    accepted: int = 0
    stored: int = 0

    def median(self, name: str) -> float:
        return float(statistics.median(getattr(one, name) for one in self.rounds))

    @property
    def requests_per_second(self) -> float:
        return self.median("requests_per_second")

    @property
    def failures(self) -> int:
        return sum(one.failures for one in self.rounds)

    def limit(self, name: Limit) -> float:
        return statistics.median(one.limits[name] for one in self.rounds)

    def share(self, name: Limit) -> float:
        """Of a limit: the median of what each round showed, since its noise hit both."""
        size = self.cell.batch if name == "copy" else 1
        shares = (size * one.requests_per_second / one.limits[name] for one in self.rounds)
        return statistics.median(shares)

    def share_by_cpu(self, name: Limit) -> float:
        """What a request takes of the processor there, as a share of what it takes here."""
        shares = (one.limits_cpu_ms[name] / one.api_cpu_ms for one in self.rounds)
        return statistics.median(shares)

    def as_json(self) -> dict[str, Any]:
        said: dict[str, Any] = {**asdict(self.cell), "refused": self.refused}
        if not self.rounds:
            return said
        names = list(self.rounds[0].limits)
        return {
            **said,
            "requests": sum(one.requests for one in self.rounds),
            "failures": self.failures,
            "requests_per_second": self.requests_per_second,
            "predictions_per_second": self.requests_per_second * self.cell.batch,
            "p50_ms": self.median("p50_ms"),
            "p99_ms": self.median("p99_ms"),
            "api_cpu_ms_per_request": self.median("api_cpu_ms"),
            "postgres_cpu_ms_per_request": self.median("postgres_cpu_ms"),
            "limits": {name: self.limit(name) for name in names},
            "shares": {name: self.share(name) for name in names},
            "others_cores": self.median("others_cores"),
            "accepted": self.accepted,
            "stored": self.stored,
            "rounds": [asdict(one) for one in self.rounds],
        }


def refuse_loss(cell: Cell, accepted: int, stored: int, unanswered: int) -> None:
    """All that was accepted is stored, and nothing that was not sent."""
    if not accepted <= stored <= accepted + unanswered:
        raise Lost(f"{cell}: {accepted} accepted, {stored} stored, at most {unanswered} unanswered")


def heading(limits: Sequence[Limit]) -> str:
    return (
        f"{'format':<16} {'batch':>6} {'conns':>5} | {'requests/s':>10} {'predictions/s':>13} "
        f"{'p50 ms':>8} {'p99 ms':>8} {'api ms':>7} {'pg ms':>7} |"
        + "".join(f" {'of ' + name:>{_width(name)}}" for name in limits)
        + f" | {'others':>6}"
    )


def line(result: Result, limits: Sequence[Limit]) -> str:
    cell = result.cell
    start = f"{cell.format:<16} {cell.batch:>6} {cell.connections:>5} | "
    if result.refused is not None:
        return f"{start}refused ({result.refused})"
    if not any(one.requests for one in result.rounds):
        return f"{start}nothing was answered in time"
    rate = result.requests_per_second
    times = (result.median(name) for name in ("p50_ms", "p99_ms"))
    cpu = (result.median(name) for name in ("api_cpu_ms", "postgres_cpu_ms"))
    return (
        f"{start}{rate:>10.0f} {rate * cell.batch:>13,.0f} "
        + " ".join(f"{time:>8.1f}" for time in times)
        + "".join(f" {time:>7.3f}" for time in cpu)
        + " |"
        + "".join(f" {result.share(name):>{_width(name)}.3f}" for name in limits)
        + f" | {result.median('others_cores'):>6.2f}"
        + (f"  {result.failures} of these failed" if result.failures else "")
    )


def _width(limit: Limit) -> int:
    return max(7, 3 + len(limit))


def target_heading() -> str:
    return (
        f"{'format':<16} {'batch':>6} {'conns':>5} | {'requests/s':>10} {'limit/s':>8} | "
        f"{'of':<12} {'target':>6} {'reached':>7} {'by cpu':>6} {'':>4} | {'others':>6}"
    )


def target_line(target: Target, result: Result) -> str:
    cell = result.cell
    start = f"{cell.format:<16} {cell.batch:>6} {cell.connections:>5} | "
    if result.refused is not None:
        return f"{start}refused ({result.refused}), so not reached"
    reached = result.share(target.limit)
    return (
        f"{start}{result.requests_per_second:>10.0f} {result.limit(target.limit):>8.0f} | "
        f"{target.limit:<12} {target.share:>6.2f} {reached:>7.2f} "
        f"{result.share_by_cpu(target.limit):>6.2f} "
        + f"{'yes' if reached >= target.share else 'no':>4} | {result.median('others_cores'):>6.2f}"
        + (f"  {result.failures} failed" if result.failures else "")
    )
