"""Deliver: what is due arrives, where it may, and what became of it is known."""

import json
import logging
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx
import pytest
from standardwebhooks.webhooks import Webhook as Verifier

from app import deliver
from app.config import Settings
from app.deliver import (
    SCHEDULE,
    Answer,
    NoAnswer,
    Sender,
    deliver_next,
    outcome,
    reach,
    refused_url,
    retry_after,
)
from app.domain.address import Reach, refused
from app.domain.notice import Event, Shape, new_secret
from app.logs import logger
from app.storage import deliveries, keys, webhooks
from app.storage.db import Database
from app.storage.deliveries import Claimed, Delivered, GaveUp, RetryAt, State
from app.storage.webhooks import Webhook
from tests.conftest import Written
from tests.factories import NOW

PUBLIC_ADDRESS = "93.184.216.34"
SECRET = new_secret()
OLD_SECRET = new_secret()
NOTICE = {
    "type": "test",
    "timestamp": "2026-11-17T10:00:00Z",
    "data": {"reason": "ünïcode, too", "links": {}},
}


def claimed(url: str = "https://receiver.example/hook?a=b", **changes: Any) -> Claimed:
    """A delivery as it would be taken from the database."""
    own: dict[str, Any] = {"message_id": "msg_1", "attempts": 1}
    own |= {name: changes.pop(name) for name in own if name in changes}
    hook = Webhook(
        id=3,
        url=url,
        events=frozenset(Event),
        shape=Shape.STANDARD,
        routing_key=None,
        secret=SECRET,
        old_secret=None,
        old_secret_until=None,
        created_at=NOW,
        disabled_at=None,
        disabled_because=None,
    )
    return Claimed(id=1, event=Event.TEST, notice=NOTICE, webhook=replace(hook, **changes), **own)


def resolving(*addresses: str) -> deliver.Resolve:
    return lambda _host, _port: addresses


class Body(httpx.AsyncByteStream):
    """The body of an answer as it comes from a socket: in pieces, and once."""

    def __init__(self, answer: httpx.Response) -> None:
        self._content = answer.content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._content), 1000):
            yield self._content[start : start + 1000]


