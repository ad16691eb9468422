"""How long requests take, by route and answer."""

import time
from functools import lru_cache

from prometheus_client import Histogram
from starlette.types import Scope

from app.metrics import REQUEST_SECONDS

# Whatever else somebody makes up is counted together: he must not make up series.
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
NO_ROUTE = "none"


def count(scope: Scope, began: float) -> None:
    """Count a request that is over; one that got no answer is not counted."""
    status = scope.get("status")
    if status is not None:
        took = time.perf_counter() - began
        _histogram(scope["method"], route_of(scope), status).observe(took)


def route_of(scope: Scope) -> str:
    """The template that the path matched: paths themselves are without number."""
    path: str = getattr(scope.get("route"), "path", NO_ROUTE)
    return path


# Looking a child up by its labels takes longer than counting into it.
@lru_cache(maxsize=4096)
def _histogram(method: str, route: str, status: int) -> Histogram:
    known = method if method in METHODS else "other"
    return REQUEST_SECONDS.labels(known, route, str(status))
