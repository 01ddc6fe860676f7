"""Is the decoder-free encoder as good as a sparse autoencoder? The paper's comparison, and what it leaves out.

    assay sae benchmark --config benchmark --output_dir results/benchmark --data_dir data

Writes benchmark_results.json in the spec's shape, and fig3_benchmark. `models` in the YAML file may name any coder.
The standard autoencoder is trained at several l1 weights, and read where as many units are active as in the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, ClassVar

from assay.core.grouping import grouped
from assay.core.run import Record
from assay.core.study import Report
from assay.report.draw import Column, table
from assay.report.rows import Row
from assay.report.sentences import Measure, compared
from assay.sparse_coders.base import SparseCoder
from assay.sparse_coders.relu_l1 import ReluL1
from assay.studies import studies
from assay.studies.sae.curves import between, curve_of
from assay.studies.sae.findings import FVU, epochs, less
from assay.studies.sae.verb import Comparison
from assay.studies.sae.weights import weights

METRICS = (
    "linear_probe_accuracy", "l0_sparsity", "l0_density", "reconstruction_mse", "normalized_reconstruction_mse",
)  # fmt: skip
PROBE = "linear_probe_accuracy"
COLUMNS = [
    Column(title, metric, form, always=True, share=metric == PROBE, lead=title in ("probe", "L0", "FVU"))
    for title, metric, form in (
        ("probe", PROBE, ".4f"), ("L0", "l0", ""), ("L0 (spec)", "l0_sparsity", ""), ("FVU", "fvu", ".3f"),
        ("FVU own", "fvu_own", ".3f"), ("MSE (spec)", "reconstruction_mse", ""),
        ("normalised MSE (spec)", "normalized_reconstruction_mse", ".3f"),
    )
]  # fmt: skip
ACCURACY = Measure("probe accuracy", PROBE, ".4f", share=True)
NOTE = (
    "On test rows. FVU: by a ridge decoder fitted to each frozen code, so that all are judged alike. The spec's MSE "
    "reconstructs with W^T where there is no decoder, which nobody trained; its normalised one also knows the length "
    "of x. params: as trained; with decoder: once a code can be turned back into an input. Rows of unequal L0 are not "
    "for comparing."
)
EQUAL = (
    "Each model's levels make a curve, read seed by seed at the active units (L0) of the first row, linear in log L0, "
    "where every seed reaches. - first: paired over seeds."
)


@studies.register("sae.benchmark")
@dataclass(frozen=True, kw_only=True)
class Benchmark(Comparison):
    """Is the decoder-free encoder as good as a standard sparse autoencoder?"""

    question: ClassVar[str] = "Is the decoder-free encoder as good as a standard sparse autoencoder?"

    config: str = "benchmark"
    output_dir: Path = Path("results/benchmark")
    """Folder for benchmark_results.json and the figure."""
    l1_weights: tuple[float, ...] = (0.003, 0.03, 0.05, 0.07)
    """More l1 weights of the standard autoencoders, for the comparison at equal L0; none: those of the file alone."""

    def coders(self) -> Mapping[str, SparseCoder]:
        """Return the file's models, and the standard autoencoders among them at other l1 weights."""
        named = self.loaded.models()
        spec = {name: coder for name, coder in named.items() if isinstance(coder, ReluL1) and coder.form == "spec"}
        more = {f"{name} l1={l1:g}": replace(coder, l1=l1) for name, coder in spec.items() for l1 in self.l1_weights}
        return named | more

    def report(self, records: Sequence[Record], out: Report) -> None:
        found = self.rows(records, "model")
        first, *others = equal = _at_equal_l0(found)
        active = f"{fmean(first.values('l0').values()):.3g} active units"
        for measure in (ACCURACY, FVU) if others else ():
            if sentence := compared(equal, measure, of="model", runs=f"each model at {active}, {epochs(found)}"):
                out.finding(sentence)
        params = Column("params", lambda row: int(row.first["params"]), lead=True)
        table(out, "benchmark", found, [*COLUMNS, params, Column("with decoder", _with_decoder, lead=True)], note=NOTE)
        if others:
            less_than = [(f"{c.title} - first", str(c.value), c.format) for c in COLUMNS if c.title in ("probe", "FVU")]
            beside = [less(*column, lambda row: first, lead=True) for column in less_than]
            table(out, "equal_l0", equal, [*COLUMNS, *beside], note=EQUAL)
        else:
            out.finding(f"No other model's levels lie around {active}, so none is compared: see --l1_weights.")
        named = [row for row in found if row.label in self.loaded.models()]
        self.write(out, named, self.results(named), figure="fig3_benchmark", caption=FIGURE)

    def results(self, found: Sequence[Row]) -> dict[str, Any]:
        """The spec's benchmark_results.json; `std` is over seeds, with n - 1."""
        results: dict[str, Any] = {}
        for row in found:
            values = {metric: list(row.values(metric).values()) for metric in METRICS}
            results[row.label] = {metric: _summary(own) for metric, own in values.items() if own}
            results[row.label] |= {"hidden_dim": row.options["d_code"], "parameters": row.first["params"]}
        results["per_seed"] = {
            row.label: [
                {"seed": r.run.seed, **{m: r.metrics[m] for m in METRICS if m in r.metrics}} for r in row.records
            ]
            for row in found
        }
        return results | {"config": dict(self.loaded.sections)}


FIGURE = (
    "Probe accuracy (where there are labels), the spec's normalised MSE, active units by its threshold, and "
    "parameters as trained; the mean over seeds, every seed a dot."
)


def _at_equal_l0(found: Sequence[Row]) -> list[Row]:
    """Return the first model of a single level, and those that can be read at its active units with every seed."""
    curves = list(grouped(found, curve_of).values())
    first = min(curves, key=len)
    wanted, reached = first[0].values("l0"), [first[0]]
    for levels in curves:
        own = {seed: [r for level in levels for r in level.records if r.run.seed == seed] for seed in wanted}
        read = tuple(filter(None, (between(own[seed], wanted[seed]) for seed in wanted)))
        if levels is not first and len(read) == len(wanted):
            reached.append(replace(levels[0], records=read))
    return reached


def _summary(values: Sequence[float]) -> Mapping[str, float]:
    return {"mean": fmean(values), "std": stdev(values) if len(values) > 1 else 0.0}


def _with_decoder(row: Row) -> int:
    """Count the parameters, and those of a linear decoder where there is none."""
    directions = weights(row.records[0])["directions"]
    return int(row.first["params"]) + (0 if "fvu_own" in row.first else directions.numel() + directions.shape[1])
