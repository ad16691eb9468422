"""A window into the worker: what it counts about itself, and whether it is alive.

It answers nothing that is about a model, so it asks nobody for a key.
"""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6

from prometheus_client.exposition import choose_encoder

from app.logs import logger
from app.metrics import REGISTRY

log = logger(__name__)

# What is wrong with the process; None if nothing is.
Ailment = Callable[[], str | None]

# Nobody who opens a connection and says nothing keeps a thread for longer.
PATIENCE_SECONDS = 5.0


class CannotListen(Exception):
    """The address cannot be had; the message says which, and why."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, ailment: Ailment) -> None:
        if ":" in host:
            self.address_family = AF_INET6
        self.ailment = ailment
        super().__init__((host, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = PATIENCE_SECONDS

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/metrics":
                encode, media_type = choose_encoder(self.headers.get("accept", ""))
                self._answer(200, media_type, encode(REGISTRY))
            case "/livez":
                ailment = self.server.ailment()
                status = 200 if ailment is None else 503
                self._answer(status, "text/plain", f"{ailment or 'ok'}\n".encode())
            case _:
                self._answer(404, "text/plain", b"there are /metrics and /livez\n")

    def _answer(self, status: int, media_type: str, body: bytes) -> None:
        self.send_response_only(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not worth a line."""


def serve(host: str, port: int, ailment: Ailment) -> Callable[[], None]:
    """Answer in the background; returns what ends it."""
    try:
        server = _Server(host, port, ailment)
    except OSError as error:
        where = f"{host}:{port}"
        raise CannotListen(f"SHIFTWATCH_WORKER_PORT: no listening on {where}: {error}") from None
    threading.Thread(target=server.serve_forever, name="vitals", daemon=True).start()
    log.info("vitals are served", host=host, port=server.server_port)

    def stop() -> None:
        server.shutdown()
        server.server_close()

    return stop
