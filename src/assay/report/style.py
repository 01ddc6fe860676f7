"""The house style of every chart: sizes that stay legible in a paper's column, colours for the colour-blind too."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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

HOUSE: Mapping[str, Any] = {
    "font": "Arial, Liberation Sans, Helvetica, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "gridColor": "#e6e6e6",
        "domainColor": "#999999",
        "tickColor": "#999999",
        "labelLimit": 200,
        "labelFlush": False,
    },
    "legend": {
        "orient": "bottom",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 290,
        "symbolStrokeWidth": 2,
    },
    "title": {"fontSize": 14, "fontWeight": 600, "anchor": "start", "offset": 10, "limit": 400},
    "header": {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"},
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
    """Copy a spec without what the schema does not check: inline rows are dropped, free texts emptied, and lists of
    free texts or numbers cut to one of each type; a pair stays one, since some must be pairs."""
    if isinstance(spec, list):
        if key in LISTS and all(isinstance(item, str | int | float) for item in spec):
            plain = [type(item)() for item in spec]
            return plain if len(plain) <= 2 else list(dict(zip(map(type, plain), plain, strict=True)).values())
        return [_structure(part) for part in spec]
    if not isinstance(spec, dict):
        return "" if key in TEXTS and isinstance(spec, str) else spec
    rows = spec.get("data")
    empty = {"data": {**rows, "values": []}} if isinstance(rows, dict) and "values" in rows else {}
    return {name: empty.get(name) or _structure(value, name) for name, value in spec.items() if name != "datasets"}


def notes(spec: Any) -> list[str]:
    """The remarks in a spec's parts about the data they show, once each."""
    parts = spec if isinstance(spec, list) else [spec]
    own = [part["description"] for part in parts if part.get("description", "").startswith(LEFT_OUT)]
    inner = [note for part in parts for key in PARTS if key in part for note in notes(part[key])]
    return list(dict.fromkeys([*own, *inner]))


PARTS = ("layer", "hconcat", "vconcat", "concat")


class Looks:
    """One colour and one shape per series for all charts of a section, whichever of the series a chart shows."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        """Each series' index in the palette and among the shapes."""

    def wear(self, spec: Any) -> Any:
        """Give the spec's series the section's colours and shapes; a new one takes the least used."""
        domains = [scale["domain"] for _, scale in _series_scales(spec)]
        names = dict.fromkeys(name for domain in domains for name in domain)
        for name in names:
            if name not in self.numbers:
                self.numbers[name] = self._free([self.numbers[other] for other in names if other in self.numbers])
        for channel, scale in _series_scales(spec):
            signs = PALETTE if channel == "color" else SHAPES
            scale["range"] = [signs[self.numbers[name] % len(signs)] for name in scale["domain"]]
        return spec

    def _free(self, beside: Sequence[int]) -> int:
        here, everywhere = (Counter(n % len(PALETTE) for n in found) for found in (beside, self.numbers.values()))
        alike = Counter(self.numbers.values())
        pairs = range(len(PALETTE) * len(SHAPES))
        return min(pairs, key=lambda n: (here[n % len(PALETTE)], everywhere[n % len(PALETTE)], alike[n], n))


def _series_scales(spec: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the colour and shape scales of series, in every layer and part of a spec."""
    if isinstance(spec, list):
        for part in spec:
            yield from _series_scales(part)
    if not isinstance(spec, dict):
        return
    for channel in ("color", "shape"):
        encoding = spec.get("encoding", {}).get(channel, {})
        if encoding.get("field") == SERIES and "domain" in encoding.get("scale", {}):
            yield channel, encoding["scale"]
    for key in ("layer", "hconcat", "vconcat", "concat", "spec"):
        yield from _series_scales(spec.get(key))


def vegalite_version() -> str:
    """The Vega-Lite that Altair writes for, as vl-convert names it: "6.4"."""
    return str(alt.SCHEMA_VERSION).removeprefix("v").rpartition(".")[0]
