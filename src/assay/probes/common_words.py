"""Common words (RULER's common words extraction, Hsieh et al. 2024, arXiv 2404.06654): in a list of words a few occur
often and the others twice; those that occur often are asked for.

    balino keta balino soru keta soru balino ... The most common words, in the order of the alphabet, are -> balino, ...

Words are made up of syllables, so that there are as many as a long context needs.

Differs from the paper: words are made up and not numbered; 3 are common in place of 10, and together they are half of
the list; they are asked for in the order of the alphabet, so that there is one answer whose likelihood can be computed.
"""

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from assay.probes import probes
from assay.probes.base import Draws, Probe, Text, words_of
from assay.probes.filler import new_words

SELDOM = 2


@probes.register("common_words")
@dataclass(frozen=True, kw_only=True)
class CommonWords(Probe):
    """The words of a list that occur often."""

    limits: ClassVar = {"common": (1, 10)}

    common: int = 3
    """Words that occur often."""

    def write(self, rng: Random, size: int, depth: float) -> Text:
        draws = Draws(rng)
        often = max(2 * SELDOM, size // (2 * self.common))
        answer = new_words(draws.asked, self.common)
        instead = new_words(draws.asked, self.common, known=answer)
        rest = new_words(draws.around, max(1, (size - often * self.common) // SELDOM), known=[*answer, *instead])
        listed = [*answer * often, *rest * SELDOM]
        draws.places.shuffle(listed)
        other = dict(zip(answer, instead, strict=True))
        question = ". The most common words, in the order of the alphabet, are"
        floor = " ".join(other.get(word, word) for word in listed)
        return Text(" ".join(listed), question, f" {', '.join(sorted(answer))}", floor)

    def solve(self, context: str, question: str) -> str | None:
        ranked = Counter(words_of(context)).most_common(self.common)
        return f" {', '.join(sorted(word for word, _ in ranked))}"
