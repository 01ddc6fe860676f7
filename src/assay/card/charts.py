"""Charts of a card show one mixer in colour and the field in grey behind it, with names beside the marks, so that
a page on paper says as much as one on a screen."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from assay.card.places import GAP, LED, LINE, SIDES, Box, Side, dot, led, length_of, places
from assay.core.on_use import Later
from assay.metrics.intervals import Interval
from assay.report.charts import BARS, LINES, STEP, without_validation
from assay.report.style import MUTED, PALETTE
from assay.report.thinning import evenly

if TYPE_CHECKING:
    import altair as alt
else:
    alt = Later("altair")

Row = Mapping[str, Any]
MINE = PALETTE[1]
ROOM, MOST_ROOM = 0.3, 0.7
"""The share of a plot to the right of the last point, for names, and the most of it where one is long."""
TICKS = 8
LEAST = -0.25
"""Where the profile ends on the left: a score further below the floor is drawn there."""


def number(whole: Interval, form: str) -> str:
    """A score with its interval, as a tooltip shows it: `0.67 [0.65, 0.69]`."""
    bounds = "" if whole.low is None else f" [{whole.low:{form}}, {whole.high:{form}}]"
    return f"{whole.mean:{form}}{bounds}"


def sentence(told: str) -> str:
    """A verdict as a page shows it, with a capital and a period."""
    return f"{told[0].upper()}{told[1:].removesuffix('.')}."


@without_validation
def profile(rows: Sequence[Row], *, title: str) -> "alt.LayerChart":
    """Draw a line per question: a stroke for each mixer of the field, a diamond with its interval for this one, and the
    floor at 0. Rows have question, series, mine, and from LEAST to 1 x, low, high."""
    order = list(dict.fromkeys(row["question"] for row in rows))
    axis = {"grid": True, "ticks": False, "labelPadding": 8}
    place: dict[str, Any] = {
        "y": alt.Y(field="question", type="nominal", sort=order, title=None, axis=axis),
    }
    # Half a diamond beyond either end: nothing is drawn over the names of the questions.
    scale = {"domain": [LEAST, 1], "nice": False, "padding": 10}
    ticks = {"values": [LEAST, 0, 0.25, 0.5, 0.75, 1]}
    across = alt.X(field="x", type="quantitative", title=title, scale=scale, axis=ticks)
    mine, field = ([row for row in rows if row["mine"] is whose] for whose in (True, False))
    drawn = [
        _chart(field).mark_tick(thickness=2, size=26, color=MUTED, opacity=0.6),
        _chart(mine).mark_point(filled=True, shape="diamond", size=190, color=MINE, opacity=1),
    ]
    layers = [each.encode(**place, x=across, tooltip=_told("series")) for each in drawn]
    bounded = [row for row in mine if row["low"] is not None]
    low = alt.X(field="low", type="quantitative")
    layers.insert(1, _chart(bounded).mark_rule(strokeWidth=4, color=MINE, opacity=0.35).encode(
        **place, x=low, x2=alt.X2("high")
    ))  # fmt: skip
    return _layered([*_reference("floor", 0.0, along="x"), *layers], width=LINES[0], height=LINES[1])


@without_validation
def standings(
    rows: Sequence[Row], seeds: Sequence[Row], *, title: str, references: Row, log: bool = False
) -> "alt.LayerChart":
    """Draw a dot per mixer with its interval, and its seeds as small dots: filled where it is told apart from this one,
    hollow where not. Rows have label, colour, apart, y, low, high."""
    order = [row["label"] for row in rows]
    place: dict[str, Any] = {
        "y": alt.Y(field="label", type="nominal", sort=order, title=None, axis={"grid": True}),
        "color": alt.Color(field="colour", type="nominal", scale=None),
    }
    kind: dict[str, Any] = {"type": "log"} if log else {"zero": False}
    axis = {"labelOverlap": "greedy", "tickCount": 5}
    across = alt.X(field="y", type="quantitative", title=title, scale=kind, axis=axis)
    bounds = {
        "x": alt.X(field="low", type="quantitative", title=title, scale=kind, axis=axis),
        "x2": alt.X2("high"),
    }
    apart, level = ([row for row in rows if row["apart"] is told] for told in (True, False))
    marks = [
        _chart(apart).mark_point(size=70, filled=True, opacity=1),
        _chart(level).mark_point(size=70, fill="white", strokeWidth=2, opacity=1),
    ]
    layers = [
        _chart(rows).mark_rule(strokeWidth=2.5, opacity=0.45).encode(**place, **bounds),
        _chart(seeds).mark_circle(size=14, opacity=0.8, yOffset=7).encode(**place, x=across),
        *(each.encode(**place, x=across, tooltip=_told("label")) for each in marks),
    ]
    layers += [mark for name, value in references.items() for mark in _reference(name, value, along="x")]
    return _layered(layers, width=BARS, height=alt.Step(STEP))


@without_validation
def beside(
    points: Sequence[Row],
    *,
    x_title: str,
    y_title: str,
    log_x: bool = False,
    references: Mapping[str, float] | None = None,
    seeds: Sequence[Row] = (),
    named: Collection[str] | None = None,
) -> "alt.LayerChart":
    """Draw a line per mixer, or a point where it has one x, with its name at the end, or only the names in `named`.
    Points have series, mine, x, y, and perhaps low and high; `seeds` are those of this mixer alone."""
    every, shown = [*points, *seeds], [point for point in points if named is None or point["series"] in named]
    alone = len({point["series"] for point in points}) == len(points)
    # The name of a lone point may stand left of it, which would crowd the names of many.
    right = max((point["x"] for point in shown), default=0.0) if alone else -math.inf
    longest = GAP + LED + max((length_of(point["series"]) for point in shown if point["x"] >= right), default=0.0)
    scale = _Plane(every, log_x=log_x, beside=references or {}, longest=longest)
    axis = {"labelOverlap": "greedy", "values": scale.ticks(points)}
    across = alt.X(field="x", type="quantitative", title=x_title, axis=axis, scale=scale.across)
    upward: dict[str, Any] = {"type": "quantitative", "title": y_title, "scale": scale.upward}
    layers = [mark for name, value in (references or {}).items() for mark in _reference(name, value, along="y")]
    labels = scale.around(shown, points) if alone else scale.labels(shown)
    for whose, colour, width, opacity in ((False, MUTED, 1.5, 0.6), (True, MINE, 3, 1.0)):
        own = [point for point in points if point["mine"] is whose]
        place: dict[str, Any] = {"x": across, "detail": alt.Detail(field="series", type="nominal")}
        bounded = [point for point in own if point.get("low") is not None]
        rules = _chart(bounded).mark_rule(strokeWidth=2.5, color=colour, opacity=0.35)
        layers.append(rules.encode(**place, y=alt.Y(field="low", **upward), y2=alt.Y2("high")))
        lines = _chart(own).mark_line(strokeWidth=width, color=colour, opacity=opacity)
        layers.append(lines.encode(**place, y=alt.Y(field="y", **upward)))
        dots = _chart(own).mark_point(filled=True, size=30 if whose else 22, color=colour, opacity=opacity)
        layers.append(dots.encode(**place, y=alt.Y(field="y", **upward), tooltip=_told("series", x=x_title)))
        if whose:
            single = _chart(seeds).mark_circle(size=12, color=colour, opacity=0.55)
            layers.append(single.encode(x=across, y=alt.Y(field="y", **upward)))
        own_labels = [label for label in labels if label["mine"] is whose]
        layers += _names(own_labels, across, upward, colour, weight=600 if whose else "normal")
    return _layered(layers, width=LINES[0], height=LINES[1])


def _names(
    labels: Sequence[Row], across: "alt.X", upward: Mapping[str, Any], colour: str, *, weight: int | str
) -> Iterator["alt.Chart"]:
    """Draw names beside their points, and a line to each that stands further off."""
    for side, far in product(SIDES, (False, True)):
        own = [label for label in labels if label["align"] == side and label["far"] is far]
        way = 1 if side == "left" else -1
        # In shares of the width, as places are: a page may draw the plot wider.
        start, shift = (alt.ExprRef(f"{way * (part + LED * far):g} * width") for part in (GAP / 2, GAP))
        if far:
            leader = _chart(own).mark_rule(strokeWidth=0.8, color=colour, x2Offset=start)
            ends: dict[str, Any] = {"x2": alt.X2("x"), "y": alt.Y(field="at", **upward), "y2": alt.Y2("y")}
            yield leader.encode(x=across, **ends)
        style: dict[str, Any] = {"align": side, "baseline": "middle", "fontSize": 11, "fontWeight": weight}
        words = _chart(own).mark_text(dx=shift, color=colour, **style)
        yield words.encode(x=across, y=alt.Y(field="y", **upward), text=alt.Text(field="series", type="nominal"))


class _Plane:
    """The plot's two scales, with room for names on the right, and where the names stand."""

    def __init__(
        self, points: Sequence[Row], *, log_x: bool, beside: Mapping[str, float], longest: float = 0.0
    ) -> None:
        self.log, self.lines = log_x, beside
        across = [self._x(point["x"]) for point in points]
        self.left, right = min(across), max(across)
        self.width = (right - self.left or 1.0) / (1 - min(MOST_ROOM, max(ROOM, longest)))
        ends = [value for point in points for key in ("y", "low", "high") if (value := point.get(key)) is not None]
        low, high = min([*ends, *beside.values()]), max([*ends, *beside.values()])
        margin = 0.06 * (high - low or 1.0)
        self.bottom, self.height = low - margin, high - low + 2 * margin

    def _x(self, value: float) -> float:
        return math.log10(value) if self.log else value

    @property
    def across(self) -> dict[str, Any]:
        start, end = self.left - 0.03 * self.width, self.left + self.width
        kind: dict[str, Any] = {"type": "log"} if self.log else {}
        return {"domain": [10**start, 10**end] if self.log else [start, end], "nice": False, **kind}

    @property
    def upward(self) -> dict[str, Any]:
        return {"domain": [self.bottom, self.bottom + self.height], "nice": False, "zero": False}

    def labels(self, points: Sequence[Row]) -> list[dict[str, Any]]:
        """Return a name at each series' last point, moved down where it would stand on another or on a line."""
        last: dict[str, Row] = {}
        for point in points:
            if point["series"] not in last or point["x"] >= last[point["series"]]["x"]:
                last[point["series"]] = point
        placed: list[tuple[float, float, Row]] = []
        for point in sorted(last.values(), key=lambda one: -one["y"]):
            x, y = self._share(point["x"], point["y"])
            placed.append((x, self._free(x, y, point, placed, -1), point))
        lifted: list[tuple[float, float, Row]] = []  # what fell below the axis is pushed up again
        for x, y, point in reversed(placed):
            lifted.append((x, self._free(x, max(LINE / 2, y), point, lifted, 1), point))
        return [self._label(point, y, "left", far=led(y - self._height(point["y"]))) for _, y, point in lifted]

    def around(self, named: Sequence[Row], points: Sequence[Row]) -> list[dict[str, Any]]:
        """Return a name beside each lone point of `named`, that of this mixer first."""
        thin = []
        for point in points:
            if point.get("low") is not None:
                (x, low), (_, high) = (self._share(point["x"], point[end]) for end in ("low", "high"))
                thin.append(Box(x, low, x, high))
        heights = {name: self._height(value) for name, value in self.lines.items()}
        kept = [Box(-1, y, 2, y) for y in heights.values()]
        kept += [Box(1 - length_of(name), y, 1, y + LINE) for name, y in heights.items()]
        dots = [dot(*self._share(point["x"], point["y"])) for point in points]
        first = sorted(named, key=lambda one: (not one["mine"], -one["y"]))
        names = [(point["series"], *self._share(point["x"], point["y"])) for point in first]
        found = zip(first, places(names, dots, thin, kept), strict=True)
        return [self._label(point, each.y, each.align, far=each.far) for point, each in found]

    def _label(self, point: Row, y: float, align: Side, *, far: bool) -> dict[str, Any]:
        """Return a point's name, whose y is where it stands; the point is `at` its own."""
        return {**point, "y": self.bottom + y * self.height, "align": align, "at": point["y"], "far": far}

    def _height(self, y: float) -> float:
        return (y - self.bottom) / self.height

    def _share(self, x: float, y: float) -> tuple[float, float]:
        return (self._x(x) - self.left) / self.width, self._height(y)

    def _free(self, x: float, y: float, point: Row, placed: Sequence[tuple[float, float, Row]], way: int) -> float:
        """Return the next height, up or down, at which a name stands on no line and none of those placed before."""
        end = x + GAP + LED + length_of(point["series"])
        taken = [(self._height(value), LINE / 2) for value in self.lines.values()]
        for name, value in self.lines.items():
            if end > 1 - length_of(name):
                taken.append((self._height(value) + LINE / 2, LINE))
        for start, height, other in placed:
            if start <= end and x <= start + length_of(other["series"]):
                taken.append((height, LINE))
        for height, reach in sorted(taken, reverse=way < 0):  # in the order in which they are met
            if abs(y - height) < 0.999 * reach:
                y = height + way * reach
        return y

    def ticks(self, points: Sequence[Row]) -> list[float]:
        """Return some of the measured x, or powers of four where they are many and far apart."""
        found = sorted({point["x"] for point in points})
        if self.log and len(found) > TICKS:
            return [value for n in range(40) if found[0] <= (value := 4.0**n) <= found[-1]]
        return evenly(found, TICKS)


