"""Somebody who is told of alarms: a webhook's far side on this machine."""

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# What is done with a notice, and whether its signature is good.
Hear = Callable[[Mapping[str, Any], bool], None]


class Receiver(ThreadingHTTPServer):
    """Takes notices on a free port; it knows the secret once the webhook has been made."""

    daemon_threads = True
    secret = ""

    def __init__(self, hear: Hear) -> None:
        self.hear = hear
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/notices"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        genuine = is_genuine(self.server.secret, headers, body)
        self.send_response(204 if genuine else 401)
        self.end_headers()
        self.server.hear(json.loads(body), genuine)

    def log_message(self, *_: object) -> None:
        """A notice is shown by whoever hears it."""


def is_genuine(secret: str, headers: Mapping[str, str], body: bytes) -> bool:
    """By Standard Webhooks, as `docs/webhooks.md` tells receivers to; with nothing of ours."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    return any(
        hmac.compare_digest(expected, one) for one in headers["webhook-signature"].split(" ")
    )


@contextmanager
def listening(hear: Hear) -> Iterator[Receiver]:
    with Receiver(hear) as receiver:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        yield receiver
        receiver.shutdown()
