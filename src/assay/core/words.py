"""A word writes a plug-in with its options in one piece, and can be parsed again.

    hybrid:pattern=sliding_window+(linear_attention:num_heads=4):conv=4
    activations:text="/data/c++:2.txt"

A colon goes before each option, a plus between the members of a list; a word that holds either stands in parentheses
inside another. A text that could be read as anything but itself stands in double quotes, as in JSON.
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import Any

EXPONENT = re.compile(r"[\d.][eE]")
"""Matches the start of an exponent: the plus of `1e+3` separates nothing."""
FORBIDDEN = re.compile(r"[\s:,=+()\"/\\]|^\.")
QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*\"(?=[:+,)]|$)", re.DOTALL)
"""Matches from a quote to the one that ends it, at the end of a value."""
PLAIN = re.compile(r"[^\s:,+()\"]+")
"""Matches a text without anything that separates words."""
NUMBER = re.compile(r"[-+]?[\d.][\d_.]*([eE][-+]?\d+)?|[-+]?(inf|infinity|nan)|none|true|false|yes|no", re.IGNORECASE)
"""Matches options of other types, ranges of numbers among them."""
NAMED = 4
"""Most names that a sentence lists; the others are counted."""


class Word(str):
    """Text that was cut out of a word, and is still to be parsed: quotes around it are not part of its value."""

    __slots__ = ()

    @property
    def text(self) -> str | None:
        """Text between quotes; None where there are none."""
        with suppress(ValueError):  # a backslash that means nothing in JSON: not our quotes
            return str(json.loads(self)) if QUOTED.fullmatch(self) else None
        return None


def split(text: str, separator: str) -> list[str]:
    """Split at separators outside parentheses and quotes: `a+(b:c=1+2)` -> `a`, `(b:c=1+2)`."""
    if separator not in text:
        return [text]
    parts, start = [], 0
    for place, char, depth in _outside_quotes(text):
        is_exponent = char == "+" and EXPONENT.fullmatch(text, max(0, place - 2), place)
        if char == separator and depth == 0 and not is_exponent:
            parts.append(text[start:place])
            start = place + 1
    return [*parts, text[start:]]


def unwrapped(text: str) -> str:
    """Remove the parentheses around a text, if they belong together."""
    closed = next((place for place, _, depth in _outside_quotes(text) if depth == 0), None)
    return text[1:-1] if text.startswith("(") and closed == len(text) - 1 else text


def written(value: Any) -> str:
    """Return a value as it is written inside a word."""
    if isinstance(value, list | tuple):
        return "+".join(f"({written(item)})" if isinstance(item, list | tuple) else written(item) for item in value)
    if isinstance(value, str | PurePath):
        return _quoted(str(value))
    text = str(value).lower() if isinstance(value, bool) or value is None else str(value)
    return f"({text})" if ":" in text or "+" in text.replace("e+", "") else text


HARMLESS = "\t\xa0\u202f"
"""What separates words, and is not printable by Python's account: tabs and spaces that no line breaks at."""


def printable(text: str) -> str:
    """Escape what a terminal would obey: names come from files of others."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in HARMLESS else "\N{REPLACEMENT CHARACTER}" for char in text)


def folded(text: str) -> str:
    """Return a name without case and punctuation: `Local+Strided` and `local_strided` are one."""
    return re.sub(r"[\W_]", "", text).casefold()


def printable_lines(text: str) -> str:
    """Escape the same in a text of several lines: whatever a command prints passes here (core.streams, UserError)."""
    return "\n".join(map(printable, text.replace("\r\n", "\n").split("\n")))


def is_name(text: str) -> bool:
    """Return whether a plug-in may have this name: printable, and nothing in it that separates words or folders."""
    return bool(text) and text.isprintable() and not FORBIDDEN.search(text)


def _quoted(text: str) -> str:
    """Return text as it is, or in quotes where it would be split or taken for a number."""
    if PLAIN.fullmatch(text) and text.isprintable() and not NUMBER.fullmatch(text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _outside_quotes(text: str) -> Iterator[tuple[int, str, int]]:
    """Yield each character with its place and the depth of parentheses behind it. A quote begins where a value does."""
    place, depth = 0, 0
    while place < len(text):
        if text[place] == '"' and (place == 0 or text[place - 1] in "=:+,(") and (end := QUOTED.match(text, place)):
            place = end.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        yield place, text[place], depth
        place += 1


def named(names: Sequence[str]) -> str:
    """Name a few: `a, b, c, d and 3 more`."""
    more = len(names) - NAMED
    return ", ".join(names) if more < 2 else f"{', '.join(names[:NAMED])} and {more} more"
