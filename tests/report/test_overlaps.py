"""Series that lie on one another in a chart are all seen."""

from typing import Any

import pytest

from assay.report.charts import interval_lines
from assay.report.overlaps import LINE, POINT, faint, seen


def line(series: str, *ys: float | None) -> list[dict[str, Any]]:
    return [{"series": series, "x": x, "y": y, "low": None, "high": None} for x, y in enumerate(ys)]


def test_what_is_drawn_first_is_seen_around_what_lies_on_it() -> None:
    points = [*line("first", 0.5, 0.7, 0.9), *line("second", 0.5, 0.7, 0.9), *line("top", 0.5, 0.7, 0.8)]
    sizes = seen([*points, *line("apart", 0.1, 0.1, 0.2)])
    first, second, top, apart = (sizes[start : start + 3] for start in range(0, 12, 3))
    assert first[0]["thick"] > second[0]["thick"] + 1 > top[0]["thick"] + 2, "a pixel at least, half on either side"
    assert first[0]["area"] > second[0]["area"] > top[0]["area"] == POINT
    assert top[2]["area"] == second[2]["area"] == POINT < first[2]["area"], "at the end two lie on one another"
    assert all(size == {"thick": LINE, "area": POINT} for size in apart)


@pytest.mark.parametrize(
    "points",
    [
        [*line("a", 0.1, 0.2, 0.3), *line("b", 0.3, 0.25, 0.1)],
        [*line("a", None, None), *line("b", None, None)],
        [],
    ],
    ids=["apart", "without values", "nothing"],
)
def test_series_that_lie_apart_look_as_ever(points: list[dict[str, Any]]) -> None:
    assert seen(points) == []


def test_lines_that_only_cross_stay_thin() -> None:
    sizes = seen([*line("up", 0.1, 0.5, 0.9), *line("down", 0.9, 0.5, 0.1)])
    assert {size["thick"] for size in sizes} == {LINE}
    assert [size["area"] > POINT for size in sizes] == [False, True, False, False, False, False]


def test_on_a_logarithmic_axis_nearness_is_one_of_ratios() -> None:
    points = [*line("a", 1.0, 2.0, 1e4), *line("b", 2.0, 4.0, 1e4)]
    near, far = ([size["area"] > POINT for size in seen(points, log_y=log)] for log in (False, True))
    assert near[:3] == [True, True, True] and far[:3] == [False, False, True]


def test_many_on_one_another_grow_into_no_blot() -> None:
    sizes = seen([point for n in range(12) for point in line(str(n), 1.0, 1.0)])
    thick = [size["thick"] for size in sizes[::2]]
    assert thick == sorted(thick, reverse=True) and len(set(thick)) == 12 and thick[0] <= 10
    assert all(size["area"] <= 400.01 for size in sizes)


def test_lines_are_seen_through_many_bands() -> None:
    found = [faint(bands) for bands in (1, 2, 5, 10, 100)]
    assert found == sorted(found, reverse=True) and found[0] == 0.2 and found[-1] > 0.05
    assert all(1 - (1 - faint(bands)) ** bands < 0.6 for bands in range(1, 11)), "and through all of them at once"


def test_a_chart_draws_series_that_coincide_in_the_sizes_at_which_they_are_seen() -> None:
    rows = [{"s": name, "x": x, "y": 0.5, "low": 0.4, "high": 0.6} for name in "abc" for x in (1, 2)]
    spec = interval_lines(rows, x="x", y="y", series="s").to_dict()
    by_mark = {layer["mark"]["type"]: layer for layer in spec["layer"]}
    for mark in ("line", "point"):
        size, data = by_mark[mark]["encoding"]["size"], spec["datasets"][by_mark[mark]["data"]["name"]]
        drawn = [row[size["field"]] for row in data[::2]]
        assert size["scale"] is None and drawn == sorted(drawn, reverse=True) and len(set(drawn)) == 3
    alone = interval_lines(rows[:2], x="x", y="y", series="s").to_dict()
    assert not any("size" in layer["encoding"] for layer in alone["layer"])
    faded, clear = (
        next(layer["encoding"]["opacity"] for layer in each["layer"] if layer["mark"]["type"] == "area")
        for each in (interval_lines(several(8), x="x", y="y", series="s").to_dict(), alone)
    )
    assert faded["condition"]["value"] < clear["condition"]["value"]


def several(count: int) -> list[dict[str, Any]]:
    return [{"s": str(n), "x": x, "y": n, "low": n - 1, "high": n + 1} for n in range(count) for x in (1, 2)]
