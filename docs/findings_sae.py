"""Write the section `sae` of docs/FINDINGS.md from stored records, one part for each data set among them.

    assay sae --preset findings --out findings                                          # the embedded digits: minutes
    assay sae --coders lse_infomax --optimizer sgd --lrs 1e-3 1e-2 1e-1 --epochs 100 --seeds 0..4 \\
        --grid d_code=16,32,64 --out findings                                           # the law of "convergence"
    python docs/findings_sae.py findings
    ASSAY_DATA=... assay sae --preset findings --data mnist --out findings --device cuda # the same on MNIST, a GPU
    assay sae --preset synthetic --out findings --device cuda                           # overcomplete, known atoms
    ASSAY_DATA=... assay sae --preset activations --out findings --device cuda          # overcomplete, SmolLM2-135M

The page has a part for each data set whose records are in the folder, and no other. No number is typed by hand, and
whether a claim holds is decided here by rules that are stated beside it.
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from assay.core.run import Record
from assay.core.store import Store
from assay.metrics.intervals import Interval, holm, paired_difference, paired_p, student_t
from assay.studies.sae.dynamics import convergence_epoch, log_slope
from assay.studies.sae.report import MEASURES, REFERENCE, TARGETS, Point, at_equal_l0, at_l0, chosen

PAGE = Path(__file__).parent / "FINDINGS.md"
BEGIN, END = "<!-- sae: begin -->", "<!-- sae: end -->"
HEAD = """## sae

*Can a sparse code be learned without a decoder, and is it as good?* The claims of the paper on decoder-free coding by
implicit EM, checked with five seeds, and the comparison it leaves out. C is its full loss, D the same without the
log-sum-exp, B without decorrelation. Written by the commands at the top of `docs/findings_sae.py`; the last of them,
SmolLM2's activations, has not been run.

