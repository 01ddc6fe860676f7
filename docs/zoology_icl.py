"""Write the table of zoology's mixers in docs/icl.md, from the records that ship with assay.

python docs/zoology_icl.py
"""

from pathlib import Path

from masks_perplexity import between

from assay.core import shipped
from assay.core.run import Record
from assay.report.text import with_interval
from assay.studies.icl.claims import PUBLISHED
from assay.studies.icl.learning import measured
from assay.studies.icl.report import trained

PAGE = Path(__file__).parent / "icl.md"
STEPS = (4500, 9000)
COLUMNS = ("mixer", "d", "state, kB", "rate", "after 156M tokens", "after 311M tokens", "published")


def in_zoology(record: Record) -> bool:
    options = record.run.options
    return options["model"] is not None and options["task"].get("cells") == "zoology"


def block() -> str:
    """The mixers in their published order, with the recall of both trainings."""
    there = [record for record in shipped.records("icl") if in_zoology(record)]
    short, long = (
        {measured(row): row for row in trained(r for r in there if r.run.options["train"]["max_steps"] == steps)}
        for steps in STEPS
    )
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    for name, (width, published) in PUBLISHED.items():
        row, doubled = short[name], long[name]
        scores = [with_interval(some.interval("accuracy", bounded=True), ".3f") for some in (row, doubled)]
        state = f"{4 * row.first['state_scalars'] / 1000:.1f}"
        lines.append(f"| `{name}` | {width} | {state} | {row.tuned_words} | {' | '.join(scores)} | {published} |")
    return "\n".join(lines)


def placed(page: str) -> str:
    return between(page, "zoology", block())


if __name__ == "__main__":
    PAGE.write_text(placed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
