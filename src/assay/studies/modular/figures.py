"""Three figures of a sweep: epochs until perfect, capacity of narrow models, and similarity of models; and the heatmaps
of the last, which `similarity` and `frequencies` draw too."""

import warnings
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from assay.core.study import Report
from assay.metrics.intervals import share, wilson
from assay.report.charts import heatmap, interval_lines
from assay.report.rows import Row
from assay.report.thinning import SETTINGS, evenly, of_all
from assay.studies.modular.bilinear import addition_table
from assay.studies.modular.files import Key, width_of
from assay.studies.modular.matrices import weights_of
from assay.studies.modular.measures import Matrix, bands, by_width, spec_matrices
from assay.studies.modular.metrics.frequency_law import Kind, Law, frequency_law
from assay.studies.modular.metrics.spectra import eigendecomposition
from assay.studies.modular.metrics.tensor_similarity import Factors, hidden, weights
from assay.studies.modular.records import saved_model, saved_sweep
from assay.studies.modular.thresholds import from_here_on

LINES = 6
"""Most survival curves in a chart: more widths are pooled in bands."""
MAPPED = 64
"""Most models in a sweep's heatmaps; a larger sweep shows its first seed only."""
CONSTRUCTED = 4
GLOSS = {"TN": "TN (tensor network: the weights as one symmetric tensor)"}


def survival(rows: Sequence[Row], out: Report, *, suffix: str = "") -> None:
    """Chart the share of seeds that are not yet perfect, epoch by epoch. Seeds that diverged or ran out of epochs are
    censored at the last epoch."""
    widths = [row.options["d_hidden"] for row in rows]
    place = bands(widths, min(LINES, len(set(widths))))
    lines = [
        line
        for band in sorted(set(place))
        for line in _curve([row for row, own in zip(rows, place, strict=True) if own == band])
    ]
    chart = interval_lines(
        lines, x="epoch", y="y", series="series", x_title="epochs", y_title="not yet perfect", stepped=True
    )
    caption = (
        "Share of seeds that do not yet answer every validation pair (Kaplan-Meier, 95 % intervals, Wilson's where "
        "none or all do), by width."
    )
    out.chart(f"survival{suffix}", chart, caption=caption)


def _curve(rows: Sequence[Row]) -> list[dict[str, Any]]:
    widths, allowed = [row.options["d_hidden"] for row in rows], rows[0].options["epochs"]
    span = f"d {min(widths)}" if len(widths) == 1 else f"d {min(widths)}-{max(widths)}"
    arrived = [epoch for row in rows for epoch in row.values("epochs_to_perfect").values()]
    waiting = sum(len(row.seeds) for row in rows) - len(arrived)
    points = kaplan_meier(arrived, [float(allowed)] * waiting)
    if points[-1]["epoch"] != allowed:
        points.append(points[-1] | {"epoch": float(allowed)})
    return [{"series": span, **point} for point in points]


def kaplan_meier(arrived: Sequence[float], censored: Sequence[float]) -> list[dict[str, Any]]:
    """The share `y` that has not arrived from each `epoch` on, 0 and those of arrivals, where some runs never arrive
    within the time allowed (Kaplan and Meier 1958); censored runs count as waiting until their last observation.

        S(t) = prod over event times s <= t of (1 - events at s / still waiting at s)

    The 95 % interval is Greenwood's on the scale of log(-log S), which stays between 0 and 1. That has none where S is
    1 or 0: there it is Wilson's, of the runs observed until the first arrival, or of all that arrived."""
    from scipy.stats import CensoredData, ecdf

    curve = ecdf(CensoredData(uncensored=arrived, right=censored)).sf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # scipy says where there is no interval
        bounds = curve.confidence_interval(method="log-log")
    columns = (curve.quantiles, curve.probabilities, bounds.low.probabilities, bounds.high.probabilities)
    first = min(arrived, default=max(censored, default=0.0))
    none_yet = wilson(n := sum(time >= first for time in [*arrived, *censored]), n)
    points: list[dict[str, Any]] = [{"epoch": 0.0, "y": 1.0, "low": none_yet.low, "high": none_yet.high}]
    for epoch, y, low, high in zip(*(column.tolist() for column in columns), strict=True):
        if epoch in arrived:
            if y == 0:
                low, high = 0.0, wilson(0, len(arrived)).high
            points.append({"epoch": epoch, "y": y, "low": low, "high": high})
    return points


