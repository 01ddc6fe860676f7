"""Searches for the best recipe of each arm of a claim: by means over seeds, on a grid that is widened at its edges."""

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
from assay.report.claims import Certificate, Claim, has_options, identity
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


def stored_of(runs: Sequence[Run], stored: Mapping[str, Record]) -> tuple[Record, ...]:
    """The records of these runs, as far as they are stored."""
    return tuple(stored[key] for run in runs if (key := identity(run)) in stored)


@dataclass(frozen=True)
class Search:
    """What a search over recipes found."""

    holds: bool
    said: str
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
        if missing := len(needed) - len(stored_of(needed, stored)):
            said = f"{missing} of {len(needed)} runs of other recipes are not stored"
            if found is None:
                return Search(False, said, tried, stored_of(runs, stored))
            return replace(found, said=f"{found.said}; of a wider grid {said}")
        arms = [_compared(certificate, arm, own, runs, stored, tried) for arm in certificate.arms]
        said = "; ".join(arm.said for arm in arms)
        found = Search(all(arm.holds for arm in arms), said, tried, stored_of(runs, stored), tuple(arms))
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
            values += [value for value in SCALE if value > 1.01 * values[-1]][:1]
        elif not upper and sum(value < ends[0] for value in values) < WIDER:
            values[:0] = [value for value in SCALE if value < 0.99 * values[0]][-1:]  # none below 0
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
    """Where the best recipe, or one that may be better, is the last of those tried: the axis, and whether at its upper
    end."""


def _compared(
    certificate: Certificate, arm: Mapping[str, Any], own: Sequence[Run], runs: Sequence[Run],
    stored: Mapping[str, Record], tried: Axes,
) -> _Arm:  # fmt: skip
    axes = list(tried)
    scores = _scores(certificate.metric, stored_of([run for run in runs if has_options(run, arm)], stored), axes)
    mine = {_recipe(run, axes) for run in own if has_options(run, arm)}
    if not scores or not mine:
        raise UserError(f"certificate about {certificate.about}: no run of the plan has {canonical(arm)}.")
    tried = {axis: sorted({recipe[at] for recipe in scores}) for at, axis in enumerate(axes)}
    name = "".join(f"{key.rpartition('.')[2].strip('0123456789')} {value}: ".lstrip() for key, value in arm.items())
    count = f"{name}of {len(scores)} recipes{certificate.compared_on}, "
    top = best = _best(scores, mine)
    chooses = len(mine) > 1
    metric = certificate.metric.removeprefix("-")
    if chooses:
        said = f"{_named(best, tried)} is the best by mean ({metric} {abs(fmean(scores[best].values())):.4g})"
    else:
        (recipe,) = mine
        if recipe not in scores:
            return _Arm(arm, scores.keys(), best, False, f"{count}none is the claim's own", False, ())
        if not _told_above(scores[best], scores[recipe]):
            best = recipe
        found = f"({metric} {abs(fmean(scores[best].values())):.4g}"
        if best == recipe:
            said = f"the claim has {_named(best, tried)}, and no other is told apart as better {found})"
        else:
            its = abs(fmean(scores[recipe].values()))
            said = f"{_named(best, tried)} is told apart as better than the claim's own {found}, its own {its:.4g})"
    likely = {best} | {
        recipe
        for recipe in (scores if chooses else {top})
        if _edges(recipe, tried) and _may_be_better(scores[recipe], scores[best], by_mean=not chooses)
    }
    edges = tuple(sorted({edge for one in likely for edge in _edges(one, tried)}))
    others = " or ".join(_named(one, tried) for one in sorted(likely - {best}))
    said += f", but {others} may be better" if others else ""
    said += _at(edges)
    if top != best:
        more = paired_difference(scores[top], scores[best])
        apart_by = f"better by {more.mean:.2g} [{more.low:.2g}, {more.high:.2g}]"
        said += f"; the best by mean, {_named(top, tried)}, is not told apart ({apart_by}){_at(_edges(top, tried))}"
    holds = not edges and (chooses or best in mine)
    return _Arm(arm, scores.keys(), best, chooses, count + said, holds, edges)


def _best(scores: Scores, mine: Collection[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The recipe with the best mean; of equal ones, one that the claim has."""
    return max(scores, key=lambda recipe: (fmean(scores[recipe].values()), recipe in mine))


def _may_be_better(mine: Mapping[int, float], best: Mapping[int, float], *, by_mean: bool) -> bool:
    """Whether the interval of the difference, or `by_mean` its middle, reaches NEAR of the best beyond it."""
    if mine == best or not all(map(math.isfinite, (*mine.values(), *best.values()))):
        return False
    more = paired_difference(mine, best)
    high = more.mean if by_mean else more.high
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
    found = flat(dict(run.options))
    if odd := [axis for axis in axes if axis not in found]:
        raise UserError(f"a certificate tries '{odd[0]}', which is no option of {run.study}.")
    return tuple(found[axis] for axis in axes)


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
