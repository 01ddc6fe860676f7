"""`assay STUDY ...` turns a command line into a study, plans its runs, computes them and publishes the results."""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import MISSING, dataclass, fields, replace
from inspect import cleandoc
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from assay.api import Execution, Results, Session, combined_grid, configure, field_path, refuse_twice
from assay.command.flags import Line, members, options, plugin_options, read, refuse_unknown
from assay.command.help import chosen_options, describe, other_words, print_choices, print_help
from assay.command.progress import say
from assay.command.publish import Show, Shower, publish
from assay.command.wandb_log import logged, require_wandb
from assay.contracts.base import check as verdicts_of
from assay.contracts.base import has_contract, made
from assay.core.convert import construct, convert, nearest, option_types
from assay.core.declared import declared
from assay.core.errors import UserError
from assay.core.files import check_writable
from assay.core.foreign import Source, loaded_sources
from assay.core.plan import Grid, assign, parse_grid, points
from assay.core.plugin import registries
from assay.core.study import Reading, Study
from assay.core.words import split, unwrapped
from assay.report.files import FINDINGS
from assay.report.section import Section

LONG = 600.0
"""Estimated seconds above which a command asks before it starts."""


@dataclass(frozen=True, kw_only=True)
class Shell:
    """The flags of every study command; the study's own are its fields."""

    grid: tuple[str, ...] = ()
    """Axes to vary: key=v1,v2 or key=0..4; the runs are every combination."""
    preset: str | None = None
    """Start from named options of the study instead of its defaults."""
    plugin: Path | None = None
    """A Python file with plug-ins of your own; may be given several times."""
    cpu_only: bool = False
    """The same as --device cpu."""
    wandb: Literal["none", "on"] = "none"
    """wandb:on logs each run to Weights & Biases as it is computed."""
    choices: bool = False
    """List the words that choose plug-ins, and exit."""
    dry_run: bool = False
    """Print the plan and an estimate from stored costs; compute nothing."""
    self_test: bool = False
    """Check the promises of the chosen plug-ins and exit."""
    json: bool = False
    """Print one JSON document and nothing else."""
    all_columns: bool = False
    """Print tables with all their columns, not only those that answer the question."""
    quiet: bool = False
    """No progress."""
    yes: bool = False
    """Do not ask before a long run."""


@dataclass(frozen=True, kw_only=True)
class ReadingShell:
    """The flags of every reading command; its own are its fields."""

    out: Path = Path("results")
    """Folder for tables and figures."""
    json: bool = False
    """Print one JSON document and nothing else."""
    all_columns: bool = False
    """Print tables with all their columns."""
    quiet: bool = False
    """Print only findings and tables."""


def run_reading(light: type[Reading], words: list[str]) -> int:
    """Runs a command that reads files, such as `assay modular similarity SWEEP`: it plans and stores nothing. Its
    declaration is enough for the help and for refusing flags."""
    named = [f"--{light.argument}", *words] if light.argument and words and not words[0].startswith("-") else words
    prog, start, line = _prog(light), _unset(light), read(named, light, ReadingShell)
    if line.help:
        print_help(prog, cleandoc(light.__doc__ or ""), (start, ReadingShell()))
        return 0
    for field in fields(light):
        if field.name not in line.values(light) and getattr(start, field.name) is MISSING:
            raise UserError(f"{prog} needs --{field.name}: `{prog} --help` says what that is.")
    shell, section = ReadingShell(**line.values(ReadingShell)), Section(light.name)
    refuse_unknown(prog, line, (start, shell))
    cls = registries()["studies"][light.name]
    check_writable(shell.out / light.name / FINDINGS)
    construct(cls, read(named, cls, ReadingShell).values(cls), what=prog).report(section)
    where = ": tables, and figures as .png and .pdf. The page of `assay report` shows stored runs, not these"
    Show(shell.json, shell.quiet, shell.all_columns)(section, shell.out / section.study, where)
    return 0


def _unset(cls: type[Reading]) -> Reading:
    """Returns a reading with its defaults, and MISSING where a value must be given."""
    made = object.__new__(cls)
    for field in fields(cls):
        held = field.default if field.default_factory is MISSING else field.default_factory()
        object.__setattr__(made, field.name, held)
    return made


def run_study(name: str, words: list[str], show: Shower | None = None) -> int:
    """Runs a command line, or the several that it stands for, one after another. What its declaration answers, the help
    or a wrong flag, comes before the study is imported, which takes seconds. `show` takes each section, instead of
    printing it."""
    studies = registries()["studies"]
    light = declared(studies, name)
    if issubclass(light, Reading):
        return run_reading(light, words)
    # Only words of the command line can contradict each other; flags win over a preset or a file of options.
    _refuse_contradictions(light, line := read(words, light, Shell, Execution))
    given = {word.partition("=")[0].replace("_", "-") for word in words}
    # Of a line with shorthands only the study's `commands` knows what it says.
    if given.isdisjoint(flag.split()[0] for flag in light.shorthands) and (code := _answer(light, line)) is not None:
        return code
    cls = studies[name]
    return max([_run_one(cls, read(each, cls, Shell, Execution), show) for each in cls.commands(words)])


