"""Compares a coder's units between seeds, from its saved weights, and draws them as images."""

from collections.abc import Sequence
from itertools import combinations
from statistics import fmean

import numpy as np

from assay.core.study import Report
from assay.metrics import sparsity
from assay.report.images import pictures, tiled
from assay.report.rows import Row
from assay.studies.sae.fitting import WEIGHTS, weights

MATCHED = 1024
"""Most units that are matched: the time grows with their cube."""
PAIRED = 10
"""Most seeds that are compared, each with each."""
IMAGES = ("digits", "mnist")
MOST_GRIDS, SHOWN_UNITS = 6, 64


def stability(row: Row) -> float | None:
    """Averages the matched |cosine| of two seeds' units over pairs of the first seeds. There is no interval, since
    pairs share seeds."""
    kept = [record for record in row.finished if WEIGHTS in record.artifacts]
    some = kept[: 2 if int(row.options["d_code"]) > MATCHED else PAIRED]
    directions = [weights(record)["directions"].float() for record in some]
    found = [sparsity.stability(one, other, most=MATCHED) for one, other in combinations(directions, 2)]
    return fmean(found) if found else None


def features(found: Sequence[Row], out: Report, name: str) -> None:
    """Draws each curve's units where the data are images: those of its middle level and first seed."""
    grids: list[tuple[str, np.ndarray]] = []
    for curve in dict.fromkeys(row.label for row in found):
        levels = [row for row in found if row.label == curve and row.finished]
        levels = [row for row in levels if WEIGHTS in row.finished[0].artifacts]
        if levels and len(grids) < MOST_GRIDS:
            row = levels[len(levels) // 2]
            directions = weights(row.finished[0])["directions"].float().numpy()[:SHOWN_UNITS]
            side = round(directions.shape[1] ** 0.5)
            if side * side == directions.shape[1] and row.options["data"]["name"] in IMAGES:
                grids.append((row.names["coder"], tiled(directions.reshape(-1, side, side), 8)))
    if grids:
        caption = "What units stand for: rows of the decoder, or of the encoder where there is none; each on its scale."
        out.chart(name, pictures(grids, columns=3, size=200), caption=caption)
