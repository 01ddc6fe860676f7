"""How much of a sequence survives a tight code, and can the encoder look things up by content?"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar

from assay.core.errors import UserError
from assay.core.plugin import Plugin
from assay.core.run import Record, Run, canonical
from assay.core.study import Context, Outcome, Report, Study
from assay.encoders import encoders
from assay.encoders.base import Encoder
from assay.encoders.budget import fit_width
from assay.nn.random import initialised_from
from assay.nn.shapes import built_for_shapes
from assay.studies import studies
from assay.studies.expressivity.references import REFERENCES, is_reference, planted, reference
from assay.studies.expressivity.report import report as write_report
from assay.studies.expressivity.spec.config import CACHED_LOOKUPS, Config, Setup
from assay.studies.expressivity.spec.registration import STANDARD, ModuleEncoder, testers
from assay.train.device import activate

PLANTED = (
    *(f"planted_factors:{held}" for held in ("copies=1", "copies=2", "copies=4", "copies=8")),
    *(f"planted_factors:factors=1:{held}" for held in ("copies=8", "copies=32")),
    *(f"planted_factors:bins=8:factors={factors}" for factors in (1, 2, 3, 4)),
    *(f"planted_factors:bins=8:numbered=at_random:factors={factors}" for factors in (1, 2, 3, 4)),
    *(f"planted_lookup:share={share}" for share in (0.25, 0.5, 0.75, 1)),
    *(f"planted_map:{map}" for map in ("ratio=1", "ratio=.9", "ratio=.7", "factors=true", "ratio=.7:factors=true")),
)


@studies.register("expressivity")
@dataclass(frozen=True, kw_only=True)
class Expressivity(Setup, Study):
    """How much of a sequence survives a tight code, and can the encoder look things up by content?"""

    question: ClassVar[str] = "How much of a sequence survives a tight code, and can the encoder look things up?"
    presets: ClassVar = {
        "demo": {  # attention, recurrence, convolution and a static map, in under a minute on two cores
            "models": ("SelfAttn", "GRU", "CausalConv", "StaticMLP"),
            "seeds": (0, 1, 2),
            "batch_eval": 1024,
            "batch_train": 128,
            "retr_steps": 300,
            "retr_train_steps": 150,
        },
        "spec": {"models": ("SelfAttn", "StaticMLP"), "keys": "ambiguous", "retr_train_steps": 0, "seeds": (42,)},
        "planted": {"planted": PLANTED},  # docs/FINDINGS.md judges the scores by it
    }

    compares: ClassVar[str] = "models"
    whole_tables: ClassVar = ("spec",)

    models: tuple[Encoder, ...] = ()
    """Encoders to compare, such as SelfAttn or gru:width=64; by default all, and yours from --plugin."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Each seed is a new world, a new initialisation and new data; intervals are over seeds."""
    planted: tuple[str, ...] = ()
    """Codes of known content beside the encoders, such as planted_factors:copies=8."""
    budget: str | None = None
    """Parameters per encoder, e.g. 25k: each encoder's width is solved for it."""
    tester: str = STANDARD
    """The class that measures; one of yours may add columns."""

    def plan(self) -> list[Run]:
        sized = [self._sized(encoder) for encoder in self.chosen()]
        models: list[Any] = [*sized, *map(planted.parse, self.planted), *({"name": name} for name in REFERENCES)]
        # --fast is written out as the options it sets: the same work has the same id, however it was asked for.
        setup = {f.name: getattr(self, f.name) for f in fields(Setup)} | {
            "retr_steps": self.head_steps,
            "retr_train_steps": self.end_to_end_steps,
            "jac_points": 0 if self.fast else self.jac_points,
            "fast": False,
        }
        if self.tester != STANDARD:
            setup["tester"] = testers[self.tester]()
        uses = self.worlds()
        return [self.cell(seed=seed, model=model, uses=uses, **setup) for model in models for seed in self.seeds]

    def chosen(self) -> tuple[Encoder, ...]:
        found = self.models or tuple(encoders[name]() for name in encoders.names())
        for encoder in found:
            if is_reference(encoder.name):
                raise UserError(f"'{encoder.name}' is the name of a reference row: give your encoder another name.")
        return found

    def worlds(self) -> list[Plugin]:
        """The tasks behind the scores."""
        return [*(self.context(context, seed=0) for context in (0, 1, 2)), self.lookup()]

    def parts(self) -> list[Plugin]:
        return [*self.chosen(), *self.worlds()]

    def check(self, runs: Sequence[Run]) -> None:
        """Build each encoder's shapes; a class of the user's own may do anything when it is built."""
        for model, *sizes in {(canonical(run.options["model"]), *_sizes(run)) for run in runs}:
            spec = json.loads(model)
            if not is_reference(spec["name"]) and not isinstance(encoder := encoders.load(spec), ModuleEncoder):
                built_for_shapes(partial(encoder.build, *sizes))

    def largest(self, run: Run) -> int:
        """The sequences of a look-up, the law of the local factors, or the Jacobians."""
        at, (length, d_in, d_code) = run.options, _sizes(run)
        inputs = length * d_in
        return 4 * max(CACHED_LOOKUPS * at["batch_eval"] * inputs, length**2, at["jac_points"] * d_code * inputs)

    def execute(self, runs: Sequence[Run], ctx: Context) -> Iterator[Outcome]:
        with activate(ctx.numerics) as device:
            for run in runs:
                yield _measure(run, ctx, device.type)

    def report(self, records: Sequence[Record], out: Report) -> None:
        write_report(records, out)

    def _sized(self, encoder: Encoder) -> Encoder:
        if self.budget is None:
            return encoder
        return fit_width(encoder, parse_count(self.budget), length=self.L, d_in=self.D_in, d_code=self.D_z)


