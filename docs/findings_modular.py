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

import numpy as np

from assay.core.run import Record
from assay.core.store import Store
from assay.metrics.permutation import mantel
from assay.report.section import Section
from assay.studies.modular.compression import weights_of
from assay.studies.modular.files import width_of
from assay.studies.modular.measures import measures, summary, thinned
from assay.studies.modular.report import report
from assay.studies.modular.similarity import floors
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
DIAGONAL = "JS of diagonal (bits)"
BLOCKS, HIGH, AGREE, SURE = 0.1, 0.8, 0.5, 0.05
"""The rules: a difference that counts, a similarity that is high, a correlation that is agreement, a small p."""
Row = Mapping[str, Any]


def similarity_rows(records: Sequence[Record], most: int, permutations: int) -> dict[str, dict[str, Any]]:
    """`assay modular similarity`'s table for the records of one setting, at most so many models for every measure.
    Empty where there are too few models to compare."""
    if not any(record.status == "done" for record in records):
        return {}
    sweep = thinned(saved_sweep(records), most)
    keys, models = list(sweep.models), weights_of(sweep.models, sweep.P)
    if len({width_of(key) for key in keys}) < 3:
        return {}
    rows, matrices = {}, {}
    for measure in measures(4):
        if not set(measure.names) & {*SHOWN, DIAGONAL}:
            continue
        for name, matrix, floor in zip(measure.names, measure.compute(models), floors(measure, sweep), strict=True):
            row = summary(name, matrix, keys, list(sweep.val_accs.values()), permutations=permutations)
            rows[name], matrices[name] = row | floor, matrix
    rng = np.random.default_rng(0)
    test = mantel(matrices["JS (bits)"], matrices[DIAGONAL], rng=rng, permutations=permutations)
    rows["JS (bits)"] |= {"r with diagonal": test.r, "p (diagonal)": test.p}
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
    few = "**Undecided:** fewer than three widths to compare."
    image, plain = similar.get("TN, best image", {}), similar.get("TN, reachable, centred", {})
    return [
        '1. *"Models with d_hidden >= 10 achieve 100% accuracy."* ' + _accuracy(sweep_rows, epochs),
        '2. *"TN similarity shows clear block structure based on bottleneck size."* '
        + (_blocks(similar["TN"]) if similar else few),
        '3. *"Activation similarity is high across all models that achieve perfect accuracy."* '
        + (_answers(similar["activation"], image, plain) if similar else few),
        '4. *"JS divergence reveals which models use similar frequency structures."* '
        + (_frequencies(similar["JS (bits)"]) if similar else few),
        "5. Room or learning? Four units by hand answer every pair. " + _room(capacity),
    ]


def _room(capacity: Sequence[Row]) -> str:
    at_four = {row["model"]: row["at width 4"] for row in capacity if row["at width 4"] is not None}
    if "trained" not in at_four:
        return "No model was trained with four."
    cut = f", the widest models cut to four units {at_four['cut to units']:.2f}" if "cut to units" in at_four else ""
    lacking = at_four["trained"] < 1
    return f"Models trained with four answer {at_four['trained']:.2f} of all pairs on average{cut}: " + (
        "what is missing there is learning, not room." if lacking else "nothing is missing."
    )


def _accuracy(rows: Sequence[Row], epochs: int) -> str:
    wide = [row for row in rows if row["d_hidden"] >= 10]
    if not wide:
        return "**Undecided:** no width of 10 or more was trained."
    counts = {row["d_hidden"]: tuple(map(int, row["perfect"].split("/"))) for row in wide}
    perfect, tried = (sum(count) for count in zip(*counts.values(), strict=True))
    stopped = tried - perfect - sum(row.get("diverged") or 0 for row in wide)
    full = [width for width, (k, n) in counts.items() if k == n]
    least = f"the smallest width with every seed perfect is {min(full)}" if full else "no width has every seed perfect"
    verdict, rest = "No.", ""
    if perfect == tried:
        verdict = "Confirmed."
    elif stopped > tried / 2:
        verdict = f"Not within {epochs} epochs; with longer training, not known."
        rest = f" Another {stopped} were stopped by that limit before they got there, and might have later."
    return (
        f"**{verdict}** Of {tried} models with d >= 10, {perfect} answered every validation pair within {epochs} "
        f"epochs.{rest} The mean accuracy of all {tried} is {fmean(row['val acc']['mean'] for row in wide):.4f}, and "
        f"{least}."
    )


def _blocks(tn: Row) -> str:
    r = tn["r with min(d, d')"]
    found = tn["beyond (band)"] >= BLOCKS and tn["p (band)"] <= SURE
    growth = r > 0.3 and tn["p (min)"] <= SURE
    return (
        f"**{'Confirmed.' if found else 'No.'}** Pairs from one band of the widths (a quarter, of 8 "
        f"widths or more) have {tn['same band']:.3f}, "
        f"pairs from different bands {tn['other bands']:.3f}; {tn['beyond (band)']:.3f} of the difference is left "
        f"once each model's own strength is taken out (p = {tn['p (band)']:.3f}), and blocks would need {BLOCKS}. "
        f"Correlation with the narrower of the two widths: {r:.2f} (p = {tn['p (min)']:.3f})"
        + (": wide models are more alike." if growth else ".")
    )


