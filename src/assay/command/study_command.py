"""`assay STUDY ...`: flags to a study, a plan, records, tables and files."""

import json
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from inspect import cleandoc
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from assay.command.choices import (
    CHOICE,
    chosen_options,
    describe,
    is_plugin_option,
    options_in_words,
    plugin_words,
    print_choices,
    require_one_choice,
    switch_at,
    type_at,
    words_by_flag,
)
from assay.command.flags import HELP, parsed
from assay.command.progress import say, shown
from assay.command.publish import publish, show
from assay.command.wandb_log import logged, require_wandb
from assay.core.convert import convert, nearest, option_types
from assay.core.errors import UserError
from assay.core.plugin import registries
from assay.core.words import printable

if TYPE_CHECKING:
    from assay.api import Execution, Results, Session
    from assay.core.study import Reading, Study

LONG = 600.0
"""Seconds that are worth a question."""


@dataclass(frozen=True, kw_only=True)
class Shell:
    """Flags of a study command that are not the study's own."""

    grid: tuple[str, ...] = ()
    """Axes to vary: key=v1,v2 or key=0..4; the runs are every combination."""
    preset: str | None = None
    """Start from named options of the study instead of its defaults."""
    plugin: Path | None = None
    """A Python file with plug-ins of your own; may be given several times."""
    cpu_only: bool = False
    """The same as --device cpu."""
    wandb: Literal["None", "none", "on"] = "None"
    """wandb:on logs each run to Weights & Biases while it goes."""
    choices: bool = False
    """List the words that choose plug-ins, and exit."""
    dry_run: bool = False
    """Print the plan and an estimate from stored costs; compute nothing."""
    self_test: bool = False
    """Check the promises of the chosen plug-ins and exit."""
    json: bool = False
    """Print one JSON document and nothing else."""
    quiet: bool = False
    """No progress."""
    yes: bool = False
    """Do not ask before a long run."""


@dataclass(frozen=True)
class Command:
    """A command line, read and checked."""

    study: "Study"
    grid: Mapping[str, Sequence[Any]]
    shell: Shell
    execution: "Execution"


@dataclass(frozen=True, kw_only=True)
class ReadingShell:
    """Flags of a reading command that are not its own."""

    out: Path = Path("results")
    """Where tables and figures go."""
    json: bool = False
    """Print one JSON document and nothing else."""
    quiet: bool = False
    """Say nothing but the tables."""


def run_reading(cls: type["Reading"], words: list[str]) -> int:
    """`assay modular similarity SWEEP --out results`: nothing is planned and nothing stored."""
    from assay.report.section import Section

    named = [f"--{cls.argument}", *words] if cls.argument and words and not words[0].startswith("-") else words
    read = parsed(
        f"assay {cls.name.replace('.', ' ')}", cleandoc(cls.__doc__ or ""), named, reading=cls, shell=ReadingShell()
    )
    section = Section(cls.name)
    read.reading.report(section)
    where = ": tables, and figures as .png and .pdf. The page of `assay report` shows stored runs, not these"
    show(section, read.shell.out / section.study, as_json=read.shell.json, quiet=read.shell.quiet, page=where)
    return 0


def run_study(name: str, words: list[str]) -> int:
    """A command line, or the several that it stands for, one after another."""
    from assay.core.study import Reading

    cls = registries()["studies"][name]
    if issubclass(cls, Reading):
        return run_reading(cls, words)
    _refuse_contradictions(cls, words)
    return max([_run_one(cls, command) for command in cls.commands(words)])


def _refuse_contradictions(cls: type["Study"], words: Sequence[str]) -> None:
    """A UserError where two words of a command line set one option, and one of them would be dropped silently. What a
    preset or a file of options says is no word of the command line: flags win over it."""
    from assay.api import field_path, refuse_twice
    from assay.core.plan import parse_grid

    flags, options = separate(cls, words)
    require_one_choice(cls, flags)
    grid = parse_grid(words_by_flag(flags).get("grid", []))
    refuse_twice(cls, grid, [*_named(cls, flags), *dict(options)])
    axes = {field_path(cls, key): values for key, values in grid.items()}
    chosen = plugin_words(cls, flags)
    said = {**axes, **{path: [held] if isinstance(held, str) else held for path, held in chosen.items()}}
    for path, option, word in options_in_words(cls, said):
        for other, what in ((dict(options), f"--{path}.{option}"), (axes, f"--grid {path}.{option}=...")):
            if f"{path}.{option}" in other:
                raise UserError(f"'{word}' sets {option}, and {what} sets it too: leave one of them out.")


def _named(cls: type["Study"], flags: Sequence[str]) -> list[str]:
    """The options of the study, or of a part of it, that flags set: `--shape.no_bias` sets shape.bias."""
    paths = [_path(flag) for flag in flags if flag.startswith("--")]
    plain = [switch[0] if (switch := switch_at(cls, path)) else path for path in paths]
    return [path for path in plain if type_at(cls, path) is not None]


