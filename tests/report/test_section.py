import csv
import io
import json
import math
from typing import Any

import pytest

from assay.metrics.intervals import Interval
from assay.report.charts import interval_lines
from assay.report.section import Section, Table


def table(rows) -> Table:
    section = Section("toy")
    section.table("scores", rows)
    return section.tables[0]


def test_a_ceiling_is_a_key_but_not_a_column():
    scores = table([{"Model": "gru", "R2": 0.5, "R2_ceiling": 1.0, "lone_ceiling": 2.0}])
    assert scores.columns == ("Model", "R2", "lone_ceiling")
    assert scores.keys == ("Model", "R2", "R2_ceiling", "lone_ceiling")


def test_json_rows_spell_intervals_out_and_never_hold_nan():
    section = Section("toy")
    section.table("scores", [{"a": Interval(0.5, 0.4, 0.6, 5), "b": math.nan, "c": Interval(math.inf, None, None, 1)}])
    rows = section.tables[0].json_rows()
    assert rows == [
        {
            "a": {"mean": 0.5, "low": 0.4, "high": 0.6, "n": 5},
            "b": None,
            "c": {"mean": None, "low": None, "high": None, "n": 1},
        }
    ]
    json.dumps(rows, allow_nan=False)


def test_csv_gives_an_interval_four_columns_in_every_row():
    text = table([{"Model": 'a,"b"', "R2": Interval(0.5, 0.4, 0.6, 5)}, {"Model": "c", "R2": math.nan}]).csv()
    first, second = csv.DictReader(io.StringIO(text))
    assert first == {"Model": 'a,"b"', "R2": "0.5", "R2_low": "0.4", "R2_high": "0.6", "R2_n": "5"}
    assert second == {"Model": "c", "R2": "", "R2_low": "", "R2_high": "", "R2_n": ""}


def test_rows_with_different_keys_are_refused_by_name():
    with pytest.raises(ValueError, match=r"'scores'.*: R2"):
        table([{"Model": "a", "R2": 1.0}, {"Model": "b"}])


def test_a_value_no_table_can_show_is_refused():
    with pytest.raises(TypeError, match="column 'R2': a list"):
        table([{"R2": [1, 2]}])


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden"])
def test_names_that_are_no_file_names_are_refused(name):
    with pytest.raises(ValueError, match="names a file"):
        Section("toy").table(name, [])


def test_a_second_table_of_one_name_would_overwrite_the_first():
    section = Section("toy")
    section.table("scores", [])
    with pytest.raises(ValueError, match="overwritten"):
        section.table("scores", [])


def test_a_chart_takes_the_house_style_and_keeps_its_own_settings():
    import altair as alt

    section = Section("toy")
    chart = alt.Chart(alt.InlineData(values=[{"a": 1}])).mark_point().configure_axis(labelFontSize=20)
    section.chart("points", chart)
    config = section.charts[0].spec["config"]
    assert config["axis"]["labelFontSize"] == 20
    assert config["axis"]["titleFontSize"] == 12
    assert config["legend"]["orient"] == "bottom"


def looks(spec: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Series -> its colour and shape in the first layer that has both."""
    encoding = next(layer["encoding"] for layer in spec["layer"] if "shape" in layer["encoding"])
    colour, shape = encoding["color"]["scale"], encoding["shape"]["scale"]
    assert colour["domain"] == shape["domain"]
    return dict(zip(colour["domain"], zip(colour["range"], shape["range"], strict=True), strict=True))


def lines(*names: str) -> Any:
    rows = [{"model": name, "k": k, "R2": 0.5} for name in names for k in (1, 2)]
    return interval_lines(rows, x="k", y="R2", series="model")


def test_a_series_looks_alike_in_every_chart_of_a_section_and_no_two_of_a_chart_do():
    section = Section("toy")
    section.chart("one", lines("a", "b", "c"))
    section.chart("two", lines("c", "d"))
    section.chart("both", lines("e", "b") | lines("d", "f"))
    one, two = (looks(section.charts[i].spec) for i in (0, 1))
    left, right = (looks(part) for part in section.charts[2].spec["hconcat"])
    assert two["c"] == one["c"] and left["b"] == one["b"] and right["d"] == two["d"]
    every = one | two | left | right
    assert len({colour for colour, _ in every.values()}) == len(every) == 6


def test_more_series_than_colours_differ_in_their_shapes_and_a_chart_uses_each_colour_before_any_twice():
    section = Section("toy")
    names = [f"m{i}" for i in range(35)]
    section.chart("all", lines(*names))
    assert len(set(looks(section.charts[0].spec).values())) == 35
    section.chart("mixed", lines("m0", *(f"n{i}" for i in range(6))))
    assert len({colour for colour, _ in looks(section.charts[1].spec).values()}) == 7


def test_charts_about_a_setting_name_it():
    import altair as alt

    section, chart = Section("toy"), alt.Chart(alt.InlineData(values=[{"x": 1}])).mark_point()
    for n, setting in enumerate(("P=7", "P=11", "")):
        with section.about(setting):
            section.chart(f"a{n}", chart, caption="By width.")
    section.chart("b", chart, caption="All.")
    assert [c.caption for c in section.charts] == ["P=7: By width.", "P=11: By width.", "By width.", "All."]


@pytest.mark.parametrize("text", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", " =1", "\uff1d1", "-a"])
def test_text_that_a_spreadsheet_would_run_is_marked_as_text(text):
    rows = list(csv.reader(io.StringIO(table([{text: text, "R2": -0.5}]).csv())))
    assert rows == [[f"'{text}", "R2"], [f"'{text}", "-0.5"]]


def test_numbers_and_dashes_in_csv_stay_as_they_are():
    cells = ["-0.5", "+1e3", "-", "a=b", "", "-.5E-3"]
    rows = list(csv.reader(io.StringIO(table([{"x": cell, "y": -1e-9} for cell in cells]).csv())))
    assert rows[1:] == [[cell, "-1e-09"] for cell in cells]
