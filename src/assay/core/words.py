"""Words: how a plug-in with its options is written in one piece, and taken apart again.

    hybrid:pattern=sliding_window+(linear_attention:num_heads=4):conv=4

A colon goes before each option, a plus between the members of a list; a word that holds either stands in parentheses
inside another.
"""

import re
from typing import Any

SEPARATORS = {":": re.compile(r":"), "+": re.compile(r"(?<![\d.][eE])\+"), ",": re.compile(r",")}
"""The plus of `1e+3` separates nothing."""
FORBIDDEN = re.compile(r"[\s:,=+()]")


def split(text: str, separator: str) -> list[str]:
    """The parts between separators that stand outside parentheses: `a+(b:c=1+2)` -> `a`, `(b:c=1+2)`."""
    parts, start = [], 0
    for found in SEPARATORS[separator].finditer(text):
        before = text[: found.start()]
        if before.count("(") == before.count(")"):
            parts.append(text[start : found.start()])
            start = found.end()
    return [*parts, text[start:]]


def unwrapped(text: str) -> str:
    """Without the parentheses around it, if they belong together."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for place, char in enumerate(text):
        depth += {"(": 1, ")": -1}.get(char, 0)
        if depth == 0:
            return text[1:-1] if place == len(text) - 1 else text
    return text


def written(value: Any) -> str:
    """A value as it stands inside a word."""
    if isinstance(value, list | tuple):
        return "+".join(written(item) for item in value)
    text = str(value).lower() if isinstance(value, bool) or value is None else str(value)
    return f"({text})" if ":" in text or "+" in text.replace("e+", "") else text


def printable(text: str) -> str:
    """Names come from files of others: a terminal must not obey them."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def is_name(text: str) -> bool:
    """Whether a plug-in may be called so: printable, and nothing in it that separates words."""
    return bool(text) and text.isprintable() and not FORBIDDEN.search(text)