def _answers(act: Row, image: Row, plain: Row) -> str:
    for group, what in (
        ("both perfect", "perfect models"),
        ("both >= 0.95", "models with an accuracy of 0.95 or more"),
    ):
        if act[group] is not None:
            verdict = "Confirmed." if act[group] >= HIGH else "No."
            if group != "both perfect":
                verdict = f"No two models were perfect here; of those that nearly are: {verdict.lower()}"
            return (
                f"**{verdict}** Pairs of {what} have a mean of {act[group]:.2f} (high: {HIGH} or more). "
                + _one_algorithm(image, plain, group)
            )
    return "**Undecided:** no two models answered well enough to be compared."


def _one_algorithm(image: Row, plain: Row, group: str) -> str:
    """Whether the symmetries of addition make models more alike than they make what was not learnt together."""
    floor = max(image["untrained"], image["scrambled"])
    shared = image[group] - floor >= BLOCKS and image[group] - plain[group] >= BLOCKS
    return (
        f"Under the best symmetry of addition their weights have {image[group]:.2f} (as they are {plain[group]:.2f}), "
        f"untrained models {image['untrained']:.2f} and models with scrambled phases {image['scrambled']:.2f}: "
        + (
            "in part one algorithm at different frequencies, which no comparison of answers shows."
            if shared
            else f"not {BLOCKS} above both floors and above the weights as they are, so no sign of one algorithm at "
            "different frequencies."
        )
    )


def _frequencies(js: Row) -> str:
    """Whether it tells pairs apart as a law does that no eigensolver can turn."""
    found = js["r with diagonal"] >= AGREE and js["p (diagonal)"] <= SURE
    within = (
        f"{js['same width']:.3f} bits per remainder within a width and {js['other widths']:.3f} between widths (beyond "
        f"strengths {js['beyond (width)']:.3f}, p = {js['p (width)']:.3f})"
        if js["same width"] is not None
        else f"{js['all pairs']:.3f} bits per remainder over all pairs (no width has two models)"
    )
    return (
        f"**{'Confirmed.' if found else 'No.'}** Over pairs it correlates {js['r with diagonal']:.2f} (p = "
        f"{js['p (diagonal)']:.3f}) with the divergence of what depends on a + b alone, which no eigensolver can turn; "
        f"{AGREE} or more would be agreement. It is {within}; {js['untrained']:.3f} for untrained models and "
        f"{js['scrambled']:.3f} for models with scrambled phases."
    )


def section(records: Sequence[Record], most: int, permutations: int) -> str:
    """What one setting says."""
    options = records[0].run.options
    found = Section("modular.sweep")
    report(records, found)
    tables = {table.name: table.json_rows() for table in found.tables}
    similar = similarity_rows(records, most, permutations)
    widths = sorted({record.run.options["d_hidden"] for record in records})
    seeds = sorted({record.run.seed for record in records})
    spelled = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    chosen = [row for row in tables["modular_sweep"] if row["d_hidden"] in _some(widths)]
    short = [{key: row[key] for key in ("d_hidden", "val acc", "test acc", "full table", "perfect", "epochs to 100 %")
              if key in row} for row in chosen]  # fmt: skip
    intro = (
        f"{len(widths)} widths from {widths[0]} to {widths[-1]}, {spelled}, at most "
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
            *_similarity(similar),
        ]
    )


def _similarity(similar: Mapping[str, Row]) -> list[str]:
    columns = ("measure", "models", "same width", "other widths", "beyond (width)", "p (width)", "same band",
               "other bands", "beyond (band)", "p (band)", "both >= 0.95", "both perfect", "untrained",
               "scrambled")  # fmt: skip
    return ["Similarity:", markdown([{key: similar[n][key] for key in columns} for n in SHOWN])] if similar else []


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
    if args.most < 3 or args.permutations < 1:
        parser.error(
            f"--most {args.most} --permutations {args.permutations}: at least 3 models, at least 1 permutation"
        )
    try:
        page = args.page.read_text(encoding="utf-8")
    except OSError as error:
        parser.error(f"cannot read {args.page}: {error.strerror}")
    marked = re.compile(f"{BEGIN}.*{END}", flags=re.DOTALL)
    if not marked.search(page):
        parser.error(f"{args.page} has no place for the section: it stands between {BEGIN} and {END}")
    records = [r for r in Store(args.results).records("modular.sweep") if r.status != "failed"]
    groups = sorted(settings(records), key=lambda group: -group[0].run.options["P"])
    if not groups:
        parser.error(f"no records of modular.sweep under {args.results}")
    text = "\n\n".join(section(group, args.most, args.permutations) for group in groups)
    args.page.write_text(marked.sub(lambda _: f"{BEGIN}\n{text}\n{END}", page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
