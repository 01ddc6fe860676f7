"""The study's tables and charts: columns and charts as data, drawn from rows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from assay.core.run import Record
from assay.core.study import Report
from assay.metrics.intervals import share, student_t, wilson
from assay.report.draw import Column, Points, lines, table
from assay.report.rows import Row, labels, rows
from assay.studies.icl.capacity import capacity
from assay.studies.icl.findings import guess, say
from assay.tasks import tasks

SOLVED = 0.98
BYTES = 4
"""Bytes of a float32 scalar: states are counted in it whatever they are computed in."""
NOTE = "Scores are on held-out sequences that validation never saw. Rows in parentheses need no training."
RATES = (
    " lr: chosen for each seed on the validation of the others (2/3: for so many of the seeds); edge: a rate beyond "
    "those tried may be better."
)
NAMES = {"task": "task", "seq_mixer": "model.seq_mixer", "state_mixer": "model.state_mixer"}
SCORES = (
    Column("accuracy", "accuracy", ".4f", share=True, lead=True),
    Column("exact match", "exact_match", ".4f", share=True),
    Column("mse", "mse", ".4f", lead=True, note="mse: over the variance of the targets."),
    Column("bits per byte", "bits_per_byte", ".4f", lead=True),
    Column(
        "recalled bytes",
        "bits_per_byte_recalled",
        ".4f",
        lead=True,
        note="recalled bytes: bits of those that stood in the window before, after the same bytes.",
    ),
    Column("other bytes", "bits_per_byte_other", ".4f"),
    Column("share recalled", "share_recalled", ".4f", share=True),
)
"""What rows that need no training have too, and the table of rates."""
COLUMNS = (
    Column("lr", lambda row: row.tuned_words if len(row.tried) > 1 else None, "g"),
    *SCORES,
    Column("unseen keys", "unseen_accuracy", share=True),
    Column("diverged", lambda row: f"{row.diverged}/{row.n}" if row.diverged else None),
    Column(
        "solved",
        lambda row: f"{solved(row)}/{row.n}" if can_be_solved(row) else None,
        lead=True,
        note=f"solved: seeds at {SOLVED:.0%} or more.",
    ),
    Column(
        "share solved",
        lambda row: wilson(solved(row), row.n) if can_be_solved(row) and row.n > 1 else None,
        note="share solved: with its Wilson interval.",
    ),
    Column("steps to 90 %", "steps_to_90"),
    Column("steps to 98 %", "steps_to_98", lead=True, note="steps: of the seeds that arrived."),
    Column("k-params", lambda row: row.first["params"] / 1000 if row.first else None),
    Column(
        "state bytes",
        lambda row: BYTES * row.first["state_scalars"] if row.first else None,
        lead=True,
        note="state: what is carried per sequence at the task's length, in float32.",
    ),
    Column(
        "FLOPs/token",
        lambda row: row.first.get("flops_per_token"),
        ".3g",
        note="FLOPs: of the forward pass, the head where answers are read.",
    ),
    Column("tokens/s", lambda row: _speed(row), ".0f"),
)


def report(records: Sequence[Record], out: Report) -> None:
    found = trained(records)
    references = rows([record for record in records if record.run.options["model"] is None])
    chosen = any(len(row.tried) > 1 for row in found)
    extra = reference_lines(references, title="seq_mixer")
    say(found, out)
    table(out, "icl", found, COLUMNS, extra=extra, note=NOTE + (RATES if chosen else ""))
    if chosen:
        _rates(found, out)
    for metric in ("accuracy", "mse", "bits_per_byte"):
        lines(
            out, f"{metric}_by_step", found, _by_step(metric),
            bounded=metric == "accuracy", x_title="training step", y_title=metric.replace("_", " "),
            caption=f"Held-out {metric.replace('_', ' ')} while training.",
        )  # fmt: skip
    for key, title, beside in (
        ("by_gap", "tokens between key and question (at least)", ""),
        ("by_length", "length of the sequence", " Mixers with a table of positions are not asked."),
    ):
        lines(
            out, f"accuracy_{key}", found, by_number(key), bounded=True, x_title=title, y_title="accuracy", log_x=True,
            caption=f"Accuracy {key.replace('_', ' ')}, after training.{beside}",
        )  # fmt: skip
    _by_position(found, references, out)
    capacity(found, out)


def trained(records: Iterable[Record]) -> list[Row]:
    """A row per trained model, each seed at the learning rate that the other seeds chose on validation."""
    models = [record for record in records if record.run.options.get("model") is not None]
    return rows(models, names=NAMES, short=["task"], tune="optimizer.lr", score=validation)


def validation(record: Record) -> float:
    """The score of the last validation: larger is better."""
    last = record.metrics["curve"][-1]
    lower = next((key for key in ("bits_per_byte", "mse") if key in last), None)
    return -float(last[lower]) if lower else float(last["accuracy"])


def was_scored(row: Row, metric: str) -> bool:
    """Return whether the row's task has this metric. Diverged runs count too: they were validated on the way."""
    return any(metric in record.metrics for record in row.records)


