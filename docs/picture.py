"""Take the pictures of the README and of docs/card.md: the first screen of a mixer's card, from records that ship
(`make picture`; `python docs/picture.py card_smoke.png` takes one of them).

Needs Chromium, as the browser tests do.
"""

import base64
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent / "img"
CARDS = {"card.png": "standard", "card_smoke.png": "smoke"}
"""The tier of each picture."""
WIDE, TALL, BELOW = 1400, 1000, 28
"""A screen, and the pixels below the first chart, which may need a little more than one."""
MOST = 200_000
"""Bytes that the picture may have."""
WORDS = b"Description\0\0\0\0\0"
"""How a PNG file introduces plain text in UTF-8."""
LINES = 10
"""A picture says so many lines of the card's screen: the headline and the first questions."""
PIXELS = """async shot => {
  const image = new Image(); image.src = "data:image/png;base64," + shot; await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height), pen = canvas.getContext("2d");
  pen.drawImage(image, 0, 0);
  const data = pen.getImageData(0, 0, image.width, image.height).data;
  const parts = [];
  for (let at = 0; at < data.length; at += 32768) parts.push(String.fromCharCode(...data.subarray(at, at + 32768)));
  return btoa(parts.join(""));
}"""


def first_screen(page: Path) -> np.ndarray:
    """Open the page in Chromium, wait until its charts are drawn, and return what is on the screen."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if not chromium:
        sys.exit("there is no chromium to open the page with; on Debian: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        shown = browser.new_page(viewport={"width": WIDE, "height": TALL}, color_scheme="light")
        shown.goto(page.resolve().as_uri())
        shown.locator("html.drawn").wait_for(state="attached", timeout=300_000)
        chart = shown.locator("figure").first.bounding_box()
        shown.set_viewport_size({"width": WIDE, "height": round(chart["y"] + chart["height"]) + BELOW})
        shot = base64.b64encode(shown.screenshot()).decode()
        pixels = browser.new_page().evaluate(PIXELS, shot)
        browser.close()
    return np.frombuffer(base64.b64decode(pixels), np.uint8).reshape(-1, WIDE, 4)[..., :3]


def small_png(pixels: np.ndarray, says: str) -> bytes:
    """Encode pixels with 256 of their colours, each of the others as the nearest of these: a third of the size, and no
    difference to the eye, as a page has few colours. What the picture `says` goes with it, for a test to read."""
    height, width, _ = pixels.shape
    shades = np.minimum((pixels.reshape(-1, 3).astype(np.int64) + 4) // 8 * 8, 255)
    colours, places, counts = np.unique(shades, axis=0, return_inverse=True, return_counts=True)
    # A line in a colour has few pixels, the grey edges of letters have many.
    palette = colours[np.argsort(counts * (1.0 + np.ptp(colours, axis=1)))[::-1][:256]]
    nearest = np.array([np.abs(palette - one).sum(axis=1).argmin() for one in colours], np.uint8)
    rows = np.concatenate([np.zeros((height, 1), np.uint8), nearest[places.reshape(-1)].reshape(height, width)], axis=1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = [
        (b"IHDR", header),
        (b"iTXt", WORDS + says.encode()),
        (b"PLTE", palette.astype(np.uint8).tobytes()),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in [*parts, (b"IEND", b"")])


def take(name: str) -> None:
    card = ("card", "delta_net", "--tier", CARDS[name], "--stored")
    with tempfile.TemporaryDirectory() as place:
        screen = subprocess.check_output([sys.executable, "-m", "assay", *card, "--out", place], text=True)
        (page,) = (Path(place) / "card").glob("*.html")
        picture = small_png(first_screen(page), "\n".join(screen.splitlines()[:LINES]))
    if len(picture) > MOST:
        sys.exit(f"{name} has {len(picture):,} bytes, and {MOST:,} are allowed")
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / name).write_bytes(picture)
    print(f"{name}: {len(picture):,} bytes")


def said(name: str) -> str:
    """Return what the screen of the card said when its picture was taken."""
    behind = (FOLDER / name).read_bytes().partition(b"iTXt" + WORDS)[2]
    return behind[: behind.index(b"PLTE") - 8].decode()  # before the next chunk: the checksum, and that chunk's length


if __name__ == "__main__":
    for each in sys.argv[1:] or CARDS:
        take(each)
