"""Which term of the loss does what? Configurations A to D of the paper, on any data.

    assay sae ablation --config ablation --output_dir results/ablation --data_dir data

Writes ablation_results.json in the spec's shape, and fig2_ablation. The runs are runs of `assay sae`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from assay.core.run import Record
from assay.core.study import Report
from assay.report.draw import Column, table
from assay.report.sentences import Measure, compared
from assay.sparse_coders.base import SparseCoder
from assay.studies import studies
from assay.studies.sae.findings import epochs
from assay.studies.sae.spec import metrics as spec
from assay.studies.sae.verb import Comparison
from assay.studies.sae.weights import weights

METRICS = (
    "dead_units", "dead_units_pct", "redundancy_score", "weight_redundancy", "responsibility_entropy",
    "max_responsibility", "reconstruction_mse",
)  # fmt: skip
HISTORY = ("train_loss", "lse", "var", "tc", "dead_units", "redundancy")
SHARES = ("max_responsibility", "linear_probe_accuracy")
LEAD = ("dead (spec)", "dead (never fires)", "redundancy", "L0", "probe", "FVU")
COLUMNS = [
    Column(title, metric, form, always=True, share=metric in SHARES, lead=title in LEAD)
    for title, metric, form in (
        ("dead (spec)", "dead_units", ""), ("dead (never fires)", "dead", ""),
        ("redundancy", "redundancy_score", ".1f"), ("weight redundancy", "weight_redundancy", ""),
        ("resp. entropy", "responsibility_entropy", ""), ("E[ln inactive]", "log_inactive", ""),
        ("max resp.", "max_responsibility", ".3f"), ("L0", "l0", ".1f"), ("probe", "linear_probe_accuracy", ".4f"),
        ("FVU", "fvu", ".3f"),
    )
]  # fmt: skip
REDUNDANCY = Measure("redundancy (sum of squared correlations)", "redundancy_score", ".1f", lower=True)
DEAD = Measure("dead units (variance below 0.01)", "dead_units", ".1f", lower=True)
NOTE = (
    "On test rows. dead (spec): variance below 0.01, an absolute "
    "threshold that any code passes once its scale has grown; redundancy: sum of squared correlations, each pair "
    "twice. resp. entropy: of softmax(-a); it is the mean log of the inactive units once the scale is large, see "
    "E[ln inactive]."
)


@studies.register("sae.ablation")
@dataclass(frozen=True, kw_only=True)
class Ablation(Comparison):
    """Which term of the decoder-free loss does what?"""

    question: ClassVar[str] = "Which term of the decoder-free loss does what?"

    config: str = "ablation"
    output_dir: Path = Path("results/ablation")
    """Folder for ablation_results.json and the figure."""
    controls: tuple[SparseCoder, ...] = ()
    """Other coders to add to the table, such as topk:k=8 pca."""

    def coders(self) -> dict[str, SparseCoder]:
        return {**self.loaded.configurations(), **{coder.label: coder for coder in self.controls}}

    def report(self, records: Sequence[Record], out: Report) -> None:
        found = self.rows(records, "configuration")
        for measure in (REDUNDANCY, DEAD):
            out.finding(compared(found, measure, of="configuration", runs=epochs(found)), chart="fig2_ablation")
        table(out, "ablation", found, COLUMNS, note=NOTE)
        results = [_result(row.label, record) for row in found for record in row.records]
        self.write(out, found, results, figure="fig2_ablation", caption=FIGURE)


def _result(name: str, record: Record) -> dict[str, Any]:
    """An entry of the spec's ablation_results.json."""
    kept = weights(record)
    return {
        "config_name": name,
        "seed": record.run.seed,
        "final_metrics": {key: record.metrics[key] for key in METRICS},
        "history": {key: record.metrics["history"].get(key, []) for key in HISTORY},
        "usage_distribution": kept["usage"].tolist(),
        "feature_similarity": spec.feature_similarity_matrix(kept["directions"].float()).tolist(),
    }


FIGURE = (
    "Above: cosines between the units' weights, first seed of each configuration. Below: dead and redundant units; "
    "every seed is a dot."
)
