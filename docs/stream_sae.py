"""Write the tables of coders on streamed activations in docs/sae.md, from the records that ship with assay.

    python docs/stream_sae.py                  # the table
    python docs/stream_sae.py --ship FOLDER    # first add the records of preset `stream` in a results folder

The records lie in src/assay/shipped/sae.stream.jsonl.xz, with their learning curves.
"""

from pathlib import Path
from statistics import fmean

from masks_perplexity import between, markdown, written

from assay.core import shipped
from assay.core.run import Record
from assay.core.store import Store
from assay.report.draw import Column, table
from assay.report.rows import Row, rows
from assay.report.section import Section
from assay.sparse_coders import sparse_coders

PAGE = Path(__file__).parent / "sae.md"
NAME = "sae.stream"
CODER = Column("coder", lambda row: _words(row))
SCORES = (
    CODER,
    Column("L0", "l0", ".1f"),
    Column("FVU", "fvu_own", ".3f"),
    Column("KL", "kl_own", ".3f"),
    Column("loss recovered", "loss_recovered_own", ".4f"),
    Column("FVU (ridge)", "fvu", ".3f"),
    Column("KL (ridge)", "kl", ".3f"),
)
TRAINING = (
    CODER,
    Column("rate", lambda row: f"{row.records[0].run.options['lr']:g}"),
    Column("silent", "dead", ".0f"),
    Column("FVU (validation)", "validation_fvu_own", ".3f"),
    Column("last half", lambda row: _late(row)),
    Column("other rates", lambda row: _others(row)),
    Column("twice the steps", lambda row: _twice(row)),
)
SEEDS, STEPS = 3, 20_000
"""Those of a row. Other rates and twice the steps were tried with seed 0."""


def _words(row: Row) -> str:
    """The coder with the option that sets its level."""
    coder = row.records[0].run.options["coder"]
    option = sparse_coders[coder["name"]].level_option
    return f"`{coder['name']}:{option}={coder[option]:g}`"


def _late(row: Row) -> str | None:
    """How much the last half of training took off the FVU of the learning curve; the rate falls in the last fifth."""
    curves = [(each.metrics["history"]["steps"], each.metrics["history"].get("curve_fvu")) for each in row.finished]
    gains = [fvu[-1] - fvu[steps.index(steps[-1] // 2)] for steps, fvu in curves if fvu]
    return f"{fmean(gains):+z.3f}" if gains else None


def _beside(row: Row, steps: int) -> list[Record]:
    """Runs of the row's coder that are no part of it, with so many steps, by their rate."""
    mine = row.records[0].run.options
    same = [
        each
        for each in shipped.records(NAME)
        if each.run.options["coder"] == mine["coder"] and each.run.options["recipe"]["steps"] == steps
    ]
    others = [each for each in same if steps != STEPS or each.run.options["lr"] != mine["lr"]]
    return sorted(others, key=lambda each: each.run.options["lr"])


def _left(record: Record) -> str:
    """What a run leaves unexplained of the validation rows, with how many units."""
    return f"{record.metrics['validation_fvu_own']:.3f}, L0 {record.metrics['l0']:.1f}"


def _others(row: Row) -> str | None:
    return "; ".join(f"{each.run.options['lr']:g}: {_left(each)}" for each in _beside(row, STEPS)) or None


def _twice(row: Row) -> str | None:
    return "; ".join(map(_left, _beside(row, 2 * STEPS))) or None


def ship(folder: Path) -> None:
    found = [each for each in Store(folder).records("sae") if each.run.options["data"]["name"] == "stream"]
    shipped.add(NAME, shipped.FOLDER, found)


def shown() -> list[Row]:
    """The coders at the rate that all seeds were trained at."""
    of_all = rows([each for each in shipped.records(NAME) if each.run.options["recipe"]["steps"] == STEPS])
    return [row for row in of_all if len(row.records) == SEEDS]


def block() -> str:
    """What the coders score, and how they were trained."""
    out, parts = Section("sae"), {"scores": SCORES, "training": TRAINING}
    for name, columns in parts.items():
        table(out, name, shown(), columns)
    return "\n\n".join(
        markdown(made, [column.title for column in columns], sorted(made.rows, key=lambda row: row["coder"]))
        for made, columns in zip(out.tables, parts.values(), strict=True)
    )


def placed(page: str) -> str:
    return between(page, "stream", block())


if __name__ == "__main__":
    written(PAGE, placed, ship)
