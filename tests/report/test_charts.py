import warnings
from typing import Any

import altair as alt
import pytest
from altair.utils.schemapi import debug_mode
from jsonschema import ValidationError

from assay.metrics.intervals import Interval
from assay.report import style
from assay.report.charts import interval_bars, interval_lines
from assay.report.style import MUTED, PALETTE, house_spec


def rows(*names: str, xs=(1, 10, 100)) -> list[dict[str, Any]]:
    return [{"model": name, "n": x, "R2_0.75": Interval(0.5, 0.4, 0.6, 3)} for name in names for x in xs]


def marks(chart: Any) -> list[str]:
    return [layer["mark"]["type"] for layer in chart.to_dict()["layer"]]


def values(chart: Any, mark: str) -> list[dict[str, Any]]:
    """The data of the first layer with this mark."""
    spec = chart.to_dict()
    layer = next(layer for layer in spec["layer"] if layer["mark"]["type"] == mark)
    data = layer.get("data", spec.get("data"))
    return spec["datasets"][data["name"]] if "name" in data else data["values"]


def test_lines_have_bands_points_every_seed_as_a_dot_and_named_references():
    dots = [row | {"R2_0.75": 0.45 + seed / 10, "seed": seed} for row in rows("a", "b") for seed in range(3)]
    chart = interval_lines(rows("a", "b"), x="n", y="R2_0.75", series="model", dots=dots, references={"ceiling": 1.0})
    assert marks(chart) == ["area", "line", "circle", "point", "rule", "text"]
    assert len(values(chart, "circle")) == len(dots)
    assert values(chart, "area")[0] == {
        "y": 0.5, "low": 0.4, "high": 0.6, "n": 3, "interval": "0.4 to 0.6", "x": 1, "series": "a",
    }  # fmt: skip


def test_bounds_may_stand_in_the_row_and_a_number_without_them_has_no_band():
    bare = [{"x": x, "y": 1.0, "s": "a"} for x in (1, 2)]
    assert marks(interval_lines(bare, x="x", y="y", series="s")) == ["line", "point"]
    bounded = [row | {"low": 0.5, "high": 2.0} for row in bare]
    assert marks(interval_lines(bounded, x="x", y="y", series="s")) == ["area", "line", "point"]


def test_a_single_x_is_drawn_with_bars_since_a_band_would_have_no_width():
    assert marks(interval_lines(rows("a", xs=(1,)), x="n", y="R2_0.75", series="model"))[0] == "rule"


def test_a_series_with_a_single_x_beside_longer_ones_has_its_interval_too():
    chart = interval_lines([*rows("a"), *rows("b", xs=(1,))], x="n", y="R2_0.75", series="model")
    assert marks(chart)[:2] == ["area", "rule"]
    assert {row["series"] for row in values(chart, "area")} == {"a"}
    assert [row["series"] for row in values(chart, "rule")] == ["b"]


@pytest.mark.parametrize(
    ("means", "ticks"),
    [
        ((40.0, 55.0, 250.0), [50, 100, 200]),
        ((41.0, 42.0, 44.0), [40, 41, 42, 43, 44, 45]),
        ((848.0, 1869.0), [1000, 1500]),
        ((3.0, 900.0), [10, 100]),
    ],
)
def test_a_logarithmic_y_axis_has_few_round_ticks(means, ticks):
    points = [{"model": "a", "n": x, "y": Interval(mean, mean - 1, mean + 1, 20)} for x, mean in enumerate(means)]
    encoding = interval_lines(points, x="n", y="y", series="model", log_y=True).to_dict()["layer"][0]["encoding"]["y"]
    assert encoding["scale"]["type"] == "log" and encoding["axis"].get("values") == ticks


def test_ticks_stand_at_what_was_measured_or_at_round_numbers_on_demand():
    measured, even = (
        interval_lines(rows("a", xs=(968, 3690)), x="n", y="R2_0.75", series="model", log_x=True, round_x=of).to_dict()
        for of in (False, True)
    )
    found = [spec["layer"][0]["encoding"]["x"]["axis"]["values"] for spec in (measured, even)]
    assert found == [[968, 3690], [1000, 2000]]


def test_a_guide_is_a_grey_line_that_is_no_series():
    guides = {"(front)": [(1, 0.4), (100, 0.2)]}
    spec = interval_lines(rows("a"), x="n", y="R2_0.75", series="model", guides=guides).to_dict()
    (guide,) = (layer for layer in spec["layer"] if "(front)" in str(spec["datasets"][layer["data"]["name"]]))
    assert guide["mark"]["type"] == "line" and guide["mark"]["color"] == MUTED and "color" not in guide["encoding"]
    assert spec["layer"].index(guide) < max(n for n, mark in enumerate(spec["layer"]) if mark["mark"]["type"] == "line")
    domains = [layer["encoding"].get("color", {}).get("scale", {}).get("domain") for layer in spec["layer"]]
    assert all(domain in (None, ["a"]) for domain in domains)


@pytest.mark.parametrize(("log_x", "kind"), [(True, "log"), (False, None)])
def test_the_x_axis_is_logarithmic_on_demand(log_x, kind):
    chart = interval_lines(rows("a"), x="n", y="R2_0.75", series="model", log_x=log_x)
    assert chart.to_dict()["layer"][0]["encoding"]["x"]["scale"].get("type") == kind