def _answer(cls: type[Study], line: Line) -> int | None:
    """Prints the help or the choices, or refuses flags: all that a study's declaration is enough for. None where the
    command asks for more."""
    base = configure(cls, preset := _preset(line), {})
    parts = (base, Shell(), Execution())
    if line.help:  # the flags, then the options of the plug-ins that the words beside --help choose
        # As words, made once: a plug-in of a file is no instance of the declarations that the study's options name.
        words = [(option, given) for option, given in line.of(cls) if option.is_plugin]
        chosen = {option.path: given[0] if option.counts[1] == 1 else given for option, given in words}
        about = chosen_options(assign(base, chosen))  # first, so that an unknown plug-in is an error, not help
        print_help(_prog(cls), describe(base), parts)
        print(about, end="")
        return 0
    refuse_unknown(_prog(cls), line, parts, *other_words(base))
    shell = Shell(**line.values(Shell))
    if (shell.self_test or shell.choices) and shell.json:
        raise UserError(f"--{'self-test' if shell.self_test else 'choices'} prints text: leave --json out.")
    if not shell.choices:
        return None
    assign(Execution(), line.values(Execution))
    _configured(base, preset, line)  # wrong values are refused, though nothing here shows them
    print_choices(base)
    return 0


def _refuse_contradictions(cls: type[Study], line: Line) -> None:
    """Raises a UserError where two words set one option: one of them would be dropped silently."""
    grid, named = _axes(line), {option.path for option, _ in line.of(cls)}
    chosen = {option.path: line.given(cls, option.path) for option in plugin_options(cls)}
    for option in plugin_options(cls):
        if chosen[option.path] == [[]]:
            raise UserError(
                f"--{option.path} names none: write names behind it (--choices lists them), or leave it out."
            )
        if (count := len(chosen[option.path])) > 1:
            one = "choose one" if option.counts[1] == 1 else f"name them all after one --{option.path}"
            raise UserError(f"{option.path} is chosen {count} times: {one}, or compare with --grid {option.path}=A,B.")
    refuse_twice(cls, grid, named)
    axes = {field_path(cls, key): values for key, values in grid.items()}
    for path, words in chosen.items():
        for word in map(unwrapped, [*axes.get(path, ()), *chain(*words)]):
            for inner in (option.partition("=")[0] for option in split(word, ":")[1:]):
                key = f"{path}.{inner}"
                if key in named or key in axes:
                    other = f"--{key}" if key in named else f"--grid {key}=..."
                    raise UserError(f"'{word}' sets {inner}, and {other} sets it too: leave one of them out.")


def _axes(line: Line) -> dict[str, list[str]]:
    """Returns the axes of all --grid flags together."""
    grids = line.given(Shell, "grid")
    if grids and not any(grids):
        raise UserError("--grid names no axis: write --grid key=value1,value2 (or key=0..4), or leave it out.")
    return parse_grid(chain(*grids))


def _run_one(cls: type[Study], line: Line, show: Shower | None = None) -> int:
    if (code := _answer(cls, line)) is not None:
        return code
    base = configure(cls, preset := _preset(line), {}, loaded_sources())
    shell, execution = Shell(**line.values(Shell)), assign(Execution(), line.values(Execution))
    study, grid = _configured(base, preset, line, loaded_sources())
    if shell.self_test:
        folders = {id(registry): folder for folder, registry in registries().items()}
        tried = dict.fromkeys(part for point in points(study, grid) for part in point.parts())
        parts = [(folders[id(part.registry)], part) for part in tried]
        return max([print_verdicts(folder, part) for folder, part in parts if has_contract(folder)], default=0)
    if shell.wandb == "on":
        require_wandb()
    if shell.cpu_only and execution.device not in ("auto", "cpu"):
        raise UserError(f"--cpu-only and --device {execution.device} exclude each other: leave one out.")
    session = Session.open(study, grid, replace(execution, device="cpu") if shell.cpu_only else execution)
    kinds = (known for folder, known in registries().items() if folder != "studies")
    brought = [f"{known.kind}/{name}" for known in kinds for name in known.brought(loaded_sources())]
    for name in sorted(set(brought).difference(*(run.versions for run in session.plan.runs))):
        say(f"{name} is in none of these runs: `--choices` lists the words that choose a plug-in.")
    if shell.dry_run:
        return _print_plan(session, shell)
    whole = shell.all_columns or preset in cls.whole_tables
    return publish(session, _compute(session, shell), show or Show(shell.json, shell.quiet, whole))


def _configured(base: Study, preset: str | None, line: Line, sources: Sequence[Source] = ()) -> tuple[Study, Grid]:
    """Returns the study that a command line asks for and its grid, the user's on top of the preset's."""
    values = line.values(type(base))
    axes = combined_grid(type(base), preset, _axes(line), named=values, sources=sources)
    grid, rest = _below_axes(type(base), axes, values)
    return assign(base, rest), grid


def _prog(cls: type[Any]) -> str:
    return f"assay {cls.name.replace('.', ' ')}"