"""
C, D, SAE = "lse_infomax", "lse_infomax:lambda_lse=0.0", "relu_l1:l1=0.01:form=spec"


class Claim(NamedTuple):
    """Of the paper or of the field: what is asked, what the records answer, and the numbers behind it."""

    asked: str
    answer: str
    text: str


EPOCHS = (0.5, 1.5)
"""The 'convergence' epoch over K that counts as 'about epoch K'."""
NEAR = 0.1
"""Nats between two entropies that count as one."""
HALF = (-0.55, -0.45)
"""The change in parameters that counts as '50 % fewer'."""
TOLD_APART = 0.05
"""Of adjusted p values."""


def shown(interval: Interval, form: str = ".3f") -> str:
    if interval.low is None or interval.high is None:
        return format(interval.mean, form)
    return f"{interval.mean:{form}} [{interval.low:{form}}, {interval.high:{form}}]"


def verdict(difference: Interval) -> str:
    if difference.low is None or difference.high is None:
        return "one seed: nothing to say"
    if difference.low > 0:
        return "more"
    return "less" if difference.high < 0 else "not told apart"


def holds(interval: Interval, low: float, high: float) -> str:
    """Whether the whole interval lies in the band; without an interval there is nothing to decide."""
    if interval.low is None or interval.high is None:
        return "one seed: not decided"
    if low <= interval.low and interval.high <= high:
        return "yes"
    return "no" if interval.high < low or interval.low > high else "not decided"


def contains(interval: Interval, value: float) -> str:
    if interval.low is None or interval.high is None:
        return "one seed: not decided"
    return "yes" if interval.low <= value <= interval.high else "no"


def probe_of(point: Point) -> dict[int, float]:
    return point.cell.values("probe_accuracy") or point.cell.values("linear_probe_accuracy")


SPARSITY = {
    "less": "it makes the code sparser",
    "more": "it makes the code denser",
    "not told apart": "it changes the sparsity by nothing that could be told",
    "one seed: nothing to say": "one seed: not decided",
}


def what_lse_adds(points: Mapping[str, Point]) -> list[Claim]:
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
            f"C {fmean(probe_of(c).values()):.4f} at {c.l0:.1f} active units, D {fmean(probe_of(d).values()):.4f} at "
            f"{d.l0:.1f}."
        )
    units = paired_difference(c.cell.values("l0"), d.cell.values("l0"))
    fvu = paired_difference(c.cell.values("fvu"), d.cell.values("fvu"))
    lines.append(
        f"Active units, C - D: {shown(units, '+.1f')} (**{SPARSITY[verdict(units)]}**); variance unexplained by a "
        f"ridge decoder: {shown(fvu, '+.3f')} ({verdict(fvu)})."
    )
    return [Claim("probe accuracy with the log-sum-exp (C) against without (D)", answer, " ".join(lines))]


def topk_at_equal_l0(points: Mapping[str, Point]) -> list[Claim]:
    """TopK, interpolated seed by seed to the active units of C."""
    curve = [point for point in points.values() if point.family == "topk"]
    if C not in points or len(curve) < 2:
        return []
    c = points[C]
    found, answers = [], []
    for metric, title, form in (("fvu", "unexplained variance", "+.3f"), ("probe_accuracy", "probe accuracy", "+.4f")):
        own, other = c.cell.values(metric), at_l0(curve, c.l0, metric)
        if own.keys() & other.keys():
            gap = paired_difference(other, own)
            found.append(f"{title} {shown(gap, form)} ({verdict(gap)})")
            answers.append(f"{title} {verdict(gap)}")
    asked = "TopK at C's active units, against C"
    if not found:
        text = f"*TopK at C's {c.l0:.1f} active units.* The levels that were run do not reach around it."
        return [Claim(asked, "not reached", text)]
    text = f"*TopK at C's {c.l0:.1f} active units, minus C.* {'; '.join(found)}."
    if probe_of(c):
        paired = [p for p in curve if probe_of(p).keys() & probe_of(c).keys()]
        enough = [
            p for p in paired if verdict(paired_difference(probe_of(p), probe_of(c))) in ("more", "not told apart")
        ]
        if enough:
            least = min(enough, key=lambda point: point.l0)
            best = fmean(probe_of(least).values())
            text += f" The sparsest TopK that is not told below C by its probe (paired): L0 {least.l0:.0f}, {best:.4f}."
    return [Claim(asked, "; ".join(answers), text)]


def entropy(points: Mapping[str, Point]) -> list[Claim]:
    """The responsibility entropy against what a rectified code of large scale must have."""
    found, answers = [], []
    for name in (C, D):
        if name in points:
            cell = points[name].cell
            gap = paired_difference(cell.values("responsibility_entropy"), cell.values("log_inactive"))
            mean = fmean(cell.values("responsibility_entropy").values())
            norm = fmean(cell.values("weight_norm").values())
            same = holds(gap, -NEAR, NEAR)
            answers.append(f"{'C' if name == C else 'D'} {same}")
            found.append(
                f"{'C' if name == C else 'D'} {mean:.2f}, {shown(gap, '+.2f')} above it at |w| = {norm:.1f}: **{same}**"
            )
    if not found:
        return []
    text = (
        f"*Is responsibility entropy E[ln(inactive units)]?* Yes where the paired interval of the gap is within "
        f"{NEAR:g} nats of 0. " + "; ".join(found) + "."
    )
    return [Claim("responsibility entropy is E[ln(inactive units)]", ", ".join(answers), text)]


def size(points: Mapping[str, Point]) -> list[Claim]:
    """'50 % fewer parameters', once a decoder is counted."""
    if C not in points or SAE not in points:
        return []
    ours, theirs = (int(points[name].cell.records[0].metrics["params"]) for name in (C, SAE))
    units = int(points[C].cell.options["d_code"])
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


def against_reference(found: Mapping[str, Mapping[int, float]], measure: str) -> dict[str, str]:
    """Each curve of one L0 against the decoder-free coder's: better, worse or not told apart, by paired t and Holm."""
    if REFERENCE not in found:
        return {}
    own = found[REFERENCE]
    others = {name: values for name, values in found.items() if name != REFERENCE and values.keys() & own.keys()}
    adjusted = holm({name: paired_p(values, own) for name, values in others.items()})
    said = {}
    for name, values in others.items():
        gain = paired_difference(values, own).mean * (-1 if measure == "FVU" else 1)
        said[name] = "not told apart" if adjusted[name] >= TOLD_APART else "better" if gain > 0 else "worse"
    return said


