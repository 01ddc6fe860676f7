"""The study's table and figures, from records alone."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import Any

from assay.core.run import Record
from assay.core.study import Report
from assay.encoders import encoders
from assay.metrics.information import nce_cap
from assay.metrics.intervals import letters, student_t
from assay.report.cells import Cell, cells, varying
from assay.report.charts import interval_bars, interval_lines
from assay.report.thinning import SETTINGS, evenly, of_all
from assay.studies.expressivity.references import REFERENCES
from assay.studies.expressivity.spec.config import Setup
from assay.studies.expressivity.spec.tester import NCE_BLOCK, SHARES

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
MARGIN = 0.05
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

    @cached_property
    def label(self) -> str:
        """The spec's name of an encoder, its changed options, how a code per token was pooled, and its version where
        one name has run in several."""
        spec = self.cell.options["model"]
        pooled = self.cell.records[0].metrics.get("pool")
        name = spec["name"] if self.is_reference else encoders.label_of(spec)
        return name + (f" [{pooled}]" if pooled else "") + (f" @{self.version}" if self.version else "")

    @property
    def series(self) -> str:
        return f"{self.label} {self.world}".rstrip()

    @cached_property
    def world(self) -> str:
        """What a grid varied, besides the encoder."""
        return " ".join(f"{key}={value}" for key, value in self.setting.items())

    @property
    def is_reference(self) -> bool:
        return self.cell.options["model"]["name"] in REFERENCES

    @property
    def rank(self) -> int:
        """Encoders first, then the references."""
        return 1 + REFERENCES.index(self.cell.options["model"]["name"]) if self.is_reference else 0

    @property
    def setup(self) -> Setup:
        """As far as this version knows its options."""
        known = {f.name for f in fields(Setup)}
        return Setup(**{key: value for key, value in self.cell.options.items() if key in known})


def report(records: Sequence[Record], out: Report) -> None:
    rows = _rows(cells(records))
    extra = _extra_metrics(rows)
    worlds = _worlds(rows)
    table = [_scores(row, _named("Oracle", worlds[row.world]), extra) for row in rows]
    empty = {key for key in table[0] if key not in SPEC_COLUMNS and all(line[key] is None for line in table)}
    empty |= {f"{key}_ceiling" for key in empty}
    table = [{key: value for key, value in line.items() if key not in empty} for line in table]
    out.table("expressivity", table, formats=FORMATS, note=_note(rows))
    _ranking(worlds, out)
    numbered = list(enumerate(worlds.values(), start=1))
    drawn = evenly(numbered, SETTINGS)
    for number, own in drawn:
        with out.about(" ".join([*own[0].world.split(), *of_all(len(drawn), len(numbered))])):
            _figures(own, out, f"_{number}" if len(numbered) > 1 else "")


def _rows(found: list[Cell]) -> list[Row]:
    columns = varying(found, ignore=("model",))
    versions = columns.pop("version", [None] * len(found))
    settings = [{key: values[i] for key, values in columns.items()} for i in range(len(found))]
    rows = [Row(*parts) for parts in zip(found, settings, versions, strict=True)]
    order = {world: place for place, world in enumerate(dict.fromkeys(row.world for row in rows))}
    return sorted(rows, key=lambda row: (order[row.world], row.rank, row.label))


def _worlds(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each setting of a grid."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.world, []).append(row)
    return found


def _named(name: str, rows: Sequence[Row]) -> Cell | None:
    """The reference of that name among the rows of one world."""
    return next((row.cell for row in rows if row.cell.options["model"]["name"] == name), None)


def _scores(row: Row, oracle: Cell | None, extra: Sequence[str]) -> dict[str, Any]:
    cell, first = row.cell, row.cell.records[0].metrics
    # The median CPU time: the first run of a worker pays for its imports, and walls depend on who else works.
    seconds = statistics.median(record.cost["cpu_seconds"] for record in cell.records)
    line: dict[str, Any] = {"Model": row.label} | dict(row.setting)
    line["k-params"] = first["enc_params"] / 1000 if "enc_params" in first else None
    line["sec/run"] = seconds
    for column, metric in COLUMNS.items():
        line[column] = cell.interval(metric)
        if column in BOUNDED:
            best = oracle.interval(metric) if oracle else None
            line[f"{column}_ceiling"] = best.mean if best else None
        if column in LOOKUPS:
            line[f"{column}_ceiling"] = row.setup.lookup().ceiling()
    line["FLOPs/token"] = first.get("flops_per_token")
    return line | {name: cell.interval(name) for name in extra}


def _extra_metrics(rows: Sequence[Row]) -> list[str]:
    """Numbers of probes that a subclass of the tester added: a column each."""
    known = set(COLUMNS.values()) | NOT_COLUMNS
    by_context = tuple(f"R2_{share:.2f}_ctx" for share in SHARES)
    names = dict.fromkeys(key for row in rows for record in row.cell.records for key in record.metrics)
    mine = [name for name in names if name not in known and not name.startswith(by_context)]
    return [name for name in mine if any(row.cell.values(name) for row in rows)]


def _note(rows: Sequence[Row]) -> str:
    caps = {row.series: nce_cap(row.setup.batch_eval, NCE_BLOCK) for row in rows}
    near = [r.series for r in rows if (bits := r.cell.interval("NCE_bits")) and bits.mean > 0.9 * caps[r.series]]
    saturated = f" Saturated (over 90 % of it): {', '.join(near)}." if near else ""
    seeds = sorted({len(row.cell.seeds) for row in rows})
    spread = (
        f"half the 95 % Student t interval over {' or '.join(map(str, seeds))} seeds" if seeds != [1] else "one seed"
    )
    return (
        "Encoders are untrained, random features of each architecture, but in AfterTrainR2 and RetrieveR2_trained.\n"
        f"score ± {spread} / ceiling: what the ideal observer of the noisy input reaches.\n"
        f"NCE(bits) and BA(bits) are lower bounds; NCE cannot exceed log2 n = "
        f"{' or '.join(f'{cap:.2f}' for cap in sorted(set(caps.values())))}.{saturated}\n"
        f"Gini is the diversity 1 - sum p^2. Setup: {_common(rows)}."
    )


def _common(rows: Sequence[Row]) -> str:
    """The options that all rows share. `fast` is False in every record: the others say what it meant."""
    first = {key: value for key, value in rows[0].cell.options.items() if key != "fast"}
    same = {key: value for key, value in first.items() if all(row.cell.options.get(key) == value for row in rows)}
    return " ".join(f"{key}={value}" for key, value in same.items() if not isinstance(value, dict))


def _ranking(worlds: Mapping[str, Sequence[Row]], out: Report) -> None:
    """Letters: two encoders share one unless their paired difference over seeds is real after Holm's correction."""
    lines = []
    for rows in worlds.values():
        rivals = [row for row in rows if not row.is_reference and len(row.cell.seeds) > 1]
        if len(rivals) < 2:
            continue
        ranks = {column: _letters(rivals, _named("Noise", rows), COLUMNS[column]) for column in RANKED}
        lines += [
            {"Model": row.label} | dict(row.setting) | {column: ranks[column].get(row.label) for column in RANKED}
            for row in rivals
        ]
    note = (
        "Encoders that share a letter are not told apart by these seeds (paired t, Holm); a is the best group. Where "
        f"no encoder is {MARGIN:g} above Noise there is nothing to rank."
    )
    if lines:
        out.table("ranking", lines, note=note)


