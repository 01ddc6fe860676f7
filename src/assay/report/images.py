"""Embeds pictures in charts: matrices and grids of small images as one PNG each, without a plotting library.

A chart of 64 images of 784 pixels would be 50,000 marks; an embedded picture is one.
"""

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.on_use import Later
from assay.report.charts import without_validation

if TYPE_CHECKING:
    import altair as alt
else:
    alt = Later("altair")

BLUE, WHITE, RED = np.array([33, 102, 172]), np.array([247, 247, 247]), np.array([178, 24, 43])
"""The ends and the middle of the diverging scale."""


def png(pixels: np.ndarray) -> bytes:
    """Encode (height, width, 3) bytes as a PNG file: a signature and three chunks."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, _ = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1).astype(np.uint8)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def diverging(values: np.ndarray, limit: float) -> np.ndarray:
    """Colour values: -limit is blue, 0 white, limit red."""
    share = np.clip(values / limit if limit else np.zeros_like(values), -1, 1)[..., None]
    return np.where(share < 0, WHITE + (WHITE - BLUE) * share, WHITE + (RED - WHITE) * share).round().astype(np.uint8)


def tiled(images: np.ndarray, columns: int) -> np.ndarray:
    """Tile images (n, height, width) into one picture, each on its own scale, a white line between them."""
    n, height, width = images.shape
    rows = math.ceil(n / columns)
    sheet = np.full((rows * (height + 1) - 1, columns * (width + 1) - 1, 3), 255, np.uint8)
    for place, image in enumerate(images):
        top, left = place // columns * (height + 1), place % columns * (width + 1)
        sheet[top : top + height, left : left + width] = diverging(image, float(np.abs(image).max()))
    return sheet


def picture(pixels: np.ndarray, *, title: str = "", size: int = 180) -> "alt.Chart":
    """A picture as a chart, `size` wide, its pixels kept sharp."""
    factor = max(1, math.ceil(2 * size / pixels.shape[1]))  # renderers blur what they enlarge
    sharp = pixels.repeat(factor, axis=0).repeat(factor, axis=1)
    extent: dict[str, Any] = {"width": size, "height": round(size * pixels.shape[0] / pixels.shape[1])}
    url = "data:image/png;base64," + base64.b64encode(png(sharp)).decode()
    chart = alt.Chart(alt.InlineData(values=[{"url": url}])).mark_image(**extent, align="left", baseline="top")
    titled: dict[str, Any] = {"title": title} if title else {}
    placed = chart.encode(x=alt.value(0), y=alt.value(0), url=alt.Url(field="url", type="nominal"))
    return placed.properties(**extent, **titled)


@without_validation
def pictures(named: Sequence[tuple[str, np.ndarray]], *, columns: int = 4, size: int = 180) -> "alt.VConcatChart":
    """Titled pictures in rows."""
    charts = [picture(pixels, title=title, size=size) for title, pixels in named]
    return alt.vconcat(*(alt.hconcat(*charts[i : i + columns]) for i in range(0, len(charts), columns)))