def field_at_equal_l0(points: Sequence[Point]) -> list[str]:
    """Every coder that has a curve, at equal numbers of active units, beside the decoder-free one."""
    reached = {target: at_equal_l0(points, target) for target in TARGETS}
    reached = {target: at for target, at in reached.items() if len(at["FVU"]) > 1}
    measures = [measure for measure in MEASURES if any(at[measure] for at in reached.values())]
    if not reached:
        return []
    text = (
        f"*The field at equal L0, against `{REFERENCE}`.* Interpolated between levels seed by seed. Better or worse: "
        f"paired t over seeds, p below {TOLD_APART:g} after Holm over the coders of one L0; not told apart otherwise."
    )
    lines, rows = [text], []
    for target, at in reached.items():
        said = {measure: against_reference(at[measure], measure) for measure in measures}
        lines.append(f"- L0 {target:g}: {_summary(said)}.")
        for name in at["FVU"]:
            cells = [f"{target:g}", f"`{name}`"]
            for measure in measures:
                cells += _compared(at[measure], name, said[measure].get(name))
            rows.append(cells)
    head = ["L0", "coder", *(title for measure in measures for title in (measure, f"minus `{REFERENCE}`"))]
    return ["\n".join(lines), ruled(head, rows)]


def _summary(said: Mapping[str, Mapping[str, str]]) -> str:
    if not any(said.values()):
        return f"`{REFERENCE}` does not reach it"
    parts = []
    for measure, verdicts in said.items():
        groups = {
            verdict: ", ".join(f"`{name}`" for name, mine in verdicts.items() if mine == verdict)
            for verdict in ("better", "not told apart", "worse")
        }
        parts.append(f"by {measure} " + "; ".join(f"**{key}** {names}" for key, names in groups.items() if names))
    return ". ".join(part for part in parts if "**" in part)


def _compared(found: Mapping[str, Mapping[int, float]], name: str, said: str | None) -> list[str]:
    """A value, and its difference from the reference."""
    values = found.get(name, {})
    value = _spread(student_t(list(values.values()))) if values else "-"
    if said is None:
        return [value, "-"]
    return [value, f"{shown(paired_difference(values, found[REFERENCE]), '+.3f')} {said}"]


def convergence(records: Sequence[Record]) -> list[Claim]:
    """Where the loss under SGD changes by less than 1 per epoch, for each number of units."""
    sgd = [r for r in records if r.status == "done" and (r.run.options["recipe"] or {}).get("optimizer") == "sgd"]
    by_units: dict[int, dict[float, list[Record]]] = {}
    for record in sgd:
        rates = by_units.setdefault(record.run.options["d_code"], {})
        rates.setdefault(record.run.options["lr"], []).append(record)
    if not by_units:
        return []
    rows, answers = [], []
    for units, rates in sorted(by_units.items()):
        for rate, mine in sorted(rates.items()):
            losses = [record.metrics["history"]["train_loss"] for record in mine]
            epochs = student_t([float(convergence_epoch(curve)) for curve in losses])
            slopes = student_t([log_slope(curve) / units for curve in losses])
            never = " (the last)" if epochs.mean >= len(losses[0]) else ""
            at_k, law = holds(epochs, EPOCHS[0] * units, EPOCHS[1] * units), contains(slopes, -1.0)
            answers.append((at_k, law))
            rows.append([str(units), f"{rate:g}", f"{shown(epochs, '.0f')}{never}", at_k, shown(slopes, ".2f"), law])
    at_k, law = (sum(answer == "yes" for answer in column) for column in zip(*answers, strict=True))
    text = (
        "*'SGD converges at epoch ~70 whatever the rate', or is it the loss falling as -K ln t?* Then it changes by "
        f"less than 1 per epoch from about epoch K on (the whole interval from {EPOCHS[0]:g} K to {EPOCHS[1]:g} K), "
        "and d loss / d ln t over K is -1 (the interval contains it). "
        f"The epoch goes with K in **{at_k} of {len(rows)}** settings; the slope is -1 in **{law} of {len(rows)}**."
    )
    head = ["units K", "rate", "epoch", "about K?", "d loss / d ln t over K", "-1?"]
    answer = f"epoch {at_k} of {len(rows)}, slope {law} of {len(rows)}"
    return [Claim("SGD 'converges' at epoch K, since the loss is c - K ln t", answer, f"{text}\n\n{ruled(head, rows)}")]