class Far:
    """The far side: notes what reaches it, and answers as told."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.requests: list[httpx.Request] = []
        self._answers = list(answers) or [httpx.Response(204)]
        self.transport = httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, headers=answer.headers, stream=Body(answer))


def send(
    far: Far,
    what: Claimed | None = None,
    allowed: Reach = Reach.PUBLIC,
    resolve: deliver.Resolve | None = None,
    now: datetime = NOW,
) -> Answer | NoAnswer:
    sender = Sender(transport=far.transport, resolve=resolve or resolving(PUBLIC_ADDRESS))
    return sender(what or claimed(), allowed, now)


# What an answer means.


@pytest.mark.parametrize("code", [200, 201, 202, 204, 299])
def test_any_2xx_is_a_success(code: int) -> None:
    assert outcome(Answer(code), 1, NOW, 0.5) == Delivered(code)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (Answer(301), "HTTP 301: redirects are not followed"),
        (Answer(308, text="moved"), "HTTP 308: redirects are not followed"),
        (Answer(400), "HTTP 400"),
        (Answer(404, text="no such hook"), "HTTP 404: no such hook"),
        (Answer(429), "HTTP 429"),
        (Answer(500), "HTTP 500"),
        (Answer(503), "HTTP 503"),
        (NoAnswer("it hung up"), "it hung up"),
    ],
)
def test_anything_else_is_tried_again(said: Answer | NoAnswer, error: str) -> None:
    code = said.status_code if isinstance(said, Answer) else None

    assert outcome(said, 1, NOW, 0.5) == RetryAt(NOW + timedelta(seconds=5), error, code)


def test_a_receiver_that_is_gone_is_given_up_at_once() -> None:
    assert outcome(Answer(410), 1, NOW, 0.5) == GaveUp("HTTP 410", 410, gone=True)


def test_each_pause_is_longer_than_the_one_before_and_then_it_is_given_up() -> None:
    found = [outcome(Answer(500), attempt, NOW, 0.5) for attempt in range(1, 11)]

    pauses = [one.at - NOW for one in found if isinstance(one, RetryAt)]
    assert [str(pause) for pause in pauses] == [
        "0:00:05",
        "0:05:00",
        "0:30:00",
        "2:00:00",
        "5:00:00",
        "10:00:00",
        "14:00:00",
        "20:00:00",
        "1 day, 0:00:00",
    ]
    assert found[-1] == GaveUp("given up after 10 attempts: HTTP 500", 500)


@pytest.mark.parametrize(("chance", "factor"), [(0.0, 0.9), (0.5, 1.0), (1.0, 1.1)])
def test_no_two_receivers_are_called_again_at_the_same_moment(chance: float, factor: float) -> None:
    found = outcome(Answer(500), 2, NOW, chance)

    assert isinstance(found, RetryAt)
    assert found.at - NOW == SCHEDULE[1] * factor


@pytest.mark.parametrize(
    ("header", "pause"),
    [
        (None, 5),
        ("0", 5),
        ("3", 5),
        ("120", 120),
        ("86401", 86_400),
        ("9" * 400, 86_400),
        ("soon", 5),
        ("-7", 5),
        ("1e9", 5),
        ("²", 5),
        ("Tue, 17 Nov 2026 10:10:30 GMT", 600),
        ("Tue, 17 Nov 2026 10:10:30 -0000", 600),
        ("Tue, 17 Nov 2026 09:00:00 GMT", 5),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400),
        ("Fri, 99 Dec 9999 23:59:59 GMT", 5),
    ],
)
def test_the_receiver_may_ask_for_more_time_but_not_for_ever(
    header: str | None, pause: int
) -> None:
    found = outcome(Answer(503, header), 1, NOW, 0.5)

    assert isinstance(found, RetryAt)
    assert found.at - NOW == timedelta(seconds=pause)


def test_what_a_receiver_asks_for_does_not_shorten_the_schedule() -> None:
    found = outcome(Answer(429, "1"), 5, NOW, 0.5)

    assert isinstance(found, RetryAt)
    assert found.at - NOW == timedelta(hours=5)


def test_no_header_asks_for_nothing() -> None:
    assert retry_after(None, NOW) is None


# Where a webhook may point.

PUBLIC = [
    "93.184.216.34",
    "8.8.8.8",
    "172.32.0.1",
    "100.128.0.1",
    "2606:2800:220:1:248:1893:25c8:1946",
    "::ffff:8.8.8.8",
    "64:ff9b::808:808",
    "2002:808:808::1",
]
LOOPBACK = ["127.0.0.1", "127.255.255.254", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1"]
LOOPBACK += ["2002:7f00:1::1"]
PRIVATE = ["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "198.18.0.1"]
PRIVATE += ["fc00::1", "fd12:3456::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::1"]
PRIVATE += ["::ffff:100.64.0.1", "192.0.2.1", "2001:db8::1", "2001::1", "fec0::1"]
NEVER = ["0.0.0.0", "::", "169.254.169.254", "169.254.0.1", "fe80::1", "fe80::1%eth0"]
NEVER += ["224.0.0.1", "239.255.255.250", "ff02::1", "255.255.255.255", "240.0.0.1"]
NEVER += ["::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "::ffff:0.0.0.0"]
NEVER += ["::127.0.0.1", "64:ff9b:1::1", "100::1"]

ADDRESSES = [
    *((address, set(Reach)) for address in PUBLIC),
    *((address, {Reach.LOOPBACK, Reach.PRIVATE}) for address in LOOPBACK),
    *((address, {Reach.PRIVATE}) for address in PRIVATE),
    *((address, set[Reach]()) for address in NEVER),
]


@pytest.mark.parametrize(("address", "allowed"), ADDRESSES)
def test_an_address_is_refused_by_what_it_leads_to(address: str, allowed: set[Reach]) -> None:
    found = {one for one in Reach if refused(ip_address(address), one) is None}

    assert found == allowed


def test_a_refusal_says_why() -> None:
    said = refused(ip_address("::ffff:169.254.169.254"), Reach.PUBLIC)

    assert said is not None
    assert said.endswith("is a link-local address")


@pytest.mark.parametrize(
    ("host", "any_key", "allow", "found"),
    [
        ("127.0.0.1", False, False, Reach.LOOPBACK),
        ("localhost", False, False, Reach.LOOPBACK),
        ("127.0.0.1", True, False, Reach.PUBLIC),
        ("0.0.0.0", False, False, Reach.PUBLIC),
        ("0.0.0.0", True, False, Reach.PUBLIC),
        ("127.0.0.1", True, True, Reach.PRIVATE),
        ("0.0.0.0", True, True, Reach.PRIVATE),
    ],
)
def test_how_far_webhooks_reach(host: str, any_key: bool, allow: bool, found: Reach) -> None:
    settings = Settings(host=host, webhook_allow_private=allow)

    assert reach(settings, any_key=any_key) is found


@pytest.mark.parametrize(
    "url",
    [
        "https://receiver.example",
        "https://receiver.example:8443/hook?token=x",
        "https://bücher.example/",
        "https://8.8.8.8/",
        "https://[2606:2800:220:1:248:1893:25c8:1946]/",
        "https://localhost.example/",
    ],
)
def test_a_public_address_may_always_be_named(url: str) -> None:
    assert [refused_url(url, one) for one in Reach] == [None] * 3


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "must be an https"),
        ("nonsense", "must be an https"),
        ("ftp://receiver.example/", "must be an https"),
        ("file:///etc/passwd", "must be an https"),
        ("//receiver.example/", "must be an https"),
        ("https:///path", "must be an https"),
        ("https://user:password@receiver.example/", "no credentials"),
        ("https://user@receiver.example/", "no credentials"),
        ("https://receiver.example\\@evil.example/", "no credentials"),
        ("https://receiver.example/#part", "no fragment"),
        ("https://receiver.example/#", "no fragment"),
        ("https://receiver.example:99999/", "impossible port"),
        ("https://receiver.example:0/", "impossible port"),
        ("https://receiver.example:port/", "not a URL"),
        ("https://receiver.example/\n", "not a URL"),
        ("https://receiver.example/\0", "not a URL"),
        ("https://①②⑦.0.0.1/", "not a URL"),
        ("https://0177.0.0.1/", "not a URL"),
        ("https://169.254.169.254/latest/meta-data", "link-local"),
        ("https://0.0.0.0/", "unspecified"),
    ],
)
def test_what_is_no_address_of_a_webhook_never_is(url: str, reason: str) -> None:
    found = [refused_url(url, one) for one in Reach]

    assert all(said is not None and reason in said for said in found), found


@pytest.mark.parametrize(
    "url",
    [
        "https://localhost/",
        "https://LOCALHOST:8443/",
        "https://localhost./",
        "https://hooks.localhost/",
        "https://127.0.0.1/",
        "https://127.1/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
    ],
)
def test_ones_own_machine_is_refused_under_all_its_names(url: str) -> None:
    said = refused_url(url, Reach.PUBLIC)

    assert said is not None
    assert "SHIFTWATCH_WEBHOOK_ALLOW_PRIVATE" in said
    assert refused_url(url, Reach.LOOPBACK) is None


def test_a_private_address_needs_more_than_a_machine_of_ones_own() -> None:
    url = "https://192.168.1.1/"

    assert refused_url(url, Reach.LOOPBACK)
    assert refused_url(url, Reach.PRIVATE) is None


def test_plain_http_is_for_trying_things_out() -> None:
    url = "http://receiver.example/"

    assert refused_url(url, Reach.PUBLIC) == "must be https"
    assert refused_url(url, Reach.LOOPBACK) is None


# What is sent.


def test_a_notice_is_posted_to_its_url() -> None:
    far = Far(httpx.Response(200))

    said = send(far)

    (request,) = far.requests
    assert said == Answer(200)
    assert request.method == "POST"
    assert json.loads(request.content) == NOTICE
    assert request.url.raw_path == b"/hook?a=b"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["user-agent"].startswith("shiftwatch/")


def test_a_notice_has_the_shape_that_the_webhook_wants() -> None:
    far = Far()

    send(far, claimed(shape=Shape.CLOUDEVENTS))

    assert far.requests[0].headers["content-type"] == "application/cloudevents+json"
    assert json.loads(far.requests[0].content)["id"] == "msg_1"


def test_the_routing_key_goes_to_pagerduty() -> None:
    far = Far()

    send(far, claimed(shape=Shape.PAGERDUTY, routing_key="r0ut1ng"))

    assert json.loads(far.requests[0].content)["routing_key"] == "r0ut1ng"


def test_receivers_can_verify_a_notice_with_the_package_of_standard_webhooks() -> None:
    far = Far()
    now = datetime.now(UTC)

    send(far, now=now)

    (request,) = far.requests
    assert Verifier(SECRET).verify(request.content, dict(request.headers)) == NOTICE
    assert request.headers["webhook-id"] == "msg_1"
    assert request.headers["webhook-timestamp"] == str(int(now.timestamp()))


def test_during_a_rotation_the_old_and_the_new_secret_verify() -> None:
    far = Far(httpx.Response(200), httpx.Response(200))
    now = datetime.now(UTC)
    rotated = claimed(old_secret=OLD_SECRET, old_secret_until=now + timedelta(hours=1))

    send(far, rotated, now=now)

    (request,) = far.requests
    for secret in (SECRET, OLD_SECRET):
        Verifier(secret).verify(request.content, dict(request.headers))
    assert len(request.headers["webhook-signature"].split(" ")) == 2


def test_after_a_rotation_the_old_secret_does_not_sign() -> None:
    far = Far()

    send(far, claimed(old_secret=OLD_SECRET, old_secret_until=NOW))

    assert len(far.requests[0].headers["webhook-signature"].split(" ")) == 1


def test_what_the_receiver_did_not_like_is_kept_if_it_can_be_read() -> None:
    far = Far(httpx.Response(400, content=b"bad\x00 \x1b[31mthing\n\xff" + b"x" * 9999))

    said = send(far)

    assert isinstance(said, Answer)
    assert said.text.startswith("bad [31mthing")
    assert "\0" not in said.text
    assert len(said.text) == 200


def test_a_receiver_may_ask_for_more_time() -> None:
    far = Far(httpx.Response(429, headers={"retry-after": "120"}))

    assert send(far) == Answer(429, "120")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (httpx.ReadError("broken"), "ReadError: broken"),
        (httpx.RemoteProtocolError("not HTTP"), "RemoteProtocolError: not HTTP"),
        (httpx.ReadTimeout(""), "ReadTimeout"),
    ],
)
def test_no_answer_is_an_outcome_too(error: Exception, said: str) -> None:
    assert send(Far(error)) == NoAnswer(said)


def documented() -> Callable[[str, Mapping[str, str], bytes], bool]:
    """The receiver's part, as docs/webhooks.md gives it."""
    text = (Path(__file__).parents[1] / "docs/webhooks.md").read_text()
    names: dict[str, Any] = {}
    exec(text.split("```python\n")[1].split("```")[0], names)
    found: Callable[[str, Mapping[str, str], bytes], bool] = names["is_genuine"]
    return found


