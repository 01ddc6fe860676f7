"""Write the section `modular` of docs/FINDINGS.md from stored records.

    assay modular sweep --preset findings --out findings        # P = 64 and 61, 64 widths, 5 seeds: minutes on a GPU
    python docs/findings_modular.py findings                    # minutes on a CPU

It reads record.json and weights.safetensors of every run under findings/.store/modular.sweep, wherever they were
trained; moduli, widths, seeds and the numbers of pairs are those of the records.
No number is typed by hand, and whether a claim of the spec holds is decided here by rules that are stated beside it.
"""

import argparse
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from findings_words import between, holds, ruled, shown, spread, tabled

from assay.core.run import Record
from assay.core.store import Store
from assay.metrics.intervals import Interval, student_t
from assay.report.section import Section, Table
from assay.studies.modular.files import SweepResults, width_of
from assay.studies.modular.matrices import weights_of
from assay.studies.modular.measures import GOOD, mean_over_pairs, measures, summary, thinned
from assay.studies.modular.metrics.permutation import mantel
from assay.studies.modular.records import saved_sweep
from assay.studies.modular.references import BY_HAND, pairs_of
from assay.studies.modular.report import report
from assay.studies.modular.similarity import floors
from assay.studies.modular.source import settings

PAGE = Path(__file__).parent / "FINDINGS.md"
DIAGONAL = "JS of diagonal (bits)"
SHOWN = (
    "TN",
    "activation",
    "JS (bits)",
    "TN, reachable, centred",
    "TN, best image",
    "activation, centred",
    "hidden, CKA",
    DIAGONAL,
)
BLOCKS, HIGH, AGREE, SURE = 0.1, 0.8, 0.5, 0.05
"""The rules: a difference that counts, a similarity that is high, a correlation that is agreement, a small p."""
CLAIMED = 10
"""The width from which on models are perfect, by the spec."""
Row = Mapping[str, Any]


def similarity_rows(whole: SweepResults, most: int, permutations: int) -> dict[str, dict[str, Any]]:
    """`assay modular similarity`'s table, at most so many models for every measure. Empty where there are too few
    models to compare."""
    sweep = thinned(whole, most)
    keys, models = list(sweep.models), weights_of(sweep.models, sweep.P)
    if len({width_of(key) for key in keys}) < 3:
        return {}
    rows, matrices = {}, {}
    for measure in measures(4):
        if not set(measure.names) & set(SHOWN):
            continue
        for name, matrix, floor in zip(measure.names, measure.compute(models), floors(measure, sweep), strict=True):
            row = summary(name, matrix, keys, list(sweep.val_accs.values()), permutations=permutations)
            rows[name], matrices[name] = row | floor, matrix
    rng = np.random.default_rng(0)
    test = mantel(matrices["JS (bits)"], matrices[DIAGONAL], rng=rng, permutations=permutations)
    rows["JS (bits)"] |= {"r with diagonal": test.r, "p (diagonal)": test.p}
    rows["JS (bits)"] |= {"diagonal, r with min(d, d')": rows[DIAGONAL]["r with min(d, d')"]}
    return rows


def partial_correlation(r: float, one: float, other: float) -> float:
    """What is left of the correlation of two once a third is held fixed, with which they have `one` and `other`."""
    rest = (1 - one**2) * (1 - other**2)
    return (r - one * other) / math.sqrt(rest) if rest > 0 else math.nan


def alike_rows(whole: SweepResults, most: int) -> tuple[str, dict[str, dict[str, Any]]]:
    """How alike the perfect models are, at most so many of them, evenly chosen; of those that nearly are where fewer
    than two are perfect. The floors are of the same pairs: fresh models of their widths, and these models scrambled."""
    for what, least in (("perfect models", 1.0), (f"models with a val acc of {GOOD:g} or more", GOOD)):
        found = [key for key, accuracy in whole.val_accs.items() if accuracy >= least]
        if len(found) >= 2:
            count = min(most, len(found))
            sweep = whole.only([found[round(i * (len(found) - 1) / (count - 1))] for i in range(count)])
            return what, _alike(sweep, len(found))
    return "", {}


