"""A row is one line of a table: the runs of one setting, pooled over seeds.

    rows(records, names={"mixer": "model.seq_mixer"}, tune="optimizer.lr", score=validation)

    label          setting            records (one per seed, each at its chosen rate)
    gru            {"noise": 0.1}     seed 0, seed 1, seed 2
    conv:width=5   {"noise": 0.1}     seed 0, seed 1, seed 2

A row's scores are those of the runs that finished; runs that diverged stay in the row and are counted. With `tune`,
each seed's run is the one whose tuned option the other seeds chose (report.tuning). With `over="shard"`, rows are
pooled over that option instead, and seeds are settings like any other.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, reduce
from typing import Any

from assay.core.errors import UserError
from assay.core.grouping import grouped
from assay.core.run import Numerics, Record, Status, canonical
from assay.metrics.intervals import Interval, share, student_t
from assay.report.labels import defaults_of, differ, is_spec, leaves, tails, word
from assay.report.labels import labels as labels
from assay.report.tuning import Score, Tried, leave_one_out

Name = str | Callable[[Record], Any]
"""The path of a plug-in among the options, or a function that gives a record's name or plug-in spec."""
SEED = "seed"


@dataclass(frozen=True)
class Row:
    """The runs of one setting, one per seed (or per value of the option that is pooled over)."""

    records: tuple[Record, ...]
    names: Mapping[str, str] = field(default_factory=dict)
    """Plug-ins by the title of their column, in the fewest words that tell the rows apart."""
    label: str = ""
    """The names in which the rows differ."""
    setting: Mapping[str, Any] = field(default_factory=dict)
    """Every other option in which the rows differ."""
    tune: str = ""
    tried: Tried = field(default_factory=dict)
    """All runs that `records` were chosen from, by the tuned option's value and by seed."""
    over: str = SEED
    """The axis that records are pooled over: the seed, or the path of an option."""

    def __post_init__(self) -> None:
        assert self.records, "a row has at least one record"
        first = self.records[0].run
        for record in self.records[1:]:
            if record.run.numerics != first.numerics:
                pairs = zip(vars(first.numerics).items(), vars(record.run.numerics).values(), strict=True)
                differing = ", ".join(f"{name} {one} and {other}" for (name, one), other in pairs if one != other)
                raise UserError(
                    f"runs {first.id} and {record.run.id} were computed differently ({differing}) and cannot share a "
                    "cell of a table. Report them apart, or remove one kind with `assay rm`."
                )
        parts = [pooled_key(record, self.over) for record in self.records]
        assert len(parts) == len(set(parts)), f"a {self.over} twice in one row: {parts}"

    @property
    def options(self) -> Mapping[str, Any]:
        """The options that all its runs share; those tuned or pooled over are the first run's."""
        return self.records[0].run.options

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        return tuple(record.run.seed for record in self.records)

    @cached_property
    def run_ids(self) -> dict[int, str]:
        """The run behind each seed, as the page names it beside a dot."""
        return {pooled_key(record, self.over): record.run.id for record in self.records}

    @property
    def n(self) -> int:
        return len(self.records)

    @cached_property
    def finished(self) -> tuple[Record, ...]:
        return tuple(record for record in self.records if record.status == "done")

    @property
    def diverged(self) -> int:
        return sum(record.status == "diverged" for record in self.records)

    @property
    def first(self) -> Mapping[str, Any]:
        """The metrics of one finished run, for values that all seeds share; empty where every seed diverged."""
        return self.finished[0].metrics if self.finished else {}

    @cached_property
    def where(self) -> str:
        """The setting in words: `noise=0.1 steps=300`."""
        return " ".join(f"{key}={v}" for key, v in zip(tails(self.setting), self.setting.values(), strict=True))

    @property
    def series(self) -> str:
        """The label and the setting: no other row has the same."""
        return f"{self.label} {self.where}".strip()

    def values(self, *path: str) -> dict[int, float]:
        """A number of the metrics by seed, without the seeds that lack it."""
        found = {pooled_key(record, self.over): number_at(record.metrics, path) for record in self.finished}
        return {seed: value for seed, value in sorted(found.items()) if value is not None}

    def interval(self, *path: str, bounded: bool = False) -> Interval | None:
        """The Student t interval over seeds, kept between 0 and 1 where the number is `bounded` so; None where no seed
        has the number."""
        values = list(self.values(*path).values())
        return (share if bounded else student_t)(values) if values else None

    @property
    def chosen(self) -> tuple[Any, ...]:
        """The tuned option's value that each seed counts with."""
        return tuple(option(record.run.options, self.tune) for record in self.records)

    @property
    def tuned_value(self) -> Any:
        """The tuned value that most seeds count with; of equals, the lowest."""
        return max(sorted(set(self.chosen), key=lambda value: value or 0), key=self.chosen.count)

    @property
    def tried_by_all(self) -> list[Any]:
        """The tuned values that were tried with every seed, lowest first; one tried with fewer cannot be compared."""
        seeds = {seed for by_seed in self.tried.values() for seed in by_seed}
        return sorted(value for value, by_seed in self.tried.items() if value is not None and by_seed.keys() == seeds)

    @property
    def at_the_edge(self) -> bool:
        """Whether any seed's value is no higher than the lowest or no lower than the highest of those tried with every
        seed, so that one beyond might be better. Where only one value was tried there is no edge."""
        values, own = self.tried_by_all, [value for value in self.chosen if value is not None]
        if len([value for value in self.tried if value is not None]) < 2 or not own:
            return False
        return not values or min(own) <= values[0] or max(own) >= values[-1]

    @property
    def tuned_words(self) -> str | None:
        """The tuned value that most seeds count with, how many that are if not all, and whether one is at the edge of
        those tried: `0.003 (2/3) edge`. None where no run at any value finished, and so none was chosen."""
        if not any(record.status == "done" for by_seed in self.tried.values() for record in by_seed.values()):
            return None
        count = self.chosen.count(self.tuned_value)
        some = "" if count == self.n else f" ({count}/{self.n})"
        return f"{self.tuned_value:g}{some}" + (" edge" if self.at_the_edge else "")


