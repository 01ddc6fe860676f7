"""Text becomes tokens of 8,192 kinds: the 256 bytes, 7,935 pairs of tokens that were merged, and the end of a text.

    " the"  ->  " ", "t", "h", "e"  ->  " t", "h", "e"  ->  " t", "he"  ->  " the"      byte pair encoding

Words are cut first (PATTERN), and never merged with each other. Of a word's pairs the one that was merged first in
training is merged first. The merges ship as vocabulary.txt, learned once from training documents of `library2`
(tools/train_vocabulary.py); its sha256 is part of what a run is known by. Words repeat: each is encoded once.
"""

import hashlib
import re
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
from jaxtyping import UInt16

SIZE = 8192
END = SIZE - 1
"""The end of a text."""
BYTES = "surrogateescape"
"""A text that was cut inside a character keeps its bytes."""
FILE = Path(__file__).with_name("vocabulary.txt")
# Sets of characters are written out: what is a letter changes with the release of Unicode.
SPACE = " \t\n\r\f\v"
LETTER = "A-Za-z\u00c0-\u1fff\u2c00-\U0010ffff"
PATTERN = (
    rf"'(?:[stdm]|ll|ve|re)| ?[{LETTER}]{{1,64}}| ?[0-9]{{1,2}}| ?[^{SPACE}{LETTER}0-9]{{1,64}}"
    rf"|[{SPACE}]{{1,64}}(?![^{SPACE}])|[{SPACE}]"
)
"""Words as in GPT-2, with numbers two digits at a time."""


class Vocabulary:
    def __init__(self, merges: list[tuple[int, int]]) -> None:
        self.merges = merges
        self._words = _Words(merges)
        self._cut = re.compile(PATTERN).findall

    def encode(self, text: str) -> UInt16[np.ndarray, " tokens"]:
        return np.frombuffer(b"".join([self._words[word] for word in self._cut(text)]), np.uint16)

    def decode(self, ids: UInt16[np.ndarray, " tokens"]) -> bytes:
        return b"".join([self.pieces[token] for token in ids.tolist()])

    @cached_property
    def pieces(self) -> list[bytes]:
        """The bytes of each token; none of the end of a text."""
        found = [bytes([byte]) for byte in range(256)]
        for left, right in self.merges:
            found.append(found[left] + found[right])
        return [*found, *[b""] * (SIZE - len(found))]

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(_written(self.merges).encode()).hexdigest()


class _Words(dict[str, bytes]):
    """The tokens of every word so far, as the bytes of 16-bit numbers."""

    def __init__(self, merges: list[tuple[int, int]]) -> None:
        super().__init__()
        self.merged = {pair: 256 + place for place, pair in enumerate(merges)}

    def __missing__(self, word: str) -> bytes:
        ids = list(word.encode(errors=BYTES))
        while len(ids) > 1:
            first = min(self.merged.get(pair, SIZE) for pair in pairwise(ids))
            if first == SIZE:
                break
            place = 0
            while place < len(ids) - 1:
                if self.merged.get((ids[place], ids[place + 1])) == first:
                    ids[place : place + 2] = [first]
                place += 1
        found = self[word] = np.array(ids, np.uint16).tobytes()
        return found


def write(merges: list[tuple[int, int]], path: Path = FILE) -> None:
    path.write_text(_written(merges))


@cache
def shipped() -> Vocabulary:
    """Return the vocabulary that comes with assay."""
    rows = [line.split() for line in FILE.read_text().splitlines()]
    return Vocabulary([(int(left), int(right)) for left, right in rows])


def _written(merges: list[tuple[int, int]]) -> str:
    return "".join(f"{left} {right}\n" for left, right in merges)
