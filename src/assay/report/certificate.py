"""What has to stand under a verdict before it may be published.

    recipe              no recipe of the grid is told above the claim's own by the seeds, and its own is at no edge;
                        while the best of an arm is at an edge, its grid gets the next value there, up to a limit. A
                        better mean that is not told above it may lie at an edge: it is named, with the paired
                        difference. Of a claim that chooses by itself none at an edge may be better by more than NEAR
    doubled training    twice the training leaves the number inside its interval, or the goal was reached without it; of
                        a worst or best seed, the share of seeds that pass inside Wilson's. A claim that chooses its
                        recipe by itself is doubled at the best of each arm
    seeds               as many as tell the difference seen from the limit, four times out of five; of a worst or best
                        seed, how many pass

An "it cannot be learnt" from models that fail one of the first two is no finding: its verdict is `not converged`, and
too few seeds make it `undecided`. `assay findings` reads what is stored, `assay reproduce` computes what is not: both
call `examined`.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any

from assay.core.errors import UserError
from assay.core.run import Record, Run, canonical, flat
from assay.metrics.intervals import paired_difference
from assay.report.claims import (
    Certificate,
    Claim,
    Judged,
    Measured,
    Verdict,
    has_options,
    identity,
    judge,
    seeds_needed,
    worst,
)
from assay.report.rows import number_at

WIDER = 3
"""Most values that a search adds at one end of an axis."""
SCALE = tuple(float(f"{digit}e{power}") for power, digit in product(range(-9, 7), (1, 3)))
"""1, 3, 10, 30, ...: where the next value of a rate or a decay is taken from."""

NEAR = 0.02
"""What a recipe at an edge may be better by, as a share of the best, and count as no better."""

Axes = Mapping[str, Sequence[Any]]
"""Dotted options and the values that are tried of each."""
Scores = Mapping[tuple[Any, ...], Mapping[int, float]]
"""By recipe and seed."""
Keep = Callable[[Run], bool]
Look = Callable[[Claim, Keep], tuple[Sequence[Run], Mapping[str, Record]]]
"""Plans a claim's runs, as far as they are kept, and gives their records by identity: those that are stored, or all,
once computed."""


def every(run: Run) -> bool:
    """Keep all runs of a claim."""
    return True


@dataclass(frozen=True)
class Part:
    """One part of a certificate."""

    name: str
    holds: bool
    said: str
    asked: bool = True
    """Whether it was measured: not of a claim that needs no training, or whose goal was reached."""

    def __str__(self) -> str:
        return f"{self.name}: {('holds' if self.holds else 'fails') if self.asked else 'not asked'}, {self.said}"


@dataclass(frozen=True)
class Finding:
    """A claim with the verdict on each of its checks, and its certificate."""

    name: str
    claim: Claim
    judged: tuple[Judged, ...] = ()
    records: tuple[Record, ...] = ()
    reason: str = ""
    """Why nothing could be planned, such as a data set that is not on this machine."""
    parts: tuple[Part, ...] = ()
    behind: tuple[Record, ...] = ()
    """Records that the certificate rests on."""
    numbers: tuple[Judged, ...] = ()
    """The certificate's number, from the claim's training and from twice as much."""

    @property
    def checked(self) -> Verdict:
        return worst(one.verdict for one in self.judged) if self.judged else Verdict("no record")

    @property
    def verdict(self) -> Verdict:
        return certified(self.checked, self.claim, self.parts)

    @property
    def publishable(self) -> bool:
        """Whether a README or a sentence may state it: it is decided, and every part of its certificate holds."""
        decided = self.verdict.word in ("reproduced", "not reproduced")
        return decided and bool(self.parts) and all(part.holds for part in self.parts)

    @property
    def deciding(self) -> Judged | None:
        """The check that the verdict is that of."""
        return next((one for one in self.judged if one.verdict == self.checked), None)


def examined(name: str, claim: Claim, look: Look, measured: Measured = lambda check, records: None) -> Finding:
    """Judge a claim, with its certificate. What the goal makes superfluous is not looked at."""
    runs, stored = look(claim, every)
    found = _judged(name, claim, runs, stored, measured)
    certificate = claim.certificate
    if certificate is None:
        why = claim.exempt or ("not measured: see the verdict" if claim.uncertified else "not looked at")
        untrained = [Part(part, bool(claim.exempt), why, asked=False) for part in ("recipe", "doubled training")]
        return replace(found, parts=(*untrained, enough(found.judged)))
    if certificate.goal and found.checked.word == "reproduced":
        reached = [Part(part, True, "the goal was reached", asked=False) for part in ("recipe", "doubled training")]
        return replace(found, parts=(*reached, enough(found.judged)))
    search = searched(claim, runs, look)
    chooses = any(arm.chooses for arm in search.arms)
    if chooses:
        claim = replace(claim, grid={**claim.grid, **search.tried})
        runs, stored = look(claim, search.has_compared)
        found = _judged(name, claim, runs, stored, measured)
    of_the_best = chooses and not certificate.number.rows.keys() & search.tried.keys()
    doubled, more = look(varied(claim, certificate.longer), search.has_chosen if of_the_best else every)
    before, after = (judge(certificate.number, *those, measured) for those in ((runs, stored), (doubled, more)))
    parts = search.part, steady(certificate, before, after), enough(found.judged)
    behind = (*search.records, *_those(doubled, more))
    return replace(found, parts=parts, behind=behind, numbers=(before, after))


def _judged(name: str, claim: Claim, runs: Sequence[Run], stored: Mapping[str, Record], measured: Measured) -> Finding:
    judged = tuple(judge(check, runs, stored, measured) for check in claim.checks)
    return Finding(name, claim, judged, _those(runs, stored))


def _those(runs: Sequence[Run], stored: Mapping[str, Record]) -> tuple[Record, ...]:
    return tuple(stored[key] for run in runs if (key := identity(run)) in stored)


def certified(verdict: Verdict, claim: Claim, parts: Sequence[Part]) -> Verdict:
    """The verdict, unless the claim needs a certificate for it that does not hold."""
    about = claim.uncertified or (claim.certificate.about if claim.certificate else "")
    if verdict.word == "no record" or not about:
        return verdict
    if claim.uncertified:
        return Verdict("not converged", about=about)
    training = [part for part in parts if part.name != "seeds"]
    return verdict if training and all(part.holds for part in training) else Verdict("not converged", about=about)


def enough(judged: Sequence[Judged]) -> Part:
    """Whether the seeds tell each number from its limit; the check that needs most of them speaks for all. Where some
    numbers are told from it on the wrong side, those decide, whatever the others are."""
    judged = [one for one in judged if one.verdict.word == "not reproduced"] or judged
    if not judged or any(one.found is None for one in judged):
        return Part("seeds", False, "no number to tell from its limit")
    pooled = [(one, found) for one in judged if (found := one.found) is not None and found.low is not None]
    if not pooled:
        return _counted(judged)
    needed = {place: seeds_needed(one.check, found) or math.inf for place, (one, found) in enumerate(pooled)}
    most = max(needed, key=lambda place: needed[place] / pooled[place][1].n)
    one, found = pooled[most]
    asked = "no number of them tells it" if math.isinf(needed[most]) else f"{needed[most]} needed"
    unit = "" if one.check.unit == "seed" else f"{one.check.unit}s: "
    return Part("seeds", found.n >= needed[most], f"{unit}{found.n} of {asked} ({one.check.what})")


def _counted(judged: Sequence[Judged]) -> Part:
    """Say how many seeds pass where one of them decides a check: the worst, or the best if one has to reach a goal."""
    count = min(one.found.n for one in judged if one.found is not None)
    said = str(count)
    if every := [one for one in judged if one.by_seed and not one.check.once]:
        least = min(every, key=lambda one: one.passed.mean)
        failing = 1 - 0.05 ** (1 / count)  # the largest share of which none among so many is seen once in 20 times
        all_pass = f"all pass: fewer than {failing:.0%} of all seeds fail, with 95 % confidence"
        said += f", {all_pass}" if least.passed.mean == 1 else f", of which {_passed(least)} ({least.check.what})"
    if once := [one for one in judged if one.by_seed and one.check.once]:
        least = min(once, key=lambda one: one.passed.mean)
        said += f"; where a goal has to be reached once, {_passed(least)} ({least.check.what})"
    return Part("seeds", count > 1, said)


def _passed(one: Judged) -> str:
    share, n = one.passed, len(one.by_seed)
    return f"{round(share.mean * n)} of {n} pass, {share.mean:.2f} [{share.low:.2f}, {share.high:.2f}]"


@dataclass(frozen=True)
class Search:
    """What a search over recipes found."""

    part: Part
    tried: Axes
    records: tuple[Record, ...]
    arms: tuple["_Arm", ...] = ()

    def has_compared(self, run: Run) -> bool:
        """Whether a run is of a recipe that was compared for its arm, or of no arm."""
        return _fits([(arm.rows, arm.recipes) for arm in self.arms], list(self.tried), run)

    def has_chosen(self, run: Run) -> bool:
        """Whether a run is of the recipe that is best for its arm, or of no arm."""
        return _fits([(arm.rows, {arm.best}) for arm in self.arms], list(self.tried), run)


def varied(claim: Claim, options: Mapping[str, Any], axes: Axes | None = None) -> Claim:
    """The claim's runs with some options changed, at every point of the axes."""
    grid = {**claim.grid, **{key: [value] for key, value in options.items()}, **(axes or {})}
    return replace(claim, grid=grid, checks=())


