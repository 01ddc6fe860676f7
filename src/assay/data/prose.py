"""Prose stands in the long strings of a package's modules, between code, templates and copies of itself.

    repeated    a line whose letters were seen before, in any document, goes; of code a paragraph, the text between
                empty lines, and the whole file where less than half of it is left
    template    a line goes whose first five words have opened `TEMPLATE` lines of this source before
    structure   a line of fewer than four words goes: keys, lists of names, examples
    blob        a paragraph goes of which few characters are letters, or with a word of 200 characters: numbers, hashes,
                base64, drawings

Lines that were wrapped are joined first, since where a line ends is nothing that a model should count. Letters are
those of ASCII, so that every Python takes out the same text.
"""

import ast
import hashlib
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

LONG, WORDS = 120, 15
"""Fewest characters and words of a string that is read."""
TEMPLATE = 200
OPENING, FEWEST = 5, 4
WRAPPED = 50
"""A line of fewer characters was not wrapped."""
LETTERS = bytes(range(256)).lower()
OTHERS = bytes(code for code in range(256) if not chr(code).isascii() or not (chr(code).isalpha() or code in b" \n"))
BETWEEN = re.compile(r"\n[ \t]*\n")
UNBROKEN = re.compile(r"\S{200}")
STRING = re.compile(
    r"""\#[^\n]*+|([A-Za-z]{0,2})(\"{3}(?:[^"\\]++|\\.|"(?!""))*+\"{3}|'{3}(?:[^'\\]++|\\.|'(?!''))*+'{3})"""
    r"""|"(?:[^"\\\n]++|\\.)*+"|'(?:[^'\\\n]++|\\.)*+'""",
    re.DOTALL,
)
"""A comment or a string; groups of their own for the prefix and the body of one in triple quotes."""
HEADER = re.compile(r"\A(?:[ \t]*(?:#[^\n]*)?\n)+")
LICENCE = re.compile(r"copyright|licen[cs]e|SPDX", re.IGNORECASE)
ITEM = re.compile(r"^(?:[-*] +)?(?:(?:short_)?description: +)?")
ACCESSOR = re.compile(r"(\*\*\[Required\]\*\* )?(Gets|Sets) the \w+ of this \w+\.")
PARAMETER = re.compile(r"^:param (?:[^:\n]*[ ])?(\w+):")
SILENT = re.compile(
    r":(return|rtype|type|raises)\b.*|\w+:( The \w+ of this \w+\.)?$|The value to assign to the \w+ prop.*"
    r"|Initializes a new .*"
)
"""Lines that a generator writes for every name."""
JOINS = re.compile(r"(?!\w[\w.-]*:(\s|$))[A-Za-z(]")
"""How a line begins that goes on with the one before: not as a list, a table or a key does."""


def strings(code: str) -> Iterator[str]:
    """Yield the long strings in triple quotes, as Python reads them."""
    for found in STRING.finditer(code):
        prefix, body = (found[1] or "").lower(), found[2] or ""
        if len(body) < LONG + 6 or {"f", "b"} & set(prefix):
            continue
        text = body[3:-3]
        if "\\" in text and "r" not in prefix:
            with warnings.catch_warnings(action="ignore"):  # such as \d
                text = ast.literal_eval(body)
        if len(text.split()) >= WORDS:
            yield text


def without_licence(code: str) -> str:
    """Drop the comments that open a file, where they name its licence."""
    header = HEADER.match(f"{code}\n")
    return code[header.end() :] if header and LICENCE.search(header[0]) else code


@dataclass
class Sieve:
    """Lets through what is new in a source."""

    seen: set[bytes]
    """Paragraphs that some source had: one set for all sources of a text."""
    openings: Counter[bytes] = field(default_factory=Counter)

    def code(self, text: str) -> str:
        """Return a file without its licence, blobs, and paragraphs of 120 letters or more that were seen before."""
        whole = without_licence(text).strip()
        kept = "\n\n".join(
            part for part in BETWEEN.split(whole) if not _is_blob(part) and self._is_new(part, short=120)
        )
        return kept.strip() if 2 * len(kept) >= len(whole) else ""

    def prose(self, texts: Iterable[str]) -> str:
        """Return the new lines of a module's texts, without templates."""
        parts = [part for text in texts for part in BETWEEN.split(ACCESSOR.sub("", text)) if not _is_blob(part)]
        kept = ["\n".join(line for line in _unwrapped(part) if self._is_prose(line)) for part in parts]
        return "\n\n".join(filter(None, kept))

    def _is_new(self, text: str, *, short: int) -> bool:
        """Whether the text is short, or was not seen before."""
        letters = b" ".join(_letters(text).split())
        if len(letters) < short:
            return True
        key = hashlib.blake2b(letters, digest_size=8).digest()
        known = key in self.seen
        self.seen.add(key)
        return not known

    def _is_prose(self, line: str) -> bool:
        opening = _letters(line).split()[:OPENING]
        if len(opening) < FEWEST or not self._is_new(line, short=0):
            return False
        self.openings[b" ".join(opening)] += 1
        return self.openings[b" ".join(opening)] <= TEMPLATE


def _is_blob(part: str) -> bool:
    return UNBROKEN.search(part) is not None or 3 * len(b"".join(_letters(part).split())) < len("".join(part.split()))


def _letters(text: str) -> bytes:
    return text.encode().translate(LETTERS, OTHERS)


def _unwrapped(part: str) -> list[str]:
    lines: list[str] = []
    last = 0
    for whole in part.split("\n"):
        line, before, last = PARAMETER.sub(r"\1:", whole.strip()), last, len(whole.rstrip())
        if before >= WRAPPED and JOINS.match(line):
            lines[-1] += f" {line}"
        else:
            lines.append(line)
    return [ITEM.sub("", line, count=1) for line in lines if not SILENT.fullmatch(line)]