def test_receivers_can_verify_a_notice_with_the_code_of_the_documents() -> None:
    is_genuine = documented()
    far = Far()
    now = datetime.now(UTC)
    rotated = claimed(old_secret=OLD_SECRET, old_secret_until=now + timedelta(hours=1))

    send(far, rotated, now=now)

    (request,) = far.requests
    assert is_genuine(SECRET, request.headers, request.content)
    assert is_genuine(OLD_SECRET, request.headers, request.content)
    assert not is_genuine(new_secret(), request.headers, request.content)
    assert not is_genuine(SECRET, request.headers, request.content + b" ")
    other = {**request.headers, "webhook-id": "msg_2"}
    assert not is_genuine(SECRET, other, request.content)


def test_the_code_of_the_documents_refuses_what_is_old() -> None:
    far = Far()

    send(far, now=datetime.now(UTC) - timedelta(minutes=6))

    assert not documented()(SECRET, far.requests[0].headers, far.requests[0].content)


# Where it is sent.


def test_the_connection_goes_to_the_address_that_was_judged_under_the_name_of_the_url() -> None:
    far = Far()

    send(far, claimed("https://bücher.example:8443/hook"))

    (request,) = far.requests
    assert (request.url.host, request.url.port) == (PUBLIC_ADDRESS, 8443)
    assert request.headers["host"] == "xn--bcher-kva.example:8443"
    assert request.extensions["sni_hostname"] == "xn--bcher-kva.example"