def searched(claim: Claim, own: Sequence[Run], look: Look) -> Search:
    """Compare the recipes of the certificate's grid. Each arm has its own, which is widened at the edges that its best
    is at: an arm whose best is the lowest rate needs no higher ones because another arm does."""
    certificate = claim.certificate
    assert certificate is not None
    grids = [{axis: sorted(values) for axis, values in certificate.tried.items()}] * len(certificate.arms)
    found: Search | None = None
    while True:
        tried = {axis: sorted({value for grid in grids for value in grid[axis]}) for axis in certificate.tried}
        asked = [(arm, set(product(*grid.values()))) for arm, grid in zip(certificate.arms, grids, strict=True)]
        runs, stored = look(varied(claim, certificate.on, tried), partial(_fits, asked, list(tried)))
        at_edges = [arm.rows for arm in found.arms if arm.edges] if found else [{}]
        needed = [run for run in runs if any(has_options(run, rows) for rows in at_edges)]
        if missing := len(needed) - len(_those(needed, stored)):
            said = f"{missing} of {len(needed)} runs of other recipes are not stored"
            if found is None:
                return Search(Part("recipe", False, said), tried, _those(runs, stored))
            return replace(found, part=replace(found.part, said=f"{found.part.said}; of a wider grid {said}"))
        arms = [_compared(certificate, arm, own, runs, stored, tried) for arm in certificate.arms]
        part = Part("recipe", all(arm.holds for arm in arms), "; ".join(arm.said for arm in arms))
        found = Search(part, tried, _those(runs, stored), tuple(arms))
        wider = [widened(grid, arm.edges, certificate.tried) for arm, grid in zip(arms, grids, strict=True)]
        if wider == grids:
            return found
        grids = wider


