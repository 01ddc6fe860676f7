"""A study with a part that holds a plug-in, presets with grids and old names; given to the command as --plugin."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from assay.core.run import Record, Run
from assay.core.study import Context, Outcome, Report, Study
from assay.mixers import mixers
from assay.mixers.base import Mixer
from assay.studies import studies


@dataclass(frozen=True)
class Shape:
    mixer: Mixer = field(default_factory=lambda: mixers.parse("attention"))
    width: int = 8
    bias: bool = True


@studies.register("shelf")
@dataclass(frozen=True, kw_only=True)
class Shelf(Study):
    """A mixer, a width, a rate."""

    question = "Which?"
    presets: ClassVar = {
        "wide": {
            "size": 7,
            "grid": {"shape.mixer": ["attention", "gru"], "rate": ["0.1", "0.2"], "seed": ["0", "1"]},
        },
        "shapes": {"grid": {"shape": [Shape(width=1), Shape(width=2)]}},
        "biases": {"grid": {"shape.bias": ["true", "false"]}},
        "heads": {"grid": {"shape.mixer.num_heads": ["1", "2"]}},
    }
    renamed: ClassVar = {"shape.mixer.size": "size", "old_rate": "rate"}

    shape: Shape = field(default_factory=Shape)
    rate: float = 0.5
    size: int = 3
    seeds: tuple[int, ...] = (0,)

    def plan(self) -> list[Run]:
        return [self.cell(seed=seed, shape=self.shape, rate=self.rate, size=self.size) for seed in self.seeds]

    def execute(self, runs: Sequence[Run], ctx: Context) -> Iterator[Outcome]:
        for run in list(runs):
            ctx.progress(run, 5, 20, loss=0.5)
            ctx.progress(run, 10, 20, loss=0.25)
            if run.seed == 13:
                raise ValueError("unlucky")
            yield Outcome(run, {"loss": 0.25, "by": {"first": 1}, "solved": True, "curve": [1, 2], "note": "text"})

    def report(self, records: Sequence[Record], out: Report) -> None:
        out.table("shelf", [{"rate": r.run.options["rate"]} for r in records])
