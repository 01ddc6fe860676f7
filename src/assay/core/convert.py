"""Text and JSON are converted to the type a field is annotated with; a value that does not fit is a UserError."""

import dataclasses
import difflib
import math
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from assay.core import words
from assay.core.errors import UserError
from assay.core.words import Word

T = TypeVar("T")

TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
"""Spellings of a boolean, in any case."""
RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
ALMOST_RANGE = re.compile(r"(\d+)(?:-|:|\.{3})(\d+)")
"""How other programs write a range."""
LONGEST_RANGE = 1_000_000
"""Most values of a range: more would fill memory before anything is planned."""
ALIKE, AS_ALIKE = 0.5, 0.05
"""The least similarity of a suggested name, and how far below the best another suggestion may lie."""
LONGEST = 200
"""Most letters of a word that is compared: no name has as many, and it takes the square of the time."""
PART, FURTHER = 0.06, 0.02
"""Subtracted from the similarity of a part, so that whole names come first, and for parts other than the first."""


def convert(hint: Any, value: Any, *, what: str, exact: bool = False) -> Any:
    """Convert `value` to an instance of `hint`; `what` names it in the error. JSON is `exact`: where a field may hold a
    text or something else, `none` stays a text and so does `5`."""
    if isinstance(value, Word) and get_origin(hint) is not tuple and (text := value.text) is not None:
        return convert(hint, text, what=what, exact=True)
    if hint is Any:
        return str(value) if isinstance(value, Word) else value
    if registry := getattr(hint, "registry", None):
        if isinstance(value, hint):
            return value
        return registry.parse(value) if isinstance(value, str) else registry.load(value)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _union(args, value, what, exact=exact)
    if origin is Literal:
        chosen = [option for option in args if option == value or str(option) == value]
        if not chosen and isinstance(value, str) and not exact:
            chosen = [option for option in args if str(option).lower() == value.lower()]
        if not chosen:
            raise UserError(f"{what}: expected one of {', '.join(map(str, args))}, got {value!r}.")
        return chosen[0]
    if origin is tuple:
        return _tuple(args, value, what)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return value if isinstance(value, hint) else construct(hint, value, what=what, exact=exact)
    return _scalar(hint, value, what)


def construct(cls: type[T], given: Mapping[str, Any], *, what: str, exact: bool = False) -> T:
    """Make a dataclass from loose values, each converted by its field's annotation."""
    hints = option_types(cls)
    if not isinstance(given, Mapping):
        raise UserError(f"{what}: expected names with values, got {given!r}.")
    for key in given:
        if key not in hints:
            known, flag = ", ".join(hints) or "no options", getattr(cls, "elsewhere", {}).get(key)
            meant = f" It is set by {flag}." if flag else nearest(key, hints)
            raise UserError(f"{what} has no option '{key}'.{meant} It has: {known}.")
    return cls(
        **{key: convert(hints[key], item, what=f"{what}, option '{key}'", exact=exact) for key, item in given.items()}
    )


def option_types(cls: type[Any]) -> Mapping[str, Any]:
    """Return field name -> annotation in declaration order; cached, since plans ask for every option of every run."""
    if cls not in _TYPES:
        hints = get_type_hints(cls)
        _TYPES[cls] = types.MappingProxyType({f.name: hints[f.name] for f in dataclasses.fields(cls)})
    return _TYPES[cls]


_TYPES: dict[type[Any], Mapping[str, Any]] = {}


def added(default: Any) -> Any:
    """Declare an option that came after records of its class were stored. At its default it is left out of the JSON
    form, so that old runs keep their ids and their records count for plans of today."""
    return dataclasses.field(default=default, metadata={"added": True})


