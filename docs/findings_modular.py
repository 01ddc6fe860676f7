"""Write the section `modular` of docs/FINDINGS.md from stored records.

    assay modular sweep --preset findings --out findings        # P = 64 and 61, 64 widths, 5 seeds: minutes on a GPU
    python docs/findings_modular.py findings                    # seconds to minutes on a CPU

No number is typed by hand, and whether a claim of the spec holds is decided here by rules that are stated beside it.
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from assay.core.run import Record
from assay.core.store import Store
from assay.report.section import Section
from assay.studies.modular.compression import weights_of
from assay.studies.modular.measures import mean_over, measures, summary, thinned
from assay.studies.modular.report import report
from assay.studies.modular.similarity import untrained
from assay.studies.modular.source import settings
from assay.studies.modular.sweep import saved_sweep

PAGE = Path(__file__).parent / "FINDINGS.md"
BEGIN, END = "<!-- modular: begin -->", "<!-- modular: end -->"
SHOWN = (
    "TN",
    "activation",
    "JS (bits)",
    "TN, reachable, centred",
    "TN, best image",
    "activation, centred",
    "hidden, CKA",
)
BLOCKS, HIGH = 0.1, 0.8
Row = Mapping[str, Any]


def similarity_rows(records: Sequence[Record], most: int, permutations: int) -> dict[str, dict[str, Any]]:
    """`assay modular similarity`'s table for the records of one setting, at most so many models for every measure."""
    sweep = thinned(saved_sweep(records), most)
    keys, models, fresh = list(sweep.models), weights_of(sweep.models, sweep.P), untrained(sweep)
    rows = {}
    for measure in measures(4):
        if not set(measure.names) & set(SHOWN):
            continue
        found = zip(measure.names, measure.compute(models), measure.compute(fresh), strict=True)
        for name, matrix, floor in found:
            row = summary(name, matrix, keys, list(sweep.val_accs.values()), permutations=permutations)
            rows[name] = row | {"untrained": mean_over(floor, floor < 2)}
    return rows


def markdown(rows: Sequence[Mapping[str, Any]], form: str = ".3f") -> str:
    def shown(value: Any) -> str:
        if isinstance(value, dict):
            value = value["mean"]
        return "-" if value is None else format(value, form) if isinstance(value, float) else str(value)

    head = list(rows[0])
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(shown(row[key]) for key in head) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def claims(sweep_rows: Sequence[Row], similar: Mapping[str, Row], capacity: Sequence[Row], epochs: int) -> list[str]:
    """The spec's four key findings, each with the rule by which it is judged, and the question behind them."""
    tn, act, js, image = (similar[name] for name in ("TN", "activation", "JS (bits)", "TN, best image"))
    return [
        '1. *"Models with d_hidden >= 10 achieve 100% accuracy."* ' + _accuracy(sweep_rows, epochs),
        '2. *"TN similarity shows clear block structure based on bottleneck size."* ' + _blocks(tn),
        '3. *"Activation similarity is high across all models that achieve perfect accuracy."* ' + _answers(act, image),
        '4. *"JS divergence reveals which models use similar frequency structures."* As the spec defines it, it is '
        f"{js['same width']:.3f} bits per remainder within a width and {js['other widths']:.3f} between widths (p = "
        f"{js['p (width)']:.3f}), and {js['untrained']:.3f} for untrained models, whose spectra are flat.",
        "5. Room or learning? Four units by hand answer every pair. " + _room(capacity),
    ]


def _room(capacity: Sequence[Row]) -> str:
    at_four = {row["model"]: row["at width 4"] for row in capacity if row["at width 4"] is not None}
    if "trained" not in at_four:
        return "No model was trained with four."
    return (
        f"Models trained with four answer {at_four['trained']:.2f} of all pairs on average, the widest models cut to "
        f"four units {at_four['cut to units']:.2f}: what is missing there is learning, not room."
    )


def _accuracy(rows: Sequence[Row], epochs: int) -> str:
    wide = [row for row in rows if row["d_hidden"] >= 10]
    counts = {row["d_hidden"]: tuple(map(int, row["perfect"].split("/"))) for row in wide}
    perfect, tried = (sum(count) for count in zip(*counts.values(), strict=True))
    full = [width for width, (k, n) in counts.items() if k == n]
    least = f"the smallest width with every seed perfect is {min(full)}" if full else "no width has every seed perfect"
    return (
        f"**{'Confirmed.' if perfect == tried else 'No.'}** Of {tried} models with d >= 10, {perfect} answered every "
        f"validation pair within {epochs} epochs; their mean accuracy is "
        f"{fmean(row['val acc']['mean'] for row in wide):.4f}, and {least}."
    )