def _run_one(cls: type["Study"], words: list[str]) -> int:
    from assay.api import Session, configure

    flags, options = separate(cls, words)
    base = configure(cls, preset := _preset(flags), {})
    if HELP.intersection(words):
        return _print_help(base, flags)
    command = _read(base, preset, flags, dict(options))
    shell = command.shell
    if (shell.self_test or shell.choices) and shell.json:
        raise UserError(f"--{'self-test' if shell.self_test else 'choices'} prints text: leave --json out.")
    if shell.choices:
        print_choices(base)
        return 0
    if shell.self_test:
        return _self_test(command.study)
    if shell.wandb == "on":
        require_wandb()
    session = Session.open(command.study, command.grid, _placed(command))
    if shell.dry_run:
        return _print_plan(session, as_json=shell.json)
    return publish(session, _compute(session, shell), as_json=shell.json, quiet=shell.quiet)


def _placed(command: Command) -> "Execution":
    execution = command.execution
    if not command.shell.cpu_only:
        return execution
    if execution.device not in ("auto", "cpu"):
        raise UserError(f"--cpu-only and --device {execution.device} exclude each other: leave one out.")
    return replace(execution, device="cpu")


def _compute(session: "Session", shell: Shell) -> "Results":
    if not shell.quiet:
        say(session.describe())
    if session.plan.study.asks_first and session.todo and not (shell.yes or shell.preset or shell.quiet):
        _ask(session)
    with ExitStack() as stack:
        watch = stack.enter_context(shown(session.labels, len(session.todo), quiet=shell.quiet))
        if shell.wandb == "on":
            watch = stack.enter_context(logged(watch, session.todo, session.labels, quiet=shell.quiet))
        return session.compute(watch)


def _ask(session: "Session") -> None:
    """On a terminal alone, and only if the runs may take long."""
    seconds = session.seconds_left()
    if sys.stdin.isatty() and sys.stdout.isatty() and (seconds is None or seconds > LONG):
        say("This may take long (--yes goes on without asking). Continue? [y/N]")
        if input().strip().lower() not in ("y", "yes"):
            raise UserError("nothing was started.")


def _read(base: "Study", preset: str | None, flags: Sequence[str], options: Mapping[str, str]) -> Command:
    """The parsed flags, with the options of plug-ins set and the preset's grid under the user's."""
    from assay.api import combined_grid
    from assay.core.plan import assign, parse_grid

    cls = type(base)
    read = _tyro(base, flags)
    plain = _named(cls, flags)
    grid = combined_grid(cls, preset, parse_grid(read.shell.grid), named=[*plain, *options])
    spread, rest = _below_axes(cls, grid, options)
    # A plain option below an axis is an axis of one value: it is set on each value of the one above.
    lone = {path: [attrgetter(path)(read.study)] for path in plain if any(path.startswith(f"{k}.") for k in spread)}
    return Command(assign(read.study, rest), {**lone, **spread}, read.shell, read.execution)


def _tyro(base: "Study", flags: Sequence[str]) -> Any:
    from assay.api import Execution

    parts = {"study": base, "shell": Shell(), "execution": Execution()}
    return parsed(f"assay {base.name.replace('.', ' ')}", describe(base), flags, **parts)


def _print_help(base: "Study", flags: Sequence[str]) -> int:
    """The parser's help, then the options of the plug-ins that the words before it chose."""
    from assay.core.plan import assign

    chosen = assign(base, plugin_words(type(base), [flag for flag in flags if flag not in HELP]))
    with suppress(SystemExit):
        _tyro(base, ["--help"])
    print(chosen_options(chosen), end="")
    return 0


def _preset(words: Sequence[str]) -> str | None:
    """Read before the parser is built, since it changes the defaults."""
    following = [*words, ""][1:]
    found = [
        word.partition("=")[2] or after
        for word, after in zip(words, following, strict=True)
        if word == "--preset" or word.startswith("--preset=")
    ]
    if len(found) > 1:
        raise UserError(f"--preset is there {len(found)} times ({', '.join(found)}): choose one.")
    return found[0] if found else None