def rows(
    records: Iterable[Record],
    *,
    names: Mapping[str, Name] | None = None,
    short: Collection[str] = (),
    tune: str = "",
    score: Score | None = None,
    over: str = SEED,
    status: Collection[Status] = ("done", "diverged"),
    columns: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
) -> list[Row]:
    """Pool runs of the given statuses into a row per setting, in the order they come.

    Names have every option that is not at its default; those under a `short` title only what tells rows apart, since
    the setup has the rest. A setting is study, options, numerics and the versions of the code: an edited plug-in is
    another setting. `tune` is the option chosen per seed, by `score` on validation. `over` is an option to pool over
    instead of the seed; `status` may let failed runs in, which have an error and no metrics. `columns` says which
    options make the settings, instead of those in which the rows differ; `ignore` names options not shown as settings,
    since a name shows them."""
    names = names or {}
    wanted = [record for record in records if record.status in status]
    pooled_paths = [path for path in (tune, over) if path not in ("", SEED)]
    found = [_pooled(group, tune, score, over) for group in _groups(wanted, pooled_paths, over)]
    titles = {title: _words(found, name, short=title in short) for title, name in names.items()}
    paths = [name for name in names.values() if isinstance(name, str)]
    settings = varying(found, ignore=[*paths, *ignore, *pooled_paths])
    kept = settings if columns is None else {key: settings.get(key, [None] * len(found)) for key in columns}
    telling = [title for title, words in titles.items() if len(set(words)) > 1] or list(titles)[:1]
    return [
        replace(
            row,
            names={title: words[place] for title, words in titles.items()},
            label=" ".join(titles[title][place] for title in telling),
            setting={key: values[place] for key, values in kept.items()},
        )
        for place, row in enumerate(found)
    ]


def pooled_key(record: Record, over: str) -> Any:
    """The record's seed, or its value of the option that rows are pooled over."""
    return record.run.seed if over == SEED else option(record.run.options, over)


def _groups(records: Sequence[Record], pooled_paths: Sequence[str], over: str) -> list[list[Record]]:
    """Group records that differ only in the options that may differ within a row, each run once."""
    groups: dict[str, dict[str, Record]] = {}
    # Keys are cached by id(): runs loaded from the index share option objects, and `records` keeps them alive.
    keys: dict[tuple[int | None, ...], str] = {}
    for record in records:
        run, seed = record.run, None if over == SEED else record.run.seed
        objects = (seed, *(id(each) for each in (run.study, run.options, run.versions, run.numerics)))
        if objects not in keys:
            options = reduce(_without, pooled_paths, dict(run.options))
            keys[objects] = canonical(run.to_json() | {"options": options, "seed": seed})
        same = canonical([pooled_key(record, over), *(option(run.options, path) for path in pooled_paths)])
        groups.setdefault(keys[objects], {})[same] = record
    return [list(group.values()) for group in groups.values()]


def _pooled(group: Sequence[Record], tune: str, score: Score | None, over: str) -> Row:
    if not tune:
        return Row(tuple(group), over=over)
    assert score is not None, f"tuning {tune} needs what it is chosen by"
    tried: dict[Any, dict[Any, Record]] = {}
    for record in group:
        tried.setdefault(option(record.run.options, tune), {})[pooled_key(record, over)] = record
    return Row(tuple(leave_one_out(tried, score).values()), tune=tune, tried=tried, over=over)


def _words(found: Sequence[Row], name: Name, *, short: bool) -> list[str]:
    named = [option(row.options, name) if isinstance(name, str) else name(row.records[0]) for row in found]
    return labels(named, short=short)


def by_setting(found: Iterable[Row]) -> dict[str, list[Row]]:
    """Group rows by setting, in the order they come."""
    return grouped(found, lambda row: row.where)


