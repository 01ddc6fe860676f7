"""Write the section `sae` of docs/FINDINGS.md from stored records, one part for each data set among them.

    assay sae --preset findings --out findings                                          # the embedded digits: minutes
    assay sae --coders lse_infomax --optimizer sgd --lrs 1e-3 1e-2 1e-1 --epochs 100 --seeds 0..4 \\
        --grid d_code=16,32,64 --out findings                                           # the law of "convergence"
    python docs/findings_sae.py findings
    ASSAY_DATA=... assay sae --preset findings --data mnist --out findings --device cuda # the same on MNIST, a GPU
    ASSAY_DATA=... assay sae --coders lse_infomax --data mnist --d_code 64 --optimizer sgd --lrs 1e-3 1e-2 1e-1 \\
        --epochs 100 --seeds 0..4 --device cuda --out findings
    assay sae --preset synthetic --out findings --device cuda                           # overcomplete, known atoms
    ASSAY_DATA=... assay sae --preset activations --out findings --device cuda          # overcomplete, SmolLM2-135M

The page has a part for each data set whose records are in the folder, and no other. No number is typed by hand, and
whether a claim holds is decided here by rules that are stated beside it.
"""

import argparse
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, linear_regression
from typing import NamedTuple

from findings_field import field_at_equal_l0, overcomplete, overcomplete_at_equal_l0
from findings_words import between, holds, ruled, shown, spread, verdict, without_equal_n

from assay.core.run import Record
from assay.core.store import Store
from assay.metrics.intervals import paired_difference, student_t
from assay.report.rows import Row
from assay.studies.sae.curves import at_l0, chosen, is_trained, l0, rate_shown
from assay.studies.sae.dynamics import convergence_epoch, log_slope

PAGE = Path(__file__).parent / "FINDINGS.md"
C, D, SAE = "lse_infomax", "lse_infomax:lambda_lse=0.0", "relu_l1:l1=0.01:form=spec"


class Claim(NamedTuple):
    """Of the paper or of the field: what is asked, what the records answer, and the numbers behind it."""

    asked: str
    answer: str
    text: str


KINDS = {
    "mnist": "MNIST",
    "digits": "the embedded digits",
    "dictionary": "known atoms",
    "activations": "SmolLM2's activations",
}
"""Data sets, in the order of the page: the paper's own first, then the small ones, then the overcomplete."""
PAPERS_RATE = 1e-3
EPOCHS = (0.5, 1.5)
"""What the 'convergence' epoch may grow by with each unit to go with K; 0 is an epoch that is the same for every K."""
SLOPE = (-1.15, -0.85)
"""Of the loss over ln t, by K, that counts as -1."""
LARGE = 10.0
"""The norm of the weights from which a statement on large scales is asked at all."""
NEAR = 0.1
"""Nats between two entropies that count as one."""
HALF = (-0.55, -0.45)
"""The change in parameters that counts as '50 % fewer'."""


def probe_of(point: Row) -> dict[int, float]:
    return point.values("probe_accuracy") or point.values("linear_probe_accuracy")


SPARSITY = {
    "less": "it makes the code sparser",
    "more": "it makes the code denser",
    "not told apart": "it changes the sparsity by nothing that could be told",
    "one seed: nothing to say": "one seed: not decided",
}


def what_lse_adds(points: Mapping[str, Row]) -> list[Claim]:
    """C against D: the term that gives the paper its name."""
    if C not in points or D not in points:
        return []
    c, d = points[C], points[D]
    lines, answer = [], "-"
    if probe_of(c) and probe_of(d):
        gap = paired_difference(probe_of(c), probe_of(d))
        answer = verdict(gap)
        lines.append(
            f"*What the log-sum-exp adds to probe accuracy (C - D).* {shown(gap, '+.4f')}: **{verdict(gap)}**. "
            f"C {fmean(probe_of(c).values()):.4f} at {l0(c):.1f} active units, D {fmean(probe_of(d).values()):.4f} at "
            f"{l0(d):.1f}."
        )
    units = paired_difference(c.values("l0"), d.values("l0"))
    fvu = paired_difference(c.values("fvu"), d.values("fvu"))
    lines.append(
        f"Active units, C - D: {shown(units, '+.1f')} (**{SPARSITY[verdict(units)]}**); variance unexplained by a "
        f"ridge decoder: {shown(fvu, '+.3f')} ({verdict(fvu)})."
    )
    return [Claim("probe accuracy with the log-sum-exp (C) against without (D)", answer, " ".join(lines))]