def _alike(sweep: SweepResults, there: int) -> dict[str, dict[str, Any]]:
    """Of the models of a sweep, which were taken from as many as there are."""
    models, rows = weights_of(sweep.models, sweep.P), {}
    for measure in measures(4):
        if not set(measure.names) & set(SHOWN):
            continue
        for name, matrix, floor in zip(measure.names, measure.compute(models), floors(measure, sweep), strict=True):
            mean, pairs = mean_over_pairs(matrix), matrix[np.triu_indices(len(matrix), k=1)]
            rows[name] = {
                "measure": name,
                "models": len(models) if len(models) == there else f"{len(models)} of the {there}",
                "pairs": mean.n,
                "mean": mean,
                "least": float(pairs.min()),
                "most": float(pairs.max()),
                "untrained": floor["untrained"],
                "scrambled": floor["scrambled"],
            }
    return rows


def claims(
    tables: Mapping[str, Table],
    wide: Row | None,
    similar: Mapping[str, Row],
    alike: tuple[str, Mapping[str, Row]],
    epochs: int,
) -> list[str]:
    """The spec's four key findings, each with the rule by which it is judged, and the question behind them."""
    few = "**Undecided:** fewer than three widths to compare."
    return [
        f'1. *"Models with d_hidden >= {CLAIMED} achieve 100% accuracy."* '
        + _accuracy(wide, tables["smallest_width"].rows[0], epochs),
        '2. *"TN similarity shows clear block structure based on bottleneck size."* '
        + (_blocks(similar["TN"]) if similar else few),
        '3. *"Activation similarity is high across all models that achieve perfect accuracy."* '
        + (_answers(*alike) if similar else few),
        '4. *"JS divergence reveals which models use similar frequency structures."* '
        + (_frequencies(similar["JS (bits)"]) if similar else few),
        "5. Room or learning? Four units by hand answer every pair, so any width of 4 or more has room. "
        + _room(tables["capacity"].rows),
    ]


def _room(capacity: Sequence[Row]) -> str:
    at_four = {row["model"]: row["at width 4"] for row in capacity if row["at width 4"] is not None}
    if "trained" not in at_four:
        return "No model was trained with four."
    cut = f", the widest models cut to four units {shown(at_four['cut to units'])}" if "cut to units" in at_four else ""
    lacking = at_four["trained"].mean < 1
    return f"Models trained with four answer {shown(at_four['trained'])} of all pairs on average{cut}: " + (
        "what is missing there is learning, not room." if lacking else "nothing is missing."
    )


def wide_row(records: Sequence[Record]) -> dict[str, Any] | None:
    """All models of the widths that the spec's first finding is about as one row: accuracies averaged over widths, then
    over seeds."""
    wide = [record for record in records if record.run.options["d_hidden"] >= CLAIMED]
    if not wide:
        return None
    seeds = sorted({record.run.seed for record in wide})
    perfect = sum(record.metrics.get("epochs_to_perfect") is not None for record in wide)

    def mean(metric: str) -> Interval | None:
        found = [[r.metrics.get(metric) for r in wide if r.run.seed == seed] for seed in seeds]
        own = [fmean(known) for values in found if (known := [value for value in values if value is not None])]
        return student_t(own) if own else None

    return {
        "model": f"all d >= {CLAIMED}",
        "val acc": mean("val_acc"),
        "test acc": mean("test_acc"),
        "full table": mean("full_acc"),
        "perfect": f"{perfect}/{len(wide)}",
        "diverged": sum(record.status == "diverged" for record in wide),
        "epochs to 100 %": mean("epochs_to_perfect"),
        "seeds": len(seeds),
    }


