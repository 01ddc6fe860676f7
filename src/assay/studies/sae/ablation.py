"""Which term of the loss does what? Configurations A to D of the paper, on any data.

    assay sae ablation --config ablation --output_dir results/ablation --data_dir data

Writes ablation_results.json in the spec's shape, and fig2_ablation. The runs are runs of `assay sae`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from assay.core.run import Record, Run
from assay.core.study import Report
from assay.metrics.intervals import student_t
from assay.sparse_coders.base import SparseCoder
from assay.studies import studies
from assay.studies.sae.spec import metrics as spec
from assay.studies.sae.verb import FromConfig, as_json, by_name, named

METRICS = (
    "dead_units", "dead_units_pct", "redundancy_score", "weight_redundancy", "responsibility_entropy",
    "max_responsibility", "reconstruction_mse",
)  # fmt: skip
HISTORY = ("train_loss", "lse", "var", "tc", "dead_units", "redundancy")
COLUMNS = {
    "dead (spec)": "dead_units", "dead (never fires)": "dead", "redundancy": "redundancy_score",
    "weight redundancy": "weight_redundancy", "resp. entropy": "responsibility_entropy",
    "E[ln inactive]": "log_inactive", "max resp.": "max_responsibility", "L0": "l0", "probe": "linear_probe_accuracy",
    "FVU": "fvu",
}  # fmt: skip
FORMATS = {"probe": ".4f", "FVU": ".3f", "max resp.": ".3f", "redundancy": ".1f", "L0": ".1f"}
NOTE = (
    "± half the 95 % Student t interval over seeds; on test rows. dead (spec): variance below 0.01, an absolute "
    "threshold that any code passes once its scale has grown; redundancy: sum of squared correlations, each pair "
    "twice. resp. entropy: of softmax(-a); it is the mean log of the inactive units once the scale is large, see "
    "E[ln inactive]."
)


@studies.register("sae.ablation")
@dataclass(frozen=True, kw_only=True)
class Ablation(FromConfig):
    """Which term of the decoder-free loss does what?"""

    question: ClassVar[str] = "Which term of the decoder-free loss does what?"

    config: str = "ablation"
    """A YAML file, or the name of one that ships with assay."""
    output_dir: Path = Path("results/ablation")
    """Folder for ablation_results.json and the figure."""
    controls: tuple[SparseCoder, ...] = ()
    """Other coders to add to the table, such as topk:k=8 pca."""

    def coders(self) -> dict[str, SparseCoder]:
        return {**self.loaded().configurations(), **{coder.label: coder for coder in self.controls}}

    def plan(self) -> list[Run]:
        config = self.loaded()
        coders = self.coders()
        return [self.one(config, coder, seed=seed) for seed in self.wanted_seeds(config) for coder in coders.values()]

    def report(self, records: Sequence[Record], out: Report) -> None:
        from assay.studies.sae.charts import ablation_chart, spec_checkpoints

        rows: list[dict[str, Any]] = []
        for name, mine in by_name(records, self.coders()).items():
            values = {column: [float(r.metrics[m]) for r in mine if m in r.metrics] for column, m in COLUMNS.items()}
            rows.append({"configuration": name, **{c: student_t(v) if v else None for c, v in values.items()}})
        out.table("ablation", rows, formats=FORMATS, note=NOTE)
        results = self.results(records)
        out.file(self.output_dir / "ablation_results.json", as_json(results))
        self.figure(out, "fig2_ablation", ablation_chart(results), caption=FIGURE)
        for path, data in spec_checkpoints(self.output_dir / "checkpoints", named(records, self.coders())):
            out.file(path, data)

    def results(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """The spec's ablation_results.json."""
        from assay.studies.sae.fitting import weights

        found = []
        for name, record in named(records, self.coders()):
            kept = weights(record)
            found.append(
                {
                    "config_name": name,
                    "seed": record.run.seed,
                    "final_metrics": {key: record.metrics[key] for key in METRICS},
                    "history": {key: record.metrics["history"].get(key, []) for key in HISTORY},
                    "usage_distribution": kept["usage"].tolist(),
                    "feature_similarity": spec.feature_similarity_matrix(kept["directions"].float()).tolist(),
                }
            )
        return found


FIGURE = (
    "Above: cosines between the units' weights, first seed of each configuration. Below: dead and redundant units; "
    "every seed is a dot."
)