def varying(found: Sequence[Row], *, ignore: Iterable[str] = ()) -> dict[str, list[Any]]:
    """Find the options in which rows differ: dotted path -> its value in each row (None where a row lacks it).

    A plug-in is one column of labels, whatever its options. Numerics come under their field's name, and `version` is
    there when one plug-in was run in several versions. `ignore` leaves out a path and all below it."""
    flat = [dict(leaves(row.options)) for row in found]
    paths = dict.fromkeys(path for options in flat for path in options)
    skip = tuple(ignore)
    columns: dict[str, list[Any]] = {}
    for path in paths:
        values = [options.get(path) for options in flat]
        if differ(values) and not any(path == name or path.startswith(f"{name}.") for name in skip):
            columns[path] = labels(values)
    for name, values in _code_and_numerics(found).items():
        if differ(values) and name not in skip:
            columns[f"numerics.{name}" if name in columns else name] = values
    return columns


def setup_of(found: Sequence[Row], ignore: Sequence[str] = ()) -> str:
    """What all rows share, in one line: options, the values that one was tuned over, and seeds. `ignore` names options
    that others say already.

    Setup: steps=300 batch=64 width=32; lr tried: 0.001, 0.003; 3 seeds.
    """
    if not found:
        return ""
    skip = {found[0].tune, found[0].over, *ignore}
    options = grouped((leaf for row in found for leaf in leaves(row.options)), lambda leaf: leaf[0])
    # Of the rows that have the option: what is fitted at once has no epochs.
    held = {path: [value for _, value in own] for path, own in options.items()}
    same = {path: values[0] for path, values in held.items() if not differ(values)}
    for path, values in held.items():
        same |= {} if path in same else _in_common(path, values)
    # What is switched off or empty says nothing; 0 does.
    told = {path: v for path, v in same.items() if path not in skip and (v or type(v) in (int, float))}
    parts = [" ".join(f"{key}={word(value)}" for key, value in zip(tails(told), told.values(), strict=True))]
    if tried := sorted({rate for row in found for rate in row.tried if rate is not None}):
        title = found[0].tune.rpartition(".")[2]
        parts.append(f"{title} tried: {', '.join(map(word, tried))}" if len(tried) > 1 else f"{title}={tried[0]:g}")
    if found[0].over == SEED:
        parts.append(seeds_of(found))
    return f"Setup: {'; '.join(filter(None, parts))}."


def _in_common(path: str, values: Sequence[Any]) -> dict[str, Any]:
    """The options, not at their default, that plug-ins of one name share."""
    if not all(map(is_spec, values)) or len({value["name"] for value in values}) > 1:
        return {}
    shared = {key: value for key, value in values[0].items() if not differ([other.get(key) for other in values])}
    defaults = defaults_of(values[0])
    return {f"{path}.{key}": v for key, v in shared.items() if key in defaults and v != defaults[key]}


def seeds_of(found: Sequence[Row]) -> str:
    """How many seeds the rows have: `3 seeds`, `2 to 5 seeds`."""
    counts = sorted({row.n for row in found})
    few = f"{counts[0]} to " if len(counts) > 1 else ""
    return f"{few}{counts[-1]} seed{'' if counts == [1] else 's'}"


def value_at(value: Any, path: Iterable[str], missing: Any = None) -> Any:
    """What lies at a path through mappings and lists, whose keys may be places in a list."""
    for key in path:
        # isinstance(x, Mapping) is slow, and tables of large stores ask a million times: test for dict first.
        if type(value) is dict or isinstance(value, Mapping):
            value = value.get(key, missing)
        else:
            inside = isinstance(value, list | tuple) and key.isdigit() and int(key) < len(value)
            value = value[int(key)] if inside else missing
    return value


def option(options: Mapping[str, Any], path: str) -> Any:
    """The option at a dotted path; None where there is none."""
    return value_at(options, path.split("."))


def number_at(metrics: Any, path: Sequence[str]) -> float | None:
    """The number at a path into the metrics; None where there is none."""
    found = value_at(metrics, path)
    return float(found) if isinstance(found, int | float) else None


def _without(options: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The options with null at a dotted path."""
    key, _, rest = path.partition(".")
    if not rest or not isinstance(options.get(key), Mapping):
        return {**options, key: None}
    return {**options, key: _without(options[key], rest)}


def _code_and_numerics(found: Sequence[Row]) -> dict[str, list[Any]]:
    """Fields of the numerics, the versions of those components that occur in several, and seeds not pooled over."""
    runs = [row.records[0].run for row in found]
    numerics = [asdict(run.numerics) for run in runs]
    columns = {name: [fields[name] for fields in numerics] for name in asdict(Numerics())}
    versions = {pair for run in runs for pair in run.versions.items()}
    changed = {component for component, count in Counter(name for name, _ in versions).items() if count > 1}
    code = [",".join(version[:8] for name, version in run.versions.items() if name in changed) for run in runs]
    seeds = [None if row.over == SEED else row.seeds[0] for row in found]
    return columns | {SEED: seeds, "version": [one or None for one in code]}
