"""Separates the records that a study can report from those it cannot: a store may be edited, or come from elsewhere."""

import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from assay.core.errors import UserError
from assay.core.run import Record

Made = TypeVar("Made")
NAMED = 3
"""Most runs that a warning names; it counts the rest."""


def without_odd(report: Callable[[Sequence[Record]], Made], records: Sequence[Record]) -> Made | None:
    """Report the records that can be read, where not all can; a warning names the others. None: they cannot be told
    apart, or nothing is left."""
    odd = _odd(report, records)
    names = [record.run.id for record in odd]
    left = [record for record in records if record.run.id not in names]
    if not odd or not left or problem_with(report, left) is not None:
        return None
    more = f" and {len(odd) - NAMED} more" if len(odd) > NAMED else ""
    warnings.warn(
        f"{odd[0].run.study} is reported without {', '.join(names[:NAMED])}{more}, which cannot be read: "
        f"{problem_with(report, odd[:1])}",
        stacklevel=3,
    )
    return report(left)


def problem_with(report: Callable[[Sequence[Record]], object], records: Sequence[Record]) -> str | None:
    """Return why these records cannot be reported. None: they can, or the study raises a UserError of its own."""
    try:
        report(records)
        return None
    except UserError:
        return None
    except Exception as error:  # noqa: BLE001 - a study's report may raise anything
        return described(error)


def described(error: Exception) -> str:
    """The error in one line, with the place where it was raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"


def _odd(report: Callable[[Sequence[Record]], object], records: Sequence[Record]) -> list[Record]:
    """Find the records that cannot be reported even alone, by bisection: a store may have many records, and few odd
    ones."""
    if len(records) == 1:
        return list(records)
    middle = len(records) // 2
    parts = [part for part in (records[:middle], records[middle:]) if problem_with(report, part) is not None]
    return [record for part in parts for record in _odd(report, part)]