def test_a_name_that_changes_its_mind_leads_nowhere_else() -> None:
    far = Far()
    answers = iter([[PUBLIC_ADDRESS], ["127.0.0.1"], ["127.0.0.1"]])
    asked: list[str] = []

    def rebinding(host: str, _port: int) -> Sequence[str]:
        asked.append(host)
        return next(answers)

    send(far, resolve=rebinding)

    assert asked == ["receiver.example"]
    assert [request.url.host for request in far.requests] == [PUBLIC_ADDRESS]


@pytest.mark.parametrize("address", ["10.0.0.1", "127.0.0.1", "169.254.169.254", "::1", "fd00::1"])
def test_a_name_that_leads_inside_is_not_called(address: str) -> None:
    far = Far()

    said = send(far, resolve=resolving(address))

    assert isinstance(said, NoAnswer)
    assert said.error.startswith(f"refused: receiver.example resolves to {address}")
    assert far.requests == []


@pytest.mark.parametrize("order", [1, -1])
def test_one_bad_address_is_enough(order: int) -> None:
    far = Far()
    addresses = [PUBLIC_ADDRESS, "10.0.0.1"][::order]

    said = send(far, resolve=resolving(*addresses))

    assert isinstance(said, NoAnswer)
    assert "10.0.0.1" in said.error
    assert far.requests == []