def test_series_keep_their_order_and_no_two_of_35_look_alike():
    names = [f"m{i:02}" for i in reversed(range(35))]
    chart = interval_lines(rows(*names), x="n", y="R2_0.75", series="model").to_dict()
    encoding = next(layer["encoding"] for layer in chart["layer"] if "shape" in layer["encoding"])
    colour, shape = encoding["color"]["scale"], encoding["shape"]["scale"]
    assert colour["domain"] == shape["domain"] == names
    assert colour["range"][: len(PALETTE)] == list(PALETTE)
    assert len(set(zip(colour["range"], shape["range"], strict=True))) == 35


def test_bars_show_interval_and_seeds_and_group_by_series():
    single = interval_bars(rows("a", "b", xs=(1,)), label="model", value="R2_0.75", references={"ceiling": 1.0})
    assert marks(single) == ["bar", "rule", "rule", "text"]
    grouped = interval_bars(rows("a", "b"), label="model", value="R2_0.75", series="n")
    assert grouped.to_dict()["layer"][0]["encoding"]["yOffset"]["field"] == "series"


def test_nan_never_reaches_a_spec():
    chart = interval_lines([{"x": 1, "y": float("nan"), "s": "a"}], x="x", y="y", series="s")
    assert values(chart, "point")[0]["y"] is None


def test_charts_can_be_put_side_by_side_and_nobody_is_warned():
    """Altair warns where it merges selections that are alike; a study's report would print it."""
    panels = [interval_bars(rows("a", xs=(1,)), label="model", value="R2_0.75", value_title=what) for what in "xy"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spec = house_spec(alt.hconcat(*panels))
    assert spec["config"]["range"]["category"] == list(PALETTE)
    assert len({param["name"] for param in spec["params"]}) == 2


@pytest.mark.parametrize(
    ("xs", "ticks"),
    [
        ((1, 10, 100), [1, 10, 100]),  # few: where something was measured
        (tuple(2**n for n in range(15)), None),  # powers of two
        (tuple(range(1, 33)), [1, 2, 5, 10, 20]),
        (tuple(range(1, 5000, 100)), [1, 10, 100, 1000]),
    ],
)
def test_a_logarithmic_axis_has_round_ticks(xs, ticks):
    chart = interval_lines(rows("a", xs=xs), x="n", y="R2_0.75", series="model", log_x=True).to_dict()
    found = chart["layer"][0]["encoding"]["x"]["axis"]["values"]
    assert found == ticks if ticks else len(found) <= 10 and set(found) <= set(xs)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.1 + 0.2, "0.3"), (2**20, "1.05M"), (1e-4, "1e-4"), (4096, "4,096"), (0, "0"), (12.5, "12.5")],
)
def test_ticks_are_readable(value, shown):
    """As drawn by Vega: no 0.30000000000000004, no 0.0000000000001."""
    import vl_convert

    points = [{"x": value, "y": 1.0, "s": "a"}]
    svg = vl_convert.vegalite_to_svg(house_spec(interval_lines(points, x="x", y="y", series="s")))
    assert f">{shown}</text>" in svg.replace("\N{MINUS SIGN}", "-")


def test_charts_of_one_structure_are_validated_once_and_others_as_before(monkeypatch):
    """A page has a hundred charts of a few structures; to validate one takes a tenth of a second."""
    asked = []
    validate = alt.LayerChart.validate
    monkeypatch.setattr(alt.LayerChart, "validate", lambda spec: asked.append(spec) or validate(spec))
    style._validate.cache_clear()
    for names in (("a", "b", "c"), ("a", "c", "d", "e"), tuple("abcdefgh")):
        chart = interval_lines(rows(*names), x="n", y="R2_0.75", series="model", title=f"of {names}")
        house_spec(chart)
        house_spec(interval_lines(rows(*names), x="n", y="R2_0.75", series="model", title="other", x_title="n"))
    assert len(asked) == 1, "series, titles and rows are no structure"
    house_spec(interval_lines(rows("a"), x="n", y="R2_0.75", series="model", title="logarithmic", log_x=True))
    assert len(asked) == 2
    wrong = chart.copy()
    wrong.width = "wide"
    for _ in range(2):  # what is wrong is not kept
        with pytest.raises(ValidationError):
            house_spec(wrong)


def test_what_a_schema_counts_is_still_counted():
    chart = alt.Chart(alt.InlineData(values=[{"x": 1}])).mark_point().encode(x="x:Q")
    house_spec(chart.transform_filter({"field": "x", "range": [1, 5]}))  # a pair, and no other number of them
    with debug_mode(False):
        several = chart.transform_filter({"field": "x", "range": [1, 5, 7]})
    with pytest.raises(ValidationError):
        house_spec(several)


def test_a_chart_is_layered_once(monkeypatch):
    """Altair copies every layer, with all that it may have, each time a layered chart is made or changed."""
    made = []
    whole = alt.LayerChart.__init__
    monkeypatch.setattr(alt.LayerChart, "__init__", lambda *args, **options: made.append(1) or whole(*args, **options))
    chart = interval_lines(rows("a", "b"), x="n", y="R2_0.75", series="model", title="t")
    assert len(made) == 1
    assert {param["name"] for param in chart.to_dict()["params"]} and chart.to_dict()["title"] == "t"
