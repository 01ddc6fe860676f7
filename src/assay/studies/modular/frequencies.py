"""Which frequencies does a model add with? `assay modular frequencies SWEEP --d_hidden 32`.

It draws p(f | r) of chosen models as heatmaps, and the number of frequencies in use against the width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from assay.core.errors import UserError
from assay.core.grouping import grouped
from assay.core.study import Reading, Report
from assay.metrics.intervals import student_t
from assay.report.charts import interval_lines
from assay.studies import studies
from assay.studies.modular.figures import law_heatmap
from assay.studies.modular.files import Key, SweepResults, width_of
from assay.studies.modular.matrices import weights_of
from assay.studies.modular.metrics.frequency_law import Kind, Law, dominant_frequencies, frequency_law
from assay.studies.modular.metrics.spectra import (
    components_for_variance_threshold,
    entropy_effective_rank,
    interaction_eigenvalues,
    ratio_effective_rank,
)
from assay.studies.modular.metrics.tensor_similarity import Weights
from assay.studies.modular.records import read_sweep

NOTE = (
    "frequencies: how many hold 90 % of p(f | r), averaged over remainders; strongest: the frequency with the largest "
    "mean over remainders, and that mean; constant: the mean share of f = 0. effective rank and components: of the "
    "squared eigenvalues of a remainder's form, averaged over remainders."
)


@studies.register("modular.frequencies")
@dataclass(frozen=True, kw_only=True)
class Frequencies(Reading):
    """Which frequencies does a model of modular addition use, remainder by remainder?"""

    question: ClassVar[str] = "Which frequencies does a model of modular addition use, remainder by remainder?"
    argument: ClassVar[str] = "sweep"

    sweep: Path
    """A saved sweep (.safetensors or .pkl), or a results folder; the flag's name may be left out."""
    d_hidden: tuple[int, ...] = ()
    """Widths to draw; by default those nearest to P, 3P/4, P/2 and P/4."""
    seed: int | None = None
    """The seed to draw; by default the first."""
    kind: Kind = "eigen"
    """The law: eigen is the spec's; power and diagonal depend on the model alone, not on an eigensolver."""
    n_evecs: int = 4
    """Eigenvectors of each form in the law `eigen`."""

    def report(self, out: Report) -> None:
        if self.n_evecs < 1:
            raise UserError(f"n_evecs={self.n_evecs}: it is at least 1.")
        sweep = read_sweep(self.sweep)
        chosen = self._chosen(sweep)
        models = dict(zip(sweep.models, weights_of(sweep.models, sweep.P), strict=True))
        laws = {key: frequency_law(model, self.kind, n_evecs=self.n_evecs) for key, model in models.items()}
        rows = [_row(key, models[key], laws[key], sweep) for key in chosen]
        out.table("frequencies", rows, formats={"val acc": ".4f"}, note=NOTE + _of_seeds(sweep, chosen))
        for key in chosen:
            law_heatmap(key, laws[key], out, seed=sweep.seed_of(key), kind=self.kind)
        _count(laws, out)

    def _chosen(self, sweep: SweepResults) -> list[Key]:
        replicate = [key for key in sweep.models if self.seed is None or sweep.seed_of(key) == self.seed]
        if not replicate:
            sweep.of_seed(self.seed)  # raises for an unknown seed
        first: dict[int, Key] = {}
        for key in replicate:
            first.setdefault(width_of(key), key)
        wanted = tuple(dict.fromkeys(self.d_hidden or nearest_widths(sweep.P, list(first))))
        if missing := [width for width in wanted if width not in first]:
            known = ", ".join(map(str, sorted(first)))
            raise UserError(f"--d_hidden {missing[0]}: the sweep has no such width. It has: {known}.")
        return [first[width] for width in wanted]


def nearest_widths(P: int, widths: Sequence[int]) -> list[int]:
    """Choose the available widths nearest to P, 3P/4, P/2 and P/4."""
    return [min(widths, key=lambda width: abs(width - target)) for target in (P, 3 * P / 4, P / 2, P / 4)]


def _of_seeds(sweep: SweepResults, chosen: Sequence[Key]) -> str:
    """Say that models of other seeds are not among these."""
    seeds = {sweep.seed_of(key) for key in sweep.models}
    shown = sorted({str(sweep.seed_of(key)) for key in chosen})
    if len(seeds) == len(shown):
        return ""
    return f" Of the sweep's {len(seeds)} seeds these are models of seed {', '.join(shown)}; --seed chooses another."


def _row(key: Key, model: Weights, law: Law, sweep: SweepResults) -> dict[str, Any]:
    mean = law.mean(axis=0)
    eigenvalues = interaction_eigenvalues(model)
    return {
        "d_hidden": width_of(key),
        "seed": sweep.seed_of(key),
        "val acc": sweep.val_accs[key],
        "frequencies": float(dominant_frequencies(law).mean()),
        "strongest": int(mean.argmax()),
        "its share": float(mean.max()),
        "constant": float(mean[0]),
        "effective rank": float(entropy_effective_rank(eigenvalues).mean()),
        "rank (ratio)": float(ratio_effective_rank(eigenvalues).mean()),
        **{
            f"components {share:.0%}": float(components_for_variance_threshold(eigenvalues, share).double().mean())
            for share in (0.9, 0.95, 0.99)
        },
    }


def _count(laws: dict[Key, Law], out: Report) -> None:
    """Chart how many frequencies a model uses, against its width."""
    counts = {key: float(np.mean(dominant_frequencies(law))) for key, law in laws.items()}
    widths = sorted(grouped(counts, width_of).items())
    if len(widths) < 2:
        return
    groups = {width: [counts[key] for key in keys] for width, keys in widths}
    lines = [{"series": "models", "d": width, "y": student_t(values)} for width, values in groups.items()]
    dots = [{"series": "models", "d": width, "y": value} for width, values in groups.items() for value in values]
    chart = interval_lines(
        lines, x="d", y="y", series="series", dots=dots, x_title="hidden width", y_title="frequencies"
    )
    out.chart(
        "frequencies_by_width",
        chart,
        caption="Frequencies that hold 90 % of p(f | r), averaged over remainders; a dot for each model.",
    )
