"""Base config x grid -> runs -> cohorts; to resume is to plan again and leave out what is stored.

expand(Expressivity(), {"noise": ["0.01", "0.1"]}, Numerics())  ->  every run at either noise, each once
"""

import dataclasses
import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from assay.core.convert import convert
from assay.core.convert import expand as expand_range
from assay.core.errors import UserError
from assay.core.plugin import Plugin, nearest, option_types
from assay.core.run import Numerics, Record, Run
from assay.core.store import Store
from assay.core.study import Study

Retry = Literal["failed", "diverged", "none"]
Grid = Mapping[str, Sequence[Any]]
T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """The runs a command asks for, each once, in the order they were asked for."""

    study: Study
    runs: tuple[Run, ...]

    def split(self, store: Store, *, retry: Retry = "failed", force: bool = False) -> tuple[list[Record], list[Run]]:
        """What is stored, and what is still to run. Failed runs are tried again, diverged ones only when asked."""
        again = {"failed": {"failed"}, "diverged": {"failed", "diverged"}, "none": set()}[retry]
        stored, todo = [], []
        for run in self.runs:
            record = None if force else store.get(run)
            if record is None or record.status in again:
                todo.append(run)
            else:
                stored.append(record)
        return stored, todo


def make_plan(study: Study, grid: Grid, numerics: Numerics) -> Plan:
    """Every point of the grid on top of the base study; a run that two points share is planned once."""
    keys = list(grid)
    runs: dict[str, Run] = {}
    for values in itertools.product(*grid.values()):
        point = study
        for key, value in zip(keys, values, strict=True):
            point = assign(point, key, value)
        for run in point.plan():
            placed = dataclasses.replace(run, numerics=numerics)
            runs.setdefault(placed.id, placed)
    if not runs:
        raise UserError(f"{study.name}: nothing to run. Name at least one model, one seed and one value per grid key.")
    return Plan(study, tuple(runs.values()))


def parse_grid(words: Iterable[str]) -> dict[str, list[str]]:
    """`["noise=0.01,0.1", "seeds=0..4"]` -> {"noise": ["0.01", "0.1"], "seeds": ["0", ..., "4"]}."""
    grid: dict[str, list[str]] = {}
    for word in words:
        key, equals, values = word.partition("=")
        if not equals or not key or not values:
            raise UserError(f"--grid '{word}': write key=value1,value2 (or key=0..4).")
        if key in grid:
            raise UserError(f"--grid names '{key}' twice: put all its values into one, {key}=value1,value2.")
        grid[key] = [item for value in values.split(",") for item in expand_range(value)]
    return grid


def assign(target: T, path: str, value: Any) -> T:
    """A copy of a config with the option at a dotted path changed; a step into a tuple goes into each member."""
    head, _, rest = path.partition(".")
    what = f"{target.registry.kind} '{target.name}'" if isinstance(target, Plugin) else type(target).__name__
    types = option_types(type(target))
    if head not in types:
        raise UserError(f"{what} has no option '{head}'.{nearest(head, types)} It has: {', '.join(types) or 'none'}.")
    if not rest:
        return dataclasses.replace(target, **{head: convert(types[head], value, what=f"{what}, option '{head}'")})  # type: ignore[type-var]
    inner = getattr(target, head)
    members = inner if isinstance(inner, tuple) else (inner,)
    if not members or not all(dataclasses.is_dataclass(member) for member in members):
        raise UserError(f"{what}: option '{head}' has no options of its own, so '{path}' cannot be set.")
    changed = tuple(assign(member, rest, value) for member in members)
    return dataclasses.replace(target, **{head: changed if isinstance(inner, tuple) else changed[0]})  # type: ignore[type-var]


def cohorts(study: Study, runs: Sequence[Run], workers: int) -> list[list[Run]]:
    """Runs grouped by the study's key; the largest groups are halved until every worker has one."""
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        groups.setdefault(study.cohort(run), []).append(run)
    jobs = list(groups.values())
    while jobs and len(jobs) < workers and len(largest := max(jobs, key=len)) > 1:
        jobs.remove(largest)
        half = (len(largest) + 1) // 2
        jobs += [largest[:half], largest[half:]]
    return jobs


def estimate(runs: Sequence[Run], records: Sequence[Record], workers: int) -> float | None:
    """Wall seconds for `runs`, from what runs with the same plug-ins cost on this kind of device; None if unknown."""
    paid: dict[str, list[float]] = {}
    for record in records:
        if record.status == "done" and "seconds" in record.cost:
            paid.setdefault(_kind(record.run), []).append(record.cost["seconds"])
    typical = {kind: statistics.median(seconds) for kind, seconds in paid.items()}
    if not runs or any(_kind(run) not in typical for run in runs):
        return None
    return sum(typical[_kind(run)] for run in runs) / max(1, min(workers, len(runs)))


def _kind(run: Run) -> str:
    return f"{run.label.rpartition(' ')[0]} on {run.numerics.device}"