def test_where_it_is_allowed_a_private_address_is_called() -> None:
    far = Far()

    send(far, resolve=resolving("10.0.0.1"), allowed=Reach.PRIVATE)

    assert [request.url.host for request in far.requests] == ["10.0.0.1"]


def test_the_rules_of_now_count_and_not_those_of_when_it_was_made() -> None:
    far = Far()

    said = send(far, claimed("http://receiver.example/"))

    assert said == NoAnswer("refused: the URL must be https")
    assert far.requests == []


def test_an_address_that_cannot_be_reached_is_not_the_last() -> None:
    far = Far(httpx.ConnectError("refused"), httpx.ConnectTimeout(""), httpx.Response(200))

    said = send(far, resolve=resolving("2606:2800:220:1::1", "8.8.4.4", "8.8.8.8"))

    assert said == Answer(200)
    assert [one.url.host for one in far.requests] == ["2606:2800:220:1::1", "8.8.4.4", "8.8.8.8"]


def test_what_may_have_arrived_is_not_sent_to_the_next_address() -> None:
    far = Far(httpx.ReadError("broken"))

    send(far, resolve=resolving("8.8.4.4", "8.8.8.8"))

    assert len(far.requests) == 1


def test_if_no_address_can_be_reached_the_last_failure_is_told() -> None:
    far = Far(httpx.ConnectError("first"), httpx.ConnectError("second"))

    assert send(far, resolve=resolving("8.8.4.4", "8.8.8.8")) == NoAnswer("ConnectError: second")


def test_a_name_that_nobody_knows_is_an_outcome() -> None:
    def unknown(_host: str, _port: int) -> Sequence[str]:
        raise socket.gaierror("no such name")

    far = Far()

    assert send(far, resolve=unknown) == NoAnswer("receiver.example cannot be resolved")
    assert send(far, resolve=resolving()) == NoAnswer("receiver.example has no address")


