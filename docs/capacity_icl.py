"""Write the capacity table of docs/icl.md, from the records that ship with assay.

    python docs/capacity_icl.py                  # the table
    python docs/capacity_icl.py --ship FOLDER    # first add the records of preset `capacity` in a results folder

The records lie in src/assay/shipped/icl.capacity.jsonl.gz. Of a learning curve they keep the last validation, which the
rate of a row is chosen by. The tables are of runs with `--backend triton`; one line is of runs without.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from masks_perplexity import between, written

from assay.core import shipped
from assay.core.run import Record
from assay.core.store import Store
from assay.report.rows import Row
from assay.report.section import Section, Table
from assay.report.text import shown
from assay.studies.icl.capacity import BEYOND, capacity, has_convolution, missing_rates
from assay.studies.icl.learning import learned
from assay.studies.icl.memories import memory_shape
from assay.studies.icl.report import trained

PAGE = Path(__file__).parent / "icl.md"
NAME = "icl.capacity"
WIDTHS = (32, 64, 128)
COLUMNS = ("learned", "steps to learn", "K90", BEYOND, "state bytes", "lr")
HEBBIAN = "K90 of a Hebbian memory"
STATE = (16_000, 25_000)
"""Bytes of state: every mixer but attention has one row there."""


def thin(record: Record) -> Record:
    """The record with the last point of its curve."""
    return replace(record, metrics={**record.metrics, "curve": record.metrics["curve"][-1:]})


def ship(folder: Path) -> None:
    of_models = [record for record in Store(folder).records("icl") if record.run.options["model"] is not None]
    shipped.add(NAME, shipped.FOLDER, map(thin, of_models))


def of_width(width: int, backend: str = "triton") -> tuple[list[Row], Table]:
    """The rows of mixers with a short convolution at one width, and the table of their report."""
    found = (record for record in shipped.records(NAME) if record.run.numerics.backend == backend)
    rows = trained(record for record in found if record.run.options["model"]["model_dim"] == width)
    out = Section("icl")
    capacity([row for row in rows if has_convolution(row.options["model"]["seq_mixer"])], out)
    return rows, out.tables[0]


def mixer(row: Row) -> str:
    return str(row.options["model"]["seq_mixer"]["name"])


def lines_of(table: Table) -> dict[str, Mapping[str, Any]]:
    """The lines of trained mixers by the mixer's name."""
    trained_ones = [line for line in table.rows if not str(line["seq_mixer"]).startswith("(")]
    return {str(line["seq_mixer"]).partition(":")[0]: line for line in trained_ones}


def held(line: Mapping[str, Any]) -> str:
    """K90, of how many seeds where not all learned, and whether the rate is at an edge."""
    seeds, of = str(line["learned"]).split("/")
    some = f", {seeds} of {of} seeds" if seeds not in (of, "0") else ""
    return f"{line['K90']}{some}{', edge' if 'edge' in str(line['lr']) else ''}"


def overview(tables: Mapping[int, Table]) -> str:
    """K90 by mixer and width; most bits at d = 64 first."""
    found = {width: lines_of(table) for width, table in tables.items()}
    head = [f"| mixer | {' | '.join(f'd = {width}' for width in tables)} |", f"|{'---|' * (1 + len(tables))}"]
    cells = {name: [held(found[width][name]) for width in tables] for name in found[64]}
    return "\n".join(head + [f"| `{name}` | {' | '.join(own)} |" for name, own in cells.items()])


def of_like_state(tables: Mapping[int, Table]) -> str:
    """The rows whose state is in STATE; those that hold most first."""
    lines = [(width, name, line) for width, table in tables.items() for name, line in lines_of(table).items()]
    like = [each for each in lines if STATE[0] <= each[2]["state bytes"] <= STATE[1]]
    out = [f"| mixer | d | state, kB | K90 | {BEYOND} |", f"|{'---|' * 5}"]
    for width, name, line in sorted(like, key=lambda each: -float(str(each[2]["K90"]).split()[0])):
        state, told = line["state bytes"] / 1000, shown(tables[width], line, BEYOND)
        out.append(f"| `{name}` | {width} | {state:.1f} | {held(line)} | {told} |")
    return "\n".join(out)