def widened(tried: Axes, edges: Iterable[tuple[str, bool]], start: Axes) -> dict[str, list[float]]:
    """The grid with the next value at each of the edges (axis, whether the upper), but no more than three beyond the
    ends of `start`; the same grid where none is left."""
    grid = {axis: sorted(values) for axis, values in tried.items()}
    for axis, upper in set(edges):
        values, ends = grid[axis], (min(start[axis]), max(start[axis]))
        if upper and sum(value > ends[1] for value in values) < WIDER:
            values.append(next(value for value in SCALE if value > 1.01 * values[-1]))
        elif not upper and sum(value < ends[0] for value in values) < WIDER:
            values.insert(0, next(value for value in reversed(SCALE) if value < 0.99 * values[0]))
    return grid


@dataclass(frozen=True)
class _Arm:
    """The recipes of one arm, compared by the means of their seeds."""

    rows: Mapping[str, Any]
    recipes: Collection[tuple[Any, ...]]
    best: tuple[Any, ...]
    chooses: bool
    """Whether the claim has several recipes of it, and chooses by itself."""
    said: str
    holds: bool
    edges: tuple[tuple[str, bool], ...]
    """Where the best recipe is the last of those tried: the axis, and whether at its upper end. Where the claim chooses
    by itself, also those that may be better than the best."""


def _compared(
    certificate: Certificate, arm: Mapping[str, Any], own: Sequence[Run], runs: Sequence[Run],
    stored: Mapping[str, Record], tried: Axes,
) -> _Arm:  # fmt: skip
    axes = list(tried)
    scores = _scores(certificate.metric, _those([run for run in runs if has_options(run, arm)], stored), axes)
    mine = {_recipe(run, axes) for run in own if has_options(run, arm)}
    if not scores or not mine:
        raise UserError(f"certificate about {certificate.about}: no run of the plan has {canonical(arm)}.")
    tried = {axis: sorted({recipe[at] for recipe in scores}) for at, axis in enumerate(axes)}
    name = "".join(f"{key.rpartition('.')[2].strip('0123456789')} {value}: ".lstrip() for key, value in arm.items())
    count = f"{name}of {len(scores)} recipes{certificate.compared_on}, "
    top = best = _best(scores, mine)
    chooses = len(mine) > 1
    metric, likely = certificate.metric.removeprefix("-"), {best}
    if chooses:
        likely |= {
            recipe for recipe in scores if _edges(recipe, tried) and _may_be_better(scores[recipe], scores[best])
        }
        said = f"{_named(best, tried)} is the best by mean ({metric} {abs(fmean(scores[best].values())):.4g})"
    else:
        (recipe,) = mine
        if recipe not in scores:
            return _Arm(arm, scores.keys(), best, False, f"{count}none is its own", False, ())
        if not _told_above(scores[best], scores[recipe]):
            best = recipe
        likely, found = {best}, f"({metric} {abs(fmean(scores[best].values())):.4g}"
        if best == recipe:
            said = f"{_named(best, tried)} is its own, and none is told above it {found})"
        else:
            its = abs(fmean(scores[recipe].values()))
            said = f"{_named(best, tried)} is told above its own {found}, its own {its:.4g})"
    edges = tuple(sorted({edge for one in likely for edge in _edges(one, tried)}))
    others = " or ".join(_named(one, tried) for one in sorted(likely - {best}))
    said += f", but {others} may be better" if others else ""
    said += _at(edges)
    if top != best:
        more = paired_difference(scores[top], scores[best])
        apart_by = f"better by {more.mean:.2g} [{more.low:.2g}, {more.high:.2g}]"
        said += f"; the best by mean, {_named(top, tried)}, is not told above it ({apart_by}){_at(_edges(top, tried))}"
    holds = not edges and (chooses or best in mine)
    return _Arm(arm, scores.keys(), best, chooses, count + said, holds, edges)


