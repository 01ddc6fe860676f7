"""The charts studies need, from plain rows: lines with interval bands, bars with intervals, and heatmaps.

Every seed is a dot, thinned where there are thousands (report.thinning). Colour always comes with a shape or a label.
On the page: hover for the numbers and the run, click a mark or a legend entry to single out a series, shift and wheel
to zoom (the bare wheel scrolls the page), drag to move, double click to reset.

    interval_lines(rows, x="k", y="R2", series="model", dots=seeds, references={"ceiling": 1.0}, title="...")

A row's `y` is an `Interval` (or a function that gives it, called if the row is drawn), or a number whose bounds, if
any, are under the keys `low` and `high`. Rows are copied to fixed field names, since Vega gives a meaning to the dots
and brackets of a name such as `R2_0.75`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any
from zlib import crc32

from assay.core.grouping import grouped
from assay.core.on_use import Later
from assay.core.run import finite
from assay.metrics.intervals import Interval
from assay.report.style import MUTED, PALETTE, SERIES, SHAPES
from assay.report.thinning import evenly, thinned

if TYPE_CHECKING:
    import altair as alt
else:
    alt = Later("altair")

Row = Mapping[str, Any]
Points = Iterable[tuple[float, float]]
LINES = (320, 200)
BARS, STEP, GROUP_STEP = 260, 24, 16
TICKS = 10
HEAT = 260
LINE, POINT = 2.0, 46.0
"""How thick a line is, and the area of a point."""


def without_validation(draw: Callable[..., Any]) -> Any:
    """Decorate a function that draws: its parts are not validated one by one, as `house_spec` validates the whole."""

    @wraps(draw)
    def quickly(*args: Any, **options: Any) -> Any:
        from altair.utils.schemapi import debug_mode

        with debug_mode(False):
            return draw(*args, **options)

    return quickly


@without_validation
def interval_lines(
    rows: Iterable[Row],
    *,
    x: str,
    y: str,
    series: str,
    dots: Iterable[Row] = (),
    references: Mapping[str, float] | None = None,
    title: str = "",
    x_title: str = "",
    y_title: str = "",
    log_x: bool = False,
    log_y: bool = False,
    round_x: bool = False,
    stepped: bool = False,
    guides: Mapping[str, Points] | None = None,
) -> "alt.LayerChart":
    """Draw a line per series with its interval as a band; `dots` are rows with the same x, y and series, one per seed.
    A stepped line keeps its value until the next point. Ticks stand
    where something was measured, or with `round_x` at round numbers. `guides` are grey lines, such as a front, which
    are no series and stand in no legend."""
    drawn, single_rows, left_out = thinned(list(rows), list(dots), series)
    points = [_point(row, y) | {"x": row[x], "series": str(row[series])} for row in drawn]
    single = [_seed(row, y) | {"x": row[x], "series": str(row[series])} for row in single_rows]
    names = list(dict.fromkeys(point["series"] for point in points))  # the order of the rows decides their colours
    titles = {"x": x_title or x, "y": y_title or y}
    pick = _pick(legend=True)
    zoom = alt.selection_interval(bind="scales", zoom="wheel![event.shiftKey]")
    kind: dict[str, Any] = {"type": "log"} if log_x else {"zero": False}
    ticks = _rounded(point["x"] for point in points) if round_x else _measured(points, log=log_x)
    across = alt.X(field="x", type="quantitative", title=titles["x"], scale=_roomy(**kind), axis=ticks)
    upward_scale = (
        {"scale": _roomy(type="log"), "axis": _rounded(_ends(points))} if log_y else {"scale": _roomy(zero=False)}
    )
    vertical: dict[str, Any] = {"type": "quantitative", "title": titles["y"], **upward_scale}
    upward = alt.Y(field="y", **vertical)
    colour, shape = _sign(alt.Color, PALETTE, names), _sign(alt.Shape, SHAPES, names)
    bright = _picked(pick, 1, 0.12)
    base = alt.Chart(_data(points)).encode(x=across, color=colour)
    steps: dict[str, Any] = {"interpolate": "step-after"} if stepped else {}
    banded: dict[str, Any] = {"y": alt.Y(field="low", **vertical), "y2": alt.Y2("high"), "color": colour}
    seeds = alt.Chart(_data(single)).mark_circle(size=14)
    of_one, of_all = _tooltip(single, **titles), _tooltip(points, **titles)
    layers = [
        *(band.encode(x=across, opacity=_picked(pick, deep, 0.04), **banded) for band, deep in _bands(points, **steps)),
        *_guides(guides or {}, across, upward),
        base.mark_line(strokeWidth=LINE, **steps).encode(y=upward, opacity=bright),
        seeds.encode(x=across, y=upward, color=colour, opacity=_picked(pick, 0.55, 0.05), tooltip=of_one),
        base.mark_point(filled=True, size=POINT).encode(y=upward, shape=shape, opacity=bright, tooltip=of_all),
        *_references(references or {}, points, along="y"),
    ]
    return _layered(layers, pick, zoom, width=LINES[0], height=LINES[1], **_texts(title, left_out))


@without_validation
def interval_bars(
    rows: Iterable[Row],
    *,
    label: str,
    value: str,
    series: str = "",
    dots: Iterable[Row] = (),
    references: Mapping[str, float] | None = None,
    title: str = "",
    value_title: str = "",
) -> "alt.LayerChart":
    """Draw a horizontal bar per label, so that long names stay readable; with `series`, a group of bars per label.

    The interval is the line in the upper half of a bar, the seeds are the dots in the lower."""
    group = series or label
    drawn, single_rows, left_out = thinned(list(rows), list(dots), label)
    points = [_point(row, value) | {"label": str(row[label]), "series": str(row[group])} for row in drawn]
    single = [_seed(row, value) | {"label": str(row[label]), "series": str(row[group])} for row in single_rows]
    names = list(dict.fromkeys(point["series"] for point in points))
    padded = {"paddingInner": 0.25 if series else 0.2}
    upright = alt.Y(field="label", type="nominal", sort=None, title=None, scale=padded)
    titles = {"y": value_title or value}
    across = alt.X(field="y", type="quantitative", title=titles["y"])
    place: dict[str, Any] = {"y": upright, "color": _sign(alt.Color, PALETTE, names, legend=bool(series))}
    if series:
        place["yOffset"] = alt.YOffset(field="series", type="nominal", sort=names)
    bounds = [point for point in points if point["low"] is not None]
    # Named, since panels of bars stand side by side and each has its own.
    pick = _pick(legend=bool(series), name=f"pick_{crc32(repr((title, titles['y'], names)).encode()):x}")
    base = alt.Chart(_data(points)).encode(**place)
    low, high = alt.X(field="low", type="quantitative"), alt.X2("high")
    rule = alt.Chart(_data(bounds)).mark_rule(strokeWidth=2.5, yOffset=-4)
    seeds = alt.Chart(_data(single)).mark_circle(size=16, yOffset=4)
    layers = [
        base.mark_bar().encode(x=across, opacity=_picked(pick, 0.4, 0.1), tooltip=_tooltip(points, **titles)),
        rule.encode(**place, x=low, x2=high, opacity=_picked(pick, 1, 0.1)),
        seeds.encode(**place, x=across, opacity=_picked(pick, 0.85, 0.1), tooltip=_tooltip(single, **titles)),
        *_references(references or {}, points, along="x"),
    ]
    step = alt.Step(GROUP_STEP, **{"for": "offset"}) if series else alt.Step(STEP)
    return _layered(layers, pick, width=BARS, height=step, **_texts(title, left_out))


@without_validation
def heatmap(
    rows: Sequence[Row],
    *,
    x: str,
    y: str,
    value: str,
    x_title: str = "",
    y_title: str = "",
    title: str = "",
    domain: tuple[float, float] | None = None,
    x_order: Sequence[Any] | None = None,
    y_order: Sequence[Any] | None = None,
) -> "alt.Chart":
    """Draw a coloured cell per row; both axes in the order in which their values come, unless one is given."""
    cells = [{"x": row[x], "y": row[y], "v": _short(row[value])} for row in rows]
    across, down = (
        list(order) if order is not None else list(dict.fromkeys(cell[key] for cell in cells))
        for key, order in (("x", x_order), ("y", y_order))
    )
    scale = ({"domain": list(domain)} if domain else {}) | {"scheme": "magma"}
    # A legend beside the plot: below it, the colours would be squeezed.
    legend = {"gradientLength": 160, "orient": "right", "title": None}
    chart = alt.Chart(_data(cells)).mark_rect()
    encoded = chart.encode(
        x=alt.X(field="x", type="ordinal", sort=across, title=x_title or x, axis=_sparse(across)),
        y=alt.Y(field="y", type="ordinal", sort=down, title=y_title or y, axis=_sparse(down)),
        color=alt.Color(field="v", type="quantitative", scale=scale, legend=legend),
        tooltip=[_nominal("x", x_title or x), _nominal("y", y_title or y), _nominal("v", value)],
    )
    return encoded.properties(width=HEAT, height=HEAT, **_texts(title))


def _short(value: Any) -> float | None:
    """Round to four digits: a page may hold tens of thousands of cells."""
    number = finite(value)[0]
    return None if number is None else float(f"{number:.4g}")


def _sparse(values: Sequence[Any]) -> dict[str, Any]:
    """Label at most a dozen values, evenly spaced."""
    step = max(1, -(-len(values) // 12))
    return {"labelAngle": 0, "labelFlush": False, "values": list(values[::step])}


def _point(row: Row, key: str) -> dict[str, Any]:
    """The mean and its bounds under fixed names, and the bounds as a word for the tooltip. A value that is a function
    is called only here, so that intervals of rows that are not drawn cost nothing."""
    value = row[key]() if callable(row[key]) else row[key]
    if isinstance(value, Interval):
        point = {"y": value.mean, "low": value.low, "high": value.high, "n": value.n}
    else:
        point = {"y": value, "low": row.get("low"), "high": row.get("high"), "n": row.get("n")}
    point = finite(point)[0]
    if point["low"] is None or point["high"] is None:
        return point | {"low": None, "high": None, "interval": "-"}
    return point | {"interval": f"{point['low']:.3g} to {point['high']:.3g}"}


def _seed(row: Row, key: str) -> dict[str, Any]:
    run = {"run": row["run"]} if row.get("run") else {}
    return {"y": finite(row[key])[0], "seed": row.get("seed")} | run


def _layered(layers: Sequence["alt.Chart"], *params: "alt.Parameter", **properties: Any) -> "alt.LayerChart":
    """Layer charts without the empty ones, of whose infinite extent Vega warns. All properties are set at once: Altair
    copies every layer several times whenever one is changed."""
    shown = [layer for layer in layers if layer.data["values"]]
    if params and shown:
        shown[0] = shown[0].add_params(*params)
    return alt.LayerChart(layer=shown, **properties)


def _pick(*, legend: bool, name: str | None = None) -> "alt.Parameter":
    """The series that a click on a mark, or on an entry of the legend, singles out; a click beside them, all again."""
    bound: dict[str, Any] = {"bind": "legend"} if legend else {}
    return alt.selection_point(name=name, fields=["series"], on="click", **bound)


def _picked(pick: "alt.Parameter", chosen: float, other: float) -> "alt.OpacityValue":
    """The opacity of the series picked in the legend, and of the others; faster than `alt.condition`, a dict."""
    return alt.OpacityValue(other, condition={"param": pick.name, "value": chosen})


def _data(values: Sequence[Row]) -> "alt.InlineData":
    # A tuple: Altair copies lists, row by row, each time a chart is changed or put on top of another. Axes, scales and
    # legends are plain dictionaries for the same reason: a copy of an alt.Axis visits 80 options that are not set.
    return alt.InlineData(values=tuple(values))


def _texts(title: str, note: str = "") -> dict[str, str]:
    """The texts of a chart that has them: Altair would write empty ones too."""
    return {key: text for key, text in (("title", title), ("description", note)) if text}


def _sign(channel: Any, signs: Sequence[str], names: Sequence[str], *, legend: bool = True) -> Any:
    """The colours or the shapes of the series."""
    scale = {"domain": list(names), "range": list(islice(cycle(signs), len(names)))}
    return channel(field=SERIES, type="nominal", scale=scale, legend=_legend(names) if legend else None)


def _legend(names: Sequence[str]) -> dict[str, Any]:
    """A legend of as many columns as fit under the plot, at about 7 pixels a letter and 30 for the symbol."""
    widest = max((len(name) for name in names), default=1) * 7 + 30
    return {"columns": max(1, min(4, LINES[0] // widest)), "symbolOpacity": 1, "title": None}


def _bands(points: Sequence[Row], **options: Any) -> list[tuple["alt.Chart", float]]:
    """Draw the intervals of a series as a band, or as a bar where it has only one x, at which a band has no width; each
    with its opacity, the less the more bands there are."""
    bounded = [point for point in points if point["low"] is not None]
    own = grouped(bounded, lambda point: point["series"])
    places = {series: {point["x"] for point in some} for series, some in own.items()}
    wide, alone = ([p for p in bounded if (len(places[p["series"]]) > 1) == several] for several in (True, False))
    return [
        (alt.Chart(_data(wide)).mark_area(line=False, **options), _faint(len({point["series"] for point in wide}))),
        (alt.Chart(_data(alone)).mark_rule(strokeWidth=6), _faint(1)),
    ]


def _faint(bands: int) -> float:
    """Return an opacity at which lines are seen through so many bands."""
    return min(0.2, max(0.08, 1 - 0.5 ** (1 / max(1, bands))))


def _roomy(**kind: Any) -> dict[str, Any]:
    """A scale that ends a little beyond the data: what lies on the edge of a chart that zooms would be cut in half."""
    return {"nice": False, "padding": 8, **kind}


def _measured(points: Sequence[Row], *, log: bool) -> dict[str, Any]:
    """Put ticks at the measured x, unless there are too many; then, on a logarithmic axis, at round numbers."""
    values = sorted({point["x"] for point in points})
    if len(values) > TICKS and not log:
        return {"labelOverlap": "greedy"}
    ticks = values if len(values) <= TICKS else _round_numbers(values)
    return {"labelOverlap": "greedy", "values": ticks}


def _ends(points: Sequence[Row]) -> Iterator[float]:
    """Yield every value and bound."""
    yield from (value for point in points for key in ("low", "y", "high") if (value := point.get(key)) is not None)


def _rounded(values: Iterable[float]) -> dict[str, Any]:
    """Put ticks of a logarithmic axis at the round numbers between the values, close ones as on a linear axis; Vega's
    own where all values are one."""
    found = sorted(value for value in values if value > 0)
    tried = (ticks(found) for ticks in (_round_numbers, _evenly_round) if found)
    return {"labelOverlap": "greedy", **next(({"values": even} for even in tried if len(even) > 1), {})}


def _evenly_round(values: Sequence[float]) -> list[float]:
    """Return multiples of 1, 2 or 5 times a power of ten, six at most."""
    low, high = values[0], values[-1]
    if low == high:
        return []
    power = 10.0 ** math.floor(math.log10((high - low) / 5))
    step = next(many * power for many in (1, 2, 5, 10) if many * power >= (high - low) / 5 * (1 - 1e-9))
    ticks = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return [float(f"{tick * step:.12g}") for tick in ticks]


def _guides(guides: Mapping[str, Points], across: "alt.X", upward: "alt.Y") -> Iterator["alt.Chart"]:
    """Draw each as a grey line, wider than those that lie on it, with its name as its tooltip."""
    for name, line in guides.items():
        rows = [{"x": x, "y": y, SERIES: name} for x, y in line]
        drawn = alt.Chart(_data(rows)).mark_line(strokeWidth=1.5 * LINE, color=MUTED, opacity=0.6)
        yield drawn.encode(x=across, y=upward, tooltip=[_nominal(SERIES, "line")])


def _round_numbers(values: Sequence[float]) -> list[float]:
    """Between the least and the greatest: powers of two, if all values are; otherwise 1, 10, 100, or 1, 2, 5, 10 over
    less than two decades. Vega labels as many ticks as it finds room for: 1, 2, 3, ... 9, 10, 20."""
    low, high = max(values[0], values[-1] * 1e-12), values[-1]
    if all(value > 0 and math.log2(value).is_integer() for value in values):
        return evenly(values, TICKS)
    steps = (1, 2, 5) if high / low < 100 else (1,)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade <= high]


def _references(references: Mapping[str, float], points: Sequence[Row], *, along: str) -> list["alt.Chart"]:
    """Draw a dashed line per reference (the ceiling, the floor), with its name on the side where the data is."""
    field = alt.Y if along == "y" else alt.X
    place = {along: field(field="y", type="quantitative")}
    edge = {"x": alt.value("width")} if along == "y" else {"y": alt.value(0)}
    values = [point["y"] for point in points if point["y"] is not None]
    middle = (min(values) + max(values)) / 2 if values else 0.0
    layers = []
    for name, value in references.items():
        chart, high = alt.Chart(_data([{"y": value, "name": name}])), value > middle
        beside: dict[str, Any] = {"align": "right", "baseline": "top" if high else "bottom", "dy": 4 if high else -3}
        above: dict[str, Any] = {"align": "right" if high else "left", "baseline": "bottom", "dy": -3}
        text = chart.mark_text(fontSize=11, color=MUTED, **(beside if along == "y" else above))
        layers += [
            chart.mark_rule(strokeDash=[5, 4], strokeWidth=1.5, color=MUTED).encode(**place),
            text.encode(**place, **edge, text=alt.Text(field="name", type="nominal")),
        ]
    return layers


def _tooltip(marks: Sequence[Row], *, y: str, x: str = "") -> list["alt.Tooltip"]:
    """What stands beside a mark: where it is, by the titles of its axes, its value, and its interval or its seed."""
    where = [_nominal("series", "series"), _nominal("x", x)] if x else [_nominal("label", "row")]
    held = {"interval": "95 % interval", "n": "n", "seed": "seed", "run": "run"}
    more = [_nominal(field, title) for field, title in held.items() if any(field in mark for mark in marks)]
    return [*where, alt.Tooltip(field="y", type="quantitative", title=y, format=".3g"), *more]


def _nominal(field: str, title: str) -> "alt.Tooltip":
    return alt.Tooltip(field=field, type="nominal", title=title)
