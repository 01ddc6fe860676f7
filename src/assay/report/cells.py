"""Records pooled over seeds: a cell is what one row of a table, or one point of a line, is made of.

cells(records)            ->  [Cell, Cell, ...]                        one per setting, seeds inside
varying(cells(records))   ->  {"model": ["gru", "conv:width=5"], "noise": [0.1, 0.3]}     one value per cell
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from assay.core.errors import UserError
from assay.core.run import Numerics, Record, Run, canonical
from assay.metrics.intervals import Interval, student_t


@dataclass(frozen=True)
class Cell:
    """Runs that differ in nothing but their seed."""

    records: tuple[Record, ...]

    def __post_init__(self) -> None:
        assert self.records, "a cell has at least one record"
        first = self.records[0].run
        for record in self.records[1:]:
            if record.run.numerics != first.numerics:
                raise UserError(
                    f"runs {first.id} and {record.run.id} were computed differently "
                    f"({_difference(first.numerics, record.run.numerics)}) and cannot share a cell of a table. "
                    "Report them apart, or remove one kind with `assay rm`."
                )
            assert _alike(record.run, first), "a cell's runs differ in their seed only"
        assert len(self.seeds) == len(set(self.seeds)), f"a seed twice in one cell: {self.seeds}"

    @property
    def options(self) -> Mapping[str, Any]:
        return self.records[0].run.options

    @property
    def numerics(self) -> Numerics:
        return self.records[0].run.numerics

    @property
    def versions(self) -> Mapping[str, str]:
        return self.records[0].run.versions

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        return tuple(record.run.seed for record in self.records)

    def values(self, metric: str) -> dict[int, float]:
        """The metric by seed, where it was measured."""
        found = {record.run.seed: record.metrics.get(metric) for record in self.records}
        return {seed: float(value) for seed, value in sorted(found.items()) if isinstance(value, int | float)}

    def interval(self, metric: str) -> Interval | None:
        """Student t over seeds; None where no seed has the metric."""
        values = list(self.values(metric).values())
        return student_t(values) if values else None


def cells(records: Iterable[Record], *, diverged: bool = False) -> list[Cell]:
    """The finished records by setting, in the order they come; with `diverged`, those too, which have few metrics.

    A setting is study, options, numerics and the versions of the code: an edited plug-in is another setting."""
    records = list(records)  # held, so that no two objects have one id
    groups: dict[str, dict[str, Record]] = {}
    keys: dict[tuple[int, ...], str] = {}  # runs of the store's index share the objects in which they do not differ
    for record in records:
        if record.status == "done" or (diverged and record.status == "diverged"):
            objects = tuple(id(part) for part in _parts(record.run))
            if objects not in keys:
                keys[objects] = canonical(record.run.to_json() | {"seed": None})
            groups.setdefault(keys[objects], {})[record.run.id] = record
    return [Cell(tuple(group.values())) for group in groups.values()]


def varying(found: Sequence[Cell], *, ignore: Iterable[str] = ()) -> dict[str, list[Any]]:
    """What tells the cells apart: dotted option path -> its value in each cell (None where a cell lacks it).

    A plug-in is one column of labels, whatever its options. Numerics come under their field's name, and `version` is
    there when one plug-in was run in several versions. `ignore` leaves out a path and all below it."""
    flat = [dict(_leaves(cell.options)) for cell in found]
    paths = dict.fromkeys(path for options in flat for path in options)
    skip = tuple(ignore)
    columns: dict[str, list[Any]] = {}
    for path in paths:
        values = [options.get(path) for options in flat]
        if _differ(values) and not any(path == name or path.startswith(f"{name}.") for name in skip):
            columns[path] = labels(values)
    for name, values in _code_and_numerics(found).items():
        if _differ(values) and name not in skip:
            columns[f"numerics.{name}" if name in columns else name] = values
    return columns


def labels(values: Sequence[Any]) -> list[Any]:
    """Option values as a table shows them; plug-in specs as the shortest words that tell them apart.

    {"name": "gru", "width": 8}, {"name": "gru", "width": 16}, {"name": "mlp", "width": 8}
        ->  gru:width=8, gru:width=16, mlp
    """
    shown = [",".join(str(item) for item in labels(v)) if isinstance(v, list | tuple) else v for v in values]
    namesakes: dict[str, list[int]] = {}
    for place, value in enumerate(values):
        if _is_spec(value):
            namesakes.setdefault(value["name"], []).append(place)
    for name, places in namesakes.items():
        told = _told_apart([values[place] for place in places])
        for number, place in enumerate(places):
            words = [f"{option}={texts[number]}" for option, texts in told.items() if option in values[place]]
            shown[place] = ":".join([name, *words])
    return shown


def _told_apart(specs: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The options in which specs of one name differ -> their values as words, one for each spec."""
    told = {}
    for option in dict.fromkeys(option for spec in specs for option in spec if option != "name"):
        values = [spec.get(option) for spec in specs]
        if _differ(values):
            told[option] = [f"({text})" if ":" in text else text for text in map(str, labels(values))]
    return told


def _is_spec(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("name"), str)


def _leaves(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in options.items():
        if isinstance(value, Mapping) and not _is_spec(value):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _code_and_numerics(found: Sequence[Cell]) -> dict[str, list[Any]]:
    """Fields of the numerics, and the versions of those components that occur in several."""
    numerics = [asdict(cell.numerics) for cell in found]
    columns = {name: [fields[name] for fields in numerics] for name in asdict(Numerics())}
    several: dict[str, set[str]] = {}
    for cell in found:
        for component, version in cell.versions.items():
            several.setdefault(component, set()).add(version)
    changed = {component for component, versions in several.items() if len(versions) > 1}
    return columns | {
        "version": [
            ",".join(version[:8] for component, version in cell.versions.items() if component in changed) or None
            for cell in found
        ]
    }


def _differ(values: Sequence[Any]) -> bool:
    return len({canonical(value) for value in values}) > 1


def _difference(one: Numerics, other: Numerics) -> str:
    left, right = asdict(one), asdict(other)
    return ", ".join(f"{name} {left[name]} and {right[name]}" for name in left if left[name] != right[name])


def _parts(run: Run) -> tuple[Any, ...]:
    """What decides a run's numbers, but for its seed."""
    return run.study, run.options, run.versions, run.numerics


def _alike(one: Run, other: Run) -> bool:
    if all(a is b for a, b in zip(_parts(one), _parts(other), strict=True)):
        return True
    return canonical(one.to_json() | {"seed": None}) == canonical(other.to_json() | {"seed": None})
