"""The study's tables and charts, from records alone."""

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from assay.core.run import Record
from assay.core.study import Report
from assay.metrics.intervals import Interval, share, student_t, wilson
from assay.report.cells import Cell, cells, labels, varying
from assay.report.charts import interval_lines
from assay.studies.icl.capacity import capacity
from assay.studies.icl.contenders import Contender, contenders
from assay.tasks import tasks

SOLVED = 0.98
BYTES = 4
"""Of a float32 scalar: states are counted in it whatever they are computed in."""
FORMATS = {"accuracy": ".4f", "exact match": ".4f", "mse": ".4f", "tokens/s": ".0f", "lr": "g", "FLOPs/token": ".3g"}
NOTE = (
    f"score ± half the 95 % Student t interval over seeds, on held-out sequences that validation never saw; mse: over "
    f"the variance of the targets; solved: seeds at {SOLVED:.0%} or more, with the Wilson interval of their share; "
    "state: what is carried per sequence at the task's length, in float32 bytes; FLOPs: of the forward pass, the head "
    "where answers are read; steps: of the seeds that arrived; rows in parentheses need no training."
)
RATES = (
    " lr: chosen for each seed on the validation of the others (2/3: for so many of the seeds); edge: a rate beyond "
    "those tried may be better."
)


def report(records: Sequence[Record], out: Report) -> None:
    found = contenders(records)
    references = [cell for cell in cells(records) if cell.options["model"] is None]
    names = _names(found)
    rows = [_row(c, name) for c, name in zip(found, names, strict=True)] + reference_rows(references, title="seq_mixer")
    settings = varying([Cell((c.records[0],)) for c in found], ignore=IGNORED) if found else {}
    chosen = any(len(c.tried) > 1 for c in found)
    ordered = in_order(rows, settings, titles=TITLES, columns=COLUMNS)
    out.table("icl", ordered, formats=FORMATS, note=NOTE + (RATES if chosen else ""))
    if chosen:
        _rates(found, names, out)
    series = _series(names, settings)
    _learning(found, series, out)
    _by_key(found, series, out, "by_gap", x_title="tokens between key and question (at least)")
    _by_key(found, series, out, "by_length", x_title="length of the sequence")
    _by_position(found, series, references, out)
    capacity(found, settings, out)


TITLES = ("task", "seq_mixer", "state_mixer")
IGNORED = ("task", "model.seq_mixer", "model.state_mixer", "optimizer.lr")
COLUMNS = (
    "lr", "accuracy", "exact match", "mse", "unseen keys", "diverged", "solved", "share solved", "steps to 90 %",
    "steps to 98 %", "k-params", "state bytes", "FLOPs/token", "tokens/s",
)  # fmt: skip


def _names(found: Sequence[Contender]) -> list[dict[str, str]]:
    """Plug-ins as the shortest words that tell them apart."""
    specs = {
        "task": [c.options["task"] for c in found],
        "seq_mixer": [c.options["model"]["seq_mixer"] for c in found],
        "state_mixer": [c.options["model"]["state_mixer"] for c in found],
    }
    columns = {key: labels(values) for key, values in specs.items()}
    return [{key: columns[key][index] for key in TITLES} for index in range(len(found))]


def _series(names: Sequence[Mapping[str, str]], settings: Mapping[str, Sequence[Any]]) -> list[str]:
    """What tells the contenders apart, as the names of lines."""
    telling = [key for key in TITLES if len({name[key] for name in names}) > 1] or ["seq_mixer"]
    plain = [" ".join(name[key] for key in telling) for name in names]
    return [
        " ".join([name, *(f"{key.rpartition('.')[2]}={values[index]}" for key, values in settings.items())])
        for index, name in enumerate(plain)
    ]


def _row(c: Contender, names: Mapping[str, str]) -> dict[str, Any]:
    first, n = c.first, len(c.records)
    speed = [record.cost["tokens_per_second"] for record in c.finished if "tokens_per_second" in record.cost]
    solved = sum(accuracy >= SOLVED for accuracy in c.values("accuracy").values()) if c.scored("accuracy") else None
    return {
        **names,
        "lr": c.rates if len(c.tried) > 1 else None,
        "accuracy": c.interval("accuracy"),
        "exact match": c.interval("exact_match"),
        "mse": c.interval("mse"),
        "unseen keys": c.interval("unseen_accuracy"),
        "diverged": c.diverged,
        "solved": f"{solved}/{n}" if solved is not None else None,
        "share solved": wilson(solved, n) if solved is not None and n > 1 else None,
        "steps to 90 %": c.interval("steps_to_90"),
        "steps to 98 %": c.interval("steps_to_98"),
        "k-params": first["params"] / 1000 if first else None,
        "state bytes": BYTES * first["state_scalars"] if first else None,
        "FLOPs/token": first.get("flops_per_token"),
        "tokens/s": fmean(speed) if speed else None,
    }


SCORES = {"accuracy": "accuracy", "exact match": "exact_match", "mse": "mse"}
"""Columns and the metrics they show."""


