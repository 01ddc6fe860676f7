"""Needles with several keys (RULER's multi-key task, Hsieh et al. 2024, arXiv 2404.06654): many things have a number,
and one of them is asked for, which lies at a chosen depth.

    ... The number of tiger is 8830. ... The number of amber is 5172. ... The number of lemon is 2096. ...
    What is the number of amber? The number of amber is -> 5172

Differs from the paper: sentences are those of `needle`, and other needles lie at random places.
"""

import re
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from assay.probes import probes
from assay.probes.base import Draws, Probe, Text, among, distinct, number
from assay.probes.filler import THINGS, sentences


@probes.register("multi_key")
@dataclass(frozen=True, kw_only=True)
class MultiKey(Probe):
    """One of several numbers, each of another thing."""

    placed: ClassVar[bool] = True
    limits: ClassVar = {"keys": (2, len(THINGS))}

    keys: int = 4
    """Things that have a number, at least 2; one of them is asked for."""
    digits: int = 4
    """Digits of every number, from 3 to 18."""

    def write(self, rng: Random, size: int, depth: float) -> Text:
        draws = Draws(rng)
        things = draws.asked.sample(THINGS, self.keys)
        values = distinct(lambda: number(draws.asked, self.digits), self.keys)
        needles = [f"The number of {thing} is {value}." for thing, value in zip(things, values, strict=True)]
        around, places = sentences(draws.around, size), draws.places.getrandbits(63)
        context = among(around, needles, Random(places), asked=0, depth=depth)
        floor = among(around, needles[1:], Random(places))
        question = f" What is the number of {things[0]}? The number of {things[0]} is"
        return Text(context, question, f" {values[0]}", floor, needles[0])

    def solve(self, context: str, question: str) -> str | None:
        thing = question.split()[-2]
        found = re.search(rf"The number of {thing} is (\d+)\.", context)
        return f" {found[1]}" if found else None