def _accuracy(wide: Row | None, smallest: Row, epochs: int) -> str:
    if wide is None:
        return f"**Undecided:** no width of {CLAIMED} or more was trained."
    perfect, tried = map(int, wide["perfect"].split("/"))
    _, validated, _ = smallest["pairs"].split("/")
    stopped = tried - perfect - wide["diverged"]
    verdict, rest = "No.", ""
    if perfect == tried:
        verdict = "Confirmed."
    elif stopped:
        verdict = f"No, not within {epochs} epochs."
        rest = f" That limit stopped {stopped}, and longer training was not tried."
    every, good = smallest["every seed perfect"], smallest[f"mean >= {GOOD:g}"]
    test = (
        "" if wide["test acc"] is None else f", on pairs that nothing was chosen by {spread(wide['test acc'], '.4f')}"
    )
    return (
        f"**{verdict}** Of {tried} models with d >= {CLAIMED}, {perfect} answered each of their {validated} validation "
        f"pairs within {epochs} epochs.{rest} The mean accuracy of all is {spread(wide['val acc'], '.4f')}{test}. "
        + (
            f"Every seed is perfect from d = {every} on"
            if every
            else "No width has, with all wider ones, every seed perfect"
        )
        + f"; half of the runs are perfect at a width of {smallest['half perfect']}; "
        + (f"a mean of {GOOD:g} is kept from d = {good} on." if good else f"no width keeps a mean of {GOOD:g}.")
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


def _answers(what: str, alike: Mapping[str, Row]) -> str:
    if not alike:
        return "**Undecided:** no two models answered well enough to be compared."
    act = alike["activation"]
    mean = act["mean"]
    words = {"yes": "Confirmed.", "no": "No.", "not decided": "Undecided:"}
    verdict = words.get(holds(mean, HIGH, float("inf")), "Confirmed." if mean.mean >= HIGH else "No.")
    if what != "perfect models":
        verdict = f"No two models were perfect here; of those that nearly are: {verdict.lower()}"
    return (
        f"**{verdict}** The {act['pairs']} pairs of {act['models']} {what} have a mean of {shown(mean, '.2f')}, from "
        f"{act['least']:.2f} to {act['most']:.2f} (high: {HIGH} or more). "
        + _one_algorithm(alike["TN, best image"], alike["TN, reachable, centred"])
    )


def _one_algorithm(image: Row, plain: Row) -> str:
    """Whether the symmetries of addition make models more alike than they make what was not learnt together."""
    floor = max(image["untrained"], image["scrambled"], plain["mean"].mean)
    low = image["mean"].mean if image["mean"].low is None else image["mean"].low
    shared = image["mean"].mean - floor >= BLOCKS and low > floor
    return (
        f"Under the best symmetry of addition their weights have {shown(image['mean'], '.2f')} (as they are "
        f"{plain['mean'].mean:.2f}), untrained models of their widths {image['untrained']:.2f}, the same models with "
        f"scrambled phases {image['scrambled']:.2f}: "
        + (
            "in part one algorithm at different frequencies, which no comparison of answers shows."
            if shared
            else f"not {BLOCKS} above both floors and above the weights as they are, so no sign of one algorithm at "
            "different frequencies."
        )
    )


def _frequencies(js: Row) -> str:
    """Whether it tells pairs apart as a law does that no eigensolver can turn, beyond what both owe to width."""
    r, one, other = (js[key] for key in ("r with diagonal", "r with min(d, d')", "diagonal, r with min(d, d')"))
    left = partial_correlation(r, one, other)
    found = left >= AGREE and js["p (diagonal)"] <= SURE
    within = (
        f"{js['same width']:.3f} bits per remainder within a width and {js['other widths']:.3f} between widths (beyond "
        f"strengths {js['beyond (width)']:.3f}, p = {js['p (width)']:.3f})"
        if js["same width"] is not None
        else f"{js['all pairs']:.3f} bits per remainder over all pairs (no width has two models)"
    )
    return (
        f"**{'Confirmed.' if found else 'No.'}** Over pairs it correlates {r:.2f} (p = "
        f"{js['p (diagonal)']:.3f}) with the divergence of what depends on a + b alone, which no eigensolver can turn. "
        f"With the narrower of the two widths they correlate {one:.3f} and {other:.3f}; given that width, {left:.2f} "
        f"is left of their correlation, and {AGREE} or more would be agreement. It is {within}. Over all pairs it is "
        f"{js['all pairs']:.3f}, of untrained ones {js['untrained']:.3f}; scrambled phases keep the power at every "
        f"frequency, and with it {js['scrambled']:.3f}."
    )


def section(records: Sequence[Record], most: int, permutations: int) -> str:
    """What one setting says."""
    options = records[0].run.options
    found = Section("modular.sweep")
    report(records, found)
    tables = {table.name: table for table in found.tables}
    similar, alike = dict[str, dict[str, Any]](), ("", dict[str, dict[str, Any]]())
    if any(record.status == "done" for record in records):
        whole = saved_sweep(records)
        similar, alike = similarity_rows(whole, most, permutations), alike_rows(whole, most)
    wide = wide_row(records)
    return "\n\n".join(
        [
            f"### P = {options['P']}",
            _intro(records),
            *claims(tables, wide, similar, alike, options["epochs"]),
            "Accuracy, ± half the 95 % interval over seeds; floors first, the ceiling last, all on the same pairs:",
            tabled(accuracy_table(tables, wide)),
            "Smallest widths. " + tables["smallest_width"].note,
            tabled(tables["smallest_width"]),
            "Room or learning: " + tables["capacity"].note,
            tabled(tables["capacity"]),
            *_similarity(similar, *alike),
        ]
    )


def _intro(records: Sequence[Record]) -> str:
    options = records[0].run.options
    widths = sorted({record.run.options["d_hidden"] for record in records})
    seeds = sorted({record.run.seed for record in records})
    spelled = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    train, val, test = pairs_of(options)
    return (
        f"{len(widths)} widths from {widths[0]} to {widths[-1]}, {spelled}, at most {options['epochs']} epochs, AdamW "
        f"at {options['lr']:g} with decay {options['weight_decay']:g}, batches of {options['batch']}, on "
        f"{records[0].run.numerics.device}. Of the {options['P'] ** 2} pairs {train} train, {val} validate (training "
        f"stops at the first epoch that has all of them right) and {test} test; each seed draws them anew, and all its "
        "widths share them."
    )


def accuracy_table(tables: Mapping[str, Table], wide: Row | None) -> Table:
    """Some of the widths between the floors and the ceiling."""
    rows: Sequence[Row] = tables["modular_sweep"].rows
    floors_and_ceiling: Sequence[Row] = tables["references"].rows
    chosen = _some([row["d_hidden"] for row in rows])
    trained = [
        {"model": f"d = {row['d_hidden']}", **row, "seeds": row["val acc"].n}
        for row in rows
        if row["d_hidden"] in chosen
    ]
    references = [dict(row) | {"seeds": row["val acc"].n} for row in floors_and_ceiling]
    below = [row for row in references if row["model"] != BY_HAND]
    above = [row for row in references if row["model"] == BY_HAND]
    columns = ["model", "val acc", "test acc", "full table", "perfect", "epochs to 100 %", "seeds"]
    if "test acc" not in tables["references"].keys:
        columns.remove("test acc")
    listed = [*below, *trained, *([wide] if wide else []), *above]
    formats = {"val acc": ".4f", "test acc": ".4f", "full table": ".4f", "epochs to 100 %": ".0f"}
    return Table("accuracy", tuple({column: row.get(column) for column in columns} for row in listed), formats)


def _similarity(similar: Mapping[str, Row], what: str, alike: Mapping[str, Row]) -> list[str]:
    columns = ("measure", "models", "all pairs", "untrained", "scrambled", "same width", "other widths",
               "beyond (width)", "p (width)", "same band", "other bands", "beyond (band)", "p (band)",
               "r with min(d, d')", "p (min)")  # fmt: skip
    if not similar:
        return []
    js = similar["JS (bits)"]
    whole = Table("similarity", tuple({key: similar[n][key] for key in columns} for n in SHOWN), _three(columns))
    parts = [
        "Similarity, untrained and scrambled models over all pairs too:",
        tabled(whole),
        "Over these pairs the spec's divergence and that of what depends on a + b alone:",
        ruled(
            ["one", "other", "r", "p"],
            [["JS (bits)", DIAGONAL, *(f"{js[k]:.3f}" for k in ("r with diagonal", "p (diagonal)"))]],
        ),
    ]
    if alike:
        own = Table("alike", tuple(alike[n] for n in SHOWN), _three(next(iter(alike.values()))))
        parts += [
            f"Similarity of {what}, ± half the 95 % interval of leaving out a model at a time; untrained models of "
            "their widths and the same models scrambled:",
            tabled(own),
        ]
    return parts


def _three(columns: Iterable[str]) -> dict[str, str]:
    return {column: ".3f" for column in columns if column not in ("measure", "models", "pairs")}


def _some(widths: Sequence[int]) -> set[int]:
    """Few widths all; of many these, the narrowest and the widest."""
    wanted = {1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32, 48, 64}
    return set(widths) if len(widths) <= len(wanted) else wanted & set(widths) | {min(widths), max(widths)}


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
        between(page, "modular", "")  # before anything is computed for it
    except (OSError, ValueError) as error:
        parser.error(f"{args.page}: {error}")
    records = [r for r in Store(args.results).records("modular.sweep") if r.status != "failed"]
    groups = sorted(settings(records), key=lambda group: -group[0].run.options["P"])
    if not groups:
        parser.error(f"no records of modular.sweep under {args.results}")
    text = "\n\n".join(section(group, args.most, args.permutations) for group in groups)
    args.page.write_text(between(page, "modular", text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
