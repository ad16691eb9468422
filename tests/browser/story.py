"""What the pages of these tests show: a shift that is understood, one that is not, and silence."""

import time
from typing import Any

import httpx
import numpy as np

LABELS = ["legit", "fraud", "abuse"]
USUAL, SHIFTED = [0.90, 0.06, 0.04], [0.68, 0.26, 0.06]
CONFUSION = [[9000, 30, 12], [60, 500, 9], [40, 20, 329]]
ROUNDS, SIZE = 4, 400
PATIENCE_SECONDS = 30.0
SEED = 6

# A pane of a second, so that there is a history within some.
SETTINGS = {
    "labels": LABELS,
    "pane": "PT1S",
    "windows": [
        {"name": "10s", "kind": "sliding", "length": "PT10S"},
        {"name": "1h", "kind": "sliding", "length": "PT1H"},
    ],
    "alarm": {"overdispersion": 1},
}


def softmax(rng: np.random.Generator, mix: list[float], size: int) -> tuple[Any, Any]:
    """Rows of a middling classifier, and the truth behind them."""
    actual = rng.choice(len(mix), size, p=mix)
    scores = rng.normal(size=(size, len(mix)))
    scores[np.arange(size), actual] += 3.5
    rows = np.exp(scores)
    return (rows / rows.sum(axis=1, keepdims=True)).round(5).tolist(), actual.tolist()


def tell(url: str) -> dict[str, Any]:
    """Tell it, wait until both alarms fire, and say which they are, by model."""
    rng = np.random.default_rng(SEED)
    with httpx.Client(base_url=url, timeout=30) as client:
        _register(client, rng)
        for mix in [USUAL] * ROUNDS + [SHIFTED] * ROUNDS:
            rows, _ = softmax(rng, mix, SIZE)
            hard = rng.choice(3, SIZE, p=mix).tolist()
            steady, _ = softmax(rng, USUAL, SIZE)
            _send(client, "fraud", {"probabilities": rows})
            _send(client, "loans", {"predicted": hard})
            _send(client, "steady", {"probabilities": steady})
            time.sleep(1)
        return _alarms(client, {"fraud", "loans"})


def _register(client: httpx.Client, rng: np.random.Generator) -> None:
    rows, actual = softmax(rng, USUAL, 5000)
    soft = {"probabilities": rows, "actual": actual}
    references: dict[str, Any] = {
        "fraud": soft,
        "loans": {"confusion": CONFUSION},
        "steady": soft,
        "idle": soft,
    }
    for name in (*references, "new"):
        _made(client.put(f"/v1/models/{name}", json=SETTINGS))
    for name, reference in references.items():
        _made(client.put(f"/v1/models/{name}/references/v1", json=reference))
    # Nobody listens there: what cannot be delivered has to be seen, too.
    _made(client.post("/v1/webhooks", json={"url": "http://127.0.0.1:9/hook"}))
    silence = {"matchers": {"model": "new"}, "until": _tomorrow(), "reason": "not live yet"}
    _made(client.post("/v1/silences", json=silence))


def _tomorrow() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 86400))


def _send(client: httpx.Client, model: str, batch: dict[str, Any]) -> None:
    _made(client.post(f"/v1/models/{model}/predictions", json=batch))


def _made(answer: httpx.Response) -> None:
    assert answer.is_success, answer.text


def _alarms(client: httpx.Client, models: set[str]) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        items = client.get("/v1/alarms", params={"state": "firing"}).json()["items"]
        found = {one["model"]: one for one in items}
        if models <= set(found):
            return found
        assert time.monotonic() < deadline, f"only {sorted(found)} fire"
        time.sleep(0.2)
