"""The paper's figures, drawn from the spec's JSON files.

    assay sae figures --results_dir results --output_dir figures

fig1_theorem, fig2_ablation, fig3_benchmark, fig4a_loss, fig4b_convergence, and the units' weights as images: fig5 the
decoder-free encoder, fig6 the standard sparse autoencoder. A file that is not there is named, and its figure left out.
"""

import io
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from assay.core.errors import UserError
from assay.core.run import Record
from assay.core.study import Reading, Report
from assay.metrics.intervals import student_t
from assay.report.charts import interval_bars, interval_lines
from assay.report.files import drawn
from assay.report.images import diverging, picture, pictures, tiled
from assay.studies import studies
from assay.studies.sae.theorem import measured

FILES = {
    "2": "ablation/ablation_results.json",
    "3": "benchmark/benchmark_results.json",
    "4": "dynamics/dynamics_results.json",
}

GRIDS = {
    "5": ("fig5_features", "linear.weight", ("lse_var_tc", "ours")),
    "6": ("fig6_sae_features", "encoder.weight", ("sae",)),
}
"""Figures of units' weights: their name, the tensor, and which checkpoints they are drawn from."""


@studies.register("sae.figures")
@dataclass(frozen=True, kw_only=True)
class Figures(Reading):
    """Draw the paper's figures from what the other verbs wrote."""

    question: ClassVar[str] = "What do the paper's figures look like with the numbers found here?"

    results_dir: Path = Path("results")
    """Where ablation/, benchmark/ and dynamics/ are."""
    output_dir: Path = Path("figures")
    figure: Literal["all", "1", "2", "3", "4", "5", "6"] = "all"
    format: Literal["pdf", "png", "svg"] = "pdf"

    def report(self, out: Report) -> None:
        charts: dict[str, Any] = {}
        if self.figure in ("all", "1"):
            sizes = {"batch_size": 64, "input_dim": 784, "hidden_dim": 64, "activation": "relu"}
            charts["fig1_theorem"] = theorem_chart(measured(sizes, 42, torch.device("cpu"))[1])
        for number, file in FILES.items():
            if self.figure in ("all", number) and (found := self._read(file)) is not None:
                charts |= _of_file(number, found)
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
        if not path.is_file():
            remedy = f"`assay sae {path.parent.name}` writes it"
            warnings.warn(f"{path} is not there, so its figure is left out; {remedy}", stacklevel=2)
            return None
        return json.loads(path.read_text(encoding="utf-8"))

    def _grids(self) -> dict[str, Any]:
        """The first checkpoint of each kind, if its units are images."""
        found: dict[str, Any] = {}
        for path in sorted(self.results_dir.glob("*/checkpoints/*/model.pt")):
            state = torch.load(path, weights_only=True)
            for number, (name, key, words) in GRIDS.items():
                wanted = self.figure in ("all", number) and any(word in path.parent.name for word in words)
                if wanted and key in state and name not in found:
                    grid = feature_grid(state[key].numpy())
                    found |= {} if grid is None else {name: grid}
        return found


def _of_file(number: str, found: Any) -> dict[str, Any]:
    match number:
        case "2":
            return {"fig2_ablation": ablation_chart(found)}
        case "3":
            return {"fig3_benchmark": benchmark_chart(found)}
        case _:
            return {"fig4a_loss": loss_chart(found), "fig4b_convergence": convergence_chart(found)}


