"""Write the table of zoology's mixers in docs/capacity.md, from the records that ship with assay.

python docs/zoology_icl.py
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from masks_perplexity import between

from assay.core import shipped
from assay.core.run import Record
from assay.metrics.intervals import paired_difference, share
from assay.report.rows import Row
from assay.report.text import with_interval
from assay.studies.icl.anchors import anchors
from assay.studies.icl.capacity import chosen_rate
from assay.studies.icl.claims import PUBLISHED
from assay.studies.icl.learning import measured
from assay.studies.icl.report import trained

PAGE = Path(__file__).parent / "capacity.md"
STEPS = (4500, 9000)
COLUMNS = ("mixer, d", "state, kB (theirs)", "rate", "156M tokens", "at one rate", "311M tokens", "published")


def in_zoology(record: Record) -> bool:
    options = record.run.options
    return options["model"] is not None and options["task"].get("cells") == "zoology"


def block() -> str:
    """The mixers in their published order, with the recall of both trainings: each seed at the rate that the others
    chose, and all at the rate that most seeds of the longer one use."""
    there = [record for record in shipped.records("icl") if in_zoology(record)]
    short, long = by_training(there)
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    for name, (width, published) in PUBLISHED.items():
        row, doubled = short[name], long[name]
        fixed = share([record.metrics["accuracy"] for record in row.tried[doubled.tuned_value].values()])
        found = [row.interval("accuracy", bounded=True), fixed, doubled.interval("accuracy", bounded=True)]
        scores = " | ".join(with_interval(each, ".3f") for each in found if each is not None)
        theirs = next(a.state_bytes for a in anchors() if a.ours == name and a.accuracy == published)
        state = f"{4 * row.first['state_scalars'] / 1000:.1f} ({theirs / 1000:.1f})"
        lines.append(f"| `{name}`, {width} | {state} | {chosen_rate(row)} | {scores} | {published} |")
    return "\n".join([*lines, "", apart(short, long)])


def by_training(records: Sequence[Record]) -> list[dict[str, Row]]:
    """The rows of the short training and of the long one, by the mixer that is measured."""
    return [
        {measured(row): row for row in trained(r for r in records if r.run.options["train"]["max_steps"] == steps)}
        for steps in STEPS
    ]


def difference(row: Row, other: Row) -> str:
    """How far one lies above another, paired over seeds."""
    one, two = row.values("accuracy"), other.values("accuracy")
    found, least = paired_difference(one, two), min(one[seed] - two[seed] for seed in one)
    return f"{found.mean:+z.3f} [{found.low:.3f}, {found.high:.3f}] (the smallest of the seeds {least:+z.3f})"


def apart(short: Mapping[str, Row], long: Mapping[str, Row]) -> str:
    """How far the last neighbours of the order that are mixers with a state lie apart, paired over seeds."""
    above, below = list(PUBLISHED)[3:5]
    said = [
        f"{difference(rows[above], rows[below])} after {tokens} tokens"
        for rows, tokens in ((short, "156M"), (long, "311M"))
    ]
    return f"`{above}` less `{below}`, paired over seeds: {', '.join(said)}."


def placed(page: str) -> str:
    return between(page, "zoology", block())


if __name__ == "__main__":
    PAGE.write_text(placed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
