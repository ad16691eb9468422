"""What Prometheus scrapes: the state of the models, and what this process counts about itself."""

import gzip

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import choose_encoder

from app import metrics
from app.api.deps import Reader, now, services

router = APIRouter(tags=["metrics"])

# More would take longer than the bytes it saves on a local network.
GZIP_LEVEL = 1
END = b"# EOF\n"


@router.get(
    "/metrics",
    dependencies=[Reader],
    response_class=Response,
    responses={200: {"content": {"text/plain": {}, "application/openmetrics-text": {}}}},
)
def get_metrics(request: Request) -> Response:
    """Prometheus metrics, in the text format or, if asked for, OpenMetrics."""
    own = services(request)
    metrics.WAITING.set(own.recorder.waiting)
    # First: what a scrape says of this process includes what the scrape itself made of it.
    models = own.gauges.show(now)
    encode, media_type = choose_encoder(request.headers.get("accept", ""))
    counted = encode(metrics.REGISTRY)
    content = counted.removesuffix(END) + models + (END if counted.endswith(END) else b"")
    headers = {"content-type": media_type, "vary": "accept, accept-encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        content = gzip.compress(content, GZIP_LEVEL, mtime=0)
        headers["content-encoding"] = "gzip"
    return Response(content, headers=headers)
