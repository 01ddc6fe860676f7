"""Needle in a haystack (Kamradt 2023; one key and one value in RULER, Hsieh et al. 2024, arXiv 2404.06654): one
sentence gives the number of a thing, among sentences about something else, at a chosen depth.

    The tall baker painted the fence ... The number of amber is 5172. The old sailor ... What is the number of amber?
    The number of amber is -> 5172

Differs from the paper: the haystack is sentences of a small grammar in place of essays, and what is asked for is a
number of 4 digits.
"""

import re
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from assay.probes import probes
from assay.probes.base import Draws, Probe, Text, among, number
from assay.probes.filler import THINGS, sentences


@probes.register("needle")
@dataclass(frozen=True, kw_only=True)
class Needle(Probe):
    """The number of a thing, among sentences about something else."""

    placed: ClassVar[bool] = True

    digits: int = 4
    """Digits of the number that is asked for, from 3 to 18."""

    def write(self, rng: Random, size: int, depth: float) -> Text:
        draws = Draws(rng)
        thing, value = draws.asked.choice(THINGS), number(draws.asked, self.digits)
        needle, around = f"The number of {thing} is {value}.", sentences(draws.around, size)
        context = among(around, [needle], draws.places, asked=0, depth=depth)
        question = f" What is the number of {thing}? The number of {thing} is"
        return Text(context, question, f" {value}", " ".join(around), needle)

    def solve(self, context: str, question: str) -> str | None:
        thing = question.split()[-2]
        found = re.search(rf"The number of {thing} is (\d+)\.", context)
        return f" {found[1]}" if found else None
