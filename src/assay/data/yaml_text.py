"""Foreign YAML is read as plain values: mappings with text for keys, lists, text and numbers, of a bounded size.

An alias stands for everything it names, so that twenty lines can mean a billion entries; and a mapping may contain
itself. What a document means is counted before anything is made of it.
"""

import datetime
from typing import Any

from assay.core.errors import UserError
from assay.core.files import TEXT, reason

MOST = 100_000
"""Most entries of a config, aliases written out: far above any experiment, far below what fills the memory."""


def parse(text: str, *, what: str) -> Any:
    """Return the values of one document; JSON is YAML. `what` names it in errors."""
    import yaml

    if len(text) > TEXT:
        raise UserError(f"{what}: a config of more than {TEXT} characters is not read.")
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _size(node, {}, set()) > MOST:
            raise UserError(
                f"{what}: its aliases (*name) stand for more than {MOST} entries. Write less, or no aliases."
            )
        return _plain(loader.construct_document(node), what)
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or reason(error)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise UserError(f"{what}{place}: neither YAML nor JSON: {problem}.") from None
    except RecursionError:
        raise UserError(f"{what}: it is nested too deeply, or contains itself by an alias.") from None
    # A date such as 2001-99-99, a number of 5,000 digits.
    except (ValueError, OverflowError, TypeError, KeyError) as error:
        raise UserError(f"{what}: a value is no date, number or text: {reason(error)}.") from None


def _size(node: Any, known: dict[int, int], above: set[int]) -> int:
    """Return how many entries a node stands for, each alias counted as what it names; a node may not contain itself."""
    if id(node) in above:
        raise RecursionError
    if id(node) not in known:
        above.add(id(node))
        inside = node.value if isinstance(node.value, list) else []
        parts = [part for item in inside for part in (item if isinstance(item, tuple) else (item,))]
        known[id(node)] = 1 + sum(_size(part, known, above) for part in parts)
        above.remove(id(node))
    return known[id(node)]


def _plain(value: Any, what: str) -> Any:
    """Return a date as the text it was; refuse bytes and sets, which have no place in a config."""
    if isinstance(value, dict):
        if odd := [key for key in value if not isinstance(key, str | int | float | None)]:
            raise UserError(f"{what}: a key is a {type(odd[0]).__name__}, where a name belongs.")
        return {str(key): _plain(item, what) for key, item in value.items()}  # `1:` and `yes:` are keys too
    if isinstance(value, list):
        return [_plain(item, what) for item in value]
    if isinstance(value, datetime.date):
        return value.isoformat()
    if value is not None and not isinstance(value, str | int | float):
        raise UserError(f"{what}: a value is a {type(value).__name__}; use text, numbers, lists and mappings.")
    return value
