"""The house style of every chart: sizes that stay legible in a paper's column, colours for the colour-blind too."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from assay.core.on_use import Later

alt: Any = Later("altair")
SERIES = "series"
"""The field of a chart's data that decides colour and shape."""
LEFT_OUT = "Drawn: "
"""The beginning of a description that says which data a chart shows; captions repeat it."""

# Okabe and Ito (2008), without the yellow and black that vanish on white and on dark paper.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
# Five shapes against seven colours: the pairs repeat only after 35 series, and colour is never the only sign.
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross")
MUTED = "#808080"  # readable on white and on the page's dark background

# 1,048,576 is 1.05M, 0.0001 is 1e-4, and 0.30000000000000004 is 0.3.
TICK = (
    "abs(datum.value) >= 1e6 ? format(datum.value, '.3~s') : datum.value !== 0 && abs(datum.value) < 1e-3 ? "
    "format(datum.value, '.2~e') : format(datum.value, ',.6~g')"
)

LETTERS = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
HOUSE: Mapping[str, Any] = {
    "font": "Arial, Liberation Sans, Helvetica, sans-serif",
    "view": {"stroke": None},
    "axis": {
        **LETTERS,
        "titlePadding": 8,
        "gridColor": "#e6e6e6",
        "domainColor": "#999999",
        "tickColor": "#999999",
        "labelLimit": 200,
        "labelFlush": False,
        "labelSeparation": 5,
    },
    "axisQuantitative": {"labelExpr": TICK},
    "legend": {"orient": "bottom", **LETTERS, "labelLimit": 290, "symbolStrokeWidth": 2},
    "title": {"fontSize": 14, "fontWeight": 600, "anchor": "start", "offset": 10, "limit": 400},
    "header": LETTERS,
    "range": {"category": list(PALETTE)},
}


UNDRAWABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def house_spec(chart: Any) -> dict[str, Any]:
    """Return the Vega-Lite spec of an Altair chart, in the house style unless the chart overrides it. Its structure,
    without rows, titles and names, is validated once for all charts that share it."""
    spec: dict[str, Any] = chart.to_dict(validate=False)
    kind: Any = type(chart)
    _validate(kind, json.dumps(_structure(spec)))
    own = spec.get("config", {})
    merged = {
        key: {**HOUSE[key], **own[key]}
        if isinstance(own.get(key), dict) and isinstance(HOUSE.get(key), dict)
        else value
        for key, value in {**HOUSE, **own}.items()
    }
    return _drawable({**spec, "config": merged})


def _drawable(value: Any) -> Any:
    """Remove characters that XML cannot hold: the renderer aborts the whole process at one, and names come from users'
    files."""
    if isinstance(value, str):
        return UNDRAWABLE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {_drawable(key): _drawable(item) for key, item in value.items()}
    return [_drawable(item) for item in value] if isinstance(value, list | tuple) else value


@lru_cache(maxsize=256)
def _validate(kind: Any, structure: str) -> None:
    """Raise unless the structure is a chart of this kind; a valid structure is not checked again."""
    kind.validate(json.loads(structure))


TEXTS = ("title", "description", "name", "param")
LISTS = ("domain", "range", "sort", "values", "views")


def _structure(spec: Any, key: str = "") -> Any:
    """Copy a spec without what the schema does not check: inline rows are dropped, free texts emptied, fractions of a
    mark, such as its opacity, made one, and lists of free texts or numbers cut to one of each type; a pair stays one,
    since some must be pairs."""
    if isinstance(spec, list):
        if key in LISTS and all(isinstance(item, str | int | float) for item in spec):
            plain = [type(item)() for item in spec]
            return plain if len(plain) <= 2 else list(dict(zip(map(type, plain), plain, strict=True)).values())
        return [_structure(part) for part in spec]
    if not isinstance(spec, dict):
        if key == "value" and isinstance(spec, float):
            return 0.0
        return "" if key in TEXTS and isinstance(spec, str) else spec
    rows = spec.get("data")
    empty = {"data": {**rows, "values": []}} if isinstance(rows, dict) and "values" in rows else {}
    return {name: empty.get(name) or _structure(value, name) for name, value in spec.items() if name != "datasets"}


PARTS = ("layer", "hconcat", "vconcat", "concat")


