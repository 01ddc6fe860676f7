"""Renders a table as plain text, in the layout of the expressivity spec: padded columns and a rule.

Model         k-params      R2
----------------------------------------
SelfAttn      12.4          0.67 ±0.02 /1.00 a
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from assay.core.words import printable
from assay.metrics.intervals import Interval
from assay.report.section import CEILING, GROUP, Table, Value

MISSING = "-"
WIDTH, GAP = 12, "  "
TINY = 1e-20
"""Numbers nearer to 0 are not spelled out: they lie below the rounding error of anything measured in float64."""


class Shown(NamedTuple):
    """The parts of one cell, which the page styles separately and the terminal joins."""

    value: str
    spread: str = ""
    ceiling: str = ""
    group: str = ""
    """Letters: rows that share one are not told apart."""

    def __str__(self) -> str:
        return " ".join(part for part in self if part)


def render(table: Table, width: int | None = None, *, whole: bool = True) -> str:
    """Render the table with its note below; no line ends in spaces. Given a width, columns are set closer where they do
    not fit, and then split into blocks that do, each after the leading columns that name the rows. Without `whole`,
    only the columns that lead are shown, and none that is empty."""
    columns = table.every_column if whole else table.lead or table.columns
    if not table.rows:
        body = "(no rows)"
    else:
        lines = [[printable(column) for column in columns]]
        lines += [[str(shown(table, row, column)) for column in columns] for row in table.rows]
        padded = [_padded(column, WIDTH) for column in zip(*lines, strict=True)]
        if width is not None and _span(padded) > width:
            padded = [_padded(column) for column in zip(*lines, strict=True)]
        body = "\n\n".join(_block(block) for block in _blocks(padded, width))
    told = table.note if whole else table.lead_note or table.note
    note = "\n".join(wrapped(line, width) for line in told.splitlines())
    return f"{body}\n\n{note}" if note else body


def wrapped(text: str, width: int | None = None) -> str:
    """One paragraph, broken into lines that fit."""
    return textwrap.fill(printable(text), width or 10**9, break_on_hyphens=False)


def as_markdown(table: Table) -> str:
    """Render the table as Markdown for documentation, the columns that lead, its note above."""
    columns, note = table.lead or table.columns, table.lead_note or table.note
    lines = [columns, ["---"] * len(columns)]
    lines += [[str(shown(table, row, column)) for column in columns] for row in table.rows]
    body = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
    return f"{' '.join(note.split())}\n\n{body}" if note else body


def _padded(column: Sequence[str], least: int = 0) -> list[str]:
    size = max(least, *map(len, column))
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
    """Format one cell: the value, its interval, its ceiling and its letters."""
    form = table.formats.get(column, "")
    value, best, group = row[column], row.get(column + CEILING), row.get(column + GROUP)
    ceiling = best.mean if isinstance(best, Interval) else best
    text, spread = number(value.mean if isinstance(value, Interval) else value, form), ""
    if isinstance(value, Interval):
        spread = _spread(value, form)
    if text == MISSING:
        return Shown(text, spread)
    return Shown(text, spread, "" if ceiling is None else f"/{number(ceiling, form)}", str(group or ""))


def with_interval(interval: Interval, form: str = "") -> str:
    """A number with its interval: `0.67 ±0.02`, or `0.97 [0.90, 1.00]` where it is not symmetric."""
    return str(Shown(number(interval.mean, form), _spread(interval, form)))


def number(value: str | int | float | None, form: str = "") -> str:
    """A value as text; one that is missing or not finite is a dash."""
    match value:
        case None:
            return MISSING
        case str():
            return printable(value)
        case bool():
            return "yes" if value else "no"
        case int() if not form:
            return str(value)
        case float() if form.endswith("e") and 0 < abs(value) < TINY:
            return f"<{TINY:.0e}"
        case _:
            return _no_negative_zero(format(value, form or ".2f")) if math.isfinite(value) else MISSING


def _no_negative_zero(text: str) -> str:
    return text if any(digit in text for digit in "123456789") else text.removeprefix("-")


def is_symmetric(below: float, above: float) -> bool:
    """Return whether the bounds of an interval lie as far below as above its mean, but for rounding."""
    return math.isclose(below, above, rel_tol=1e-6, abs_tol=1e-12)


def _spread(interval: Interval, form: str) -> str:
    low, high = interval.low, interval.high
    if low is None or high is None or not math.isfinite(interval.mean) or number(interval.mean, form)[0] == "<":
        return ""
    below, above = interval.mean - low, high - interval.mean
    if is_symmetric(below, above):
        return f"±{number(above, form)}"
    return f"[{number(low, form)}, {number(high, form)}]"
