"""Write the table of planted atoms in docs/sae.md, from the records that ship with assay.

    python docs/dictionary_sae.py                  # the table
    python docs/dictionary_sae.py --ship FOLDER    # first add the records of preset `dictionary` in a results folder

The records lie in src/assay/shipped/sae.dictionary.jsonl.xz, without the history of each epoch.
"""

from dataclasses import replace
from pathlib import Path

from masks_perplexity import between, markdown, written

from assay.core import shipped
from assay.core.run import Record
from assay.core.store import Store
from assay.report.section import Section
from assay.studies.sae.planted import planted_tables

PAGE = Path(__file__).parent / "sae.md"
NAME = "sae.dictionary"
AT_TRUE_L0 = ("coder", "recipe.epochs", "lr", "atoms found", "firing F1", "twice as long")
BEST = ("coder", "best L0", "best lr", "best found")
SHOWN = 96
"""The epochs after which best levels are shown: of fewer and more only some levels were trained."""


def thin(record: Record) -> Record:
    """The record without what was noted every epoch."""
    return replace(record, metrics={k: v for k, v in record.metrics.items() if k != "history"})


def ship(folder: Path) -> None:
    found = [record for record in Store(folder).records("sae") if record.run.options["data"]["name"] == "dictionary"]
    shipped.add(NAME, shipped.FOLDER, map(thin, (one for one in found if one.status == "done")))


def block() -> str:
    """Every coder at the true L0, by epochs; then its best level and rate, which only the truth can choose."""
    out = Section("sae")
    planted_tables(shipped.records(NAME), [], out)
    table = next(table for table in out.tables if table.name == "true_l0")
    there = sorted((row for row in table.rows if row["lr"]), key=lambda row: (row["coder"], row["recipe.epochs"]))
    best = sorted((row for row in table.rows if row["recipe.epochs"] == SHOWN), key=lambda row: row["coder"])
    told = f"At the best level and rate of each after {SHOWN} epochs:"
    return "\n\n".join([markdown(table, AT_TRUE_L0, there), told, markdown(table, BEST, best)])


def placed(page: str) -> str:
    return between(page, "dictionary", block())


if __name__ == "__main__":
    written(PAGE, placed, ship)