def _letters(rivals: Sequence[Row], noise: Cell | None, metric: str) -> dict[str, str]:
    scores = {rival.label: by_seed for rival in rivals if (by_seed := rival.cell.values(metric))}
    floor = noise.interval(metric) if noise else None
    best = max((statistics.mean(by_seed.values()) for by_seed in scores.values()), default=0.0)
    return letters(scores) if best > (floor.mean if floor else 0.0) + MARGIN else {}


def _figures(rows: Sequence[Row], out: Report, suffix: str) -> None:
    """One set of charts per setting of a grid."""
    shares = [(100 * share, f"R2_{share:.2f}") for share in SHARES]
    points = [(row.label, x, row.cell.values(metric)) for row in rows for x, metric in shares]
    chart = _lines(points, x_title="share of the code kept (%)")
    out.chart(
        f"r2_by_share{suffix}",
        chart,
        caption="What a random share of the code still says about the global factors.",
    )
    points = [(row.label, k, values) for row in rows for k, values in _component_scores(row.cell)]
    chart = _lines(points, x_title="principal components k", log_x=True)
    out.chart(
        f"r2_by_components{suffix}",
        chart,
        caption="The same from its top k principal components: free of rotation.",
    )
    trained = [row for row in rows if row.cell.values("RetrieveR2_trained")]
    if trained:
        steps = trained[0].setup.end_to_end_steps
        caption = f"Lookup by content after {steps} end-to-end steps."
        out.chart(f"retrieval{suffix}", _lookup_bars(trained), caption=caption)


def _component_scores(cell: Cell) -> Iterable[tuple[float, dict[int, float]]]:
    """k -> R2 from the top k components, by seed."""
    curves = {record.run.seed: record.metrics.get("R2_pc") or [] for record in cell.records}
    longest = max(map(len, curves.values()))
    return (
        (k, {seed: curve[k - 1] for seed, curve in curves.items() if len(curve) >= k}) for k in range(1, longest + 1)
    )


def _lines(points: Iterable[tuple[str, float, dict[int, float]]], *, x_title: str, log_x: bool = False) -> Any:
    there = [(name, x, by_seed) for name, x, by_seed in points if by_seed]
    lines = [{"model": name, "x": x, "y": partial(student_t, list(by_seed.values()))} for name, x, by_seed in there]
    dots = [
        {"model": name, "x": x, "y": value, "seed": seed}
        for name, x, by_seed in there
        for seed, value in by_seed.items()
    ]
    return interval_lines(
        lines, x="x", y="y", series="model", dots=dots, log_x=log_x, x_title=x_title, y_title="held-out R²"
    )


def _lookup_bars(rows: Sequence[Row]) -> Any:
    metric = "RetrieveR2_trained"
    bars = [{"model": row.label, "R2": row.cell.interval(metric)} for row in rows]
    dots = [
        {"model": row.label, "R2": value, "seed": seed}
        for row in rows
        for seed, value in row.cell.values(metric).items()
    ]
    ceilings = {f"ceiling, {row.setup.keys} keys": row.setup.lookup().ceiling() for row in rows}
    return interval_bars(bars, label="model", value="R2", dots=dots, references=ceilings, value_title=metric)
