"""Write the table of reflections per token in docs/icl.md, from the records that ship with assay.

python docs/reflections_icl.py
"""

from collections.abc import Mapping
from pathlib import Path

from masks_perplexity import between

from assay.core import shipped
from assay.core.run import Record
from assay.metrics.intervals import share
from assay.report.text import with_interval
from assay.studies.icl.claims import REFLECTIONS

PAGE = Path(__file__).parent / "icl.md"
RATE, STEPS = 0.003, 3000
REACHED = 0.99
COLUMNS = ("`num_householder`", "32 tokens, as trained", "256 tokens", "256 tokens, by seed", "parameters", "state")

Found = dict[tuple[int, float, int], dict[int, Record]]
"""By reflections, rate and steps, then by seed."""


def found() -> Found:
    runs: Found = {}
    for record in shipped.records("icl"):
        options = record.run.options
        if options["model"] is not None and options["task"].get("tokens") == "generators":
            count = options["model"]["seq_mixer"]["num_householder"]
            key = count, options["optimizer"]["lr"], options["train"]["max_steps"]
            runs.setdefault(key, {})[record.run.seed] = record
    return runs


def at(length: int, runs: Mapping[int, Record]) -> list[float]:
    return [record.metrics["by_length"][str(length)] for record in runs.values()]


def block() -> str:
    runs = found()
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    for count in sorted(REFLECTIONS):
        own = runs[count, RATE, STEPS]
        means = " | ".join(with_interval(share(at(length, own)), ".3f") for length in (32, 256))
        seeds = f"{min(at(256, own)):.4f} to {max(at(256, own)):.4f}"
        first = next(iter(own.values())).metrics
        lines.append(f"| {count} | {means} | {seeds} | {first['params']:,} | {first['state_scalars']:,} |")
    return "\n".join([*lines, "", reached(runs)])


def reached(runs: Found) -> str:
    """How many seeds of the most reflections reach the goal, by rate and steps."""
    most = max(REFLECTIONS)
    counts = {
        (steps, rate): f"{sum(value >= REACHED for value in at(256, own))} of {len(own)} at {rate:g}"
        for (count, rate, steps), own in runs.items()
        if count == most
    }
    longest = max(steps for steps, _ in counts)
    short = ", ".join(said for (steps, _), said in sorted(counts.items()) if steps == STEPS)
    ((_, twice),) = [item for item in counts.items() if item[0][0] == longest]
    worst = min(at(256, runs[most, RATE, longest]))
    begin = f"Seeds of `num_householder={most}` with {REACHED} or more at 256 tokens, by rate: {short}"
    return f"{begin}; with {longest:,} steps {twice}, the worst {worst:.3f}."


def placed(page: str) -> str:
    return between(page, "reflections", block())


if __name__ == "__main__":
    PAGE.write_text(placed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
