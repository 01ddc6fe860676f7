"""What is drawn is bounded, whatever the store holds; what is written in numbers is not."""

import json
from pathlib import Path

import pytest

from assay.metrics.intervals import student_t
from assay.report import views
from assay.report.charts import interval_bars, interval_lines
from assay.report.page import build_page, long_tables
from assay.report.section import Section
from assay.report.thinning import DOTS, LEAST, POINTS, SERIES, evenly, flat_value, thinned


def curves(series: int, points: int) -> list[dict[str, object]]:
    return [{"series": f"s{n}", "x": x, "y": x / points} for n in range(series) for x in range(points)]


def test_evenly_keeps_the_ends_and_what_is_short() -> None:
    assert evenly([1, 2, 3], 3) == [1, 2, 3] and evenly([1, 2, 3], 1) == [1]
    assert evenly(range(101), 5) == [0, 25, 50, 75, 100]


def test_what_is_below_every_bound_is_drawn_as_it_comes() -> None:
    rows, dots = curves(3, 20)[::-1], curves(3, 20)
    assert thinned(rows, dots, "series") == (rows, dots, "")


def test_thousands_of_series_points_and_dots_are_thinned_and_the_caption_says_so() -> None:
    lines, dots, note = thinned(curves(500, 100), curves(500, 100), "series")
    assert len({row["series"] for row in lines}) == SERIES and len(dots) == DOTS
    assert len(lines) <= max(POINTS, SERIES * LEAST)
    section = Section("toy")
    section.chart("c", interval_lines(curves(500, 100), x="x", y="y", series="series"), caption="Many.")
    assert section.charts[0].caption.startswith("Many. Drawn: 40 of 500 series, at most 30 points of each;")
    assert len(json.dumps(section.charts[0].spec)) < 600_000
    assert f"{SERIES} of 500 series" in note and f"{DOTS:,} of 4,000 dots" in note


def test_bars_are_bounded_too() -> None:
    section = Section("toy")
    section.chart("c", interval_bars(curves(90, 1), label="series", value="y"))
    assert "Drawn: 40 of 90 series" in section.charts[0].caption


def test_an_interval_that_is_not_drawn_is_not_computed() -> None:
    asked = []

    def interval(n: int) -> object:
        asked.append(n)
        return student_t([float(n), n + 1.0])

    rows = [{"s": f"{n}", "x": 1, "y": lambda n=n: interval(n)} for n in range(200)]
    interval_lines(rows, x="x", y="y", series="s")
    assert len(asked) == SERIES


def test_a_chart_of_another_s_making_is_still_validated() -> None:
    import altair as alt

    chart = alt.Chart(alt.InlineData(values=[{"x": 1}])).mark_point()
    chart.encoding = {"x": {"field": "x", "type": "no such type"}}
    with pytest.raises(Exception, match="no such type"):
        Section("toy").chart("c", chart)


def test_a_long_table_is_cut_on_the_page_and_whole_in_its_file() -> None:
    section = Section("toy")
    section.table("long", [{"n": n} for n in range(1000)])
    section.table("short", [{"n": n} for n in range(3)])
    sections = [("toy", "How many?", section)]
    files = dict(long_tables(sections))
    assert list(files) == ["report/toy/long.csv"] and files["report/toy/long.csv"].count("\n") == 1001
    html = build_page(sections, [])
    assert 'href="report/toy/long.csv"' in html and "The first 200 of 1000 rows; long.csv has all." in html
    assert html.count("data-sort=") == views.ROWS + 3


def test_charts_beyond_what_a_page_can_hold_are_counted_and_not_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = Section("toy")
    for n in range(3):
        section.chart(f"c{n}", interval_lines(curves(2, 5), x="x", y="y", series="series"))
    assert "more chart" not in build_page([("toy", "?", section)], [])
    size = len(views.json_block(section.charts[0].spec))
    monkeypatch.setattr(views, "CHART_BYTES", 2 * size + 10)
    html = build_page([("toy", "?", section)], [])
    assert "1 more chart would make this page too large" in html and html.count("<figure") == 2


def test_of_many_tables_the_first_are_on_the_page_and_the_files_of_all_are_named() -> None:
    section = Section("toy")
    for place in range(views.TABLES + 3):
        section.table(f"t{place}", [{"x": place}])
    text = build_page([("toy", "Why?", section)], [])
    assert text.count('<div class="block">') == views.TABLES and "3 more tables would make this page too" in text
    assert [path for path, _ in long_tables([("toy", "Why?", section)])] == [
        f"report/toy/t{place}.csv" for place in range(views.TABLES, views.TABLES + 3)
    ]


def bars(*values: float) -> list[dict[str, object]]:
    return [{"name": f"m{n}", "y": student_t([float(value)] * 2)} for n, value in enumerate(values)]


def test_a_chart_of_zeros_is_named_and_not_drawn() -> None:
    section = Section("toy")
    zeros = [{"series": "a", "x": x, "y": 0.0, "low": 0.0, "high": 0.4} for x in range(4)]
    for name, rows in (("zeros", zeros), ("lines", curves(2, 5))):
        section.chart(name, interval_lines(rows, x="x", y="y", series="series", references={"all": 1.0}))
    section.chart("ones", interval_bars(bars(1, 1, 1), label="name", value="y"))
    html = build_page([("toy", "?", section)], [])
    assert html.count("<figure") == 1 and "every value is the same: zeros (0), ones (1)." in " ".join(html.split())


def test_only_charts_whose_values_are_known_to_be_equal_are_flat() -> None:
    import altair as alt

    def spec(chart: object) -> dict[str, object]:
        section = Section("toy")
        section.chart("c", chart)
        return section.charts[0].spec

    def flat(*values: float) -> object:
        return interval_bars(bars(*values), label="name", value="y")

    assert flat_value(spec(flat(0, 0))) == 0 and flat_value(spec(flat(0, 0.1))) is None
    assert flat_value(spec(flat(3))) is None, "one value may be what the chart is for"
    assert flat_value(spec(flat(0, 0) | interval_bars(bars(0, 1), label="name", value="y", title="b"))) is None
    foreign = alt.Chart(alt.InlineData(values=[{"u": 0}, {"u": 0}])).mark_point().encode(x="u:Q")
    assert flat_value(spec(foreign)) is None
