"""Draws the paper's figures from the spec's JSON files.

    assay sae figures --results_dir results --output_dir figures

fig1_theorem, fig2_ablation, fig3_benchmark, fig4a_loss, fig4b_convergence, and the units' weights as images: fig5 the
decoder-free encoder, fig6 the standard sparse autoencoder. A missing file is named, and its figure left out.
"""

import io
import json
import pickle
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from assay.core.errors import UserError
from assay.core.files import DAMAGE, check_writable, is_there, read_file, reason
from assay.core.study import Reading, Report
from assay.report.files import drawn
from assay.studies import studies
from assay.studies.sae.charts import FIGURES, feature_grid, theorem_chart
from assay.studies.sae.gradients import measured

FILES = {
    "2": ("ablation/ablation_results.json", ("fig2_ablation",)),
    "3": ("benchmark/benchmark_results.json", ("fig3_benchmark",)),
    "4": ("dynamics/dynamics_results.json", ("fig4a_loss", "fig4b_convergence")),
}
"""The spec's files, and the figures that are drawn from each."""

GRIDS = {
    "5": ("fig5_features", ("linear.weight",), ("lse_var_tc", "ours")),
    "6": ("fig6_sae_features", ("encoder.0.weight", "encoder.weight"), ("sae",)),
}
"""Figures of units' weights: their name, the tensor (today's name, then older ones), and which checkpoints they are
drawn from."""


@studies.register("sae.figures")
@dataclass(frozen=True, kw_only=True)
class Figures(Reading):
    """Draw the paper's figures from what the other verbs wrote."""

    question: ClassVar[str] = "What do the paper's figures look like with the numbers found here?"

    results_dir: Path = Path("results")
    """The folder with ablation/, benchmark/ and dynamics/."""
    output_dir: Path = Path("figures")
    """The folder that the drawn files go to."""
    figure: Literal["all", "1", "2", "3", "4", "5", "6"] = "all"
    """Number of the one to draw; all: each whose numbers are there."""
    format: Literal["pdf", "png", "svg"] = "pdf"
    """Kind of file that is written."""

    def report(self, out: Report) -> None:
        check_writable(self.output_dir / "fig1_theorem")
        charts: dict[str, Any] = {}
        if self.figure in ("all", "1"):
            sizes = {"batch_size": 64, "input_dim": 784, "hidden_dim": 64, "activation": "relu"}
            charts["fig1_theorem"] = theorem_chart(measured(sizes, 42, torch.device("cpu"))[1])
        for number, (file, names) in FILES.items():
            if self.figure in ("all", number) and (found := self._read(file)) is not None:
                try:
                    charts |= {name: FIGURES[name](found) for name in names}
                except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
                    path = self.results_dir / file
                    raise UserError(
                        f"{path} is not what `assay sae {path.parent.name}` writes ({type(error).__name__}: {error})."
                    ) from None
        if self.figure in ("all", "5", "6"):
            charts |= self._grids()
        if not charts:
            raise UserError(f"nothing to draw in '{self.results_dir}': run assay sae ablation, or benchmark, first.")
        paths = {name: self.output_dir / f"{name}.{self.format}" for name in charts}
        out.table("figures", [{"figure": name, "file": str(path)} for name, path in paths.items()])
        for name, path in paths.items():
            out.file(path, drawn(charts[name], path.suffix))

    def _read(self, file: str) -> Any:
        path = self.results_dir / file
        if not is_there(path):
            remedy = f"`assay sae {path.parent.name}` writes it"
            warnings.warn(f"{path} is not there, so its figure is left out; {remedy}", stacklevel=2)
            return None
        try:
            return json.loads(read_file(path))
        except DAMAGE as error:
            remedy = f"Run `assay sae {path.parent.name}` again."
            raise UserError(f"{path} is not JSON, or cut short: {reason(error)}. {remedy}") from None

    def _grids(self) -> dict[str, Any]:
        """The first checkpoint of each kind, if its units are images."""
        found: dict[str, Any] = {}
        there = self.results_dir.glob("*/checkpoints/*/model.pt") if is_there(self.results_dir, folder=True) else ()
        for path in sorted(there):
            try:
                # It reads weights only, and calls nothing that a file names.
                state = torch.load(io.BytesIO(read_file(path)), map_location="cpu", weights_only=True)
                units = {
                    key: value for key, value in state.items() if isinstance(value, torch.Tensor) and value.ndim == 2
                }
            except (*DAMAGE, pickle.UnpicklingError, zipfile.BadZipFile):
                raise UserError(f"{path} is no checkpoint that assay or the spec's scripts write.") from None
            for number, (name, keys, words) in GRIDS.items():
                wanted = self.figure in ("all", number) and any(word in path.parent.name for word in words)
                key = next((key for key in keys if key in units), None)
                if wanted and key is not None and name not in found:
                    grid = feature_grid(units[key].detach().float().numpy())
                    found |= {} if grid is None else {name: grid}
        return found