def test_the_resolver_of_the_system_finds_this_machine() -> None:
    assert deliver.resolve("127.0.0.1", 80) == ["127.0.0.1"]
    assert deliver.resolve("2130706433", 80) == ["127.0.0.1"]


def test_an_address_that_is_a_secret_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    far = Far(httpx.Response(500), httpx.ConnectError("refused"))

    for _ in range(2):
        send(far, claimed("https://hooks.example/services/T0KEN"))

    assert caplog.text, "nothing was logged at all: the test shows nothing"
    assert "T0KEN" not in caplog.text


# Real sockets.


class Receiver(ThreadingHTTPServer):
    """A receiver on this machine that answers as told and notes what it gets."""

    daemon_threads = True

    def __init__(self, status: int = 200, **headers: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status, self.headers, self.paths = status, headers, list[str]()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> "Receiver":
        threading.Thread(target=self.serve_forever, daemon=True, args=(0.02,)).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, *_: object) -> None:
        """Whoever hangs up on us does so on purpose."""


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.server.paths.append(self.path)
        self.send_response(self.server.status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


def called(url: str, **options: Any) -> Answer | NoAnswer:
    return Sender(**options)(claimed(url), Reach.LOOPBACK, NOW)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(status: int) -> None:
    with Receiver() as other, Receiver(status, location=other.url) as receiver:
        said = called(receiver.url)

    assert said == Answer(status)
    assert (receiver.paths, other.paths) == (["/"], [])


@pytest.mark.parametrize("variable", ["http_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"])
def test_no_proxy_of_the_environment_is_used(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with Receiver() as proxy, Receiver() as receiver:
        monkeypatch.setenv(variable, proxy.url)
        called(receiver.url)

    assert (receiver.paths, proxy.paths) == (["/"], [])


def test_a_port_where_nobody_listens_is_an_outcome() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))

        said = called(f"http://127.0.0.1:{held.getsockname()[1]}/")

    assert isinstance(said, NoAnswer)
    assert said.error.startswith("ConnectError")


@pytest.fixture
def peer() -> Iterator[Callable[[Callable[[socket.socket], None]], str]]:
    """Listens on this machine and lets `behave` do what it likes with one connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def start(behave: Callable[[socket.socket], None]) -> str:
        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                try:
                    behave(connection)
                except OSError:
                    return

        threads.append(threading.Thread(target=serve))
        threads[0].start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}/"

    yield start
    for thread in threads:
        thread.join(10)
    listener.close()


Peer = Callable[[Callable[[socket.socket], None]], str]


def drip(connection: socket.socket) -> None:
    """An answer whose headers never end, a byte at a time."""
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    for _ in range(200):
        connection.sendall(b"x")
        time.sleep(0.05)


def test_an_answer_that_drips_in_is_not_waited_for(peer: Peer) -> None:
    url = peer(drip)
    begun = time.monotonic()

    said = called(url, patience=timedelta(seconds=0.4))

    assert said == NoAnswer("no answer within 0.4 seconds")
    assert time.monotonic() - begun < 3


def test_a_lookup_that_hangs_is_not_waited_for() -> None:
    release = threading.Event()

    def hanging(_host: str, _port: int) -> Sequence[str]:
        release.wait(10)
        return ["127.0.0.1"]

    begun = time.monotonic()
    said = called("http://receiver.example/", resolve=hanging, patience=timedelta(seconds=0.2))
    took = time.monotonic() - begun
    release.set()

    assert said == NoAnswer("no answer within 0.2 seconds")
    assert took < 3


def test_of_an_endless_answer_only_the_beginning_is_read(peer: Peer) -> None:
    sent = 0

    def flood(connection: socket.socket) -> None:
        nonlocal sent
        connection.sendall(b"HTTP/1.1 500 Oh\r\n\r\n")
        while sent < 100_000_000:
            sent += connection.send(b"x" * 65_536)

    said = called(peer(flood), patience=timedelta(seconds=10))

    assert said == Answer(500, None, "x" * 200)
    assert sent < 100_000_000


def test_the_body_of_a_success_is_not_waited_for(peer: Peer) -> None:
    released = threading.Event()

    def hold(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n")
        released.wait(10)

    said = called(peer(hold), patience=timedelta(seconds=3))
    released.set()

    assert said == Answer(200)


def test_what_does_not_speak_http_is_an_outcome(peer: Peer) -> None:
    said = called(peer(lambda connection: connection.sendall(b"220 smtp ready\r\n")))

    assert isinstance(said, NoAnswer)
    assert said.error.startswith(("RemoteProtocolError", "ReadError"))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for receiver.example and its key, in one file."""
    home = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    command += f" -subj /CN=x -addext subjectAltName=DNS:receiver.example -out {home}/cert.pem"
    try:
        subprocess.run(
            [*command.split(), "-keyout", home / "key.pem"], check=True, capture_output=True
        )
    except FileNotFoundError:
        pytest.skip("no openssl to make a certificate with")
    return home