def stated(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a dataclass's options as its JSON form has them: all, but for `added` ones at their default."""
    for field in dataclasses.fields(value):
        held = getattr(value, field.name)
        if not (field.metadata.get("added") and held == field.default):
            yield field.name, held


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'x' or 'y'?` with the names spelled like a word, or nothing. A similar part counts too,
    since people remember one part of a long name; case and dashes do not. Never suggests the word itself, and of
    spellings of one name only the shortest."""
    others = {*known} - {word} if len(word) <= LONGEST else ()
    ranked = sorted(((_likeness(word, name), name) for name in others), key=lambda pair: (-pair[0], pair[1]))
    best = ranked[0][0] if ranked else 0.0
    alike = [name for likeness, name in ranked if likeness >= max(ALIKE, best - AS_ALIKE)]
    spelled: dict[str, list[str]] = {}
    for name in alike:
        spelled.setdefault(re.sub(r"[-_ ]", "", name.lower()), []).append(name)
    close = [f"'{min(names, key=len)}'" for names in spelled.values()][:3]
    return f" Did you mean {' or '.join([', '.join(close[:-1]), close[-1]] if close[1:] else close)}?" if close else ""


def _likeness(word: str, name: str) -> float:
    """Compare a word with a name: with the whole, and with every run of words behind its last dot."""
    word, name = (re.sub(r"[- ]", "_", text.lower().lstrip("-")) for text in (word, name))
    last = name.rpartition(".")[2].split("_")
    rows = [(start, "_".join(last[start:end])) for start in range(len(last)) for end in range(start + 1, len(last) + 1)]
    parts = [_ratio(word, row) - FURTHER * (start > 0) for start, row in rows if len(row) < len(name)]
    return max([_ratio(word, name), *(part - PART for part in parts)])


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def expand(word: str) -> list[str]:
    """Expand a range: `0..4` -> five words; any other word is returned alone."""
    if not (found := RANGE.fullmatch(word)):
        return [word]
    first, last = int(found[1]), int(found[2])
    if last < first:
        raise UserError(f"the range '{word}' is empty: write the smaller number first.")
    if last - first >= LONGEST_RANGE:
        raise UserError(f"the range '{word}' has over {LONGEST_RANGE:,} values: write a shorter one.")
    return [str(number) for number in range(first, last + 1)]


def _union(options: tuple[Any, ...], value: Any, what: str, *, exact: bool) -> Any:
    if type(value) in options and (exact or not isinstance(value, str)):
        return value
    if type(None) in options and (value is None or (isinstance(value, str) and value.lower() == "none" and not exact)):
        return None
    errors = []
    for option in sorted(options, key=lambda option: option is str):  # last, since anything can be read as a text
        if option is not type(None):
            try:
                return convert(option, value, what=what, exact=exact)
            except UserError as error:
                errors.append(str(error))
    raise UserError(" or ".join(errors) or f"{what}: cannot be {value!r}.")


def _tuple(args: tuple[Any, ...], value: Any, what: str) -> tuple[Any, ...]:
    """Convert to a tuple: a lone value makes one of length 1, the text `0..4` of 5, `a+b` of 2, an empty text of 0. In
    a list of integers a range stands for its members: `["0..2", "7"]`."""
    items = [value] if not isinstance(value, str | list | tuple) else list(value)
    if isinstance(value, list) and args[0] is int:
        items = [text for item in value for text in (expand(item) if isinstance(item, str) else [item])]
    if isinstance(value, str):
        # Behind a colon a plus belongs to the word there: `hybrid:pattern=a+b` is one item.
        parts = words.split(value, "+") if len(words.split(value, ":")) == 1 else [value]
        items = [type(value)(item) for part in parts if value for item in expand(words.unwrapped(part))]
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(convert(args[0], item, what=what) for item in items)
    if len(items) != len(args):
        raise UserError(f"{what}: expected {len(args)} values, got {len(items)}.")
    return tuple(convert(arg, item, what=what) for arg, item in zip(args, items, strict=True))


def _scalar(hint: Any, value: Any, what: str) -> Any:
    try:
        if hint is bool and isinstance(value, str):
            return TRUTH[value.lower()]
        if hint is bool or value is None:
            if not isinstance(value, hint):
                raise ValueError
            return value
        if hint is int and isinstance(value, float) and not value.is_integer():
            raise ValueError
        made = hint(value)
        if isinstance(made, float) and not math.isfinite(made):
            raise UserError(f"{what}: expected a finite number, got {value!r}.")
        return made
    except (ValueError, TypeError, KeyError):
        name = getattr(hint, "__name__", str(hint))
        almost = ALMOST_RANGE.fullmatch(value) if hint is int and isinstance(value, str) else None
        meant = f" A range is {almost[1]}..{almost[2]}." if almost else ""
        raise UserError(f"{what}: expected {name}, got {value!r}.{meant}") from None
