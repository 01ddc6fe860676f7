"""Frequent words (RULER's frequent words extraction, Hsieh et al. 2024, arXiv 2404.06654): in a list the word of rank r
occurs in proportion to 1 / r^2, and the first ones are asked for.

    balino keta balino soru balino keta ... The most frequent words, the most frequent first, are -> balino, keta, soru

What the law leaves of the list are words that occur once. Words are made up of syllables.

Differs from the paper: words are made up, the three are asked for from the most frequent on, so that there is one
answer whose likelihood can be computed, and nothing but words is in the list.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from math import pi
from random import Random
from typing import ClassVar

from assay.probes import probes
from assay.probes.base import Draws, Probe, Text, words_of
from assay.probes.filler import new_words


@probes.register("frequent_words")
@dataclass(frozen=True, kw_only=True)
class FrequentWords(Probe):
    """The words that occur most often in a list, in their order."""

    limits: ClassVar = {"asked": (1, 10)}

    asked: int = 3
    """Words that are asked for."""

    def write(self, rng: Random, size: int, depth: float) -> Text:
        draws = Draws(rng)
        counts = self._counts(size)
        answer = new_words(draws.asked, self.asked)
        instead = new_words(draws.asked, self.asked, known=answer)
        rest = new_words(draws.around, len(counts) - self.asked, known=[*answer, *instead])
        listed = [word for word, count in zip([*answer, *rest], counts, strict=True) for _ in range(count)]
        draws.places.shuffle(listed)
        other = dict(zip(answer, instead, strict=True))
        question = ". The most frequent words, the most frequent first, are"
        floor = " ".join(other.get(word, word) for word in listed)
        return Text(" ".join(listed), question, f" {', '.join(answer)}", floor)

    def _counts(self, size: int) -> list[int]:
        """How often each word occurs; the first ones, and the one after them, differ in how often."""
        while True:
            law = [int(size * 6 / pi**2 / rank**2) for rank in range(1, size + 1)]
            counts = [count for count in law if count > 1]
            first = [*counts, 1, 1, 1, 1][: self.asked + 1]
            if len(counts) >= self.asked and all(one > next for one, next in pairwise(first)):
                return [*counts, *[1] * max(1, size - sum(counts))]
            size += 1

    def solve(self, context: str, question: str) -> str | None:
        ranked = Counter(words_of(context)).most_common(self.asked)
        return f" {', '.join(word for word, _ in ranked)}"
