"""Renders a record as text: options, metrics and costs, each under a heading.

icl mqar attention mlp seed=1
run 0a7633b647700607: done, 2025-06-01 10:20 UTC, in results/.store/icl/0a7633b647700607

options (decide the numbers and the id):
  task.input_seq_len              16
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from assay.core.run import Record, flat
from assay.core.words import printable, printable_lines

SHOWN = 8
"""Longest list of numbers that is shown in full."""
NAME = 30


def render_record(record: Record, label: str) -> str:
    """Render everything that is stored of a run; long lists are shortened, `--json` has them in full."""
    run = record.run
    where = f", in {record.folder}" if record.folder else ""
    kept = f"\nfiles it keeps there: {', '.join(record.artifacts)}" if record.artifacts else ""
    head = f"{label}\nrun {run.id}: {record.verdict}, {record.finished[:16].replace('T', ' ')} UTC{where}{kept}"
    parts = {
        "options (decide the numbers and the id)": {**flat(dict(run.options)), "seed": run.seed},
        "numerics (decide the last digits; part of the id)": asdict(run.numerics),
        "versions of the code (part of the id; a plug-in of your own: the hash of its file)": dict(run.versions),
        "metrics (the same on every machine)": flat(dict(record.metrics)),
        "cost (depends on the machine)": flat(dict(record.cost)),
        "provenance": {name: value for name, value in asdict(record.provenance).items() if value},
    }
    sections = [f"{title}:\n{_lines(values)}" for title, values in parts.items() if values]
    error = [f"error:\n{printable_lines(record.error)}"] if record.error else []
    return "\n\n".join([printable_lines(head), *sections, *error])


def _lines(values: Mapping[str, Any]) -> str:
    return "\n".join(f"  {printable(name):<{NAME}}  {printable(_short(value))}" for name, value in values.items())


def _short(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.6g}"
        case list() if value and all(isinstance(item, Mapping) for item in value):
            last = " ".join(f"{key}={_short(item)}" for key, item in value[-1].items())
            return f"{len(value)} entries, the last: {last}"
        case list() if len(value) > SHOWN:
            return f"{len(value)} values: {_short(value[:3])} ... {_short(value[-1])}"
        case list():
            return " ".join(_short(item) for item in value) or "none"
        case _:
            return str(value)