def _sizes(run: Run) -> tuple[int, int, int]:
    """The length of a sequence, and the widths of its tokens and of the code."""
    at = run.options
    return at["L"], at["K_keys"] + at["V_dim"] + at["F_feat"], at["D_z"]


def _measure(run: Run, ctx: Context, device: str) -> Outcome:
    """Measure one encoder with one seed."""
    options = dict(run.options)
    model, tester = options.pop("model"), testers.load(options.pop("tester", {"name": STANDARD}))
    cfg = Config(**options, seed=run.seed, device=device)
    measure = tester.tester_class(cfg)
    measure.watch = lambda done, total, found: ctx.progress(run, done, total, **_numbers(found))
    try:
        metrics = measure.evaluate(build(model, cfg))
    except FloatingPointError:
        return Outcome(run, {}, diverged="the code")
    return Outcome(run, {key: value for key, value in metrics.items() if key != "sec/run"})


def build(model: dict[str, Any], cfg: Config) -> Any:
    """Build the encoder's module, or the reference, of a run."""
    if is_reference(model["name"]):
        return reference(model, cfg)
    encoder = encoders.load(model)
    with initialised_from(cfg.seed, "encoder"):
        if isinstance(encoder, ModuleEncoder):
            return encoder.module_class(cfg)
        return encoder.build(cfg.L, cfg.D_in, cfg.D_z)


def parse_count(text: str) -> int:
    """`25k` -> 25000."""
    scale = {"k": 1_000, "m": 1_000_000}.get(text[-1:].lower(), 1)
    digits = text[:-1] if scale > 1 else text
    try:
        count = int(float(digits) * scale)
    except ValueError:
        raise UserError(f"--budget {text}: write a number of parameters such as 25000 or 25k.") from None
    if count < 1:
        raise UserError(f"--budget {text}: it must be at least 1 parameter.")
    return count


def _numbers(found: dict[str, Any]) -> dict[str, float]:
    return {key: value for key, value in found.items() if isinstance(value, float) and "_" not in key}
