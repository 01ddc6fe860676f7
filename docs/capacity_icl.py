"""Write the capacity table of docs/icl.md, from the records that ship with assay.

    python docs/capacity_icl.py                  # the table
    python docs/capacity_icl.py --ship FOLDER    # first add the records of preset `capacity` in a results folder

The records lie in src/assay/shipped/icl.capacity.jsonl.gz. Of a learning curve they keep the last validation, which the
rate of a row is chosen by. The table is of runs with `--backend triton`; one line below it is of runs without.
"""

from dataclasses import replace
from pathlib import Path

from masks_perplexity import between, markdown, written

from assay.core import shipped
from assay.core.run import Record
from assay.core.store import Store
from assay.report.rows import Row
from assay.report.section import Section, Table
from assay.studies.icl.capacity import BEYOND, capacity, missing_rates
from assay.studies.icl.learning import learned
from assay.studies.icl.report import trained

PAGE = Path(__file__).parent / "icl.md"
NAME = "icl.capacity"
COLUMNS = ("seq_mixer", "learned", "steps to learn", "K90", BEYOND, "state bytes", "lr")


def thin(record: Record) -> Record:
    """The record with the last point of its curve."""
    return replace(record, metrics={**record.metrics, "curve": record.metrics["curve"][-1:]}, artifacts=())


def ship(folder: Path) -> None:
    of_models = [record for record in Store(folder).records("icl") if record.run.options["model"] is not None]
    shipped.add(NAME, shipped.FOLDER, map(thin, of_models))


def tables(rows: list[Row]) -> list[Table]:
    """With a short convolution first, then without."""
    out = Section("icl")
    capacity(rows, out)
    return out.tables[::-1]


def told(table: Table) -> str:
    """Which rows are told from the best, and which are not; attention is a ceiling, and left out here."""
    compared = {str(row["seq_mixer"]): str(row["vs best"]) for row in table.rows if row.get("vs best") is not None}
    best = next(
        row
        for row in table.rows
        if row["lr"] is not None and "edge" not in str(row["lr"]) and str(row["seq_mixer"]) not in compared
    )
    rivals = {name: said for name, said in compared.items() if not name.startswith("attention")}
    apart = [f"`{name}` ({said.removesuffix(' *')})" for name, said in rivals.items() if said.endswith("*")]
    near = [f"`{name}` ({said})" for name, said in rivals.items() if not said.endswith("*")]
    said = [f"Most {BEYOND}, attention and rows at an edge aside: `{best['seq_mixer']}` ({best['learned']} learned)."]
    said += [f"Told below it: {', '.join(apart)}."] if apart else []
    said += [f"Not told from it: {', '.join(near)}."] if near else []
    return " ".join(said)


def rates(rows: list[Row]) -> str:
    """The rates of every mixer, and those that rows at an edge still want."""
    by_rates: dict[str, list[str]] = {}
    rows = sorted(rows, key=lambda row: str(row.options["model"]["seq_mixer"]["name"]))
    for row in rows:
        name = str(row.options["model"]["seq_mixer"]["name"])
        some = {rate: "" if rate in row.tried_by_all else f" ({len(own)} seeds)" for rate, own in row.tried.items()}
        by_rates.setdefault(", ".join(f"{rate:g}{some[rate]}" for rate in sorted(some)), []).append(f"`{name}`")
    tried = "; ".join(f"{words} for {', '.join(names)}" for words, names in by_rates.items())
    wanted = "; ".join(
        f"`{row.options['model']['seq_mixer']['name']}` {' and '.join(f'{rate:g}' for rate in missing)}"
        for row in rows
        if (missing := missing_rates(row))
    )
    return f"Rates tried: {tried}. Not ranked, since a rate beyond may be better, with the rates to add: {wanted}."


def by_backend(backend: str) -> list[Row]:
    return trained(record for record in shipped.records(NAME) if record.run.numerics.backend == backend)


def again(rows: list[Row]) -> str:
    """How many pairs the rows that learned hold which torch computed without our kernels."""
    found = [row for row in tables(rows)[0].rows if row["lr"] is not None]
    said = ", ".join(f"`{row['seq_mixer']}` {row['K90']}{' (edge)' * ('edge' in str(row['lr']))}" for row in found)
    count = sum(len(by_seed) for row in rows if learned(row) for by_seed in row.tried.values())
    return f"K90 with `--backend torch`, {count} runs: {said}."


def block() -> str:
    rows, by_torch = by_backend("triton"), by_backend("torch")
    convolved = tables(rows)[0]
    setup = next(line for line in convolved.note.splitlines() if line.startswith("Setup: "))
    shown = markdown(convolved, COLUMNS, convolved.rows)
    return "\n\n".join([shown, told(convolved), rates(rows), again(by_torch), setup])


def placed(page: str) -> str:
    return between(page, "capacity", block())


if __name__ == "__main__":
    written(PAGE, placed, ship)
