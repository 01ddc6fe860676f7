"""A base config times a grid gives runs, grouped into cohorts; to resume is to plan again and skip what is stored.

make_plan(Expressivity(), {"noise": ["0.01", "0.1"]}, Numerics())  ->  every run at either noise, each once
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_origin

from assay.core import words
from assay.core.convert import convert, nearest, option_types
from assay.core.convert import expand as expand_range
from assay.core.errors import UserError
from assay.core.grouping import grouped
from assay.core.plugin import Plugin, registries
from assay.core.run import Numerics, Record, Run, canonical, flat, placed
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
        """Return what is stored, and what is still to run."""
        stored, todo = [], []
        for run in self.runs:
            record = store.get(run)
            if record is None or force or to_be_tried_again(record, retry):
                todo.append(run)
            else:
                stored.append(record)
        return stored, todo


def to_be_tried_again(record: Record, retry: Retry) -> bool:
    """Return whether to run it again: failed runs are, diverged ones only when asked."""
    again = {"failed": {"failed"}, "diverged": {"failed", "diverged"}, "none": set[str]()}[retry]
    return record.status in again


def make_plan(study: Study, grid: Grid, numerics: Numerics) -> Plan:
    """Plan every point of the grid on top of the base study; a run that two points share is planned once."""
    runs: dict[str, Run] = {}
    for point in points(study, grid):
        for run in placed(point.plan(), numerics):
            runs.setdefault(run.id, run)
    if not runs:
        raise UserError(f"{study.name}: nothing to run. Name at least one model, one seed and one value per grid key.")
    return Plan(study, tuple(runs.values()))


def points(study: Study, grid: Grid) -> Iterator[Study]:
    """Yield the study at every point of the grid. Points at which a field has the same values share one object there,
    so that what is derived from it is computed once for thousands of points."""
    types = option_types(type(study))
    fields = grouped(grid, lambda key: spelled(key.partition(".")[0], types))
    made: dict[tuple[Any, ...], dict[str, Any]] = {}
    for numbers in itertools.product(*(range(len(values)) for values in grid.values())):
        at = dict(zip(grid, numbers, strict=True))
        changed: dict[str, Any] = {}
        for name, keys in fields.items():
            place = (name, *(at[key] for key in keys))
            if place not in made:
                made[place] = _changes(study, {key: grid[key][at[key]] for key in keys})
            changed |= made[place]
        yield dataclasses.replace(study, **changed)


def parse_grid(axes: Iterable[str]) -> dict[str, list[str]]:
    """Parse `["noise=0.01,0.1", "seeds=0..4"]` to {"noise": ["0.01", "0.1"], "seeds": ["0", ..., "4"]}."""
    grid: dict[str, list[str]] = {}
    for word in axes:
        key, equals, values = word.partition("=")
        if not equals or not key or not values:
            raise UserError(f"--grid '{word}': write key=value1,value2 (or key=0..4).")
        if key in grid:
            raise UserError(f"--grid names '{key}' twice: put all its values into one, {key}=value1,value2.")
        grid[key] = [words.Word(item) for value in words.split(values, ",") for item in expand_range(value)]
    return grid


def assign(target: T, values: Mapping[str, Any]) -> T:
    """Return a copy of a config with options at dotted paths changed, all at once, so that order does not matter.

    A step into a tuple goes into each member; names as `spelled`."""
    return dataclasses.replace(target, **_changes(target, values))  # type: ignore[type-var]


def _changes(target: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that `assign` replaces."""
    types = option_types(type(target))
    what = f"{target.registry.kind} '{target.name}'" if isinstance(target, Plugin) else type(target).__name__
    here: dict[str, Any] = {}
    below: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        head, _, rest = path.partition(".")
        head = spelled(head, types)
        if head not in types:
            known = ", ".join(types) or "none"
            raise UserError(f"{what} has no option '{head}'.{nearest(head, _paths(target))} It has: {known}.")
        if rest:
            below.setdefault(head, {})[rest] = value
        else:
            here[head] = convert(types[head], value, what=f"{what}, option '{head}'")
    for head, inner in below.items():
        here[head] = _assign_inside(here.get(head, getattr(target, head)), inner, what=f"{what}: option '{head}'")
    return here


