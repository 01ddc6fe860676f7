"""Is the gradient of the log-sum-exp loss the responsibility? At the energies, exactly; through a ReLU, no longer.

    assay sae theorem --output figures/fig1_theorem.pdf

dL/da_j = r_j is an identity of log-sum-exp and holds to rounding. What trains the encoder is dL/dz = r 1[z > 0]: a unit
that is off has a = 0, the least energy and so the largest responsibility there is, and gets none of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import safetensors.torch

from assay.core.errors import UserError
from assay.core.run import Record, Run
from assay.core.study import Context, Outcome, Report, Study
from assay.report.files import drawn
from assay.studies import studies
from assay.studies.sae.charts import theorem_chart
from assay.studies.sae.gradients import measured
from assay.train.artifacts import saved_tensors
from assay.train.device import activate

POINTS = "points.safetensors"
SIZES = ("batch_size", "input_dim", "hidden_dim")
ROWS = (("at the energies a", "a"), ("at z, through the ReLU", "z"))
NOTE = (
    "correlation and largest error of gradient against responsibility, in float64. The identity is that of log-sum-exp "
    "at its own inputs. Through the ReLU the gradient is r 1[z > 0]: the last column is the share of responsibility "
    "that lies on units which are off, and trains nothing."
)


@studies.register("sae.theorem")
@dataclass(frozen=True, kw_only=True)
class Theorem(Study):
    """Is the gradient of the log-sum-exp loss the responsibility?"""

    question: ClassVar[str] = "Is the gradient of the log-sum-exp loss the responsibility?"
    renamed: ClassVar = {"seed": "seeds"}

    batch_size: int = 64
    """Random rows at which gradients are taken."""
    input_dim: int = 784
    """Numbers in a row."""
    hidden_dim: int = 64
    """Units of the untrained encoder."""
    activation: Literal["relu", "identity", "softplus"] = "relu"
    """Function that makes the energies a of z = W x + b."""
    seeds: tuple[int, ...] = (42,)
    """Each seed is a new encoder and new rows."""
    output: Path = Path("figures/fig1_theorem.pdf")
    """The figure: .pdf, .png or .svg."""

    def __post_init__(self) -> None:
        for name in SIZES:
            if getattr(self, name) < 1:
                raise UserError(f"--{name} {getattr(self, name)}: 1 or more.")
        if self.output.suffix not in (".pdf", ".png", ".svg"):
            raise UserError(f"--output {self.output}: a figure ends in .pdf, .png or .svg.")

    def promised(self) -> Sequence[Path]:
        return (self.output,)

    def plan(self) -> list[Run]:
        sizes: dict[str, Any] = {key: getattr(self, key) for key in (*SIZES, "activation")}
        return self.cells(self.seeds, **sizes)

    def largest(self, run: Run) -> int:
        rows, inputs, units = (run.options[key] for key in SIZES)
        return 8 * max(units * inputs, rows * inputs, rows * units)

    def execute(self, runs: Sequence[Run], ctx: Context) -> Iterator[Outcome]:
        with activate(ctx.numerics) as device:
            for run in runs:
                metrics, points = measured(run.options, run.seed, device)
                yield Outcome(run, metrics, {}, {POINTS: safetensors.torch.save(points)})

    def report(self, records: Sequence[Record], out: Report) -> None:
        out.finding(_sentence(records), chart="fig1_theorem")
        rows = [
            {
                "": where,
                "seed": record.run.seed,
                "correlation": record.metrics[f"correlation_{at}"],
                "largest error": record.metrics[f"largest_error_{at}"],
                "largest error, float32": record.metrics["largest_error_float32"] if at == "a" else None,
                "responsibility off": record.metrics["responsibility_off"] if at == "z" else None,
            }
            for record in records
            for where, at in ROWS
        ]
        formats = {"correlation": ".10f", "largest error": ".1e", "largest error, float32": ".1e"}
        out.table("theorem", rows, formats=formats, note=NOTE)
        chart = theorem_chart(saved_tensors(records[0], POINTS))
        out.chart("fig1_theorem", chart, caption="Gradient against responsibility; the line is y = x.")
        out.file(self.output, drawn(chart, self.output.suffix))


def _sentence(records: Sequence[Record]) -> str:
    """The worst correlation over seeds at the energies and through the activation, and what lies on units that are
    off."""
    at, through = (min(record.metrics[f"correlation_{where}"] for record in records) for _, where in ROWS)
    off = max(record.metrics["responsibility_off"] for record in records)
    return (
        f"In these runs ({len(records)} seed{'s' * (len(records) > 1)}) gradient and responsibility correlate by "
        f"{at:.10f} at the energies and by {through:.4f} at z; {off:.0%} of the responsibility lies on units that are "
        f"off{' (worst seed each)' * (len(records) > 1)}."
    )
