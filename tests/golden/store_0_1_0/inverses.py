"""The study of the golden store: inverses of numbers. Its bytes are part of the run ids, so this file never changes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from assay.core.run import Record, Run
from assay.core.study import Context, Outcome, Report, Study
from assay.studies import studies


@studies.register("inverses")
@dataclass(frozen=True, kw_only=True)
class Inverses(Study):
    """Inverses of numbers: 0 has none (failed), that of 1e-320 is infinite (diverged)."""

    question = "What is the inverse of x?"

    xs: tuple[float, ...] = (2.0, 4.0, 0.0, 1e-320)
    seeds: tuple[int, ...] = (0,)

    def plan(self) -> list[Run]:
        return [self.cell(seed=seed, x=x) for x in self.xs for seed in self.seeds]

    def execute(self, runs: Sequence[Run], ctx: Context) -> Iterator[Outcome]:
        for run in runs:
            x = run.options["x"]
            yield Outcome(run, {"inverse": 1 / x}, artifacts={"note.txt": f"1 / {x}".encode()})

    def report(self, records: Sequence[Record], out: Report) -> None:
        out.table("inverses", [{"x": r.run.options["x"], "inverse": r.metrics["inverse"]} for r in records])
