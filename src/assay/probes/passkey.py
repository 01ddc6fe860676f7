"""Passkey (Mohtashami and Jaggi 2023, arXiv 2305.16300) hides a number in noise that repeats itself, at a chosen depth.

    The road is long. The rain is cold. ... The pass key is 68321. Do not forget that 68321 is the pass key. The road
    is long. ... What is the pass key? The pass key is -> 68321

Differs from the paper: the sentences are others, and the instruction in front is left out.
"""

import re
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from assay.probes import probes
from assay.probes.base import Draws, Probe, Text, among, number

NOISE = "The road is long. The rain is cold. The night is dark. Walk on and come back."


@probes.register("passkey")
@dataclass(frozen=True, kw_only=True)
class Passkey(Probe):
    """A number in noise that repeats itself, at a chosen depth."""

    placed: ClassVar[bool] = True

    digits: int = 5
    """Digits of the pass key, from 3 to 18."""

    def write(self, rng: Random, size: int, depth: float) -> Text:
        draws = Draws(rng)
        key = number(draws.asked, self.digits)
        needle = f"The pass key is {key}. Do not forget that {key} is the pass key."
        context = among([NOISE] * size, [needle], draws.places, asked=0, depth=depth)
        return Text(context, " What is the pass key? The pass key is", f" {key}", " ".join([NOISE] * size), needle)

    def solve(self, context: str, question: str) -> str | None:
        found = re.search(r"pass key is (\d+)\.", context)
        return f" {found[1]}" if found else None
