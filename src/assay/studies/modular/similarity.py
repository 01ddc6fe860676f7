"""How alike are models of different widths, and how alike are two of one width? `assay modular similarity SWEEP`.

SWEEP is a file that `assay modular sweep --save FILE` wrote, or a results folder. Of a file the spec's three matrices
are kept beside it, as `load_or_compute_tn_similarity` and its kin keep them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from assay.core.errors import UserError
from assay.core.study import Reading, Report
from assay.metrics.intervals import holm
from assay.nn.random import stream
from assay.report.charts import interval_lines
from assay.studies import studies
from assay.studies.modular.bilinear_bank import fresh_models
from assay.studies.modular.figures import width_heatmaps
from assay.studies.modular.files import SweepResults, width_of
from assay.studies.modular.matrices import (
    load_or_compute_act_similarity,
    load_or_compute_js_divergence,
    load_or_compute_tn_similarity,
    weights_of,
)
from assay.studies.modular.measures import (
    P_VALUES,
    Matrix,
    Measure,
    groups,
    mean_over,
    measures,
    spec_matrices,
    summary,
    thinned,
)
from assay.studies.modular.metrics.distances import compare_metrics, cosine_similarity_to_metric, divergence_to_metric
from assay.studies.modular.metrics.frequency_law import phase_scrambled
from assay.studies.modular.metrics.permutation import mantel
from assay.studies.modular.metrics.tensor_similarity import Weights
from assay.studies.modular.records import read_sweep

NEIGHBOURS = 50
"""The largest k in the chart of neighbours."""
NOTE = (
    "TN (tensor network): the weights compared as one symmetric tensor per model, by their cosine. "
    "Means over pairs of different models; JS is a divergence, so small is alike. beyond: the same difference once "
    "each model's own strength is taken out, since models that are like everything are like each other; p (width), p "
    "(band): of so large a one, models or whole widths permuted. Other p: of so large a correlation. All p are after "
    "Holm over this table. ±: the 95 % interval of leaving out a model at a time. bands: quarters "
    "of the widths, or fewer parts of fewer than 8, pairs of one width left out: blocks by size would show there. both "
    ">= 0.95, both perfect: pairs of models by their validation accuracy. untrained: the mean over all pairs, or over "
    "those of the group named, for fresh models of the same widths; scrambled: for these models, the phases of every "
    "unit drawn anew and its power at every frequency kept. 'best image' is a maximum over all symmetries of addition "
    "there too. reachable: entries that some input meets; centred: without what is added to all outputs."
)

LEAD = ("measure", "all pairs", "same width", "other widths", "beyond (width)", "p (width)", "scrambled")
LEAD_NOTE = (
    "Means over pairs of different models, ± the 95 % interval of leaving out a model at a time; JS is a divergence, "
    "so small is alike. beyond (width): same width less other widths once each model's own strength is taken out; p "
    "(width): of so large a one with models permuted, after Holm over all p of the whole table. scrambled: these "
    "models with the phases of every unit drawn anew, a floor."
)


@studies.register("modular.similarity")
@dataclass(frozen=True, kw_only=True)
class Similarity(Reading):
    """How alike are models of different widths, and how alike are two of one width?

    Measured on weights (TN, tensor network: the cosine of two models as symmetric tensors), on answers (activation) and
    on frequencies (JS), each beside what untrained models score. Figures go to OUT/modular.similarity."""

    question: ClassVar[str] = "How alike are models of different widths, and how alike are two of one width?"
    argument: ClassVar[str] = "sweep"

    sweep: Path
    """A saved sweep (.safetensors or .pkl), or a results folder; the flag's name may be left out."""
    n_evecs: int = 4
    """Eigenvectors of each form in the spec's law of frequencies."""
    permutations: int = 999
    """Permutations for p values."""
    most: int = 64
    """Models in the slower comparisons, evenly chosen over widths; 0: all."""
    order: Literal["width", "cluster"] = "width"
    """The order of the heatmaps: by width, or with similar widths together (average linkage)."""

    def __post_init__(self) -> None:
        if self.permutations < 1 or self.n_evecs < 1:
            raise UserError(f"permutations={self.permutations}, n_evecs={self.n_evecs}: both are at least 1.")
        if self.most < 0 or 0 < self.most < 3:
            raise UserError(f"most={self.most}: it is 0, for all models, or at least 3.")

    def report(self, out: Report) -> None:
        sweep = read_sweep(self.sweep)
        widths = len({width_of(key) for key in sweep.models})
        if widths < 3:
            raise UserError(f"{self.sweep} has models of {widths} widths: three or more can be compared.")
        whole = self._matrices(sweep)
        some = thinned(sweep, self.most)
        rows = [row for measure in measures(self.n_evecs) for row in self._rows(measure, sweep, some, whole)]
        correct(rows)
        formats = dict.fromkeys(set(rows[0]) - {"models"}, ".3f")
        out.table("similarity", rows, formats=formats, lead=LEAD, note=NOTE, lead_note=LEAD_NOTE)
        distances = {
            "TN": cosine_similarity_to_metric(whole["TN"]),
            "activation": cosine_similarity_to_metric(whole["activation"]),
            "JS": divergence_to_metric(whole["JS (bits)"]),
        }
        agreement(distances, out, permutations=self.permutations)
        width_heatmaps(whole, list(sweep.models), out, order=self.order)

    def _matrices(self, sweep: SweepResults) -> dict[str, Matrix]:
        """Load or compute the spec's three matrices over all models, cached beside a saved sweep."""
        if self.sweep.is_dir():
            return spec_matrices(weights_of(sweep.models, sweep.P), self.n_evecs)
        return {
            "TN": load_or_compute_tn_similarity(self.sweep),
            "activation": load_or_compute_act_similarity(self.sweep),
            "JS (bits)": load_or_compute_js_divergence(self.sweep, n_evecs=self.n_evecs) / (sweep.P * np.log(2)),
        }

    def _rows(
        self, measure: Measure, sweep: SweepResults, some: SweepResults, whole: Mapping[str, Matrix]
    ) -> Iterator[dict[str, Any]]:
        chosen = some if measure.slow else sweep
        keys = list(chosen.models)
        found = measure.compute(weights_of(some.models, some.P)) if measure.slow else [whole[n] for n in measure.names]
        for name, matrix, floor in zip(measure.names, found, floors(measure, chosen), strict=True):
            row = summary(name, matrix, keys, list(chosen.val_accs.values()), permutations=self.permutations)
            yield row | floor


