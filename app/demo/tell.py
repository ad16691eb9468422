"""Tell the story: register two models, send their traffic, print what the service says of it.

All of it goes through the HTTP API, as anybody's client would go.
"""

import logging
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import httpx
import numpy as np

from app.demo import receiver, story
from app.demo.outputs import Shipped, shipped
from app.demo.story import BATCHES_PER_SECOND, MODELS, PER_SECOND, Phase
from app.demo.terminal import Terminal
from app.domain import notice

# httpx tells of every request.
logging.getLogger("httpx").setLevel(logging.WARNING)

READY_SECONDS = 60.0
PAUSE_SECONDS = 0.5
SEED = 18


def tell(url: str, speed: float, minutes: float | None) -> None:
    """Until the minutes are over; without them, until somebody ends the process."""
    terminal = Terminal()

    def hear(told: Mapping[str, Any], genuine: bool) -> None:
        terminal.say(heard(told, genuine))

    with httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
        _wait_until_ready(client)
        with receiver.listening(hear) as listener:
            listener.secret = _register(client, listener.url)
            terminal.say(_introduction(url, listener.url, speed))
            Traffic(client, terminal, speed).send(None if minutes is None else 60.0 * minutes)
    terminal.say("The time is up.")


def heard(told: Mapping[str, Any], genuine: bool) -> str:
    """A notice in one line."""
    at = datetime.fromisoformat(told["timestamp"])
    signature = "signature ok" if genuine else "SIGNATURE WRONG"
    return f"  {at:%H:%M:%S} {told['type']} ({signature}): {notice.summary(told)}"


def _wait_until_ready(client: httpx.Client) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            if client.get("/readyz").is_success:
                return
        except httpx.TransportError:
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"the service was not ready after {READY_SECONDS:.0f} s")
        time.sleep(0.05)


def _register(client: httpx.Client, listener: str) -> str:
    """The two models and the webhook, whose secret is returned."""
    reference = story.reference(shipped().reference)
    for model in MODELS:
        place = f"/v1/models/{model}"
        client.put(place, json=story.settings()).raise_for_status()
        client.put(f"{place}/references/{story.VERSION}", json=reference).raise_for_status()
    made = client.post("/v1/webhooks", json={"url": listener}).raise_for_status()
    return str(made.json()["secret"])


def _introduction(url: str, listener: str, speed: float) -> str:
    return f"""
  The page       {url}/
  Notices        {listener}, a webhook in this process
  Predictions    what a real classifier said of clothes, {PER_SECOND} a second for each model
  Time           a second here stands for a minute in production{_faster(speed)}
  Ctrl-C         ends everything and leaves nothing behind
"""


def _faster(speed: float) -> str:
    return "" if speed == 1.0 else f"; the story is told at {speed:g} times its speed"


class Traffic:
    """Sends in time, whatever the service takes to answer; says what is going on."""

    def __init__(self, client: httpx.Client, terminal: Terminal, speed: float) -> None:
        self._client = client
        self._terminal = terminal
        self._speed = speed
        self._rng = np.random.default_rng(SEED)
        self._shipped: Shipped = shipped()
        self._sent = 0
        self._phase: Phase | None = None
        self._told = False

    def send(self, seconds: float | None) -> None:
        # In the middle of a pane, rather than between two: what comes for a pane just after its end
        # makes a second revision of its evaluation, and there is nothing to see in that.
        time.sleep(1.1 - time.time() % 1.0)
        began = time.monotonic()
        batch = 0
        while seconds is None or batch / BATCHES_PER_SECOND < seconds:
            self._announce(batch / BATCHES_PER_SECOND * self._speed)
            for model in MODELS:
                self._send(model, batch)
            batch += 1
            time.sleep(max(0.0, began + batch / BATCHES_PER_SECOND - time.monotonic()))

    def _announce(self, seconds: float) -> None:
        phase = story.at(seconds)
        if phase is not self._phase:
            self._phase = phase
            self._terminal.say(f"{_clock(seconds)} {phase.title}\n        expect {phase.expect}")
        if seconds >= story.TOLD and not self._told:
            self._told = True
            self._terminal.say(
                f"{_clock(seconds)} the story is told; predictions keep coming until Ctrl-C"
            )
        self._terminal.progress(_progress(seconds, phase, self._sent))

    def _send(self, model: str, batch: int) -> None:
        assert self._phase is not None
        size = PER_SECOND // BATCHES_PER_SECOND
        rows = story.rows(model, self._phase, self._shipped, size, self._rng)
        while not self._is_taken(model, batch, story.written(rows)):
            time.sleep(PAUSE_SECONDS)
        self._sent += size

    def _is_taken(self, model: str, batch: int, rows: Any) -> bool:
        """With its key a batch counts once, however often it is sent."""
        try:
            answer = self._client.post(
                f"/v1/models/{model}/predictions",
                json={"probabilities": rows},
                headers={"Idempotency-Key": f'"demo-{batch}"'},
            )
        except httpx.TransportError as error:
            self._terminal.say(f"  the service does not answer ({error}); trying again")
            return False
        if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            return False
        answer.raise_for_status()
        return True


def _progress(seconds: float, phase: Phase, sent: int) -> str:
    after = story.following(phase)
    coming = f" | in {after.begins - seconds:.0f} s: {after.title}" if after else ""
    return f"{_clock(seconds)} {sent:,} predictions sent{coming}"


def _clock(seconds: float) -> str:
    return f"[{int(seconds) // 60:02d}:{int(seconds) % 60:02d}]"
