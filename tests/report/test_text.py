import math

import pytest

from assay.metrics.intervals import Interval
from assay.report.section import Table
from assay.report.text import render


def table(*rows, formats=None, note="") -> Table:
    return Table("scores", rows, formats or {}, note)


def cell(value, **more) -> str:
    """The text of a table's only cell."""
    return render(table({"R2": value, **more})).splitlines()[2]


def test_the_table_has_the_look_of_the_spec():
    rows = [
        {"Model": "SelfAttn", "k-params": 12.44, "R2": Interval(0.671, 0.651, 0.691, 5), "R2_ceiling": 1.0},
        {"Model": "Noise", "k-params": None, "R2": Interval(0.0, None, None, 1), "R2_ceiling": 1.0},
    ]
    assert render(table(*rows, formats={"k-params": ".1f"}, note="Five seeds.")).splitlines() == [
        "Model         k-params      R2",
        "--------------------------------------------",
        "SelfAttn      12.4          0.67 ±0.02 /1.00",
        "Noise         -             0.00 /1.00",
        "",
        "Five seeds.",
    ]


def test_columns_are_at_least_twelve_wide_and_as_wide_as_their_longest_cell():
    lines = render(table({"a": "x" * 20, "b": 1}, {"a": "y", "b": 2})).splitlines()
    assert [line.index(mark) for line, mark in zip(lines[2:], "12", strict=True)] == [22, 22]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.666, "0.67"),
        (3, "3"),
        (True, "yes"),
        ("gru", "gru"),
        (None, "-"),
        (math.nan, "-"),
        (Interval(0.67, 0.65, 0.69, 5), "0.67 ±0.02"),
        (Interval(0.67, 0.60, 0.71, 5), "0.67 [0.60, 0.71]"),
        (Interval(0.67, None, None, 1), "0.67"),
        (Interval(math.nan, None, None, 1), "-"),
    ],
)
def test_values_as_text(value, text):
    assert cell(value) == text


def test_a_ceiling_takes_the_format_of_its_score_and_is_left_out_where_either_is_missing():
    row = {"sv": Interval(1.5e-3, 1e-3, 2e-3, 5), "sv_ceiling": 0.01}
    assert render(table(row, formats={"sv": ".2e"})).splitlines()[2] == "1.50e-03 ±5.00e-04 /1.00e-02"
    assert cell(0.5, R2_ceiling=None) == "0.50"
    assert cell(None, R2_ceiling=1.0) == "-"


def test_letters_stand_beside_the_score():
    assert cell(Interval(0.67, 0.65, 0.69, 5), R2_ceiling=1.0, R2_group="ab") == "0.67 ±0.02 /1.00 ab"
    assert cell(None, R2_group="ab") == "-"


def test_a_number_below_every_rounding_error_is_not_spelled_out():
    tiny = table(
        {"sv": Interval(5.31e-69, -1.8e-68, 2.8e-68, 3), "error": 2.2e-16}, formats={"sv": ".2e", "error": ".1e"}
    )
    assert render(tiny).splitlines()[2].split() == ["<1e-20", "2.2e-16"]


def test_without_whole_only_leading_columns_are_shown_and_none_that_is_empty():
    rows = {"Model": "gru", "R2": 0.5, "NCE": None, "Gini": 0.9}
    led = Table("scores", (rows,), {}, "All of it.", ("Model", "R2", "NCE"), "The lead.")
    assert led.lead == ("Model", "R2") and led.columns == ("Model", "R2", "Gini")
    assert render(led, whole=False).split() == ["Model", "R2", "-" * 26, "gru", "0.50", "The", "lead."]
    assert render(led).splitlines()[0].split() == ["Model", "R2", "NCE", "Gini"] and render(led).endswith("All of it.")


def test_a_name_cannot_steer_the_terminal():
    assert "\x1b" not in render(table({"Model": "\x1b[31mred\nline"}))
    assert len(render(table({"Model": "two\nlines"})).splitlines()) == 3


def test_a_table_without_rows_says_so():
    assert render(table(note="Why.")) == "(no rows)\n\nWhy."


def test_a_narrow_terminal_gets_blocks_of_columns_each_under_the_names() -> None:
    rows = ({"Model": "gru", **{f"score{i}": i / 10 for i in range(6)}},)
    table = Table("t", rows)
    text = render(table, 60)
    assert max(map(len, text.splitlines())) <= 60 and text.count("Model") == 1, "set closer before they are split"
    text = render(table, 40)
    assert max(map(len, text.splitlines())) <= 40
    assert text.count("Model") == 2 and all(f"score{i}" in text for i in range(6))
    assert render(table, 10_000) == render(table)
    assert render(table, 1).count("Model") == 6


def test_where_one_column_does_not_tell_rows_apart_blocks_repeat_those_that_do() -> None:
    rows = [{"L0": x, "coder": name, "FVU": 0.5, "probe": 0.9, "dead": 0} for x in (4, 8) for name in ("topk", "gated")]

    def heads(width: int) -> list[list[str]]:
        return [line.split() for line in render(table(*rows), width).splitlines() if line.startswith("L0")]

    assert heads(27) == [["L0", "coder", "FVU", "probe"], ["L0", "coder", "dead"]]
    assert heads(17) == [["L0", "coder", "FVU"], ["L0", "probe", "dead"]], "names leave half the width to numbers"