def _paths(held: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted paths of a config's options and of those of its parts: whoever writes `lr` means
    `optimizer.lr`."""
    for member in held if isinstance(held, tuple) else (held,):
        for name in option_types(type(member)) if dataclasses.is_dataclass(member) else ():
            yield f"{prefix}{name}"
            yield from _paths(getattr(member, name), f"{prefix}{name}.")


def spelled(name: str, types: Mapping[str, Any]) -> str:
    """Return the field that a name means: `seed` may stand for `seeds`, a field of several values."""
    return f"{name}s" if name not in types and get_origin(types.get(f"{name}s")) is tuple else name


def _assign_inside(held: Any, values: Mapping[str, Any], *, what: str) -> Any:
    members = held if isinstance(held, tuple) else (held,)
    if not members or not all(dataclasses.is_dataclass(member) for member in members):
        raise UserError(f"{what} has no options of its own, so {', '.join(values)} cannot be set.")
    changed = tuple(assign(member, values) for member in members)
    return changed if isinstance(held, tuple) else changed[0]


def cohorts(runs: Sequence[Run], workers: int) -> list[list[Run]]:
    """Group runs by their study's key; the largest groups are halved until every worker has one."""
    known = registries()["studies"]
    studies = {name: known[name]() for name in {run.study for run in runs}}
    jobs = list(grouped(runs, lambda run: (run.study, studies[run.study].cohort(run))).values())
    while jobs and len(jobs) < workers and len(largest := max(jobs, key=len)) > 1:
        jobs.remove(largest)
        jobs += halves(largest)
    return jobs


def halves(runs: Sequence[Run]) -> list[list[Run]]:
    middle = (len(runs) + 1) // 2
    return [list(runs[:middle]), list(runs[middle:])]


def labels(runs: Sequence[Run]) -> dict[str, str]:
    """Return run id -> its plug-ins, what differs between the runs, and its seed.

    icl mqar attention mlp model.seq_mixer.conv=4 seed=0        another run of attention has another conv
    icl mqar delta_net mlp model.seq_mixer.conv=4 seed=0        and so this one says its own
    icl mqar model=none seed=0                                  what the others have a model for
    """
    found: dict[str, str] = {}
    for study in dict.fromkeys(run.study for run in runs):
        mine = [run for run in runs if run.study == study]
        settings = {_held_in_common(run): run for run in mine}
        options = {key: _decisive(run) for key, run in settings.items()}
        plugins = {key: run.label.rpartition(" ")[0] for key, run in settings.items()}
        varied, names = _varied(options, plugins), {name for own in options.values() for name in own}
        # `model` and `model.seq_mixer` for `model.seq_mixer.conv`
        held = {name[:place] for name in names for place, char in enumerate(name) if char == "."}
        words = {}
        for key, own in options.items():
            told = [f"{name}={value}" for name, value in own.items() if name in varied and value is not None]
            empty = [name for name, value in own.items() if value is None and (name in held or name in varied)]
            words[key] = " ".join([plugins[key], *(f"{name}=none" for name in empty), *told])
        found |= {run.id: f"{words[_held_in_common(run)]} seed={run.seed}" for run in mine}
    return found


Common = tuple[int, int, int]


def _held_in_common(run: Run) -> Common:
    """Return the objects that runs from the store's index share if they differ only in their seed: a hundred thousand
    runs have a few thousand settings, and each is processed once."""
    return id(run.options), id(run.versions), id(run.numerics)


def _varied(options: Mapping[Common, Mapping[str, Any]], plugins: Mapping[Common, str]) -> set[str]:
    """Return what tells runs of the same plug-ins apart: options, numerics, versions of code."""
    return {
        name
        for alike in grouped(options, lambda key: plugins[key]).values()
        for name in {name for key in alike for name in options[key]}
        if len({canonical(options[key].get(name)) for key in alike}) > 1
    }


def _decisive(run: Run) -> dict[str, Any]:
    """Return what decides a run's numbers, under dotted names, except its seed."""
    decisive = flat(dict(run.options))
    decisive |= {f"numerics.{key}": value for key, value in vars(run.numerics).items()}
    return decisive | {f"code.{name}": version[:8] for name, version in run.versions.items()}
