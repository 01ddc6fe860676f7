"""How a page of findings says numbers: intervals, what they decide, and tables."""

from collections.abc import Sequence

from assay.metrics.intervals import Interval
from assay.report.section import Table
from assay.report.text import shown as cell


def shown(interval: Interval, form: str = ".3f") -> str:
    if interval.low is None or interval.high is None:
        return format(interval.mean, form)
    return f"{interval.mean:{form}} [{interval.low:{form}}, {interval.high:{form}}]"


def verdict(difference: Interval) -> str:
    if difference.low is None or difference.high is None:
        return "one seed: nothing to say"
    if difference.low > 0:
        return "more"
    return "less" if difference.high < 0 else "not told apart"


def holds(interval: Interval, low: float, high: float) -> str:
    """Whether the whole interval lies in the band; without an interval there is nothing to decide."""
    if interval.low is None or interval.high is None:
        return "one seed: not decided"
    if low <= interval.low and interval.high <= high:
        return "yes"
    return "no" if interval.high < low or interval.low > high else "not decided"


def spread(interval: Interval | None, form: str = ".3f") -> str:
    if interval is None:
        return "-"
    half = "" if interval.low is None else f" ± {interval.mean - interval.low:{form}}"
    return f"{interval.mean:{form}}{half}"


def ruled(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def tabled(table: Table) -> str:
    """A study's table as the terminal shows it, intervals and all."""
    return ruled(table.columns, [[str(cell(table, row, column)) for column in table.columns] for row in table.rows])


def without_equal_n(head: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """The number of seeds is a column where rows differ in it."""
    place = head.index("n")
    keep = [i for i in range(len(head)) if i != place or len({row[place] for row in rows}) > 1]
    return [head[i] for i in keep], [[row[i] for i in keep] for row in rows]


def between(page: str, name: str, text: str) -> str:
    """The page with `text` between its marks <!-- NAME: begin --> and <!-- NAME: end -->."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"there is no place for the section: it stands between {begin} and {end}")
    return f"{before}{begin}\n{text}\n{end}{after}"