def topk_at_equal_l0(points: Mapping[str, Row]) -> list[Claim]:
    """TopK, read off its curve at the active units of C."""
    curve = [point for point in points.values() if point.label == "topk"]
    if C not in points or len(curve) < 2:
        return []
    c = points[C]
    found, answers = [], []
    there = at_l0(curve, l0(c))
    for metric, title, form in (("fvu", "unexplained variance", "+.3f"), ("probe_accuracy", "probe accuracy", "+.4f")):
        own, other = c.values(metric), there.values(metric) if there else {}
        if own.keys() & other.keys():
            gap = paired_difference(other, own)
            found.append(f"{title} {shown(gap, form)} ({verdict(gap)})")
            answers.append(f"{title} {verdict(gap)}")
    asked = "TopK at C's active units, against C"
    if not found:
        text = f"*TopK at C's {l0(c):.1f} active units.* The levels that were run do not reach around it."
        return [Claim(asked, "not reached", text)]
    text = f"*TopK at C's {l0(c):.1f} active units, minus C.* {'; '.join(found)}."
    if probe_of(c):
        paired = [p for p in curve if probe_of(p).keys() & probe_of(c).keys()]
        enough = [
            p for p in paired if verdict(paired_difference(probe_of(p), probe_of(c))) in ("more", "not told apart")
        ]
        if enough:
            least = min(enough, key=l0)
            best = fmean(probe_of(least).values())
            text += (
                f" The sparsest TopK that is not told below C by its probe (paired; no proof that they are equal): "
                f"L0 {l0(least):.0f}, {best:.4f}."
            )
    return [Claim(asked, "; ".join(answers), text)]


def entropy(points: Mapping[str, Row]) -> list[Claim]:
    """The responsibility entropy against what a rectified code of large scale must have."""
    found, answers = [], []
    for name in (C, D):
        if name in points:
            cell = points[name]
            gap = paired_difference(cell.values("responsibility_entropy"), cell.values("log_inactive"))
            mean = fmean(cell.values("responsibility_entropy").values())
            norm = fmean(cell.values("weight_norm").values())
            same = holds(gap, -NEAR, NEAR) if norm >= LARGE else "scale too small to tell"
            answers.append(f"{'C' if name == C else 'D'} {same}")
            found.append(
                f"{'C' if name == C else 'D'} {mean:.2f}, {shown(gap, '+.2f')} above it at |w| = {norm:.1f}: **{same}**"
            )
    if not found:
        return []
    text = (
        f"*Is responsibility entropy E[ln(inactive units)]?* Yes where the paired interval of the gap is within "
        f"{NEAR:g} nats of 0, asked where |w| is {LARGE:g} or more: it is a limit for large scales. "
        + "; ".join(found)
        + "."
    )
    return [Claim("responsibility entropy is E[ln(inactive units)]", ", ".join(answers), text)]


def size(points: Mapping[str, Row]) -> list[Claim]:
    """'50 % fewer parameters', once a decoder is counted."""
    if C not in points or SAE not in points:
        return []
    ours, theirs = (int(points[name].first["params"]) for name in (C, SAE))
    units = int(points[C].options["d_code"])
    d_in = ours // units - 1
    whole = ours + units * d_in + d_in
    trained, decoded = (
        "kept" if HALF[0] <= change <= HALF[1] else "not kept" for change in (ours / theirs - 1, whole / theirs - 1)
    )
    text = (
        f"*'50 % fewer parameters' (kept from {HALF[0]:.0%} to {HALF[1]:.0%}).* "
        f"{ours} against {theirs} as trained ({ours / theirs - 1:+.0%}): **{trained}**; "
        f"{whole} ({whole / theirs - 1:+.1%}) with the decoder that reconstruction needs: **{decoded}**."
    )
    return [Claim("'50 % fewer parameters', with a decoder to reconstruct", decoded, text)]


