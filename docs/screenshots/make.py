"""Take the screenshots of the documents: `make screenshots`.

Of a running demo, once both of its alarms fire and there is something to see of the shift.
"""

from __future__ import annotations

import base64
import socket
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
from numpy.typing import NDArray

from tests.browser.chromium import launched

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Bytes = NDArray[np.uint8]

HERE = Path(__file__).parent
MOST_COLOURS = 256
WIDTH = 1280
PATIENCE_SECONDS = 120.0
# The 15 seconds that the demo's window looks back hold nothing but the shift by then.
SETTLED_SECONDS = 15.0
MODELS = {"fashion-shop", "fashion-camera"}

# The pixels of a picture, row by row: red, green, blue and how opaque.
PIXELS = """async (picture) => {
  const image = new Image();
  image.src = "data:image/png;base64," + picture;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height);
  const brush = canvas.getContext("2d");
  brush.drawImage(image, 0, 0);
  const { data } = brush.getImageData(0, 0, canvas.width, canvas.height);
  return await new Promise((told) => {
    const reader = new FileReader();
    reader.onload = () => told(reader.result.split(",")[1]);
    reader.readAsDataURL(new Blob([data]));
  });
}"""


@contextmanager
def demo() -> Iterator[httpx.Client]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "app", "demo", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            yield client
    finally:
        process.terminate()
        process.wait(60)


def firing(client: httpx.Client) -> dict[str, Any]:
    """Both alarms, by model, once they are there."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            answer = client.get("/v1/alarms", params={"state": "firing"})
            found = {one["model"]: one for one in answer.json()["items"]}
        except httpx.TransportError:
            found = {}
        if set(found) == MODELS:
            return found
        time.sleep(0.5)
    raise TimeoutError("the demo's alarms have not come")


def take(browser: Browser, url: str, name: str, height: int, scheme: str = "light") -> None:
    """The top of a page; a height instead of all of it, as nobody reads a long picture."""
    page = browser.new_page(
        viewport={"width": WIDTH, "height": height}, color_scheme=scheme, reduced_motion="reduce"
    )
    page.goto(url)
    if page.locator("#charts").count():
        page.wait_for_selector("#charts canvas")
    picture = base64.b64encode(page.screenshot()).decode()
    page.close()
    (HERE / f"{name}.png").write_bytes(smaller(browser, picture, height))


def smaller(browser: Browser, picture: str, height: int) -> bytes:
    """With a palette, which nobody sees and a repository feels: a third of the bytes."""
    page = browser.new_page()
    pixels = np.frombuffer(base64.b64decode(page.evaluate(PIXELS, picture)), np.uint8)
    page.close()
    palette, places = reduced(pixels.reshape(-1, 4)[:, :3])
    # Each row begins with the filter that it went through: none.
    rows = np.pad(places.reshape(height, WIDTH), ((0, 0), (1, 0)))
    header = struct.pack(">IIBBBBB", WIDTH, height, 8, 3, 0, 0, 0)
    parts = {b"IHDR": header, b"PLTE": palette.tobytes(), b"IDAT": zlib.compress(rows.tobytes(), 9)}
    chunks = [chunk(kind, content) for kind, content in parts.items()]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + chunk(b"IEND", b"")


def chunk(kind: bytes, content: bytes) -> bytes:
    check = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + check


def reduced(pixels: Bytes) -> tuple[Bytes, Bytes]:
    """The commonest colours, and for each pixel the place of the nearest one."""
    packed = pixels.astype(np.int64) @ [65536, 256, 1]
    codes, which, often = np.unique(packed, return_inverse=True, return_counts=True)
    colours = np.stack([codes // 65536, codes // 256 % 256, codes % 256], axis=1)
    palette = colours[np.argsort(-often)[:MOST_COLOURS]]
    nearest = [int(np.abs(palette - colour).sum(axis=1).argmin()) for colour in colours]
    return palette.astype(np.uint8), np.array(nearest, np.uint8)[which]


def main() -> None:
    with demo() as client:
        alarms = firing(client)
        time.sleep(SETTLED_SECONDS)
        url = str(client.base_url).rstrip("/")
        shop = f"{url}/models/fashion-shop"
        with launched() as browser:
            take(browser, f"{url}/", "fleet", 320)
            take(browser, shop, "model", 1410)
            take(browser, f"{url}/alarms/{alarms['fashion-shop']['id']}", "alarm", 860)
            take(browser, shop, "model-dark", 1410, scheme="dark")
            if "--all" in sys.argv:
                take_the_rest(browser, url)


def take_the_rest(browser: Browser, url: str) -> None:
    """Pages that no document shows, to be looked at before a release; they are not kept."""
    paths = {
        "camera": "/models/fashion-camera",
        "reference": "/models/fashion-shop/references/v1",
        "alarms": "/alarms",
        "webhooks": "/webhooks",
        "webhook": "/webhooks/1",
        "keys": "/keys",
    }
    for name, path in paths.items():
        take(browser, url + path, f"all-{name}", 1400)


if __name__ == "__main__":
    main()