def _reference(name: str, value: float, *, along: str) -> list["alt.Chart"]:
    place = {along: (alt.Y if along == "y" else alt.X)(field="y", type="quantitative")}
    # On the right there is room for names, and no point.
    edge = {"x": alt.value("width")} if along == "y" else {"y": alt.value(0)}
    chart = _chart([{"y": value, "name": name}])
    words = chart.mark_text(
        align="right" if along == "y" else "center", baseline="bottom", dy=-3, fontSize=11, color=MUTED
    )
    return [
        chart.mark_rule(strokeDash=[5, 4], strokeWidth=1.2, color=MUTED).encode(**place),
        words.encode(**place, **edge, text=alt.Text(field="name", type="nominal")),
    ]


def _told(name: str, *, x: str = "") -> list["alt.Tooltip"]:
    where = [alt.Tooltip(field="x", type="quantitative", title=x)] if x else []
    score = alt.Tooltip(field="score", type="nominal", title="score")
    return [alt.Tooltip(field=name, type="nominal", title="name"), *where, score]


def _chart(values: Sequence[Row]) -> "alt.Chart":
    return alt.Chart(alt.InlineData(values=tuple(values)))


def _layered(layers: Sequence["alt.Chart"], **size: Any) -> "alt.LayerChart":
    """Layer charts without the empty ones, of whose infinite extent Vega warns."""
    return alt.LayerChart(layer=[each for each in layers if each.data["values"]], **size)
