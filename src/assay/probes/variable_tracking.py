"""Variable tracking (RULER, Hsieh et al. 2024, arXiv 2404.06654): a value is handed on from name to name, and every
name that has it is asked for.

    Let QXA be 48213. ... Let BNM be QXA. ... Let TRE be 90555. ... The names that are 48213, in the order of the text,
    are -> QXA, BNM

Another chain, of another value, lies between. Names are 3 different letters.

Differs from the paper: they are asked for in the order of the text, so that there is one answer whose likelihood can be
computed; names have 3 letters where the paper's have 5, and there are 2 hops in place of 4, since the models that fit a
CPU are small.
"""

import re
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from assay.probes import probes
from assay.probes.base import Draws, Probe, Text, among, distinct, number
from assay.probes.filler import sentences


@probes.register("variable_tracking")
@dataclass(frozen=True, kw_only=True)
class VariableTracking(Probe):
    """Every name that a value was handed on to."""

    limits: ClassVar = {"hops": (1, 100)}

    hops: int = 2
    """Times that the value is handed on, so that one name more has it."""
    digits: int = 5
    """Digits of the value that is handed on, from 3 to 18."""

    def write(self, rng: Random, size: int, depth: float) -> Text:
        draws, links = Draws(rng), self.hops + 1
        names = distinct(lambda: "".join(draws.asked.sample("ABCDEFGHKLMNPQRSTUVWXYZ", 3)), 2 * links)
        values = distinct(lambda: number(draws.asked, self.digits), 2)
        asked, other = _chain(names[:links], values[0]), _chain(names[links:], values[1])
        turns = draws.asked.sample([True] * links + [False] * links, 2 * links)
        own, others = iter(asked), iter(other)
        pieces = [next(own) if turn else next(others) for turn in turns]
        around, places = sentences(draws.around, size), draws.places.getrandbits(63)
        context, floor = among(around, pieces, Random(places)), among(around, other, Random(places))
        question = f" The names that are {values[0]}, in the order of the text, are"
        return Text(context, question, f" {', '.join(names[:links])}", floor)

    def solve(self, context: str, question: str) -> str | None:
        value = question.split()[4].rstrip(",")
        held = dict[str, str]()
        for name, source in re.findall(r"Let ([A-Z]{3}) be (\w+)\.", context):
            held[name] = held.get(source, source)
        found = [name for name, own in held.items() if own == value]
        return f" {', '.join(found)}" if found else None


def _chain(names: list[str], value: str) -> list[str]:
    return [f"Let {name} be {source}." for name, source in zip(names, [value, *names], strict=False)]