def _best(scores: Scores, mine: Collection[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The recipe with the best mean; of equal ones, one that the claim has."""
    return max(scores, key=lambda recipe: (fmean(scores[recipe].values()), recipe in mine))


def _may_be_better(mine: Mapping[int, float], best: Mapping[int, float]) -> bool:
    """Whether the interval of the difference reaches NEAR of the best beyond it."""
    if mine == best or not all(map(math.isfinite, (*mine.values(), *best.values()))):
        return False
    high = paired_difference(mine, best).high
    return high is not None and high > NEAR * abs(fmean(best.values()))


def _named(recipe: Sequence[float], tried: Axes) -> str:
    return " ".join(f"{axis}={value:g}" for axis, value in zip(tried, recipe, strict=True))


def _edges(recipe: Sequence[float], tried: Axes) -> tuple[tuple[str, bool], ...]:
    return tuple((axis, up) for axis, value in zip(tried, recipe, strict=True) for up in _ends(value, tried[axis]))


def _at(edges: Sequence[tuple[str, bool]]) -> str:
    return ", at an edge of " + " and ".join(sorted({axis for axis, _ in edges})) if edges else ", at no edge"


def _ends(value: float, values: Sequence[float]) -> list[bool]:
    return [upper for upper, end in ((False, min(values)), (True, max(values))) if value == end]


def _scores(metric: str, records: Sequence[Record], axes: Sequence[str]) -> Scores:
    """The mean of each seed's runs, by recipe. A run that diverged is the worst for its recipe."""
    path, sign = metric.removeprefix("-").split("."), -1 if metric.startswith("-") else 1
    found: dict[tuple[Any, ...], dict[int, list[float]]] = {}
    for record in records:
        value = number_at(record.metrics, path) if record.status == "done" else None
        seeds = found.setdefault(_recipe(record.run, axes), {}).setdefault(record.run.seed, [])
        seeds.append(-math.inf if value is None else sign * value)
    return {recipe: {seed: fmean(each) for seed, each in seeds.items()} for recipe, seeds in found.items()}


def _recipe(run: Run, axes: Sequence[str]) -> tuple[Any, ...]:
    return tuple(flat(dict(run.options))[axis] for axis in axes)


def _fits(arms: Sequence[tuple[Mapping[str, Any], Collection[Any]]], axes: Sequence[str], run: Run) -> bool:
    """Whether a run is of one of its arm's recipes, or of no arm."""
    own = [recipes for rows, recipes in arms if has_options(run, rows)]
    return not own or any(_recipe(run, axes) in recipes for recipes in own)


def _told_above(best: Mapping[int, float], mine: Mapping[int, float]) -> bool:
    if best == mine:
        return False
    if not all(map(math.isfinite, mine.values())):
        return True
    behind = paired_difference(best, mine)
    return behind.low is None or behind.low > 0


def steady(certificate: Certificate, before: Judged, after: Judged) -> Part:
    """Compare the certificate's number from the claim's training with that from twice as much: means, or where the
    number is that of one seed, the shares of seeds that pass."""
    doubled = ", ".join(f"{key} {value}" for key, value in certificate.longer.items())
    if before.found is None or after.found is None:
        return Part("doubled training", False, f"{doubled}: {after.reason or before.reason}")
    reached = certificate.goal and before.verdict.word == "reproduced"
    both, numbers = (before.found, after.found), [before.number, after.number]
    if certificate.number.over != "mean":
        both = before.passed, after.passed
        numbers = [f"{one.number}, of which {_passed(one)}" for one in (before, after)]
    said = f"{certificate.number.what}: " + f"; with {doubled} ".join(numbers)
    moved_little = any(  # one of the two lies in the interval of the other
        one.mean == other.mean if other.low is None or other.high is None else other.low <= one.mean <= other.high
        for one, other in (both, both[::-1])
    )
    # Of few seeds the share that passes has a wide interval, in which a verdict may turn over.
    turned = {before.verdict.word, after.verdict.word} == {"reproduced", "not reproduced"}
    return Part("doubled training", reached or (moved_little and not turned), said)