def correct(rows: Sequence[dict[str, Any]]) -> None:
    """Correct all p of the table for each other (Holm)."""
    found = {(place, name): row[name] for place, row in enumerate(rows) for name in P_VALUES if row[name] is not None}
    for (place, name), p in holm(found).items():
        rows[place][name] = p


def floors(measure: Measure, sweep: SweepResults) -> list[dict[str, float | None]]:
    """Measure untrained models, whose spectra are flat, and these models with scrambled phases, whose spectra are the
    learnt ones. The means are over the same pairs as for the trained models: all, and those that answer well."""
    nulls = {"untrained": untrained(sweep), "scrambled": scrambled(sweep)}
    found = {name: measure.compute(models) for name, models in nulls.items()}
    chosen = groups(list(sweep.val_accs.values()))
    return [
        {
            name if group == "all pairs" else f"{name}, {group}": mean.mean if mean else None
            for group, pairs in chosen.items()
            for name, own in found.items()
            for mean in (mean_over(own[place], pairs),)
        }
        for place in range(len(measure.names))
    ]


def untrained(sweep: SweepResults) -> Sequence[Any]:
    """Initialise models of the same widths, from seeds that no sweep would use."""
    widths = [width_of(key) for key in sweep.models]
    return fresh_models(sweep.P, widths, [-1 - place for place in range(len(widths))])


def scrambled(sweep: SweepResults) -> Sequence[Weights]:
    """Draw the phases of every unit of the models anew."""
    models = weights_of(sweep.models, sweep.P)
    return [phase_scrambled(model, stream(place, "phases")) for place, model in enumerate(models)]


def agreement(distances: Mapping[str, Matrix], out: Report, *, permutations: int) -> None:
    """Report how far the measures agree about neighbours: a table, and the overlap against their number."""
    rows, lines = [], []
    N = len(next(iter(distances.values())))
    ks = [k for k in range(1, NEIGHBOURS + 1) if k < N]
    for one, other in combinations(distances, 2):
        found = compare_metrics(distances[one], distances[other], one, other, k_values=ks)
        test = mantel(distances[one], distances[other], rng=np.random.default_rng(0), permutations=permutations)
        k = min(5, ks[-1])
        rows.append(
            {
                "one": one,
                "other": other,
                **{key: found[key] for key in ("pearson", "spearman", "optimal_scale", "stress")},
                "p (Mantel)": test.p,
                f"overlap at k={k}": found["knn_overlap"][k - 1],
                "by chance": found["knn_overlap_chance"][k - 1],
                "beyond chance": found["knn_overlap_adjusted"][k - 1],
                **{key: found[key][k - 1] for key in ("trustworthiness", "continuity")},
            }
        )
        lines += [
            {"series": f"{one}, {other}", "k": k, "y": y}
            for k, y in zip(found["k_values"], found["knn_overlap"], strict=True)
        ]
    lines += [{"series": "chance", "k": k, "y": k / (N - 1)} for k in ks]
    note = (
        "Of matrices of distances: cosines as sqrt(2 - 2s), divergences as their root. p (Mantel): of so large a "
        "pearson under permutations of the models. overlap: mean share of the k nearest that two measures have in "
        "common; beyond chance: 0 is chance, 1 all."
    )
    out.table("agreement", rows, formats=dict.fromkeys(rows[0], ".3f"), note=note)
    chart = interval_lines(lines, x="k", y="y", series="series", x_title="neighbours k", y_title="overlap")
    out.chart("neighbours", chart, caption="Neighbours that two measures have in common, against their number.")
