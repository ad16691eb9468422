"""Traffic for a look around: a model whose class mix changes after a while.

Needs nothing but Python, and a key with the scope `admin`, because it registers its model. A true
label is drawn from the mix, and what the classifier says of it from the reference's confusion.
"""

import argparse
import itertools
import json
import random
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

MODEL, VERSION = "demo", "1"
LABELS = ["legit", "fraud", "abuse"]
# confusion[i][j] counts records that were predicted LABELS[i] and are truly LABELS[j].
CONFUSION = [[9000, 30, 12], [60, 500, 9], [40, 20, 329]]
BEFORE = [sum(column) for column in zip(*CONFUSION, strict=True)]
AFTER = [7000, 2200, 800]
# What the service does not take now is sent again, this much later.
PAUSE_SECONDS = 2.0
# No proxy, though Docker hands those of its client to every container: the API is next door.
CLIENT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def main() -> None:
    options = parser().parse_args()
    call = Api(options.url, options.key_file.read_text().strip())
    call("PUT", f"/v1/models/{MODEL}", {"labels": LABELS})
    call("PUT", f"/v1/models/{MODEL}/references/{VERSION}", {"confusion": CONFUSION})
    print(f"model {MODEL!r} is registered; sending for {options.minutes:g} minutes", flush=True)
    shifted = False
    run = f"{time.time_ns():x}"
    for number, minutes in ticks(options.minutes, options.seconds):
        if not shifted and minutes >= options.shift_after:
            shifted = True
            print(f"from now on the mix is {AFTER} instead of {BEFORE}", flush=True)
        batch = predictions(AFTER if shifted else BEFORE, options.batch)
        # The same key for every attempt: what was counted but not acknowledged counts once.
        call("POST", f"/v1/models/{MODEL}/predictions", {"predicted": batch}, f"{run}-{number}")
    print("done", flush=True)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description="Send predictions whose class mix changes.")
    found.add_argument("--url", default="http://127.0.0.1:8000", help="of the API")
    found.add_argument("--key-file", type=Path, required=True, help="with a key of scope admin")
    found.add_argument("--minutes", type=float, default=60, help="when to end")
    found.add_argument("--shift-after", type=float, default=10, help="minutes until the change")
    found.add_argument("--seconds", type=float, default=1, help="between two batches")
    found.add_argument("--batch", type=int, default=200, help="predictions in one")
    return found


def ticks(minutes: float, seconds: float) -> Iterator[tuple[int, float]]:
    """Numbers, with the minutes since the first of them."""
    began = time.monotonic()
    for number in itertools.count():
        passed = (time.monotonic() - began) / 60
        if passed >= minutes:
            return
        yield number, passed
        time.sleep(seconds)


def predictions(mix: Sequence[int], size: int) -> list[str]:
    """What the classifier says of records whose true labels are drawn from the mix."""
    truth = random.choices(range(len(LABELS)), weights=mix, k=size)
    columns = list(zip(*CONFUSION, strict=True))
    return [random.choices(LABELS, weights=columns[label])[0] for label in truth]


class Api:
    def __init__(self, url: str, key: str) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    def __call__(self, method: str, path: str, body: Any, key: str | None = None) -> None:
        """Until it is taken; ends the program if the service says that it never will be."""
        named = {"Idempotency-Key": f'"{key}"'} if key else {}
        request = urllib.request.Request(
            self._url + path, json.dumps(body).encode(), self._headers | named, method=method
        )
        while not self._taken(request):
            time.sleep(PAUSE_SECONDS)

    def _taken(self, request: urllib.request.Request) -> bool:
        try:
            with CLIENT.open(request, timeout=30):
                return True
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            if error.code < 500 and error.code != 429:
                raise SystemExit(f"{request.full_url}: {error.code} {said}") from None
            print(f"{request.full_url}: {error.code} {said}", flush=True)
        except OSError as error:
            print(f"{request.full_url}: {error}", flush=True)
        return False


if __name__ == "__main__":
    main()