def can_be_solved(row: Row) -> bool:
    """Return whether its answers can all be right: those to real text cannot."""
    return was_scored(row, "accuracy") and not was_scored(row, "bits_per_byte")


def solved(row: Row) -> int:
    return sum(accuracy >= SOLVED for accuracy in row.values("accuracy").values())


def _speed(row: Row) -> float | None:
    speeds = [record.cost["tokens_per_second"] for record in row.finished if "tokens_per_second" in record.cost]
    return fmean(speeds) if speeds else None


def reference_lines(references: Sequence[Row], *, title: str) -> list[dict[str, Any]]:
    """A line for each predictor of each task, its name in parentheses under the column `title`; last a guess, where its
    score is known."""
    out: list[dict[str, Any]] = []
    for task, row in zip(labels([row.options["task"] for row in references], short=True), references, strict=True):
        for name in row.records[0].metrics["references"]:
            scores = {
                each.title: row.interval("references", name, str(each.value), bounded=each.share) for each in SCORES
            }
            out.append({"task": task, title: f"({name})"} | scores)
        if (floor := guess(row.options["task"])) is not None:
            out.append({"task": task, title: "(guess)", "accuracy": floor})
    return out


def _rates(found: Sequence[Row], out: Report) -> None:
    """Tabulate every learning rate that was tried: for recurrent mixers few work, which a table of the best hides."""
    every = [(row, rate, row.tried[rate]) for row in found for rate in sorted(row.tried)]
    shown = [
        replace(row, records=tuple(by_seed.values()), names={**row.names, "lr": f"{rate:g}"}, tried={})
        for row, rate, by_seed in every
    ]
    scores = [column for column in SCORES if column.lead]
    columns = [Column("seeds", lambda row: row.n), Column("diverged", lambda row: row.diverged), *scores]
    note = "every learning rate; scores are of the seeds that did not diverge"
    table(out, "icl_rates", shown, columns, note=note)


def _by_step(metric: str) -> Callable[[Row], Points]:
    """Validation scores by training step, for tasks that have this metric."""

    def points(row: Row) -> Points:
        curves = {r.run.seed: r.metrics["curve"] for r in row.finished if metric in r.metrics}
        for at in zip(*curves.values(), strict=False):
            yield at[0]["step"], {seed: point[metric] for seed, point in zip(curves, at, strict=True)}

    return points


def by_number(key: str) -> Callable[[Row], Points]:
    """Accuracy against a number: the gap, the length or the number of pairs."""
    return lambda row: [(int(x), row.values(key, x)) for x in row.first.get(key, {})]


def _by_position(found: Sequence[Row], references: Sequence[Row], out: Report) -> None:
    """Chart the error, or the accuracy, by the number of examples seen, beside the plain predictors."""
    curves = [(row.series, [r.metrics for r in row.finished]) for row in found if _by_examples(row)]
    if curves or not found:
        tasks_asked = labels([row.options["task"] for row in references], short=True)
        several = len(set(tasks_asked)) > 1
        curves += [
            (f"({name}) {task}" if several else f"({name})", [r.metrics["references"][name] for r in row.records])
            for row, task in zip(references, tasks_asked, strict=True)
            if _by_examples(row)
            for name in row.records[0].metrics["references"]
        ]
    extra = [
        {"series": name, "x": place, "y": interval(list(values))}
        for name, by_seed in curves
        for interval in [share if all("accuracy" in scores for scores in by_seed) else student_t]
        for place, values in enumerate(zip(*(scores["by_answer"] for scores in by_seed), strict=True))
    ]
    caption = "Error over variance, or accuracy, after so many examples."
    lines(out, "by_position", (), by_number(""), extra=extra, x_title="examples seen", y_title="score", caption=caption)


def _by_examples(row: Row) -> bool:
    """Return whether the row's task shows examples one by one; False for a task that is not installed."""
    task: Mapping[str, Any] = row.options["task"]
    return task["name"] in tasks.names() and tasks[task["name"]].by_examples
