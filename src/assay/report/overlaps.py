"""Series that lie on one another in a chart: what is drawn first is drawn larger, so that it is seen around what is
drawn over it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from assay.core.grouping import grouped

LINE, THICK = 2.0, 10.0
"""How thick a line is, and the most where others lie on it, in pixels."""
POINT, LARGE = 46.0, 400.0
"""The area of a point, and the most where others lie on it, in square pixels."""
CELLS = 200
"""Values in the same of so many parts of the range count as drawn at one place."""
LEAST_SEEN, FAINT, ALL_BANDS = 0.08, 0.2, 0.5
"""The least and the most opacity of a band, and what all of them may have where they lie on one another."""


def seen(points: Sequence[Mapping[str, Any]], *, log_y: bool = False) -> list[dict[str, float]]:
    """Return for each point how thick the line of its series has to be and how large itself, for all to be seen; the
    later a series comes, the higher it lies. Empty where nothing lies on anything else."""
    places = _places(points, log_y=log_y)
    lines, dots = _lines_over(points, places), _points_over(places)
    if not any(lines.values()) and not any(dots):
        return []
    thicker = min(2.0, (THICK - LINE) / max(1, *lines.values()))
    wider = min(0.45, (math.sqrt(LARGE / POINT) - 1) / max(1, *dots))
    return [
        {"thick": LINE + thicker * lines[point["series"]], "area": POINT * (1 + wider * over) ** 2}
        for point, over in zip(points, dots, strict=True)
    ]


def faint(bands: int) -> float:
    """Return an opacity at which lines are seen through so many bands."""
    return min(FAINT, max(LEAST_SEEN, 1 - (1 - ALL_BANDS) ** (1 / max(1, bands))))


Place = tuple[Any, int] | None


def _places(points: Sequence[Mapping[str, Any]], *, log_y: bool) -> list[Place]:
    """Return where each point is drawn, as near as an eye can tell; None for one that is not drawn."""
    heights = [_height(point["y"], log_y=log_y) for point in points]
    ends = [point[key] for point in points for key in ("y", "low", "high")]
    drawn = [height for end in ends if (height := _height(end, log_y=log_y)) is not None]
    size = (max(drawn) - min(drawn) or 1.0) / CELLS if drawn else 1.0
    return [
        None if height is None else (point["x"], round(height / size))
        for point, height in zip(points, heights, strict=True)
    ]


def _height(value: float | None, *, log_y: bool) -> float | None:
    if value is None or not log_y:
        return value
    return math.log(value) if value > 0 else None


def _lines_over(points: Sequence[Mapping[str, Any]], places: Sequence[Place]) -> dict[str, int]:
    """Count for each series those that are drawn over a stretch of its line, one over the other."""
    own = grouped(zip(points, places, strict=True), lambda pair: pair[0]["series"])
    over: dict[str, int] = {}
    highest: dict[tuple[Place, Place], int] = {}
    for series in reversed(own):
        line = [place for _, place in sorted(own[series], key=lambda pair: pair[0]["x"])]
        stretches = [(one, two) for one, two in pairwise(line) if one and two]
        over[series] = max((highest.get(stretch, -1) + 1 for stretch in stretches), default=0)
        highest |= dict.fromkeys(stretches, over[series])
    return over


def _points_over(places: Iterable[Place]) -> list[int]:
    """Count for each point those that are drawn over it."""
    counts: dict[Place, int] = {}
    found: list[int] = []
    for place in reversed(list(places)):
        found.append(counts.get(place, 0) if place else 0)
        counts[place] = counts.get(place, 0) + 1
    return found[::-1]
