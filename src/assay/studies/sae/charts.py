"""The charts of the spec's figures, from the contents of its JSON files; and the checkpoints its scripts save."""

import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from assay.core.on_use import Later
from assay.metrics.intervals import share, student_t
from assay.report.charts import interval_bars, interval_lines, without_validation
from assay.report.images import diverging, picture, pictures, tiled
from assay.report.rows import Row
from assay.studies.sae.weights import weights

alt: Any = Later("altair")
Numbers = Mapping[str, Any]
"""One seed's entry in a JSON file."""


@without_validation
def theorem_chart(points: Mapping[str, torch.Tensor], most: int = 1500) -> Any:
    """Gradient against responsibility, at the energies and, beside it, at the input of the ReLU."""
    step = max(1, len(points["r"]) // most)
    panels = []
    for key, title in (("a", "at the energies a"), ("z", "at z, through the ReLU")):
        pairs = zip(points["r"][::step].tolist(), points[key][::step].tolist(), strict=True)
        rows = tuple({"r": r, "g": g} for r, g in pairs)  # a list is copied with every part of a chart
        top = max(row["r"] for row in rows)
        base = {"x": alt.X("r:Q", title="responsibility"), "y": alt.Y("g:Q", title="gradient")}
        dots = alt.Chart(alt.InlineData(values=rows)).mark_circle(size=9, opacity=0.4).encode(**base)
        line = alt.Chart(alt.InlineData(values=[{"r": 0, "g": 0}, {"r": top, "g": top}]))
        panels.append((line.mark_line(strokeDash=[5, 4], color="#808080").encode(**base) + dots).properties(
            width=240, height=240, title=title
        ))  # fmt: skip
    return alt.hconcat(*panels)


@without_validation
def ablation_chart(results: Sequence[Mapping[str, Any]]) -> Any:
    """Similarities of units, a panel for each configuration; dead and redundant units on scales of their own."""
    first: dict[str, np.ndarray] = {}
    for entry in results:
        first.setdefault(entry["config_name"], np.array(entry["feature_similarity"]))
    matrices = pictures([(name, diverging(matrix, 1.0)) for name, matrix in first.items()], columns=4, size=150)
    runs = {
        name: [{"seed": one.get("seed"), **one["final_metrics"]} for one in results if one["config_name"] == name]
        for name in first
    }
    titles = {"dead_units": "dead units (variance below 0.01)", "redundancy_score": "redundancy"}
    bars = [_bars(_by_name(runs), metric, label="name", value_title=title) for metric, title in titles.items()]
    return alt.vconcat(matrices, alt.hconcat(*bars).resolve_scale(color="independent"))


@without_validation
def benchmark_chart(results: Mapping[str, Any]) -> Any:
    """Probe accuracy, reconstruction, active units and parameters, a panel each."""
    runs: Mapping[str, Sequence[Numbers]] = results["per_seed"]
    titles = {
        "linear_probe_accuracy": "probe accuracy",
        "normalized_reconstruction_mse": "normalised MSE (spec)",
        "l0_sparsity": "active units (spec)",
    }
    panels = []
    for metric, title in titles.items():
        there = {name: [run for run in own if metric in run] for name, own in runs.items()}
        if any(there.values()):
            panels.append(_bars(_by_name(there), metric, label="name", value_title=title))
    sizes = [{"name": name, "y": results[name]["parameters"]} for name in runs]
    panels.append(interval_bars(sizes, label="name", value="y", value_title="parameters as trained"))
    rows_of = [alt.hconcat(*panels[i : i + 2]) for i in range(0, len(panels), 2)]
    return alt.vconcat(*rows_of).resolve_scale(color="independent")


@without_validation
def loss_chart(results: Mapping[str, Any]) -> Any:
    """A panel per optimizer, a line per rate."""
    panels = []
    for optimizer in dict.fromkeys(entry["optimizer"] for entry in results["sweep"]):
        rows = []
        for entry in (e for e in results["sweep"] if e["optimizer"] == optimizer):
            for epoch, losses in enumerate(zip(*(run["loss_curve"] for run in entry["runs"]), strict=True), 1):
                rows.append({"lr": f"lr {entry['lr']:g}", "epoch": epoch, "loss": fmean(losses)})
        panels.append(interval_lines(rows, x="epoch", y="loss", series="lr", log_x=True, title=optimizer))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # one legend selects a rate in both panels, as intended
        return alt.hconcat(*panels)


@without_validation
def convergence_chart(results: Mapping[str, Any]) -> Any:
    """A bar per optimizer and rate; the line is the number of units."""
    groups = [
        ({"lr": f"{entry['lr']:g}", "optimizer": entry["optimizer"]}, entry["runs"]) for entry in results["sweep"]
    ]
    units = int(results["config"]["model"]["hidden_dim"])
    line = {f"K = {units}": units}
    return _bars(groups, "convergence_epoch", label="lr", series="optimizer", references=line, value_title="epoch")


def _bars(groups: Sequence[tuple[Mapping[str, str], Sequence[Numbers]]], metric: str, **looks: Any) -> Any:
    """A bar per group with the interval over its runs, and every run as a dot."""
    interval = share if metric.endswith("accuracy") else student_t
    rows = [{**words, "y": interval([float(run[metric]) for run in runs])} for words, runs in groups]
    dots = [{**words, "y": float(run[metric]), "seed": run.get("seed")} for words, runs in groups for run in runs]
    return interval_bars(rows, value="y", dots=dots, **looks)


def _by_name(runs: Mapping[str, Sequence[Numbers]]) -> list[tuple[dict[str, str], Sequence[Numbers]]]:
    """The groups that have runs."""
    return [({"name": name}, own) for name, own in runs.items() if own]


def feature_grid(W: np.ndarray, columns: int = 8) -> Any | None:
    """The rows of W as images, if they are square."""
    side = round(W.shape[1] ** 0.5)
    return picture(tiled(W.reshape(-1, side, side), columns), size=480) if side * side == W.shape[1] else None


FIGURES: Mapping[str, Callable[[Any], Any]] = {
    "fig2_ablation": ablation_chart,
    "fig3_benchmark": benchmark_chart,
    "fig4a_loss": loss_chart,
    "fig4b_convergence": convergence_chart,
}
"""The figures that are drawn from the spec's JSON files."""


def spec_checkpoints(folder: Path, found: Sequence[Row]) -> Iterator[tuple[Path, bytes]]:
    """`<name>_seed<n>/model.pt`: the state dict of the spec's Encoder or StandardSAE."""
    for name, record in ((row.label, record) for row in found for record in row.records):
        kept, coder = weights(record), record.run.options["coder"]
        if coder["name"] == "lse_infomax" and "W_enc" in kept:
            state = {"linear.weight": kept["W_enc"], "linear.bias": kept["b_enc"]}
        elif coder["name"] == "relu_l1" and coder["form"] == "spec" and "W_enc" in kept:
            state = {"encoder.0.weight": kept["W_enc"], "encoder.0.bias": kept["b_enc"]}
            state |= {"decoder.weight": kept["W_dec"].T.contiguous(), "decoder.bias": kept["b_dec"]}
        else:
            continue
        file = io.BytesIO()
        torch.save(state, file)
        name = name.replace("/", "_")  # a config's own, which must not lead elsewhere
        yield folder / f"{name}_seed{record.run.seed}" / "model.pt", file.getvalue()
