"""The study's table and learning curves, from records alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from assay.core.run import Record
from assay.core.study import Report
from assay.metrics.intervals import student_t, wilson
from assay.report.cells import Cell, cells, varying
from assay.report.charts import interval_lines

SOLVED = 0.98
BYTES = 4
"""Of a float32 scalar: states are counted in it whatever they are computed in."""
FORMATS = {"accuracy": ".4f", "exact match": ".4f", "mse": ".4f", "tokens/s": ".0f", "lr": ".0e"}


def report(records: Sequence[Record], out: Report) -> None:
    found = cells(records)
    settings = varying(found, ignore=("model.seq_mixer", "model.state_mixer", "task"))
    rows = [_row(cell, {key: values[i] for key, values in settings.items()}) for i, cell in enumerate(found)]
    kept = [key for key in rows[0] if any(row[key] is not None for row in rows)]
    note = (
        f"score ± half the 95 % Student t interval over seeds, on held-out sequences; solved: seeds at {SOLVED:.0%} or "
        "more, with the Wilson interval of their share; state: what is carried per sequence at the task's length, in "
        "float32 bytes."
    )
    out.table("icl", [{key: row[key] for key in kept} for row in rows], formats=FORMATS, note=note)
    _curves(found, rows, out)


def _row(cell: Cell, setting: Mapping[str, Any]) -> dict[str, Any]:
    options, first = cell.options, cell.records[0].metrics
    speed = [record.cost["tokens_per_second"] for record in cell.records if "tokens_per_second" in record.cost]
    row: dict[str, Any] = {
        "task": options["task"]["name"],
        "seq_mixer": options["model"]["seq_mixer"]["name"],
        "state_mixer": options["model"]["state_mixer"]["name"],
    }
    row |= setting
    row["accuracy"], row["exact match"] = cell.interval("accuracy"), cell.interval("exact_match")
    row["mse"] = cell.interval("mse")
    accuracies = list(cell.values("accuracy").values())
    solved = sum(accuracy >= SOLVED for accuracy in accuracies)
    row["solved"] = f"{solved}/{len(accuracies)}" if accuracies else None
    row["share solved"] = wilson(solved, len(accuracies)) if len(accuracies) > 1 else None
    for goal in ("90", "98"):
        row[f"steps to {goal} %"] = cell.interval(f"steps_to_{goal}")
    row["k-params"] = first["params"] / 1000
    row["state bytes"] = BYTES * first["state_scalars"]
    row["tokens/s"] = sum(speed) / len(speed) if speed else None
    return row


def _curves(found: Sequence[Cell], rows: Sequence[Mapping[str, Any]], out: Report) -> None:
    for metric in ("accuracy", "mse"):
        lines, dots = [], []
        for cell, row in zip(found, rows, strict=True):
            name = " ".join(str(row[key]) for key in ("task", "seq_mixer", "state_mixer"))
            curves = [record.metrics["curve"] for record in cell.records if metric in record.metrics]
            for points in zip(*curves, strict=False):
                values = [point[metric] for point in points]
                lines.append({"series": name, "step": points[0]["step"], metric: student_t(values)})
                dots += [{"series": name, "step": points[0]["step"], metric: value} for value in values]
        if lines:
            chart = interval_lines(lines, x="step", y=metric, series="series", dots=dots, x_title="training step")
            out.chart(f"{metric}_by_step", chart, caption=f"Held-out {metric} while training.")