def whole(rows: Mapping[int, list[Row]], tables: Mapping[int, Table]) -> str:
    """Every trained row, with the rates that were tried and what an untrained memory of its size holds."""
    titles = ("d", "mixer", *COLUMNS[:3], HEBBIAN, *COLUMNS[3:], "rates tried")
    out = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    for width, table in tables.items():
        memories = {str(line["seq_mixer"]): line["K90"] for line in table.rows}
        by_name = {mixer(row): row for row in rows[width]}
        for name, line in lines_of(table).items():
            row = by_name[name]
            shape = memory_shape(row.options["model"]["seq_mixer"], width)
            own = {key: str(shown(table, line, key)) for key in COLUMNS}
            tried = ", ".join(f"{rate:g}" for rate in sorted(row.tried))
            memory = str(memories.get(f"(hebbian, {shape})", "-"))
            cells = [str(width), str(line["seq_mixer"]), *(own[key] for key in COLUMNS[:3]), memory]
            out.append(f"| {' | '.join([*cells, *(own[key] for key in COLUMNS[3:]), tried])} |")
    return "\n".join(out)


def told(width: int, table: Table) -> str:
    """Which rows are told from the best, and which are not; attention is a ceiling, and left out here."""
    lines = lines_of(table)
    ranked = {name: line for name, line in lines.items() if line["lr"] is not None and "edge" not in str(line["lr"])}
    best = next(name for name, line in ranked.items() if line["vs best"] is None)
    rivals = {name: str(line["vs best"]) for name, line in ranked.items() if name not in (best, "attention")}
    apart = [f"`{name}` ({said.removesuffix(' *')})" for name, said in rivals.items() if said.endswith("*")]
    near = [f"`{name}` ({said})" for name, said in rivals.items() if not said.endswith("*")]
    said = [f"At d = {width} `{best}` has most {BEYOND}, attention and rows at an edge aside"]
    said += [f"told below it are {', '.join(apart)}"] if apart else []
    said += [f"not told from it {', '.join(near)}"] if near else []
    return "; ".join(said) + "."


def to_add(rows: Mapping[int, list[Row]]) -> str:
    """The rates that rows at an edge still want."""
    wanted = [
        f"`{mixer(row)}` at d = {width} {' and '.join(f'{rate:g}' for rate in missing)}"
        for width, own in rows.items()
        for row in sorted(own, key=mixer)
        if (missing := missing_rates(row))
    ]
    return f"Not ranked, since a rate beyond may be better, with the rates to add: {'; '.join(wanted)}."


def again() -> str:
    """How many pairs the rows that learned hold which torch computed without our kernels."""
    rows, table = of_width(64, "torch")
    found = [line for line in lines_of(table).values() if line["lr"] is not None]
    said = ", ".join(f"`{line['seq_mixer']}` {held(line)}" for line in found)
    count = sum(len(by_seed) for row in rows if learned(row) for by_seed in row.tried.values())
    return f"K90 at d = 64 with `--backend torch`, {count} runs: {said}."


def block() -> str:
    found = {width: of_width(width) for width in WIDTHS}
    rows, tables = ({width: each[place] for width, each in found.items()} for place in range(2))
    setup = next(line for line in tables[64].note.splitlines() if line.startswith("Setup: ")).partition("; lr tried")[0]
    ranks = "\n".join(f"- {told(width, table)}" for width, table in tables.items())
    setup = setup.replace(" model_dim=64", "")
    parts = [overview(tables), of_like_state(tables), ranks, to_add(rows), whole(rows, tables), again()]
    return "\n\n".join([*parts, f"{setup}; 5 seeds."])


def placed(page: str) -> str:
    return between(page, "capacity", block())


if __name__ == "__main__":
    written(PAGE, placed, ship)