def reference_rows(references: Sequence[Cell], *, title: str) -> list[dict[str, Any]]:
    """A row for each predictor of each task, its name in parentheses under the column `title`."""
    asked = labels([cell.options["task"] for cell in references])
    rows = []
    for task, cell in zip(asked, references, strict=True):
        for name in cell.records[0].metrics["references"]:
            found = [record.metrics["references"][name] for record in cell.records]
            rows.append({"task": task, title: f"({name})", **scores(found)})
    return rows


def scores(found: Sequence[Mapping[str, Any]]) -> dict[str, Interval | None]:
    """What `score` said for each seed -> a column for each metric that it has."""
    return {
        column: student_t([one[metric] for one in found]) if metric in found[0] else None
        for column, metric in SCORES.items()
    }


def in_order(
    rows: Sequence[dict[str, Any]],
    settings: Mapping[str, Sequence[Any]],
    *,
    titles: Sequence[str],
    columns: Sequence[str],
) -> list[dict[str, Any]]:
    """Titles, what tells the first rows apart, and scores, without the columns that no row has."""
    for key, values in settings.items():
        for index, row in enumerate(rows):
            row[key] = values[index] if index < len(values) else None
    order = [key for key in (*titles, *settings, *columns) if any(row.get(key) is not None for row in rows)]
    return [{key: row.get(key) for key in order} for row in rows]


def _rates(found: Sequence[Contender], names: Sequence[Mapping[str, str]], out: Report) -> None:
    """Every rate that was tried: recurrent mixers have narrow windows, and a table of the best hides them."""
    rows = []
    for c, name in zip(found, names, strict=True):
        for rate, by_seed in sorted(c.tried.items()):
            done = [record for record in by_seed.values() if record.status == "done"]
            row: dict[str, Any] = {**name, "lr": f"{rate:g}", "seeds": len(by_seed)}
            row["diverged"] = len(by_seed) - len(done)
            for metric in ("accuracy", "mse"):
                values = [record.metrics[metric] for record in done if metric in record.metrics]
                row[metric] = student_t(values) if values else None
            rows.append(row)
    kept = [key for key in rows[0] if any(row[key] is not None for row in rows)]
    note = "every learning rate; scores are of the seeds that did not diverge"
    out.table("icl_rates", [{key: row[key] for key in kept} for row in rows], formats=FORMATS, note=note)


def _learning(found: Sequence[Contender], series: Sequence[str], out: Report) -> None:
    for metric in ("accuracy", "mse"):
        lines, dots = [], []
        for c, name in zip(found, series, strict=True):
            curves = [record.metrics["curve"] for record in c.finished if metric in record.metrics]
            for points in zip(*curves, strict=False):
                values = [point[metric] for point in points]
                interval = partial(share if metric == "accuracy" else student_t, values)
                lines.append({"series": name, "step": points[0]["step"], metric: interval})
                dots += [{"series": name, "step": points[0]["step"], metric: value} for value in values]
        if lines:
            chart = interval_lines(lines, x="step", y=metric, series="series", dots=dots, x_title="training step")
            out.chart(f"{metric}_by_step", chart, caption=f"Held-out {metric} while training.")


def _by_key(found: Sequence[Contender], series: Sequence[str], out: Report, key: str, *, x_title: str) -> None:
    """Accuracy against a number: a line per contender that was scored so."""
    lines, dots = [], []
    for c, name in zip(found, series, strict=True):
        for x in c.first.get(key, {}):
            values = c.values(key, x)
            lines.append({"series": name, "x": int(x), "accuracy": partial(share, list(values.values()))})
            dots += [{"series": name, "x": int(x), "accuracy": v, "seed": seed} for seed, v in values.items()]
    if lines:
        chart = interval_lines(lines, x="x", y="accuracy", series="series", dots=dots, x_title=x_title, log_x=True)
        out.chart(f"accuracy_{key}", chart, caption=f"Accuracy {key.replace('_', ' ')}, after training.")


def _by_position(found: Sequence[Contender], series: Sequence[str], references: Sequence[Cell], out: Report) -> None:
    """Of examples that come one by one: the error, or the accuracy, after so many of them, with plain predictors."""
    lines = []
    for c, name in zip(found, series, strict=True):
        if _by_examples(c.options["task"]):
            lines += _positions(name, [record.metrics["by_answer"] for record in c.finished])
    for cell in references if lines or not found else ():
        if _by_examples(cell.options["task"]):
            for name in cell.records[0].metrics["references"]:
                curves = [record.metrics["references"][name]["by_answer"] for record in cell.records]
                lines += _positions(f"({name})", curves)
    if lines:
        chart = interval_lines(lines, x="examples", y="score", series="series", x_title="examples seen")
        out.chart("by_position", chart, caption="Error over variance, or accuracy, after so many examples.")


def _by_examples(task: Mapping[str, Any]) -> bool:
    """What the task says of itself; of one whose code is not at hand nothing is known."""
    return task["name"] in tasks.names() and tasks[task["name"]].by_examples


def _positions(name: str, curves: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
    return [
        {"series": name, "examples": position, "score": partial(student_t, list(values))}
        for position, values in enumerate(zip(*curves, strict=True))
    ]
