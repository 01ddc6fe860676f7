"""Write the tables of planted concepts in docs/sae.md, from the records that ship with assay.

    python docs/concepts_sae.py                  # the tables
    python docs/concepts_sae.py --ship FOLDER    # first add the records of preset `concepts` in a results folder

The records lie in src/assay/shipped/sae.concepts.jsonl.xz, without the history of each epoch.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from dictionary_sae import thin
from masks_perplexity import between, written

from assay.core import shipped
from assay.core.run import Record
from assay.core.store import Store
from assay.metrics.intervals import Interval, paired_difference
from assay.report.rows import Row
from assay.report.text import with_interval
from assay.studies.sae.curves import chosen, is_trained, l0, rate_shown

PAGE = Path(__file__).parent / "sae.md"
NAME = "sae.concepts"
EPOCHS = 60
NEAR = 0.05
"""The relative error of an L0 that still counts as the true one."""
COLUMNS = {
    "absorbed": "absorption", "parent F1": "concept_f1", "TPP 2": "tpp_2", "SCR 2": "scr_2", "1 unit": "probe_1_units",
}  # fmt: skip
"""The columns of the first table, and the metrics in them."""
DOUBLED = ("absorbed", "parent F1", "SCR 2")


def ship(folder: Path) -> None:
    found = [record for record in Store(folder).records("sae") if record.run.options["data"]["name"] == "concepts"]
    shipped.add(NAME, shipped.FOLDER, map(thin, (one for one in found if one.status == "done")))


def trained_for(epochs: int) -> list[Record]:
    """The records that ship of so many epochs; those of coders that are not trained count as EPOCHS."""
    recipes = ((record, record.run.options["recipe"]) for record in shipped.records(NAME))
    return [record for record, recipe in recipes if (recipe["epochs"] if recipe else EPOCHS) == epochs]


def at_true_l0(records: Sequence[Record]) -> dict[str, Row]:
    """Each coder at the level whose rows have as many active units as atoms, and the untrained ones, by name."""
    found = [row for row in chosen(records) if not is_trained(row) or abs(l0(row) / _true(row) - 1) <= NEAR]
    return {row.names["coder"]: row for row in found}


def _true(row: Row) -> float:
    return fmean(row.values("true_l0").values())


def block() -> str:
    """Every coder at the true L0, then what twice the epochs change."""
    once, twice = (at_true_l0(trained_for(count)) for count in (EPOCHS, 2 * EPOCHS))
    head = ["coder", "lr", *COLUMNS]
    lines = [head, ["---"] * len(head)]
    for name, row in once.items():
        shares = [with_interval(row.interval(metric, bounded=True), ".3f") for metric in COLUMNS.values()]
        lines.append([f"`{name}`", rate_shown(row) or "-", *shares])
    more = [["coder", *(f"{title}, change" for title in DOUBLED)], ["---"] * (1 + len(DOUBLED))]
    for name, row in twice.items():
        assert row.tuned_value is None or {row.options["lr"]} == {once[name].tuned_value}, "at one rate"
        changes = [paired_difference(row.values(COLUMNS[t]), once[name].values(COLUMNS[t])) for t in DOUBLED]
        more.append([f"`{name}`", *map(_change, changes)])
    told = f"With {2 * EPOCHS} epochs in place of {EPOCHS}, paired over seeds:"
    return "\n\n".join([_table(lines), told, _table(more)])


def _change(found: Interval) -> str:
    assert found.low is not None and found.high is not None
    return f"{found.mean:+z.3f} ±{(found.high - found.low) / 2:.3f}"


def _table(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def placed(page: str) -> str:
    return between(page, "concepts", block())


if __name__ == "__main__":
    written(PAGE, placed, ship)