def capacity(settings: Mapping[str, Sequence[Row]], out: Report, *, good: float) -> None:
    """Chart the full-table accuracy of models trained at width d, of the widest models cut down to d, and of the four
    units that are enough. What a cut model can do, a model of that width has room for."""
    found = []
    drawn = set(evenly(list(settings), SETTINGS))
    for place, (name, rows) in enumerate(settings.items(), start=1):
        curves = _curves(rows)
        found += [_smallest(name, kind, curve, good) for kind, curve in curves.items()]
        if name not in drawn:
            continue
        lines = [
            {"series": kind, "d": d, "y": share(values)}
            for kind, curve in curves.items()
            for d, values in curve.items()
        ]
        chart = interval_lines(
            lines, x="d", y="y", series="series", x_title="hidden width", y_title="full-table accuracy"
        )
        where = " ".join([name, *of_all(len(drawn), len(settings))])
        caption = (
            f"{where}: is the smallest width a limit of room or of learning? Models trained at d, the widest models "
            "cut down to d, and four units by hand."
        )
        out.chart(f"capacity_{place}" if len(settings) > 1 else "capacity", chart, caption=caption)
    note = (
        "full-table accuracy. smallest width: from which on every wider one tried passes too. cut to units: of the "
        "widest models, the d units that move the logits most, with the best readout for them; cut to eigenvalues: "
        "each remainder's form cut to the rank that d units allow, which is more than one model of width d can hold; "
        "constructed: four units, by hand."
    )
    out.table("capacity", found, formats={f"at width {CONSTRUCTED}": ".4f"}, note=note)


def _curves(rows: Sequence[Row]) -> dict[str, dict[int, list[float]]]:
    """Full-table accuracies per seed, by kind of model and width."""
    trained = {row.options["d_hidden"]: list(row.values("full_acc").values()) for row in rows}
    # A wider model can hold the four units too, and leave the others at zero.
    by_hand = {width: [1.0] for width in sorted({CONSTRUCTED, *trained}) if width >= CONSTRUCTED}
    curves = {"trained": trained, **_truncated(rows), "constructed": by_hand}
    return {kind: {d: values for d, values in sorted(curve.items()) if values} for kind, curve in curves.items()}


def _smallest(name: str, kind: str, curve: Mapping[int, Sequence[float]], good: float) -> dict[str, Any]:
    return {
        "setting": name,
        "model": kind,
        f"smallest width, mean >= {good:g}": from_here_on(
            {width: fmean(values) >= good for width, values in curve.items()}
        ),
        "smallest width, all 1": from_here_on({width: min(values) == 1 for width, values in curve.items()}),
        f"at width {CONSTRUCTED}": share(curve[CONSTRUCTED]) if CONSTRUCTED in curve else None,
    }


CUT = 10
"""Most seeds whose widest model is cut down."""


def _truncated(rows: Sequence[Row]) -> dict[str, dict[int, list[float]]]:
    """Accuracies of the widest models at every width tried, one for each of the first seeds."""
    widths = [row.options["d_hidden"] for row in rows]
    widest = rows[widths.index(max(widths))]
    found: dict[str, dict[int, list[float]]] = {}
    for record in widest.finished[:CUT]:
        model = saved_model(record)
        curves = {"cut to units": truncated_to_units(model), "cut to eigenvalues": truncated_to_eigenvalues(model)}
        for kind, curve in curves.items():
            for width in widths:
                # Beyond the form's own size nothing is cut.
                found.setdefault(kind, {}).setdefault(width, []).append(float(curve[min(width, len(curve)) - 1]))
    return found


@torch.no_grad()
def truncated_to_units(model: Factors) -> Float[Tensor, " widths"]:
    """The share of all P^2 pairs answered with 1, 2, ... d_hidden units left: those that move the logits most, with the
    readout that best gives back the wide model's logits."""
    plain, units = weights(model), hidden(model)
    strength = units.norm(dim=0) * plain.w_p.norm(dim=0)
    units = units[:, strength.argsort(descending=True)]
    logits = hidden(model) @ plain.w_p.T
    # Orthogonal directions of the first 1, 2, ... units: each adds its own part of the logits to the best fit.
    basis = torch.linalg.qr(units).Q
    target, kept = addition_table(plain.P)[2], torch.zeros_like(logits)
    found = []
    for direction in basis.unbind(dim=1):
        kept += torch.outer(direction, direction @ logits)
        found.append((kept.argmax(dim=1) == target).double().mean())
    return torch.stack(found)


