"""Whether the models behind a claim were trained to their end: the two parts of a certificate that need records.

    tuned     no recipe of the grid is told above the claim's own by the seeds, and its own is at no edge of the grid
    steady    doubled training leaves the number inside its interval, or the goal was reached without it

An "it cannot be learnt" from models that fail either is no finding: its verdict is `not converged`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from assay.core.run import Record, Run, canonical, flat
from assay.metrics.intervals import Interval, paired_difference
from assay.report.claims import Certificate, Claim, Judged, Verdict, identity
from assay.report.rows import number_at


@dataclass(frozen=True)
class Part:
    """One part of a certificate."""

    name: str
    holds: bool
    said: str


def tuned(certificate: Certificate, own: Run, runs: Sequence[Run], stored: Mapping[str, Record]) -> Part:
    """Compare the recipes of the grid by their seeds' means; `own` is a run of the claim."""
    axes = list(certificate.tried)
    records = [stored.get(identity(run)) for run in runs]
    there = [record for record in records if record is not None]
    if len(there) < len(runs):
        return Part("tuned", False, f"{len(runs) - len(there)} of {len(runs)} runs of other recipes are not stored")
    by_recipe: dict[str, dict[int, list[float]]] = {}
    for record in there:
        value = number_at(record.metrics, certificate.metric.split("."))
        seeds = by_recipe.setdefault(_recipe(record.run, axes), {})
        seeds.setdefault(record.run.seed, []).append(value if value is not None else float("-inf"))
    scores = {recipe: {seed: fmean(found) for seed, found in seeds.items()} for recipe, seeds in by_recipe.items()}
    mine = _recipe(own, axes)
    if mine not in scores:
        return Part("tuned", False, "its own recipe is not among those tried")
    best = max(scores, key=lambda recipe: fmean(scores[recipe].values()))
    behind = paired_difference(scores[best], scores[mine])
    options = flat(dict(own.options))
    edges = [axis for axis, values in certificate.tried.items() if options[axis] in (min(values), max(values))]
    place = "the best" if best == mine else "near the best"
    said = (
        f"of {len(scores)} recipes over {' and '.join(axes)} its own is {place}"
        f" by {certificate.metric} ({fmean(scores[mine].values()):.4f}, the best {fmean(scores[best].values()):.4f})"
        f"{f', at an edge of {edges[0]}' if edges else ', at no edge'}"
    )
    apart = best != mine and (behind.low is None or behind.low > 0)
    return Part("tuned", not edges and not apart, said + (", and told below it by the seeds" if apart else ""))


def _recipe(run: Run, axes: Sequence[str]) -> str:
    options = flat(dict(run.options))
    return canonical([options[axis] for axis in axes])


def steady(certificate: Certificate, before: Judged, after: Judged) -> Part:
    """The certificate's number, from the claim's training and from twice as much."""
    doubled = ", ".join(f"{key} {value}" for key, value in certificate.longer.items())
    if before.found is None or after.found is None:
        return Part("doubled", False, f"{doubled}: {after.reason or before.reason}")
    reached = before.verdict.word == "reproduced"
    said = f"{certificate.number.what}: {before.number}; with {doubled} {after.number}"
    return Part("doubled", reached or _inside(after.found, before.found), said)


def _inside(found: Interval, other: Interval) -> bool:
    if other.low is None or other.high is None:
        return found.mean == other.mean
    return other.low <= found.mean <= other.high


def certified(verdict: Verdict, claim: Claim, parts: Sequence[Part]) -> Verdict:
    """The verdict, if the claim needs no certificate, if its certificate holds, or if the goal was reached."""
    certificate = claim.certificate
    if certificate is None:
        silent = claim.uncertified and verdict.word != "no record"
        return Verdict("not converged", about=claim.uncertified) if silent else verdict
    if verdict.word in ("reproduced", "no record") or all(part.holds for part in parts):
        return verdict
    return Verdict("not converged", about=certificate.about)