def theorem_chart(points: Mapping[str, torch.Tensor], most: int = 1500) -> Any:
    """Gradient against responsibility at the energies and, beside it, at what the ReLU is given."""
    import altair as alt

    step = max(1, len(points["r"]) // most)
    panels = []
    for key, title in (("a", "at the energies a"), ("z", "at z, through the ReLU")):
        pairs = zip(points["r"][::step].tolist(), points[key][::step].tolist(), strict=True)
        rows = [{"r": r, "g": g} for r, g in pairs]
        top = max(row["r"] for row in rows)
        base = {"x": alt.X("r:Q", title="responsibility"), "y": alt.Y("g:Q", title="gradient")}
        dots = alt.Chart(alt.InlineData(values=rows)).mark_circle(size=9, opacity=0.4).encode(**base)
        line = alt.Chart(alt.InlineData(values=[{"r": 0, "g": 0}, {"r": top, "g": top}]))
        panels.append((line.mark_line(strokeDash=[5, 4], color="#808080").encode(**base) + dots).properties(
            width=240, height=240, title=title
        ))  # fmt: skip
    return alt.hconcat(*panels)


def ablation_chart(results: Sequence[Mapping[str, Any]]) -> Any:
    """Similarities of units, a panel for each configuration; dead and redundant units on scales of their own."""
    import altair as alt

    first: dict[str, np.ndarray] = {}
    for entry in results:
        first.setdefault(entry["config_name"], np.array(entry["feature_similarity"]))
    matrices = pictures([(name, diverging(matrix, 1.0)) for name, matrix in first.items()], columns=4, size=150)
    bars = []
    for metric, title in (("dead_units", "dead units (variance below 0.01)"), ("redundancy_score", "redundancy")):
        values = {
            name: [float(e["final_metrics"][metric]) for e in results if e["config_name"] == name] for name in first
        }
        rows = [{"name": name, "y": student_t(found)} for name, found in values.items()]
        dots = [{"name": name, "y": value} for name, found in values.items() for value in found]
        bars.append(interval_bars(rows, label="name", value="y", dots=dots, value_title=title))
    return alt.vconcat(matrices, alt.hconcat(*bars).resolve_scale(color="independent"))


def benchmark_chart(results: Mapping[str, Any]) -> Any:
    """Reconstruction, active units and parameters, a panel each."""
    import altair as alt

    names = list(results["per_seed"])
    panels = []
    for metric, title in (
        ("linear_probe_accuracy", "probe accuracy"), ("normalized_reconstruction_mse", "normalised MSE (spec)"),
        ("l0_sparsity", "active units (spec)"),
    ):  # fmt: skip
        seeds = {name: [run[metric] for run in results["per_seed"][name] if metric in run] for name in names}
        rows = [{"name": name, "y": student_t(found)} for name, found in seeds.items() if found]
        dots = [{"name": name, "y": value} for name, found in seeds.items() for value in found]
        if rows:
            panels.append(interval_bars(rows, label="name", value="y", dots=dots, value_title=title))
    sizes = [{"name": name, "y": results[name]["parameters"]} for name in names]
    panels.append(interval_bars(sizes, label="name", value="y", value_title="parameters as trained"))
    rows_of = [alt.hconcat(*panels[i : i + 2]) for i in range(0, len(panels), 2)]
    return alt.vconcat(*rows_of).resolve_scale(color="independent")


def loss_chart(results: Mapping[str, Any]) -> Any:
    """A panel per optimizer, a line per rate."""
    import altair as alt

    panels = []
    for optimizer in dict.fromkeys(entry["optimizer"] for entry in results["sweep"]):
        rows = []
        for entry in (e for e in results["sweep"] if e["optimizer"] == optimizer):
            for epoch, losses in enumerate(zip(*(run["loss_curve"] for run in entry["runs"]), strict=True), 1):
                rows.append({"lr": f"lr {entry['lr']:g}", "epoch": epoch, "loss": fmean(losses)})
        panels.append(interval_lines(rows, x="epoch", y="loss", series="lr", log_x=True, title=optimizer))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # one legend singles out a rate in both panels, as it should
        return alt.hconcat(*panels)


def convergence_chart(results: Mapping[str, Any]) -> Any:
    rows = [
        {
            "lr": f"{e['lr']:g}",
            "optimizer": e["optimizer"],
            "y": student_t([float(run["convergence_epoch"]) for run in e["runs"]]),
        }
        for e in results["sweep"]
    ]
    dots = [
        {"lr": f"{e['lr']:g}", "optimizer": e["optimizer"], "y": run["convergence_epoch"], "seed": run["seed"]}
        for e in results["sweep"]
        for run in e["runs"]
    ]
    return interval_bars(
        rows, label="lr", value="y", series="optimizer", dots=dots, references={"K = 64": 64}, value_title="epoch"
    )


def feature_grid(W: np.ndarray, columns: int = 8) -> Any | None:
    """The rows of W as images, if they are square."""
    side = round(W.shape[1] ** 0.5)
    return picture(tiled(W.reshape(-1, side, side), columns), size=480) if side * side == W.shape[1] else None


def checkpoints(folder: Path, found: Sequence[tuple[str, Record]]) -> Iterator[tuple[Path, bytes]]:
    """`<name>_seed<n>/model.pt`: the state dict of the spec's Encoder or StandardSAE."""
    from assay.studies.sae.fitting import weights

    for name, record in found:
        kept, coder = weights(record), record.run.options["coder"]
        if coder["name"] == "lse_infomax" and "W_enc" in kept:
            state = {"linear.weight": kept["W_enc"], "linear.bias": kept["b_enc"]}
        elif coder["name"] == "relu_l1" and coder["form"] == "spec" and "W_enc" in kept:
            state = {"encoder.weight": kept["W_enc"], "encoder.bias": kept["b_enc"]}
            state |= {"decoder.weight": kept["W_dec"].T.contiguous(), "decoder.bias": kept["b_dec"]}
        else:
            continue
        file = io.BytesIO()
        torch.save(state, file)
        yield folder / f"{name}_seed{record.run.seed}" / "model.pt", file.getvalue()
