"""Renders a table as plain text, in the layout of the expressivity spec: padded columns and a rule.

Model         k-params      R2
----------------------------------------
SelfAttn      12.4          0.67 ±0.02 /1.00
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from assay.core.words import printable
from assay.metrics.intervals import Interval
from assay.report.section import CEILING, Table, Value

MISSING = "-"
WIDTH, GAP = 12, "  "


class Shown(NamedTuple):
    """The parts of one cell, which the page styles separately and the terminal joins."""

    value: str
    spread: str = ""
    ceiling: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in self if part)


def render(table: Table, width: int | None = None) -> str:
    """Render the table with its note below; no line ends in spaces. Given a width, columns are split into blocks that
    fit, each after the leading columns that name the rows."""
    if not table.rows:
        body = "(no rows)"
    else:
        lines = [[printable(column) for column in table.columns]]
        lines += [[str(shown(table, row, column)) for column in table.columns] for row in table.rows]
        columns = [_padded(column) for column in zip(*lines, strict=True)]
        body = "\n\n".join(_block(block) for block in _blocks(columns, width))
    note = "\n".join(textwrap.fill(printable(line), width or 10**9) for line in table.note.splitlines())
    return f"{body}\n\n{note}" if note else body


def as_markdown(table: Table) -> str:
    """Render the table as Markdown for documentation, its note above."""
    lines = [table.columns, ["---"] * len(table.columns)]
    lines += [[str(shown(table, row, column)) for column in table.columns] for row in table.rows]
    body = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
    return f"{' '.join(table.note.split())}\n\n{body}" if table.note else body


def _padded(column: Sequence[str]) -> list[str]:
    size = max(WIDTH, *map(len, column))
    return [cell.ljust(size) for cell in column]


def _blocks(columns: list[list[str]], width: int | None) -> list[list[list[str]]]:
    """Group columns into blocks no wider than `width`, each after the names of the rows."""
    named = _names(columns, width)
    blocks = [columns[:named]]
    for column in columns[named:]:
        if width is not None and len(blocks[-1]) > named and _span([*blocks[-1], column]) > width:
            blocks.append(columns[:named])
        blocks[-1].append(column)
    return blocks


def _names(columns: list[list[str]], width: int | None) -> int:
    """Count the fewest leading columns that identify a row; one where they would take more than half the width."""
    rows = len(columns[0])
    for named in range(1, len(columns)):
        if width is not None and _span(columns[:named]) > width / 2:
            break
        if len(set(zip(*columns[:named], strict=True))) == rows:
            return named
    return 1


def _block(columns: list[list[str]]) -> str:
    head, *body = [GAP.join(cells).rstrip() for cells in zip(*columns, strict=True)]
    return "\n".join([head, "-" * _span(columns), *body])


def _span(columns: list[list[str]]) -> int:
    return sum(len(column[0]) for column in columns) + len(GAP) * (len(columns) - 1)


def shown(table: Table, row: Mapping[str, Value], column: str) -> Shown:
    """Format one cell: the value, its interval and its ceiling."""
    form = table.formats.get(column, "")
    value, best = row[column], row.get(column + CEILING)
    ceiling = best.mean if isinstance(best, Interval) else best
    if isinstance(value, Interval):
        text, spread = _number(value.mean, form), _spread(value, form)
    else:
        text, spread = _number(value, form), ""
    return Shown(text, spread, "" if ceiling is None or text == MISSING else f"/{_number(ceiling, form)}")


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
            return _no_negative_zero(format(value, form or ".2f")) if math.isfinite(value) else MISSING


def _no_negative_zero(text: str) -> str:
    return text if any(digit in text for digit in "123456789") else text.removeprefix("-")


def _spread(interval: Interval, form: str) -> str:
    low, high = interval.low, interval.high
    if low is None or high is None or not math.isfinite(interval.mean):
        return ""
    below, above = interval.mean - low, high - interval.mean
    if math.isclose(below, above, rel_tol=1e-6, abs_tol=1e-12):
        return f"±{_number(above, form)}"
    return f"[{_number(low, form)}, {_number(high, form)}]"
