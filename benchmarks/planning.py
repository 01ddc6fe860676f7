"""Measures CPU seconds to plan about 10,000 runs of each study, before anything is computed.

    python benchmarks/planning.py

plan: options x grid -> runs with ids;   cohorts: runs trained together;   labels: unique names of runs;
estimate: from as many stored runs, which differ in their seeds
"""

import itertools
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from measuring import main, verdict

from assay.api import combined_grid, configure
from assay.core.estimate import estimate
from assay.core.plan import cohorts, labels, make_plan
from assay.core.run import Numerics, Record, Run
from assay.studies import studies

COUNT = 10_000
PLANS: Mapping[str, tuple[str, str | None, Callable[[int], dict[str, Any]], Callable[[int], dict[str, Any]]]] = {
    "sae": ("sae", "synthetic", lambda n: {"seeds": range(-(-n // 212))}, lambda n: {}),
    "modular": ("modular.sweep", None, lambda n: {"seeds": range(-(-n // 64))}, lambda n: {}),
    "expressivity": ("expressivity", None, lambda n: {"seeds": range(-(-n // 9))}, lambda n: {}),
    "icl": ("icl", "demo", lambda n: {}, lambda n: {"optimizer.lr": [1e-6 * i for i in range(1, n // 9)]}),
}
"""A study, a preset, and the options and the grid that make so many runs of it."""


def measured(name: str) -> bool:
    study, preset, options, grid = PLANS[name]
    cls, given = studies[study], {key: tuple(value) for key, value in options(COUNT).items()}
    make_plan(configure(cls, preset, {}), {}, Numerics())  # imports
    taken = [time.process_time()]
    axes = combined_grid(cls, preset, grid(COUNT), named=given)
    runs = make_plan(configure(cls, preset, given), axes, Numerics()).runs
    taken.append(time.process_time())
    cohorts(runs, 2)
    taken.append(time.process_time())
    labels(runs)
    taken.append(time.process_time())
    stored = [Record(Run(r.study, r.options, -1, r.versions, r.numerics), "done", {}, {"seconds": 1.0}) for r in runs]
    begin = time.process_time()
    estimate(runs, stored, 2)
    plan, grouped, told = (after - before for before, after in itertools.pairwise(taken))
    text = f"{name}: {len(runs)} runs, plan {plan:.2f}, cohorts {grouped:.2f}, labels {told:.2f}, "
    text += f"estimate {time.process_time() - begin:.2f} CPU seconds"
    return verdict(text, goal="plan and cohorts under 1", met=plan + grouped < 1)


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", {name: partial(measured, name) for name in PLANS}))
