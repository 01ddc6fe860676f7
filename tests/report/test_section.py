import csv
import io
import json
import math

import pytest

from assay.metrics.intervals import Interval
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
    rows = section.json_rows(section.tables[0])
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
