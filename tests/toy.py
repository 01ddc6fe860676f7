"""A study that needs no torch: squares numbers. Files of a folder make it fail, stall or kill its worker."""

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

from assay.core.run import Record, Run
from assay.core.study import Context, Outcome, Report, Study
from assay.studies import studies


@studies.register("toy")
@dataclass(frozen=True, kw_only=True)
class Toy(Study):
    """Squares of numbers."""

    question = "What is the square of x?"
    presets = {"tiny": {"xs": (1,)}}  # noqa: RUF012

    xs: tuple[int, ...] = (1, 2, 3)
    seeds: tuple[int, ...] = (0, 1)
    grouped: bool = False
    """Runs of one seed as one cohort."""
    trap: str = ""
    """A folder: a file `x=2` in it makes that run do what the file says."""

    def plan(self) -> list[Run]:
        fields = {"grouped": self.grouped, "trap": self.trap}
        return [self.cell(seed=seed, x=x, **fields) for x in self.xs for seed in self.seeds]

    def cohort(self, run: Run) -> object:
        return run.seed if run.options["grouped"] else run.id

    def execute(self, runs: Sequence[Run], ctx: Context) -> Iterator[Outcome]:
        for run in (runs[index] for index in range(len(runs))):  # by place: what it is given must stay as it is
            x = run.options["x"]
            ctx.progress(run, 1, 2, x=float(x))
            value = spring(run) or x * x + run.seed / 10
            outcome = Outcome(run, {"square": value}, artifacts={"note.txt": f"{x}".encode()})
            yield outcome
            if value == "twice":
                yield outcome
            if value == "after":
                os.kill(os.getpid(), 9)

    def report(self, records: Sequence[Record], out: Report) -> None:
        out.table("squares", [{"x": r.run.options["x"], "square": r.metrics["square"]} for r in records])


def spring(run: Run) -> object:
    """Whatever the trap of this run says; a trap springs once, but for `always`."""
    trap = Path(run.options["trap"]) / f"x={run.options['x']}" if run.options["trap"] else None
    if trap is None or not trap.exists():
        return None
    what = trap.read_text()
    if "always" not in what:
        trap.unlink()
    if "raise" in what:
        raise ValueError(f"trapped at {run.options['x']}")
    if "kill" in what and "after" not in what:
        os.kill(os.getpid(), 9)
    if "stall" in what:
        time.sleep(60)
    if "deaf" in what:  # to whatever is raised to stop it
        while True:
            with suppress(BaseException):
                time.sleep(60)
    if "held" in what:  # in C code, and not letting go of the interpreter
        deque(repeat(None), maxlen=0)
    if "print" in what:
        print("hello from a plug-in")
    if "numpy" in what:
        import numpy

        return numpy.float32(1.5)
    values = {"nan": float("nan"), "object": object(), "twice": "twice", "after": "after"}
    return next((value for word, value in values.items() if word in what), None)