def convergence(records: Sequence[Record]) -> list[Claim]:
    """How the loss falls under SGD; and from where on by less than 1 per epoch, and how that goes with the units."""
    sgd = [r for r in records if r.status == "done" and (r.run.options["recipe"] or {}).get("optimizer") == "sgd"]
    settings: dict[tuple[int, float], dict[int, Sequence[float]]] = {}
    for record in sgd:
        key = record.run.options["d_code"], record.run.options["lr"]
        settings.setdefault(key, {})[record.run.seed] = record.metrics["history"]["train_loss"]
    if not settings:
        return []
    rows, laws = [], []
    epochs: dict[float, dict[int, dict[int, float]]] = {}
    for (units, rate), curves in sorted(settings.items()):
        ends = {seed: float(convergence_epoch(curve)) for seed, curve in curves.items()}
        epochs.setdefault(rate, {})[units] = ends
        mean, slopes = (student_t(list(x)) for x in (ends.values(), [log_slope(c) / units for c in curves.values()]))
        never = " (the last)" if mean.mean >= len(next(iter(curves.values()))) else ""
        laws.append(holds(slopes, *SLOPE))
        rows.append([str(units), f"{rate:g}", f"{shown(mean, '.0f')}{never}", shown(slopes, ".2f"), laws[-1]])
    growth, grows = _with_units(epochs)
    law = _counted(laws)
    text = (
        "*'SGD converges at epoch ~70 whatever the rate', or is it the loss falling as -K ln t?* Then d loss / d ln t "
        f"over K is -1 (yes: the whole interval from {SLOPE[0]:g} to {SLOPE[1]:g}; no: wholly outside): **{law}**. And "
        "the loss changes by less than 1 per epoch from about epoch K on, so that this epoch grows by 1 with each unit "
        f"(yes: the whole interval from {EPOCHS[0]:g} to {EPOCHS[1]:g}; an epoch that is the same for every K grows by "
        f"0): **{grows}**{growth}."
    )
    head = ["units K", "rate", "epoch", "d loss / d ln t over K", "-1?"]
    answer = f"epoch: {grows}; slope: {law}"
    return [Claim("SGD 'converges' at epoch K, since the loss is c - K ln t", answer, f"{text}\n\n{ruled(head, rows)}")]


def _with_units(epochs: Mapping[float, Mapping[int, Mapping[int, float]]]) -> tuple[str, str]:
    """Least squares of the epoch on the units, seed by seed, at every rate; and what is said of it."""
    found = {}
    for rate, by_units in epochs.items():
        seeds = set.intersection(*(set(ends) for ends in by_units.values()))
        if len(by_units) > 1 and seeds:
            slopes = [linear_regression(list(by_units), [e[seed] for e in by_units.values()]).slope for seed in seeds]
            found[rate] = student_t(slopes)
    if not found:
        return "", "one K alone cannot tell"
    said = "; ".join(f"{shown(slope, '.2f')} at {rate:g}" for rate, slope in found.items())
    return f" ({said})", _counted([holds(slope, *EPOCHS) for slope in found.values()])


def _counted(answers: Sequence[str]) -> str:
    """yes, no, yes -> 2 of 3 yes, 1 no."""
    counts = [(answers.count(answer), answer) for answer in dict.fromkeys(("yes", *answers))]
    (yes, _), *others = counts
    return ", ".join([f"{yes} of {len(answers)} yes", *(f"{count} {answer}" for count, answer in others)])


def table(points: Sequence[Row]) -> str:
    head = ["coder", "lr", "n", "L0", "FVU", "probe", "dead"]
    known = any(point.values("firing_f1") for point in points)
    head += ["atoms", "firing F1"] if known else []
    spliced = any(point.values("loss_recovered_from_mean") for point in points)
    head += ["loss recovered"] if spliced else []
    rows = []
    for point in points:
        probe = probe_of(point)
        cells = [f"`{point.names['coder']}`", rate_shown(point) or "-", str(len(point.finished)), f"{l0(point):.1f}"]
        cells.append(spread(point.interval("fvu")))
        cells += [
            spread(student_t(list(probe.values())), ".4f") if probe else "-",
            spread(point.interval("dead"), ".1f"),
        ]
        cells += [spread(point.interval("atom_cosine")), spread(point.interval("firing_f1"))] if known else []
        cells += [spread(point.interval("loss_recovered_from_mean"))] if spliced else []
        rows.append(cells)
    return ruled(*without_equal_n(head, rows))


def by_width(records: Sequence[Record]) -> dict[int, list[Record]]:
    """What was trained with Adam, or at once, by the units of the code."""
    adam = [r for r in records if (r.run.options["recipe"] or {"optimizer": "adam"})["optimizer"] == "adam"]
    widths = sorted({r.run.options["d_code"] for r in adam})
    return {units: [r for r in adam if r.run.options["d_code"] == units] for units in widths}


def headline(groups: Mapping[str, Sequence[Record]]) -> str:
    """The comparison the study is for: codes of many more units than inputs, on each data set that has them."""
    wide = {
        name: [point for units, mine in by_width(records).items() for point in overcomplete(chosen(mine), units)]
        for name, records in groups.items()
    }
    return overcomplete_at_equal_l0({name: points for name, points in wide.items() if points}, KINDS)


