"""Makes up words of syllables: `balino`, `ketasu`."""

from collections.abc import Sequence
from random import Random


def new_words(rng: Random, count: int, *, known: Sequence[str] = ()) -> list[str]:
    """Return so many different words, none of them known."""
    found, taken = list[str](), set(known)
    while len(found) < count:
        word = "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(3))
        if word not in taken:
            taken.add(word)
            found.append(word)
    return found