@pytest.mark.parametrize("name", ["receiver.example", "other.example"])
def test_certificates_are_those_of_the_name_and_not_of_the_address(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    receiver = Receiver()
    receiver.socket = context.wrap_socket(receiver.socket, server_side=True)

    with receiver:
        url = f"https://{name}:{receiver.server_port}/"
        said = called(url, resolve=resolving("127.0.0.1"))

    if name == "receiver.example":
        assert said == Answer(200)
    else:
        assert isinstance(said, NoAnswer)
        assert "certificate" in said.error
        assert receiver.paths == []


# From the queue to the receiver and back.

LOCAL = Settings()


def clock_at(*moments: datetime) -> Callable[[], datetime]:
    """A clock that goes through these moments and stays at the last."""
    left = list(moments)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def queued(database: Database, url: str = "https://receiver.example/") -> int:
    with database.begin() as conn:
        made = webhooks.create(conn, url, list(Event), Shape.STANDARD, NOW)
        return deliveries.queue_for(conn, made.id, NOTICE, Event.TEST, None, NOW).id


def state_of(database: Database, delivery_id: int) -> deliveries.Delivery:
    with database.begin() as conn:
        (hook,) = webhooks.page(conn, None, 10)
        found = deliveries.page(conn, hook.id, None, None, 10)
    return next(one for one in found if one.id == delivery_id)


def answering(said: Answer | NoAnswer) -> deliver.Send:
    return lambda _claimed, _reach, _now: said


def test_with_nothing_due_nothing_is_sent(database: Database) -> None:
    def never(*_: object) -> Answer:
        raise AssertionError("nothing was due")

    assert not deliver_next(database, LOCAL, never, clock_at(NOW))


def test_what_is_due_is_sent_and_noted(database: Database) -> None:
    far = Far(httpx.Response(202))
    made = queued(database)
    sender = Sender(transport=far.transport, resolve=resolving(PUBLIC_ADDRESS))

    was_any = deliver_next(database, LOCAL, sender, clock_at(NOW, NOW + timedelta(seconds=1)))

    found = state_of(database, made)
    assert was_any
    assert json.loads(far.requests[0].content) == NOTICE
    assert (found.state, found.status_code) == (State.DELIVERED, 202)
    assert found.settled_at == NOW + timedelta(seconds=1)
    assert not deliver_next(database, LOCAL, sender, clock_at(NOW + timedelta(days=1)))


def test_what_fails_is_tried_until_it_is_given_up(database: Database) -> None:
    made = queued(database)
    now, tries = NOW, 0

    while deliver_next(database, LOCAL, answering(Answer(500)), clock_at(now), lambda: 0.5):
        tries += 1
        now = state_of(database, made).due_at

    found = state_of(database, made)
    assert tries == 10
    assert now - NOW == sum(SCHEDULE, timedelta())
    assert (found.state, found.error) == (
        State.DEAD,
        "given up after 10 attempts: HTTP 500",
    )


def test_a_failure_is_counted_from_the_end_of_the_attempt(database: Database) -> None:
    made = queued(database)
    ended = NOW + timedelta(seconds=15)

    deliver_next(
        database, LOCAL, answering(NoAnswer("no answer")), clock_at(NOW, ended), lambda: 0.5
    )

    assert state_of(database, made).due_at == ended + timedelta(seconds=5)


def test_a_receiver_that_is_gone_is_disabled(database: Database) -> None:
    queued(database)

    deliver_next(database, LOCAL, answering(Answer(410)), clock_at(NOW))

    with database.begin() as conn:
        (hook,) = webhooks.page(conn, None, 10)
    assert (hook.disabled_at, hook.disabled_because) == (NOW, "HTTP 410")


def test_nothing_is_locked_while_a_receiver_takes_its_time(database: Database) -> None:
    made = queued(database)

    def slow(taken: Claimed, _reach: Reach, now: datetime) -> Answer:
        with database.begin() as conn:
            webhooks.rotate(conn, taken.webhook.id, now)
            webhooks.forget(conn, taken.webhook.id)
        return Answer(200)

    assert deliver_next(database, LOCAL, slow, clock_at(NOW))
    with database.begin() as conn, pytest.raises(Exception, match=f"no delivery {made}"):
        deliveries.replay(conn, made, NOW)


def test_after_a_crash_in_the_middle_the_notice_is_sent_again(database: Database) -> None:
    made = queued(database)

    def crash(*_: object) -> Answer:
        raise SystemExit

    with pytest.raises(SystemExit):
        deliver_next(database, LOCAL, crash, clock_at(NOW))
    soon = deliver_next(database, LOCAL, answering(Answer(200)), clock_at(NOW))
    later = deliver_next(database, LOCAL, answering(Answer(200)), clock_at(NOW + deliver.LEASE))

    found = state_of(database, made)
    assert (soon, later) == (False, True)
    assert (found.state, found.attempts) == (State.DELIVERED, 2)


def test_a_bug_is_reported_and_not_repeated_at_once_or_for_ever(database: Database) -> None:
    made = queued(database)

    def bug(*_: object) -> Answer:
        raise RuntimeError("the secret is 42")

    now = NOW
    for _ in range(10):
        with pytest.raises(RuntimeError):
            deliver_next(database, LOCAL, bug, clock_at(now), lambda: 0.5)
        now = max(now, state_of(database, made).due_at)

    found = state_of(database, made)
    assert found.state is State.DEAD
    assert found.error is not None
    assert "42" not in found.error


def test_no_attempt_outlives_its_lease() -> None:
    assert 2 * deliver.PATIENCE < deliver.LEASE


def test_with_the_first_key_the_doors_to_this_machine_close(database: Database) -> None:
    seen: list[Reach] = []

    def look(_claimed: Claimed, allowed: Reach, _now: datetime) -> Answer:
        seen.append(allowed)
        return Answer(200)

    for _ in range(2):
        queued(database)
        deliver_next(database, LOCAL, look, clock_at(NOW))
        with database.begin() as conn:
            keys.create(conn, "first", [keys.Scope.READ], NOW)

    assert seen == [Reach.LOOPBACK, Reach.PUBLIC]


def test_what_is_delivered_is_logged_without_its_address(
    database: Database, written: Written
) -> None:
    made = queued(database, "https://hooks.example/services/T0KEN")
    far = Far(httpx.Response(200))

    deliver_next(
        database,
        LOCAL,
        Sender(transport=far.transport, resolve=resolving(PUBLIC_ADDRESS)),
        clock_at(NOW),
    )

    (line,) = written.of("delivery")
    assert (line["delivery"], line["outcome"], line["status"]) == (made, "Delivered", 200)
    assert "T0KEN" not in written.text


def test_the_line_about_what_could_not_be_sent_says_which_delivery_it_was(
    database: Database, written: Written
) -> None:
    def broken(*_: Any) -> Answer:
        raise RuntimeError("a bug")

    made = queued(database)
    with pytest.raises(RuntimeError):
        deliver_next(database, LOCAL, broken, clock_at(NOW))

    # As the worker's loop does, which catches it.
    logger(__name__).error("step failed")

    (line,) = written.of("step failed")
    assert line["delivery"] == made
    assert line["webhook"] == state_of(database, made).webhook_id
