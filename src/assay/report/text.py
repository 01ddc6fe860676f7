"""A table as plain text, in the look of the expressivity spec: padded columns, a rule, nothing a pipe would mind.

Model         k-params      R2
----------------------------------------
SelfAttn      12.4          0.67 ±0.02 /1.00
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from assay.metrics.intervals import Interval
from assay.report.section import CEILING, Table, Value

MISSING = "-"
WIDTH, GAP = 12, "  "


class Shown(NamedTuple):
    """The parts of one cell; the page sets them apart, the terminal in a row."""

    value: str
    spread: str = ""
    ceiling: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in self if part)


def render(table: Table) -> str:
    """The whole table, its note below; no line ends in spaces."""
    if not table.rows:
        body = "(no rows)"
    else:
        lines = [[printable(column) for column in table.columns]]
        lines += [[str(shown(table, row, column)) for column in table.columns] for row in table.rows]
        widths = [max(WIDTH, *map(len, column)) for column in zip(*lines, strict=True)]
        lines.insert(1, ["-" * (sum(widths) + len(GAP) * (len(widths) - 1))])
        body = "\n".join(GAP.join(map(str.ljust, line, widths)).rstrip() for line in lines)
    return f"{body}\n\n{table.note}" if table.note else body


def shown(table: Table, row: Mapping[str, Value], column: str) -> Shown:
    """One cell as text: the value, its interval and its ceiling."""
    form = table.formats.get(column, "")
    value, ceiling = row[column], row.get(column + CEILING)
    if isinstance(value, Interval):
        text, spread = _number(value.mean, form), _spread(value, form)
    else:
        text, spread = _number(value, form), ""
    return Shown(text, spread, "" if ceiling is None or text == MISSING else f"/{_number(_mean(ceiling), form)}")


def printable(text: str) -> str:
    """Names come from files of others: a terminal must not obey them."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _number(value: str | int | float | None, form: str) -> str:
    match value:
        case None:
            return MISSING
        case str():
            return printable(value)
        case bool():
            return "yes" if value else "no"
        case int() if not form:
            return str(value)
        case _:
            return format(value, form or ".2f") if math.isfinite(value) else MISSING


def _spread(interval: Interval, form: str) -> str:
    low, high = interval.low, interval.high
    if low is None or high is None or not math.isfinite(interval.mean):
        return ""
    below, above = interval.mean - low, high - interval.mean
    if math.isclose(below, above, rel_tol=1e-6, abs_tol=1e-12):
        return f"±{_number(above, form)}"
    return f"[{_number(low, form)}, {_number(high, form)}]"


def _mean(value: Value) -> str | int | float | None:
    return value.mean if isinstance(value, Interval) else value