def parts_of(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a spec, and every layer and part of it."""
    yield spec
    inner = [part for key in PARTS for part in spec.get(key, ())]
    for part in [*inner, spec["spec"]] if "spec" in spec else inner:
        yield from parts_of(part)


def notes(spec: Mapping[str, Any]) -> list[str]:
    """The remarks in a spec's parts about the data they show, once each."""
    said = [part.get("description", "") for part in parts_of(spec)]
    return list(dict.fromkeys(text for text in said if text.startswith(LEFT_OUT)))


class Looks:
    """One colour and one shape per series for all charts that share it, whichever of the series a chart shows.

    A plug-in keeps its colour and shape from study to study: "gru", "GRU" and "gru noise=0.1" look alike, unless one
    chart shows several of them."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        """Each series' index in the palette and among the shapes."""
        self._plugins: dict[str, int] = {}
        self._beside: dict[str, set[str]] = {}
        """The series that stand in one chart with a series."""

    def learn(self, specs: Iterable[Any]) -> None:
        """Give every series of the specs a colour and a shape; one that has them keeps them."""
        found = dict.fromkeys(name for spec in specs for name in self._together(spec))
        new = [name for name in found if name not in self.numbers]
        for plugin in dict.fromkeys(map(plugin_of, new)):
            others = {plugin_of(name) for own in found if plugin_of(own) == plugin for name in self._beside[own]}
            taken = [self._plugins[other] for other in others - {plugin} if other in self._plugins]
            self._plugins.setdefault(plugin, _free(taken, self._plugins.values()))
        for name in new:
            taken = [self.numbers[other] for other in self._beside[name] if other in self.numbers]
            own = self._plugins[plugin_of(name)]
            self.numbers[name] = own if own not in taken else _free(taken, self.numbers.values())

    def wear(self, spec: Any) -> Any:
        """Return the spec with the colours and shapes of its series; new ones are learnt."""
        self.learn([spec])
        return self._dressed(spec)

    def _together(self, spec: Any) -> list[str]:
        """Return the series that stand in one chart, and note that they do."""
        parts = [(part, channel) for part in parts_of(spec) for channel in SIGNS]
        names = list(dict.fromkeys(name for part in parts for name in _domain(*part)))
        for name in names:
            self._beside.setdefault(name, set()).update(other for other in names if other != name)
        return names

    def _dressed(self, spec: Any) -> Any:
        if isinstance(spec, list):
            return [self._dressed(part) for part in spec]
        if not isinstance(spec, dict):
            return spec
        made = {**spec, **{key: self._dressed(spec[key]) for key in (*PARTS, "spec") if key in spec}}
        for channel, signs in SIGNS.items():
            if domain := _domain(spec, channel):
                own = made["encoding"][channel]
                scale = {**own["scale"], "range": [signs[self.numbers[name] % len(signs)] for name in domain]}
                made["encoding"] = {**made["encoding"], channel: {**own, "scale": scale}}
        return made


SIGNS: Mapping[str, Sequence[str]] = {"color": PALETTE, "shape": SHAPES}


def plugin_of(series: str) -> str:
    """The plug-in that a series is named after: its first word, in small letters, without options."""
    return re.split(r"[\s:(,]", series.strip(" ("), maxsplit=1)[0].lower()


def _free(beside: Sequence[int], everywhere: Iterable[int]) -> int:
    """The number whose colour is least used beside a series, then least used at all."""
    used = Counter(everywhere)
    colours = Counter(n % len(PALETTE) for n in used.elements())
    near = Counter(n % len(PALETTE) for n in beside)
    pairs = range(len(PALETTE) * len(SHAPES))
    return min(pairs, key=lambda n: (near[n % len(PALETTE)], colours[n % len(PALETTE)], used[n], n))


def _domain(spec: Mapping[str, Any], channel: str) -> list[str]:
    """The series on a part's own colour or shape scale."""
    encoding = spec.get("encoding", {}).get(channel, {})
    return encoding.get("scale", {}).get("domain", []) if encoding.get("field") == SERIES else []


def vegalite_version() -> str:
    """The Vega-Lite that Altair writes for, as vl-convert names it: "6.4"."""
    return str(alt.SCHEMA_VERSION).removeprefix("v").rpartition(".")[0]
