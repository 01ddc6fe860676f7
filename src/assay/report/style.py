"""How every assay chart looks, whoever drew it: sizes that stay legible in a paper's column, colours all can tell."""

from collections.abc import Mapping
from typing import Any

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


def house_spec(chart: Any) -> dict[str, Any]:
    """The Vega-Lite spec of an Altair chart, in the house style where the chart does not say otherwise."""
    spec: dict[str, Any] = chart.to_dict()
    own = spec.get("config", {})
    merged = {
        key: {**HOUSE[key], **own[key]}
        if isinstance(own.get(key), dict) and isinstance(HOUSE.get(key), dict)
        else value
        for key, value in {**HOUSE, **own}.items()
    }
    return {**spec, "config": merged}


def vegalite_version() -> str:
    """The Vega-Lite that Altair writes for, as vl-convert names it: "6.4"."""
    import altair as alt

    return str(alt.SCHEMA_VERSION).removeprefix("v").rpartition(".")[0]
