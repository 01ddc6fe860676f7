"""Is the decoder-free encoder as good as a sparse autoencoder? The paper's comparison, and what it leaves out.

    assay sae benchmark --config benchmark --output_dir results/benchmark --data_dir data

Writes benchmark_results.json in the spec's shape, and fig3_benchmark. `models` in the YAML file may name any coder.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, ClassVar

from assay.core.run import Record, Run
from assay.core.study import Report
from assay.metrics.intervals import paired_difference, student_t
from assay.studies import studies
from assay.studies.sae.verb import FromConfig, as_json, by_name, named

METRICS = (
    "linear_probe_accuracy", "l0_sparsity", "l0_density", "reconstruction_mse", "normalized_reconstruction_mse",
)  # fmt: skip
COLUMNS = {
    "probe": "linear_probe_accuracy", "L0": "l0", "L0 (spec)": "l0_sparsity", "FVU": "fvu", "FVU own": "fvu_own",
    "MSE (spec)": "reconstruction_mse", "normalised MSE (spec)": "normalized_reconstruction_mse",
}  # fmt: skip
FORMATS = {"probe": ".4f", "probe - first": ".4f", "FVU": ".3f", "FVU own": ".3f", "normalised MSE (spec)": ".3f"}
NOTE = (
    "± half the 95 % Student t interval over seeds; on test rows; probe - first: paired over seeds. FVU: by a ridge "
    "decoder fitted to each frozen code, so that all are judged alike. The spec's MSE reconstructs with W^T where "
    "there is no decoder, which nobody trained; its normalised one also knows the length of x. params: as trained; "
    "with decoder: once a code can be turned back into an input."
)


@studies.register("sae.benchmark")
@dataclass(frozen=True, kw_only=True)
class Benchmark(FromConfig):
    """Is the decoder-free encoder as good as a standard sparse autoencoder?"""

    question: ClassVar[str] = "Is the decoder-free encoder as good as a standard sparse autoencoder?"

    config: str = "benchmark"
    """A YAML file, or the name of one that ships with assay."""
    output_dir: Path = Path("results/benchmark")
    """Folder for benchmark_results.json and the figure."""

    def plan(self) -> list[Run]:
        config = self.loaded()
        models = config.models()
        return [self.one(config, coder, seed=seed) for seed in self.wanted_seeds(config) for coder in models.values()]

    def report(self, records: Sequence[Record], out: Report) -> None:
        from assay.studies.sae.charts import benchmark_chart, spec_checkpoints

        groups = by_name(records, self.loaded().models())
        first = next(iter(groups.values()))
        probes = {name: _by_seed(mine, "linear_probe_accuracy") for name, mine in groups.items()}
        reference = _by_seed(first, "linear_probe_accuracy")
        rows: list[dict[str, Any]] = []
        for name, mine in groups.items():
            values = {column: list(_by_seed(mine, metric).values()) for column, metric in COLUMNS.items()}
            row: dict[str, Any] = {"model": name}
            row |= {column: student_t(found) if found else None for column, found in values.items()}
            row["probe - first"] = (
                paired_difference(probes[name], reference) if mine is not first and reference else None
            )
            row["params"], row["with decoder"] = _sizes(mine[0])
            rows.append(row)
        out.table("benchmark", rows, formats=FORMATS, note=NOTE)
        results = self.results(records)
        out.file(self.output_dir / "benchmark_results.json", as_json(results))
        self.figure(out, "fig3_benchmark", benchmark_chart(results), caption=FIGURE)
        for path, data in spec_checkpoints(self.output_dir / "checkpoints", named(records, self.loaded().models())):
            out.file(path, data)

    def results(self, records: Sequence[Record]) -> dict[str, Any]:
        """The spec's benchmark_results.json; `std` is over seeds, with n - 1."""
        groups = by_name(records, self.loaded().models())
        found: dict[str, Any] = {}
        for name, mine in groups.items():
            values = {metric: list(_by_seed(mine, metric).values()) for metric in METRICS}
            found[name] = {metric: _summary(v) for metric, v in values.items() if v}
            found[name] |= {"hidden_dim": mine[0].run.options["d_code"], "parameters": mine[0].metrics["params"]}
        found["per_seed"] = {
            name: [{"seed": r.run.seed, **{m: r.metrics[m] for m in METRICS if m in r.metrics}} for r in mine]
            for name, mine in groups.items()
        }
        return found | {"config": dict(self.loaded().sections)}


FIGURE = (
    "Probe accuracy (where there are labels), the spec's normalised MSE, active units by its threshold, and "
    "parameters as trained; the mean over seeds, every seed a dot."
)


def _by_seed(records: Sequence[Record], metric: str) -> dict[int, float]:
    return {record.run.seed: record.metrics[metric] for record in records if metric in record.metrics}


def _summary(values: Sequence[float]) -> Mapping[str, float]:
    return {"mean": fmean(values), "std": stdev(values) if len(values) > 1 else 0.0}


def _sizes(record: Record) -> tuple[int, int]:
    """Parameters as trained, and with a linear decoder where there is none."""
    from assay.studies.sae.fitting import weights

    params, directions = int(record.metrics["params"]), weights(record)["directions"]
    has_decoder = "fvu_own" in record.metrics
    return params, params + (0 if has_decoder else directions.numel() + directions.shape[1])