def _blocks(tn: Row) -> str:
    gap, growth = tn["same quarter"] - tn["other quarters"], tn["r with min(d, d')"]
    found = gap >= BLOCKS and tn["p (quarter)"] <= 0.05
    return (
        f"**{'Confirmed.' if found else 'No.'}** Pairs from one quarter of the widths have {tn['same quarter']:.3f}, "
        f"pairs from different quarters {tn['other quarters']:.3f} (p = {tn['p (quarter)']:.3f}); blocks would need a "
        f"difference of {BLOCKS}. Correlation with the narrower of the two widths: {growth:.2f} (p = "
        f"{tn['p (min)']:.3f})" + (": what there is, is that wide models are more alike." if growth > 0.3 else ".")
    )


def _answers(act: Row, image: Row) -> str:
    for group, what in (
        ("both perfect", "perfect models"),
        ("both >= 0.95", "models with an accuracy of 0.95 or more"),
    ):
        if act[group] is not None:
            verdict = "Confirmed." if act[group] >= HIGH else "No."
            if group != "both perfect":
                verdict = f"No two models were perfect here; of those that nearly are: {verdict.lower()}"
            return (
                f"**{verdict}** Pairs of {what} have a mean of {act[group]:.2f} (high: {HIGH} or more). Under the best "
                f"symmetry of addition their weights have {image[group]:.2f}, untrained models "
                f"{image['untrained']:.2f}: in part one algorithm at different frequencies, which no comparison of "
                "answers shows."
            )
    return "**Undecided:** no two models answered well enough to be compared."


def section(records: Sequence[Record], most: int, permutations: int) -> str:
    """What one setting says."""
    options = records[0].run.options
    found = Section("modular.sweep")
    report(records, found)
    tables = {table.name: table.json_rows() for table in found.tables}
    similar = similarity_rows(records, most, permutations)
    widths = sorted({record.run.options["d_hidden"] for record in records})
    seeds = sorted({record.run.seed for record in records})
    columns = ("measure", "models", "same width", "other widths", "p (width)", "same quarter", "other quarters",
               "p (quarter)", "both >= 0.95", "both perfect", "untrained")  # fmt: skip
    chosen = [row for row in tables["modular_sweep"] if row["d_hidden"] in _some(widths)]
    short = [{key: row[key] for key in ("d_hidden", "val acc", "test acc", "full table", "perfect", "epochs to 100 %")
              if key in row} for row in chosen]  # fmt: skip
    intro = (
        f"{len(widths)} widths from {widths[0]} to {widths[-1]}, seeds {seeds[0]} to {seeds[-1]}, at most "
        f"{options['epochs']} epochs, AdamW at {options['lr']:g} with decay {options['weight_decay']:g}, batches of "
        f"{options['batch']}; {options['train_share']:.0%} of the pairs train, {options['test_share']:.1%} test, on "
        f"{records[0].run.numerics.device}."
    )
    return "\n\n".join(
        [
            f"### P = {options['P']}",
            intro,
            *claims(tables["modular_sweep"], similar, tables["capacity"], options["epochs"]),
            markdown(short, ".4f"),
            "Smallest widths:",
            markdown(tables["smallest_width"]),
            "Room or learning (full-table accuracy of trained models, of the widest cut down, of four units by hand):",
            markdown(tables["capacity"]),
            "Similarity:",
            markdown([{key: similar[name][key] for key in columns} for name in SHOWN]),
        ]
    )


def _some(widths: Sequence[int]) -> set[int]:
    wanted = {1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32, 48, 64}
    return wanted & set(widths) or set(widths)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path, help="the folder that `assay modular sweep --out` wrote to")
    parser.add_argument("--most", type=int, default=60, help="models compared, evenly chosen over widths")
    parser.add_argument("--permutations", type=int, default=999)
    parser.add_argument("--page", type=Path, default=PAGE, help="where the section stands")
    args = parser.parse_args(words)
    records = [r for r in Store(args.results).records("modular.sweep") if r.status != "failed"]
    groups = sorted(settings(records), key=lambda group: -group[0].run.options["P"])
    if not groups:
        parser.error(f"no records of modular.sweep under {args.results}")
    text = "\n\n".join(section(group, args.most, args.permutations) for group in groups)
    page = args.page.read_text(encoding="utf-8")
    filled = re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n{text}\n{END}", page, flags=re.DOTALL)
    args.page.write_text(filled, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
