"""Takes each seed's run at the learning rate (or other option) that the other seeds chose on validation.

    seed   validation at 1e-3, 3e-3, 1e-2        chosen by the others    the row counts its test score at
    0      .80  .97  .10                         3e-3                    3e-3
    1      .82  .95  .96                         3e-3                    3e-3
    2      .79  .98  .12                         3e-3                    3e-3

So a rate is chosen by seeds that the score is not taken from. A rate at which a seed diverged is the worst for it. A
seed that diverges at the rate the others chose stays in the row: it has no score. One seed alone has to choose for
itself.
"""

import math
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

from assay.core.run import Record

Score = Callable[[Record], float]
"""A finished record's score on validation: larger is better."""
Tried = Mapping[Any, Mapping[int, Record]]
"""Records by the tuned option's value and by seed."""


def leave_one_out(tried: Tried, score: Score) -> dict[int, Record]:
    """Choose each seed's record at the rate that the other seeds chose; of equals, the lowest rate."""
    seeds = sorted({seed for by_seed in tried.values() for seed in by_seed})
    rates = sorted(tried, key=lambda rate: rate or 0)
    # A rate that a seed lost, or was not tried at, is the worst for it.
    scores = {
        rate: [score(r) if (r := tried[rate].get(seed)) and r.status == "done" else -math.inf for seed in seeds]
        for rate in rates
    }
    chosen = {}
    for place, seed in enumerate(seeds):
        others = {rate: [*own[:place], *own[place + 1 :]] or own for rate, own in scores.items() if seed in tried[rate]}
        chosen[seed] = tried[max(others, key=lambda rate: fmean(others[rate]))][seed]
    return chosen