def ruled(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def table(points: Sequence[Point]) -> str:
    head = ["coder", "L0", "FVU", "probe", "dead"]
    known = any(point.cell.values("firing_f1") for point in points)
    head += ["atoms", "firing F1"] if known else []
    spliced = any(point.cell.values("loss_recovered_from_mean") for point in points)
    head += ["loss recovered"] if spliced else []
    rows = []
    for point in points:
        cell = point.cell
        probe = probe_of(point)
        cells = [f"`{point.label}`", f"{point.l0:.1f}", _spread(cell.interval("fvu"))]
        cells += [
            _spread(student_t(list(probe.values())), ".4f") if probe else "-",
            _spread(cell.interval("dead"), ".1f"),
        ]
        cells += [_spread(cell.interval("atom_cosine")), _spread(cell.interval("firing_f1"))] if known else []
        cells += [_spread(cell.interval("loss_recovered_from_mean"))] if spliced else []
        rows.append(cells)
    return ruled(head, rows)


def _spread(interval: Interval | None, form: str = ".3f") -> str:
    if interval is None:
        return "-"
    half = "" if interval.low is None else f" ± {interval.mean - interval.low:{form}}"
    return f"{interval.mean:{form}}{half}"


def section(name: str, records: Sequence[Record]) -> tuple[str, list[Claim]]:
    """One data set: the comparison, then the law of convergence; and what was answered."""
    adam = [r for r in records if (r.run.options["recipe"] or {"optimizer": "adam"})["optimizer"] == "adam"]
    widths = [r.run.options["d_code"] for r in adam]
    parts, answered = [f"### {name}"], list[Claim]()
    for units in sorted(set(widths)):
        points = chosen([r for r in adam if r.run.options["d_code"] == units])
        points.sort(key=lambda point: (not point.is_trained, point.family, point.l0))
        by_name = {point.label: point for point in points}
        if len(by_name) < 3:
            continue
        first = next((p for p in points if p.is_trained), points[0])
        recipe, seeds = first.cell.options["recipe"] or {}, sorted(first.cell.seeds)
        parts.append(
            f"{units} units, {recipe.get('epochs')} epochs in batches of {recipe.get('batch')}, Adam, seeds "
            f"{', '.join(map(str, seeds))}, on {first.cell.numerics.device}; each seed at the rate that "
            "the other seeds chose on validation rows. Intervals are 95 %; differences are paired over seeds."
        )
        claims = what_lse_adds(by_name) + topk_at_equal_l0(by_name) + entropy(by_name) + size(by_name)
        parts += [f"{number}. {claim.text}" for number, claim in enumerate(claims, 1)]
        answered += claims
        parts += field_at_equal_l0(points)
        parts.append(table(points))
    law = convergence(records)
    parts += [claim.text for claim in law]
    return "\n\n".join(parts), answered + law


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
    """The paper's own data set first, then the small ones, then the overcomplete."""
    order = ("mnist", "digits", "dictionary", "activations")
    kind = name.partition(" ")[0]
    return (order.index(kind) if kind in order else len(order), name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", help="the results folder that has the records")
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args()
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
    body = "\n\n".join([short, *(text for text, _ in written_of.values())])
    text = args.page.read_text(encoding="utf-8") if args.page.is_file() else "# Findings\n"
    written = f"{BEGIN}\n{body}\n{END}"
    if BEGIN in text:
        text = re.sub(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: written, text, flags=re.DOTALL)
    else:
        text = text.rstrip() + f"\n\n{HEAD}{written}\n"
    args.page.write_text(text, encoding="utf-8")
    print(f"{args.page}: {len(groups)} data sets")
    return 0


if __name__ == "__main__":
    sys.exit(main())
