"""A sixth study in one file: what somebody writes to get a table, a chart, a page, resume and claims."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from assay.core.run import Record, Run
from assay.core.study import Context, Outcome, Report, Study
from assay.report.claims import Check, Claim
from assay.report.draw import Column, lines, table
from assay.report.rows import rows
from assay.studies import studies


@studies.register("counting")
@dataclass(frozen=True, kw_only=True)
class Counting(Study):
    """Squares of numbers, a little off."""

    question = "What is the square of x?"
    claims = {  # noqa: RUF012
        "two-squared": Claim(
            claim="Two squared is four.",
            source="Euclid",
            study="counting",
            options={"xs": [2]},
            checks=(Check(what="the square of 2", metric="square", over="max", target=4, tolerance=0.2),),
        )
    }

    xs: tuple[int, ...] = (1, 2, 3)
    seeds: tuple[int, ...] = (0, 1)

    def plan(self) -> list[Run]:
        return [self.cell(seed=seed, x=x) for x in self.xs for seed in self.seeds]

    def execute(self, runs: Sequence[Run], ctx: Context) -> Iterator[Outcome]:
        for run in runs:
            yield Outcome(run, {"square": run.options["x"] ** 2 + run.seed / 10})

    def report(self, records: Sequence[Record], out: Report) -> None:
        found = rows(records)
        table(out, "squares", found, [Column("square", "square")], note="± over seeds")
        lines(
            out, "square_by_x", found, lambda row: [(row.options["x"], row.values("square"))],
            series=lambda row: "x squared", x_title="x", y_title="square", caption="Squares.",
        )  # fmt: skip
