"""Is the decoder-free encoder as good as a sparse autoencoder? The paper's comparison, and what it leaves out.

    assay sae benchmark --config benchmark --output_dir results/benchmark --data_dir data

Writes benchmark_results.json in the spec's shape, and fig3_benchmark. `models` in the YAML file may name any coder.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, ClassVar

from assay.core.run import Record
from assay.core.study import Report
from assay.report.draw import Column, table
from assay.report.rows import Row
from assay.report.sentences import Measure, compared
from assay.sparse_coders.base import SparseCoder
from assay.studies import studies
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
    "On test rows; probe - first: paired over seeds. FVU: by a ridge "
    "decoder fitted to each frozen code, so that all are judged alike. The spec's MSE reconstructs with W^T where "
    "there is no decoder, which nobody trained; its normalised one also knows the length of x. params: as trained; "
    "with decoder: once a code can be turned back into an input."
)


@studies.register("sae.benchmark")
@dataclass(frozen=True, kw_only=True)
class Benchmark(Comparison):
    """Is the decoder-free encoder as good as a standard sparse autoencoder?"""

    question: ClassVar[str] = "Is the decoder-free encoder as good as a standard sparse autoencoder?"

    config: str = "benchmark"
    output_dir: Path = Path("results/benchmark")
    """Folder for benchmark_results.json and the figure."""

    def coders(self) -> Mapping[str, SparseCoder]:
        return self.loaded.models()

    def report(self, records: Sequence[Record], out: Report) -> None:
        found = self.rows(records, "model")
        last = [
            less("probe - first", PROBE, ".4f", lambda row: found[0], always=True, lead=True),
            Column("params", lambda row: int(row.first["params"]), lead=True),
            Column("with decoder", _with_decoder, lead=True),
        ]
        for measure in (ACCURACY, FVU):
            if sentence := compared(found, measure, of="model", runs=epochs(found)):
                out.finding(sentence, chart="fig3_benchmark")
        table(out, "benchmark", found, [*COLUMNS, *last], note=NOTE)
        self.write(out, found, self.results(found), figure="fig3_benchmark", caption=FIGURE)

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


def _summary(values: Sequence[float]) -> Mapping[str, float]:
    return {"mean": fmean(values), "std": stdev(values) if len(values) > 1 else 0.0}


def _with_decoder(row: Row) -> int:
    """Count the parameters, and those of a linear decoder where there is none."""
    directions = weights(row.records[0])["directions"]
    return int(row.first["params"]) + (0 if "fvu_own" in row.first else directions.numel() + directions.shape[1])
