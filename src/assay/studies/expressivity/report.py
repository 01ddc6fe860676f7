"""The study's table and figures, from records alone."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.core.errors import UserError
from assay.core.run import Record
from assay.core.study import Report
from assay.encoders import encoders
from assay.metrics.intervals import letters, student_t
from assay.report.cells import Cell, cells, varying
from assay.report.charts import interval_bars, interval_lines
from assay.studies.expressivity.config import Setup
from assay.studies.expressivity.references import REFERENCES
from assay.studies.expressivity.tester import NCE_BLOCK, SHARES

# Column -> metric, in the spec's order (its AfterTrainR2 is there only when training); ours follow.
COLUMNS = {
    "R2": "R2",
    "AfterTrainR2": "AfterTrainR2",
    "R2_0.75": "R2_0.75",
    "R2_0.50": "R2_0.50",
    "R2_0.25": "R2_0.25",
    "NCE(bits)": "NCE_bits",
    "RetrieveR2": "RetrieveR2",
    "entropy": "entropy",
    "sv_min": "sv_min",
    "sv_median": "sv_median",
    "Gini": "gini",
    "BA(bits)": "BA_bits",
    "RetrieveR2_trained": "RetrieveR2_trained",
    "erank": "erank",
    "logdet(bits)": "logdet_bits",
}
SPEC_COLUMNS = (
    "Model", "k-params", "sec/run", "R2", "R2_0.75", "R2_0.50", "R2_0.25", "NCE(bits)", "RetrieveR2",
    "entropy", "sv_min", "sv_median", "Gini",
)  # fmt: skip
BOUNDED = ("R2", "R2_0.75", "R2_0.50", "R2_0.25", "NCE(bits)", "BA(bits)")
"""Scores whose ceiling is what the ideal observer reaches through the same probe."""
LOOKUPS = ("RetrieveR2", "RetrieveR2_trained")
RANKED = ("R2", "NCE(bits)", "RetrieveR2", "RetrieveR2_trained")
FORMATS = {"k-params": ".1f", "sec/run": ".2f", "sv_min": ".2e", "sv_median": ".2e", "FLOPs/token": ".0f"}
NOT_COLUMNS = {"enc_params", "flops_per_token", "R2_1.00", "participation"}
"""Shown under another name, or in the records only."""


@dataclass(frozen=True)
class Row:
    """A cell with its place in the table: its label, and what else a grid varied."""

    cell: Cell
    setting: Mapping[str, Any]
    version: str | None

    @property
    def label(self) -> str:
        """The spec's name of an encoder, its changed options, and how a code per token was pooled."""
        spec = self.cell.options["model"]
        pooled = self.cell.records[0].metrics.get("pool")
        try:
            name = spec["name"] if self.is_reference else encoders.load(spec).label
        except UserError:  # a foreign encoder whose file this command was not given
            name = spec["name"]
        return f"{name} [{pooled}]" if pooled else name

    @property
    def series(self) -> str:
        return " ".join([self.label, *(f"{key}={value}" for key, value in self.setting.items())])

    @property
    def is_reference(self) -> bool:
        return self.cell.options["model"]["name"] in REFERENCES

    @property
    def rank(self) -> int:
        """Encoders first, in the order they were asked for, then the references."""
        return 1 + REFERENCES.index(self.cell.options["model"]["name"]) if self.is_reference else 0

    @property
    def setup(self) -> Setup:
        return Setup(**{key: value for key, value in self.cell.options.items() if key not in ("model", "tester")})


def report(records: Sequence[Record], out: Report) -> None:
    rows = _rows(cells(records))
    extra = _extra_metrics(rows)
    table = [_scores(row, _oracle(row, rows), extra) for row in rows]
    empty = {key for key in table[0] if key not in SPEC_COLUMNS and all(line[key] is None for line in table)}
    table = [{key: value for key, value in line.items() if key not in empty} for line in table]
    out.table("expressivity", table, formats=FORMATS, note=_note(rows))
    _ranking(rows, out)
    _figures(rows, out)


def _rows(found: list[Cell]) -> list[Row]:
    columns = varying(found, ignore=("model",))
    versions = columns.pop("version", [None] * len(found))
    settings = [{key: values[i] for key, values in columns.items()} for i in range(len(found))]
    rows = [Row(*parts) for parts in zip(found, settings, versions, strict=True)]
    return sorted(rows, key=lambda row: (settings.index(dict(row.setting)), row.rank))


def _oracle(row: Row, rows: Sequence[Row]) -> Cell | None:
    """The ideal observer of the same world."""
    return next(
        (r.cell for r in rows if r.setting == row.setting and r.cell.options["model"]["name"] == "Oracle"), None
    )


