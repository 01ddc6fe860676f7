"""Draws heatmaps: the similarity of models by width, and the frequencies that a model uses."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from assay.core.study import Report
from assay.report.charts import heatmap
from assay.studies.modular.files import Key, width_of
from assay.studies.modular.measures import Matrix, by_width
from assay.studies.modular.metrics.frequency_law import Kind, Law

GLOSS = {"TN": "TN (tensor network: the weights as one symmetric tensor)"}


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


def law_heatmap(key: Key, law: Law, out: Report, *, kind: Kind = "eigen", suffix: str = "") -> None:
    """Draw p(f | r) of one model."""
    cells = [{"f": f, "r": r, "p(f | r)": p} for r, row in enumerate(law) for f, p in enumerate(row)]
    name = f"d={key}" if isinstance(key, int) else f"d={key[0]}, seed {key[1]}"
    chart = heatmap(
        cells, x="f", y="r", value="p(f | r)", x_title="frequency", y_title="remainder", title=f"p(f | r), {name}"
    )
    caption = f"The law of frequencies ({kind}) of the model of width {width_of(key)}, a row per remainder."
    out.chart(f"frequencies_d{width_of(key)}{suffix}", chart, caption=caption)


def _clustered(cells: Sequence[Mapping[str, Any]], widths: Sequence[int], *, divergence: bool) -> list[int]:
    """Order widths as the leaves of an average-linkage tree."""
    from scipy.cluster.hierarchy import leaves_list, linkage

    values = np.array([cell["value"] for cell in cells]).reshape(len(widths), len(widths))
    apart = values if divergence else values.max() - values
    condensed = ((apart + apart.T) / 2)[np.triu_indices(len(widths), k=1)]
    return [widths[leaf] for leaf in leaves_list(linkage(np.maximum(condensed, 0), method="average"))]