@torch.no_grad()
def truncated_to_eigenvalues(model: Factors) -> Float[Tensor, " widths"]:
    """The share of all P^2 pairs answered with the 2, 4, ... largest eigenvalues of each form left, the rank that 1, 2,
    ... units allow. These forms need not share units, so that this is more than a model of that width can hold: a
    bound, not a model."""
    values, vectors = eigendecomposition(model)
    P = len(values)
    target, kept = addition_table(P)[2], values.new_zeros(P, P, P)
    found = []
    for k in range(values.shape[1]):
        first, second = vectors[:, :P, k], vectors[:, P:, k]
        kept += values[:, k, None, None] * (first[:, :, None] + second[:, None, :]).square_()
        if k % 2:
            logits = rearrange(kept, "r a b -> (a b) r")
            found.append((logits.argmax(dim=1) == target).double().mean())
    return torch.stack(found)


def maps(rows: Sequence[Row], out: Report, *, suffix: str = "") -> None:
    """Draw the spec's three heatmaps, and the frequencies of the widest model; `assay modular similarity` has more."""
    records = [record for row in rows for record in row.finished]
    if len(records) > MAPPED:
        records = [record for record in records if record.run.seed == min(r.run.seed for r in records)]
    if not records:
        return
    sweep = saved_sweep(records)
    if len({width_of(key) for key in sweep.models}) < 2:
        return
    models = weights_of(sweep.models, sweep.P)
    width_heatmaps(spec_matrices(models), list(sweep.models), out, suffix=suffix)
    key = list(sweep.models)[-1]
    law_heatmap(key, frequency_law(models[-1]), out, seed=sweep.seed_of(key), suffix=suffix)


def width_heatmaps(
    matrices: Mapping[str, Matrix], keys: Sequence[Key], out: Report, *, order: str = "width", suffix: str = ""
) -> None:
    """Draw a heatmap per matrix: the mean over the pairs of models of two widths."""
    for name, matrix in matrices.items():
        cells = list(by_width(matrix, keys))
        widths = sorted({cell["d"] for cell in cells})
        shown = widths if order == "width" else _clustered(cells, widths, divergence=name.startswith("JS"))
        chart = heatmap(
            cells, x="d", y="d'", value="value", x_title="hidden width", y_title="hidden width", title=name,
            x_order=shown, y_order=shown,
        )  # fmt: skip
        what = "divergence" if name.startswith("JS") else "similarity"
        out.chart(
            f"{name.partition(' ')[0].lower()}_by_width{suffix}",
            chart,
            caption=f"{GLOSS.get(name, name)} {what}: the mean over pairs of models of two widths, never of a model "
            "with itself where a width has several.",
        )


def law_heatmap(key: Key, law: Law, out: Report, *, seed: int | None, kind: Kind = "eigen", suffix: str = "") -> None:
    """Draw p(f | r) of one model; `seed` is None where a file does not say."""
    cells = [{"f": f, "r": r, "p(f | r)": p} for r, row in enumerate(law) for f, p in enumerate(row)]
    of = "" if seed is None else f", seed {seed}"
    title = f"p(f | r), d={width_of(key)}{of}"
    chart = heatmap(cells, x="f", y="r", value="p(f | r)", x_title="frequency", y_title="remainder", title=title)
    caption = f"The law of frequencies ({kind}) of one model, of width {width_of(key)}{of}: a row per remainder."
    out.chart(f"frequencies_d{width_of(key)}{suffix}", chart, caption=caption)


def _clustered(cells: Sequence[Mapping[str, Any]], widths: Sequence[int], *, divergence: bool) -> list[int]:
    """Order widths as the leaves of an average-linkage tree."""
    from scipy.cluster.hierarchy import leaves_list, linkage

    values = np.array([cell["value"] for cell in cells]).reshape(len(widths), len(widths))
    apart = values if divergence else values.max() - values
    condensed = ((apart + apart.T) / 2)[np.triu_indices(len(widths), k=1)]
    return [widths[leaf] for leaf in leaves_list(linkage(np.maximum(condensed, 0), method="average"))]
