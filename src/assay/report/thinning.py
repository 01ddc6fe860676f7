"""Thins the data of charts: one of thousands of lines shows nothing, and no browser opens its page.

Tables and CSV files have everything. A chart has a bounded number of series, of points along each and of dots, evenly
spaced in the order they come, and its caption says what was left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from assay.core.grouping import grouped
from assay.report.style import LEFT_OUT, parts_of

T = TypeVar("T")
Row = Mapping[str, Any]

SERIES = 40
POINTS = 1200
"""Points of all lines of a chart together, but at least `LEAST` of each."""
LEAST = 12
DOTS = 1500
SETTINGS = 8
"""Most settings that have charts of their own."""


def evenly(items: Sequence[T], most: int) -> list[T]:
    """Choose at most so many of the items, evenly, with the first and the last."""
    if len(items) <= most:
        return list(items)
    if most == 1:
        return [items[0]]
    return [items[round(place * (len(items) - 1) / (most - 1))] for place in range(most)]


def of_all(drawn: int, count: int) -> list[str]:
    """The caption's remark where charts of some settings are left out."""
    return [] if drawn == count else [f"({drawn} of {count:,} settings are drawn; the tables have all)"]


def thinned(lines: Sequence[Row], dots: Sequence[Row], series: str) -> tuple[list[Row], list[Row], str]:
    """Choose the rows of a chart's lines and dots to draw; also the caption's remark on the others, "" without any."""
    by_series = grouped(lines, lambda row: str(row[series]))
    names = evenly(list(by_series), SERIES)
    each = max(LEAST, POINTS // max(1, len(names)))
    kept = [row for name in names for row in evenly(by_series[name], each)]
    left = [] if len(names) == len(by_series) else [f"{len(names)} of {len(by_series):,} series"]
    if any(len(by_series[name]) > each for name in names):
        left.append(f"at most {each} points of each")
    shown = set(names)
    there = [row for row in dots if str(row[series]) in shown] if len(names) < len(by_series) else list(dots)
    some = evenly(there, DOTS)
    if len(some) < len(there):
        left.append(f"{len(some):,} of {len(there):,} dots")
    return (kept if left else list(lines)), some, f"{LEFT_OUT}{', '.join(left)}; the tables have all." if left else ""


def flat_value(spec: Mapping[str, Any]) -> float | None:
    """The one value that a chart shows everywhere, whatever its intervals; None where values differ, where there is
    only one, and for charts of others' making, whose fields are unknown."""
    shown = list(_shown(spec, spec.get("datasets", {})))
    places, values = {place for place, _ in shown}, {value for _, value in shown}
    return values.pop() if len(places) > 1 and len(values) == 1 else None


def _shown(spec: Mapping[str, Any], named: Mapping[str, Sequence[Row]]) -> Iterator[tuple[Any, float | None]]:
    """Yield where the marks of a chart are and what they show: `y` of points, bars and dots, `v` of a heatmap's cells.
    References, which have neither a series nor a cell, do not count; a row with other fields shows two values."""
    for data in (part.get("data", {}) for part in parts_of(spec)):
        for row in named.get(data["name"], ()) if "name" in data else data.get("values", ()):
            match row:
                case {"series": series, "y": y}:
                    yield (series, row.get("x"), row.get("label")), y
                case {"x": x, "y": y, "v": v}:
                    yield (x, y), v
                case {"name": _, "y": _}:
                    pass
                case _:
                    yield from ((0, None), (1, 0.0))