def separate(cls: type["Study"], words: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """What the parser reads, and the options of plug-ins, which are set on whatever plug-in was chosen:

    task:mqar --task.num_kv_pairs 4 --seeds 0  ->  [--task mqar --seeds 0], [("task.num_kv_pairs", "4")]
    """
    flags: list[str] = []
    options: list[tuple[str, str]] = []
    rest = deque(words)
    while rest:
        word = rest.popleft()
        path, equals, value = cls.renamed.get(_path(word), _path(word)), *word.partition("=")[1:]
        if word.startswith("--") and is_plugin_option(cls, path):
            if not equals:
                bare = not rest or rest[0].startswith("--") or _choice(cls, rest[0])
                value = "true" if bare else rest.popleft()
            options.append((path, value))
        elif word.startswith("--"):
            flags.append(f"--{path}{equals}{value}" if _path(word) in cls.renamed else word)
            if type_at(cls, path) is str and not equals and rest:
                flags.append(rest.popleft())  # whatever it looks like: `--model model:answer` names no plug-in
        elif chosen := _choice(cls, word):
            flags += chosen
        else:
            flags.append(word)
    return _with_one_grid(flags), options


def _with_one_grid(flags: Sequence[str]) -> list[str]:
    """`--grid a=1 ... --grid b=2` is `--grid a=1 b=2`: the parser would keep the last alone."""
    rest: list[str] = []
    axes: list[str] = []
    taking = False
    for flag in flags:
        taking = flag == "--grid" or (taking and not flag.startswith("--"))
        if flag.startswith("--grid="):
            axes.append(flag.partition("=")[2])
        elif flag != "--grid":
            (axes if taking else rest).append(flag)
    if len(rest) == len(flags):
        return rest
    if not axes:
        raise UserError("--grid names no axis: write --grid key=value1,value2 (or key=0..4), or leave it out.")
    return [*rest, "--grid", *axes]


def _path(flag: str) -> str:
    """`--train.max-steps=3` -> `train.max_steps`."""
    return flag.removeprefix("--").partition("=")[0].replace("-", "_")


def _choice(cls: type["Study"], word: str) -> list[str]:
    """`task:mqar` -> [--task mqar]; nothing if it is another kind of word."""
    if not (found := CHOICE.fullmatch(word)):
        return []
    path = cls.renamed.get(found["path"], found["path"])
    return [f"--{path}", found["word"]] if path == "wandb" or type_at(cls, path) is not None else []


def _below_axes(
    cls: type["Study"], grid: Mapping[str, Sequence[Any]], options: Mapping[str, str]
) -> tuple[dict[str, Sequence[Any]], dict[str, str]]:
    """The grid with the options below an axis set on every value of it that has them, and the other options.

    {model.seq_mixer: [attention, gru]}, {model.seq_mixer.num_heads: 2}  ->  {...: [attention:num_heads=2, gru]}, {}
    """
    spread, rest = dict(grid), dict(options)
    for axis in sorted(grid, key=len, reverse=True):  # of two axes the inner one has the last word
        below = {path.removeprefix(f"{axis}."): path for path in rest if path.startswith(f"{axis}.")}
        if not below:
            continue
        if (hint := type_at(cls, axis)) is None:
            raise UserError(f"--{next(iter(below.values()))} lies below an axis of the grid: write it into its values.")
        given = {inner: rest.pop(path) for inner, path in below.items()}
        held = [convert(hint, value, what=f"the grid's axis '{axis}'") for value in grid[axis]]
        spread[axis] = [_with_options(value, given) for value in held]
        known = {name for value in held for member in _members(value) for name in option_types(type(member))}
        for option in (inner.partition(".")[0] for inner in below):
            if option not in known:
                close = nearest(option, known)
                raise UserError(f"no value of the grid's axis '{axis}' has the option '{option}'.{close}")
    return spread, rest


def _with_options(held: Any, given: Mapping[str, str]) -> Any:
    from assay.core.plan import assign

    changed = []
    for member in _members(held):
        types = option_types(type(member))
        changed.append(assign(member, {path: v for path, v in given.items() if path.partition(".")[0] in types}))
    return tuple(changed) if isinstance(held, tuple) else changed[0]


def _members(held: Any) -> tuple[Any, ...]:
    return held if isinstance(held, tuple) else (held,)


def _self_test(study: "Study") -> int:
    from assay.contracts.base import has_contract

    folders = {id(registry): folder for folder, registry in registries().items()}
    parts = [(folders[id(part.registry)], part) for part in study.parts()]
    return max([print_verdicts(folder, part) for folder, part in parts if has_contract(folder)], default=0)


def _print_plan(session: "Session", *, as_json: bool) -> int:
    stored = {record.run.id for record in session.stored}
    rows = [{"id": run.id, "run": session.labels[run.id], "stored": run.id in stored} for run in session.plan.runs]
    if as_json:
        print(json.dumps({"study": session.plan.study.name, "rows": rows, "files": []}, indent=1))
        return 0
    for row in rows:
        print(f"{row['id']}  {'stored' if row['stored'] else 'to run':<6}  {printable(str(row['run']))}")
    print(session.describe())
    if unfetched := session.plan.study.unfetched(session.todo):
        print(unfetched)
    return 0


def print_verdicts(folder: str, plugin: Any) -> int:
    """Print a line per promise; 1 if one is broken. A word stands for the plug-in that it makes, if it makes one."""
    from assay.contracts.base import check as verdicts_of
    from assay.contracts.base import made

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
