"""Write the tables of section `Capacity` in docs/icl.md from stored records.

    assay icl --preset capacity --device cuda --out findings        # 234 models: 17 minutes on an H200
    python docs/findings_icl.py findings                            # seconds

No number is typed by hand. Records of settings that the preset no longer has stand in for those that it has now and
that were not measured yet, and the page says which.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from findings_words import between, ruled, spread

from assay.api import configure
from assay.core.convert import convert
from assay.core.run import Record, canonical
from assay.core.store import Store
from assay.metrics.intervals import Interval
from assay.mixers import mixers
from assay.models.sequence import SequenceModel
from assay.report.rows import Row
from assay.report.section import Section, Table
from assay.studies.icl.capacity import has_convolution
from assay.studies.icl.icl import InContext
from assay.studies.icl.presets import PRESETS
from assay.studies.icl.report import report, trained

PAGE = Path(__file__).parent / "icl.md"
LEFT_OUT = ("k-layer params",)
"""Columns that say the same in every row."""
FORMS = {"recalled bits": ".1f", "bits/state scalar": ".3f", "state bytes": ","}
TABLES = {"capacity_conv": "With a short convolution:", "capacity_no_conv": "Without one:"}


def of_the_preset(records: Sequence[Record]) -> list[Record]:
    """The models among the records whose options are the preset's, but for mixer and rate."""
    planned = [run.options for run in configure(InContext, "capacity", {}).plan()]
    asked = {canonical(_without_axes(options)) for options in planned if options.get("model") is not None}
    trained = [r for r in records if r.status in ("done", "diverged") and r.run.options.get("model") is not None]
    return [record for record in trained if canonical(_without_axes(record.run.options)) in asked]


def _without_axes(options: Any) -> dict[str, Any]:
    model, optimizer = ({**options[key]} for key in ("model", "optimizer"))
    return {**options, "model": model | {"seq_mixer": None}, "optimizer": optimizer | {"lr": None}}


def chosen(records: Sequence[Record]) -> tuple[list[Record], str]:
    """The records of the preset's own settings; all of them, and what to say of it, where some are missing."""
    own = {canonical(mixers.parse(word).spec()): word for word in PRESETS["capacity"]["grid"]["model.seq_mixer"]}
    found = {canonical(mixer_of(record)): record for record in records}
    missing = [word for spec, word in own.items() if spec not in found]
    if not missing:
        return [record for record in records if canonical(mixer_of(record)) in own], ""
    others = [str(mixers.load(mixer_of(record))) for spec, record in found.items() if spec not in own]
    verb = "was" if len(missing) == 1 else "were"
    said = f"Of the preset's {len(own)} settings {len(missing)} {verb} not measured yet: {_listed(missing)}."
    return list(records), f"{said} Measured before the preset changed: {_listed(others)}." if others else said


def mixer_of(record: Record) -> dict[str, Any]:
    return record.run.options["model"]["seq_mixer"]


def _listed(words: Sequence[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def markdown(table: Table) -> str:
    columns = [column for column in table.columns if column not in LEFT_OUT]
    return ruled(columns, [[_shown(row[column], column) for column in columns] for row in table.rows])


def _shown(value: Any, column: str) -> str:
    if isinstance(value, Interval):
        return spread(value, FORMS.get(column, ".3f"))
    text = "-" if value is None else format(value, FORMS.get(column, ""))
    return f"`{text}`" if column == "seq_mixer" else text


def lengths(records: Sequence[Record]) -> str:
    """Recall at the lengths of the preset's task, a row per mixer that was asked at all of them, and who was not yet.
    Models with a table of positions know no other length, and are never asked."""
    asked = [str(n) for n in configure(InContext, "capacity", {}).task.longer()]
    found = [c for c in trained(records) if not convert(SequenceModel, c.options["model"], what="model").has_table]
    there = {index for index, c in enumerate(found) if all(_has_all(record, asked) for record in c.finished)}
    if not any(found[index].finished for index in there):
        return f"Recall by length was not measured at {', '.join(asked[:-1])} and {asked[-1]} tokens yet."
    parts = ["Share of right answers by length of the sequence."]
    for convolved, title in ((True, TABLES["capacity_conv"]), (False, TABLES["capacity_no_conv"])):
        shown = [
            found[i] for i in sorted(there) if has_convolution(found[i].options["model"]["seq_mixer"]) == convolved
        ]
        rows = [
            [f"`{_word(c)}`", *(spread(c.interval("by_length", n)) for n in asked), c.diverged or "-"] for c in shown
        ]
        parts += [title, ruled(["seq_mixer", *asked, "diverged"], rows)] if rows else []
    missing = [_word(c) for index, c in enumerate(found) if index not in there]
    return "\n\n".join([*parts, *([f"Not measured at these lengths yet: {_listed(missing)}."] if missing else [])])


def _has_all(record: Record, asked: Sequence[str]) -> bool:
    return set(asked) <= set(record.metrics.get("by_length", {}))


def _word(c: Row) -> str:
    return str(mixers.load(c.options["model"]["seq_mixer"]))


def section(records: Sequence[Record]) -> str:
    kept, said = chosen(records)
    found = Section("icl")
    report(kept, found)
    tables = {table.name: table for table in found.tables}
    seeds, devices = ({*values} for values in zip(*((r.run.seed, r.run.numerics.device) for r in kept), strict=True))
    diverged = sum(record.status == "diverged" for record in kept)
    head = (
        f"{len(kept)} models on {' and '.join(sorted(devices))}, seeds {', '.join(map(str, sorted(seeds)))}"
        f"{f'; {diverged} diverged' if diverged else ''}. {said}"
    )
    parts = [f"{title}\n\n{markdown(tables[name])}" for name, title in TABLES.items() if name in tables]
    return "\n\n".join([fill(head, 120, break_on_hyphens=False, break_long_words=False), *parts, lengths(kept)])


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path, help="the folder that `assay icl --preset capacity --out` wrote to")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the tables stand")
    args = parser.parse_args(words)
    records = of_the_preset(Store(args.results).records("icl"))
    if not records:
        parser.error(f"no records of `assay icl --preset capacity` under {args.results}")
    try:
        written = between(args.page.read_text(encoding="utf-8"), "capacity", section(records))
    except (OSError, ValueError) as error:
        parser.error(f"{args.page}: {error}")
    args.page.write_text(written, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