def section(name: str, records: Sequence[Record]) -> tuple[str, list[Claim]]:
    """One data set: the comparison, then the law of convergence; and what was answered."""
    parts, answered = [f"### {name}"], list[Claim]()
    for units, mine in by_width(records).items():
        points = chosen(mine)
        points.sort(key=lambda point: (not is_trained(point), point.label, l0(point)))
        if len({point.names["coder"] for point in points}) < 3:
            continue
        rate, at_one_rate = papers_rate(mine)
        by_name = {point.names["coder"]: point for point in chosen(at_one_rate)}
        first = next((p for p in points if is_trained(p)), points[0])
        recipe, seeds = first.options["recipe"] or {}, sorted(first.seeds)
        parts.append(
            f"{units} units, {recipe.get('epochs')} epochs in batches of {recipe.get('batch')}, Adam, seeds "
            f"{', '.join(map(str, seeds))}, on {first.numerics.device}. Intervals are 95 %; differences are "
            f"paired over seeds. What is numbered compares like with like: every coder at one rate, {rate:g}, the "
            "paper's or the nearest to it that was run."
        )
        claims = what_lse_adds(by_name) + topk_at_equal_l0(by_name) + entropy(by_name) + size(by_name)
        parts += [f"{number}. {claim.text}" for number, claim in enumerate(claims, 1)]
        answered += claims
        parts += field_at_equal_l0(points)
        parts.append(
            "*Every level*, each seed at the rate (lr; *: some seed's is at the edge) with the least validation FVU "
            "over the other seeds. That may be the rate with the densest code: rows of unequal L0 are not for "
            "comparing."
        )
        parts.append(table(points))
    law = convergence(records)
    parts += [claim.text for claim in law]
    return "\n\n".join(parts), answered + law


def papers_rate(records: Sequence[Record]) -> tuple[float, list[Record]]:
    """The rate nearest to the paper's, and what was trained at it or at none."""
    rates = {rate for record in records if (rate := record.run.options["lr"]) is not None}
    nearest = min(rates, key=lambda rate: abs(math.log(rate / PAPERS_RATE)), default=PAPERS_RATE)
    return nearest, [record for record in records if record.run.options["lr"] in (None, nearest)]


def not_run(names: Iterable[str]) -> str:
    present = {name.partition(" ")[0] for name in names}
    missing = [f"{title} (`{kind}`)" for kind, title in KINDS.items() if kind not in present]
    return f"Not run: {', '.join(missing)}." if missing else "All of its data sets have been run."


def in_short(answered: Mapping[str, Sequence[Claim]]) -> str:
    """Every claim with the answer of each data set."""
    asked = dict.fromkeys(claim.asked for claims in answered.values() for claim in claims)
    short = {name: name.partition(" ")[0] for name in answered}
    if len(set(short.values())) < len(short):
        short = {name: name for name in answered}
    rows = [
        [question]
        + [
            "; ".join(dict.fromkeys(claim.answer for claim in claims if claim.asked == question)) or "-"
            for claims in answered.values()
        ]
        for question in asked
    ]
    return ruled(["", *short.values()], rows)


def _rank(name: str) -> tuple[int, str]:
    kind = name.partition(" ")[0]
    return (list(KINDS).index(kind) if kind in KINDS else len(KINDS), name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", help="the results folder that has the records")
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args()
    try:
        page = args.page.read_text(encoding="utf-8")
        between(page, "sae", "")  # before anything is computed for it
    except (OSError, ValueError) as error:
        parser.error(f"{args.page}: {error}")
    groups: dict[str, list[Record]] = {}
    for record in Store(args.out).records("sae"):
        if record.status in ("done", "diverged"):
            data = record.run.options["data"]
            options = " ".join(f"{k}={v}" for k, v in data.items() if k != "name")
            key = f"{data['name']} on {record.run.numerics.device}" + (f" ({options})" if options else "")
            groups.setdefault(key, []).append(record)
    if not groups:
        print(f"no finished records of `assay sae` in {args.out}", file=sys.stderr)
        return 1
    written_of = {name: section(name, groups[name]) for name in sorted(groups, key=_rank)}
    short = in_short({name: claims for name, (_, claims) in written_of.items()})
    body = "\n\n".join([not_run(groups), short, headline(groups), *(text for text, _ in written_of.values())])
    args.page.write_text(between(page, "sae", body), encoding="utf-8")
    print(f"{args.page}: {len(groups)} data sets")
    return 0


if __name__ == "__main__":
    sys.exit(main())
