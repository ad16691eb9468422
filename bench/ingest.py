"""How fast predictions are counted, durably, beside what limits it in the same run.

`python -m bench.ingest [--seconds 5] [--rounds 3]` prints a table and writes
bench/results/ingest.json. Everything, the load included, is on this machine. Variants take turns,
and medians are compared, because machines are noisy.
"""

import argparse
import json
import statistics
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench import family, load
from bench.load import Load, Shot

JSON = {"content-type": "application/json"}
CASES = [
    (1, 1, False),
    (1, 16, False),
    (1, 64, False),
    (1, 64, True),
    (1000, 1, False),
    (1000, 16, False),
    (1000, 64, False),
    (1000, 64, True),
]
VARIANTS = ("api", "direct", "read")


def main() -> None:
    options = _options()
    results: list[dict[str, Any]] = []
    print(
        f"{'batch':>6} {'conns':>5} {'keys':>4} | {'requests/s':>10} {'predictions/s':>13} "
        f"{'p50 ms':>7} {'p99 ms':>7} {'cpu us':>6} | {'direct/s':>8} {'read/s':>7} | "
        f"{'to direct':>9} {'to read':>7}"
    )
    with ExitStack() as stack:
        url = stack.enter_context(family.database())
        servers = {
            variant: stack.enter_context(family.process(url, variant)) for variant in VARIANTS
        }
        family.register(servers["api"])
        for size, connections, keyed in CASES:
            results.append(_case(servers, size, connections, keyed, options))
            print(_row(results[-1]), flush=True)
    place = Path("bench/results/ingest.json")
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps(results, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def _case(
    servers: dict[str, family.Running],
    size: int,
    connections: int,
    keyed: bool,
    options: argparse.Namespace,
) -> dict[str, Any]:
    body = json.dumps({"predicted": family.labels(size)}).encode()
    found: dict[str, list[Load]] = {variant: [] for variant in servers}
    cpu = 0.0
    for _ in range(options.rounds):
        for variant, server in servers.items():
            shot = Shot(server.predictions, body, JSON, keyed)
            before = server.cpu_seconds()
            found[variant].append(load.fire(shot, connections, options.seconds))
            if variant == "api":
                cpu += server.cpu_seconds() - before
    rates = {
        variant: statistics.median(one.requests_per_second for one in some)
        for variant, some in found.items()
    }
    own = found["api"]
    requests = sum(one.requests_per_second for one in own) * options.seconds
    return {
        "batch": size,
        "connections": connections,
        "keys": keyed,
        "requests_per_second": rates,
        "predictions_per_second": rates["api"] * size,
        "p50_ms": statistics.median(one.p50 for one in own),
        "p99_ms": statistics.median(one.p99 for one in own),
        "failures": sum(one.failures for some in found.values() for one in some),
        "server_cpu_us_per_request": cpu / requests * 1e6,
        "ratio_to_transaction_per_request": rates["api"] / rates["direct"],
        "ratio_to_reading_route": rates["api"] / rates["read"],
    }


def _row(case: dict[str, Any]) -> str:
    rates = case["requests_per_second"]
    return (
        f"{case['batch']:>6} {case['connections']:>5} {'yes' if case['keys'] else 'no':>4} | "
        f"{rates['api']:>10.0f} {case['predictions_per_second']:>13.0f} "
        f"{case['p50_ms']:>7.1f} {case['p99_ms']:>7.1f} "
        f"{case['server_cpu_us_per_request']:>6.0f} | "
        f"{rates['direct']:>8.0f} {rates['read']:>7.0f} | "
        f"{case['ratio_to_transaction_per_request']:>9.2f} {case['ratio_to_reading_route']:>7.2f}"
        + (f"  {case['failures']} failures" if case["failures"] else "")
    )


if __name__ == "__main__":
    main()