def _scores(row: Row, oracle: Cell | None, extra: Sequence[str]) -> dict[str, Any]:
    cell, first = row.cell, row.cell.records[0].metrics
    seconds = [record.cost["seconds"] for record in cell.records]
    line: dict[str, Any] = {"Model": row.label} | dict(row.setting)
    line["k-params"] = first["enc_params"] / 1000 if "enc_params" in first else None
    line["sec/run"] = sum(seconds) / len(seconds)
    for column, metric in COLUMNS.items():
        line[column] = cell.interval(metric)
        if column in BOUNDED:
            best = oracle.interval(metric) if oracle else None
            line[f"{column}_ceiling"] = best.mean if best else None
        if column in LOOKUPS:
            line[f"{column}_ceiling"] = row.setup.lookup().ceiling()
    line["FLOPs/token"] = first.get("flops_per_token")
    return line | {name: cell.interval(name) for name in extra} | {"version": row.version}


def _extra_metrics(rows: Sequence[Row]) -> list[str]:
    """Numbers of probes that a subclass of the tester added: a column each."""
    known = set(COLUMNS.values()) | NOT_COLUMNS
    by_context = tuple(f"R2_{share:.2f}_ctx" for share in SHARES)
    names = dict.fromkeys(key for row in rows for record in row.cell.records for key in record.metrics)
    mine = [name for name in names if name not in known and not name.startswith(by_context)]
    return [name for name in mine if any(row.cell.values(name) for row in rows)]


def _note(rows: Sequence[Row]) -> str:
    setup = rows[0].setup
    cap = math.log2(min(NCE_BLOCK, setup.batch_eval))
    near = [row.label for row in rows if (bits := row.cell.interval("NCE_bits")) and bits.mean > 0.9 * cap]
    saturated = f" Saturated (over 90 % of it): {', '.join(near)}." if near else ""
    seeds = max(len(row.cell.seeds) for row in rows)
    return (
        f"score ± half the 95 % Student t interval over {seeds} seeds / ceiling: what the ideal observer of the noisy "
        f"input reaches.\nNCE(bits) and BA(bits) are lower bounds; NCE cannot exceed log2 n = {cap:.2f}.{saturated} "
        f"Lookup keys: {setup.keys}."
    )


def _ranking(rows: Sequence[Row], out: Report) -> None:
    """Letters: two encoders share one unless their paired difference over seeds is real after Holm's correction."""
    contenders = [row for row in rows if not row.is_reference]
    if len(contenders) < 2 or any(len(row.cell.seeds) < 2 for row in contenders):
        return
    lines = []
    for row in contenders:
        rivals = [other for other in contenders if other.setting == row.setting]
        line = {"Model": row.label} | dict(row.setting)
        for column in RANKED:
            scores = {rival.label: rival.cell.values(COLUMNS[column]) for rival in rivals}
            line[column] = letters({name: by_seed for name, by_seed in scores.items() if by_seed}).get(row.label)
        lines.append(line)
    note = "Encoders that share a letter are not told apart by these seeds (paired t, Holm); a is the best group."
    out.table("ranking", lines, note=note)


def _figures(rows: Sequence[Row], out: Report) -> None:
    shares = [(100 * share, f"R2_{share:.2f}") for share in SHARES]
    points = [(row.series, x, list(row.cell.values(metric).values())) for row in rows for x, metric in shares]
    chart = _lines(points, x_title="share of the code kept (%)")
    out.chart("r2_by_share", chart, caption="What a random share of the code still says about the global factors.")
    points = [(row.series, k, values) for row in rows for k, values in _component_scores(row.cell)]
    chart = _lines(points, x_title="principal components k", log_x=True)
    out.chart("r2_by_components", chart, caption="The same from its top k principal components: free of rotation.")
    trained = [row for row in rows if row.cell.values("RetrieveR2_trained")]
    if trained:
        out.chart("retrieval", _lookup_bars(trained), caption="Lookup by content after a fixed training budget.")


def _component_scores(cell: Cell) -> Iterable[tuple[float, list[float]]]:
    """k -> R2 from the top k components, one per seed."""
    curves = [record.metrics["R2_pc"] for record in cell.records]
    return ((k, list(values)) for k, values in enumerate(zip(*curves, strict=True), start=1))


def _lines(points: Iterable[tuple[str, float, list[float]]], *, x_title: str, log_x: bool = False) -> Any:
    points = list(points)
    lines = [{"model": name, "x": x, "y": student_t(values)} for name, x, values in points]
    dots = [{"model": name, "x": x, "y": value} for name, x, values in points for value in values]
    return interval_lines(
        lines, x="x", y="y", series="model", dots=dots, log_x=log_x, x_title=x_title, y_title="held-out R²"
    )


def _lookup_bars(rows: Sequence[Row]) -> Any:
    metric = "RetrieveR2_trained"
    bars = [{"model": row.series, "R2": row.cell.interval(metric)} for row in rows]
    dots = [{"model": row.series, "R2": value} for row in rows for value in row.cell.values(metric).values()]
    ceiling = {"ceiling": rows[0].setup.lookup().ceiling()}
    return interval_bars(
        bars, label="model", value="R2", dots=dots, references=ceiling, value_title="RetrieveR2_trained"
    )
