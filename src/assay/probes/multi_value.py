"""A needle with several values (RULER's multi-value task, Hsieh et al. 2024, arXiv 2404.06654): one thing has several
numbers, in different places, and all are asked for.

    ... A number of amber is 5172. ... A number of amber is 8830. ... The numbers of amber, in the order of the text,
    are -> 5172, 8830

Differs from the paper: they are asked for in the order of the text, so that there is one answer whose likelihood can be
computed, and there are 3, of 4 digits.
"""

import re
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from assay.probes import probes
from assay.probes.base import Draws, Probe, Text, among, distinct, number
from assay.probes.filler import THINGS, sentences


@probes.register("multi_value")
@dataclass(frozen=True, kw_only=True)
class MultiValue(Probe):
    """All numbers of one thing, in the order of the text."""

    limits: ClassVar = {"values": (2, 100)}

    values: int = 3
    """Numbers that the thing has, from 2 to 100; all are asked for."""
    digits: int = 4
    """Digits of every number, from 3 to 18."""

    def write(self, rng: Random, size: int, depth: float) -> Text:
        draws = Draws(rng)
        thing = draws.asked.choice(THINGS)
        values = distinct(lambda: number(draws.asked, self.digits), self.values)
        around = sentences(draws.around, size)
        context = among(around, [f"A number of {thing} is {value}." for value in values], draws.places)
        question = f" The numbers of {thing}, in the order of the text, are"
        return Text(context, question, f" {', '.join(values)}", " ".join(around))

    def solve(self, context: str, question: str) -> str | None:
        thing = question.split()[3].rstrip(",")
        found = re.findall(rf"A number of {thing} is (\d+)\.", context)
        return f" {', '.join(found)}" if found else None