def _compute(session: Session, shell: Shell) -> Results:
    if not shell.quiet:
        say(session.describe())
        if shorter := _first_look(session, shell):
            say(shorter)
        for source in (s for s in loaded_sources() if any(k.brought([s]) for k in registries().values())):
            say(f"a study does not check plug-ins: `assay check {source.path}` tries what they promise.")
    asks = session.plan.study.asks_first and session.todo and not (shell.yes or shell.preset or shell.quiet)
    if asks and sys.stdin.isatty() and sys.stdout.isatty():
        seconds = session.seconds_left
        if seconds is None or seconds > LONG:
            say("This may take long (--yes skips this question). Continue? [y/N]")
            if input().strip().lower() not in ("y", "yes"):
                raise UserError("nothing was started.")
    with ExitStack() as stack:
        watch = stack.enter_context(session.progress(quiet=shell.quiet))
        if shell.wandb == "on":
            watch = stack.enter_context(logged(watch, session.todo, session.labels, quiet=shell.quiet))
        return session.compute(watch)


def _first_look(session: Session, shell: Shell) -> str:
    """Say what is shorter, where what may take long is computed on a CPU; else nothing."""
    presets = session.plan.study.for_cpu
    on_cpu = any(run.numerics.device == "cpu" for run in session.todo)
    if not presets or shell.preset in presets or shell.quiet or not on_cpu:
        return ""
    if (seconds := session.seconds_left) is None:
        return f"How long this takes on a CPU is not known here; --preset {presets[0]} is a first look."
    return f"On a CPU this may take long; --preset {presets[0]} is a first look." if seconds > LONG else ""


def _preset(line: Line) -> str | None:
    found = [option.value(words) for option, words in line.of(Shell) if option.path == "preset"]
    if len(found) > 1:
        raise UserError(f"--preset is there {len(found)} times ({', '.join(found)}): choose one.")
    return found[0] if found else None


def _below_axes(
    cls: type[Study], grid: Mapping[str, Sequence[Any]], values: Mapping[str, Any]
) -> tuple[dict[str, Sequence[Any]], dict[str, Any]]:
    """Sets the options below an axis on every value of it that has them; returns the grid and the other options.

    {model.seq_mixer: [attention, gru]}, {model.seq_mixer.num_heads: 2}  ->  {...: [attention:num_heads=2, gru]}, {}
    """
    hints = {option.path: option.hint for option in options(cls)}
    spread, rest = dict(grid), dict(values)
    for axis in sorted(grid, key=len, reverse=True):  # of two axes the inner one wins
        below = {path.removeprefix(f"{axis}."): rest.pop(path) for path in [*rest] if path.startswith(f"{axis}.")}
        if not below:
            continue
        if axis not in hints:
            raise UserError(f"--{axis}.{next(iter(below))} lies below an axis of the grid: write it into its values.")
        held = [convert(hints[axis], value, what=f"the grid's axis '{axis}'") for value in grid[axis]]
        known = {name for value in held for member in members(value) for name in option_types(type(member))}
        for option in (inner.partition(".")[0] for inner in below):
            if option not in known:
                close = nearest(option, known)
                raise UserError(f"no value of the grid's axis '{axis}' has the option '{option}'.{close}")
        spread[axis] = [_with_options(value, below) for value in held]
    return spread, rest


def _with_options(held: Any, given: Mapping[str, Any]) -> Any:
    changed = []
    for member in members(held):
        types = option_types(type(member))
        changed.append(assign(member, {path: v for path, v in given.items() if path.partition(".")[0] in types}))
    return tuple(changed) if isinstance(held, tuple) else changed[0]


def _print_plan(session: Session, shell: Shell) -> int:
    stored = {record.run.id for record in session.stored}
    rows = [{"id": run.id, "run": session.labels[run.id], "stored": run.id in stored} for run in session.plan.runs]
    if shell.json:
        print(json.dumps({"study": session.plan.study.name, "rows": rows, "files": []}, indent=1))
        return 0
    for row in rows:
        print(f"{row['id']}  {'stored' if row['stored'] else 'to run':<6}  {row['run']}")
    print(session.describe())
    if shorter := _first_look(session, shell):
        print(shorter)
    if unfetched := session.plan.study.unfetched(session.todo):
        print(unfetched)
    return 0


def print_verdicts(folder: str, plugin: Any) -> int:
    """Prints a line per promise of a plug-in, given as such or as a word; returns 1 if one is broken."""
    plugin, verdicts = made(folder, plugin) if isinstance(plugin, str) else (plugin, [])
    verdicts = verdicts or verdicts_of(folder, plugin)
    print(f"{folder}: {plugin if isinstance(plugin, str) else plugin.label}")
    said = set[str]()
    for verdict in verdicts:
        print(f"  {'pass' if verdict.kept else 'FAIL'}  {verdict.promise}")
        if not verdict.kept:
            print(f"        {'the same' if verdict.seen in said else verdict.seen}")
            said.add(verdict.seen)
    return 0 if all(verdict.kept for verdict in verdicts) else 1
