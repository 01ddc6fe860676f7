"""`assay STUDY ...`: flags to a study, a plan, records, tables and files."""

import json
import os
import re
import shutil
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from assay.core.convert import option_types
from assay.core.errors import UserError
from assay.core.plugin import Registry, is_plugin_type, registries
from assay.core.words import printable
from assay.progress import say, shown

if TYPE_CHECKING:
    from assay.api import Results, Session
    from assay.core.study import Study


CHOICE = re.compile(r"(?P<path>[a-z_.]+):(?P<word>\S+)")
"""`model.seq_mixer:attention` is `--model.seq_mixer attention`."""


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
    dry_run: bool = False
    """Print the plan and an estimate from stored costs; compute nothing."""
    self_test: bool = False
    """Check the promises of the chosen plug-ins and exit."""
    json: bool = False
    """Print one JSON document and nothing else."""
    quiet: bool = False
    """No progress."""


def run_study(name: str, words: list[str]) -> int:
    from assay.api import Session
    from assay.core.plan import parse_grid

    study, shell, execution = _parse(name, words)
    if shell.self_test:
        if shell.json:
            raise UserError("--self-test prints text: leave --json out.")
        return _self_test(study)
    if shell.cpu_only:
        if execution.device not in ("auto", "cpu"):
            raise UserError(f"--cpu-only and --device {execution.device} exclude each other: leave one out.")
        execution = replace(execution, device="cpu")
    session = Session.open(study, parse_grid(shell.grid), execution)
    if shell.dry_run:
        return _print_plan(session, as_json=shell.json)
    if not shell.quiet:
        say(session.describe())
    with shown(session.labels, len(session.todo), quiet=shell.quiet) as watch:
        results = session.compute(watch)
    return _publish(session, results, shell)


def _parse(name: str, words: list[str]) -> tuple["Study", Shell, Any]:
    """The study, the shell's flags and the execution's, from one command line in any order."""
    import tyro

    from assay.api import Execution, configure
    from assay.core.plan import assign

    cls = registries()["studies"][name]
    preset = _preset(words)
    defaults = {"study": configure(cls, preset, {}), "shell": Shell(), "execution": Execution()}
    fields = [(key, Annotated[type(value), tyro.conf.arg(name="")], value) for key, value in defaults.items()]
    flags, plugin_options = separate(cls, words)
    command: Any = tyro.cli(
        make_dataclass("Command", fields, frozen=True),
        prog=f"assay {name.replace('.', ' ')}",
        description=f"{cls.question} Presets: {', '.join(cls.presets) or 'none'}.",
        args=flags,
        config=(tyro.conf.FlagCreatePairsOff,),
        registry=_constructors(),
        use_underscores=True,
    )
    return assign(command.study, dict(plugin_options)), command.shell, command.execution


def _preset(words: Sequence[str]) -> str | None:
    """Read before the parser is built, since it changes the defaults."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "--preset" or word.startswith("--preset="):
            return word.partition("=")[2] or following
    return None


def separate(cls: type["Study"], words: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """What the parser reads, and the options of plug-ins, which are set on whatever plug-in was chosen:

    task:mqar --task.num_kv_pairs 4 --seeds 0  ->  [--task mqar --seeds 0], [("task.num_kv_pairs", "4")]
    """
    flags: list[str] = []
    options: list[tuple[str, str]] = []
    rest = deque(words)
    while rest:
        word = rest.popleft()
        path, equals, value = word.removeprefix("--").partition("=")
        path = path.replace("-", "_")
        if word.startswith("--") and _is_plugin_option(cls, path):
            if not equals:
                value = rest.popleft() if rest and not rest[0].startswith("--") else "true"
            options.append((path, value))
        elif (found := CHOICE.fullmatch(word)) and _type_at(cls, found["path"]) is not None:
            flags += [f"--{found['path']}", found["word"]]
        else:
            flags.append(word)
    return flags, options


def _is_plugin_option(cls: type[Any], path: str) -> bool:
    """Whether a dotted path goes through a field that holds a plug-in, or several."""
    parents = (".".join(path.split(".")[:length]) for length in range(1, path.count(".") + 1))
    return any(is_plugin_type(_type_at(cls, parent)) for parent in parents)


def _type_at(cls: type[Any], path: str) -> Any:
    """The annotation of the field at a dotted path through plain dataclasses; None if there is none."""
    hint: Any = cls
    for name in path.split("."):
        if not is_dataclass(hint) or name not in (types := option_types(hint)):  # type: ignore[arg-type]
            return None
        hint = types[name]
    return hint


def _constructors() -> Any:
    """How tyro reads a plug-in word and a list of integers."""
    import tyro

    from assay.core.convert import integers
    from assay.core.plugin import Plugin
    from assay.core.study import Study

    registry = tyro.constructors.ConstructorRegistry()
    spec = tyro.constructors.PrimitiveConstructorSpec

    @registry.primitive_rule
    def plugin_word(info: Any) -> Any:
        if not (isinstance(info.type, type) and issubclass(info.type, Plugin)) or issubclass(info.type, Study):
            return None
        kind: Registry = info.type.registry
        return spec(
            1, kind.kind.upper(), lambda args: kind.parse(args[0]), lambda x: isinstance(x, Plugin), lambda x: [x.label]
        )

    @registry.primitive_rule
    def integer_list(info: Any) -> Any:
        if info.type != tuple[int, ...]:
            return None
        return spec(
            "*", "INT|A..B", lambda args: integers(args), lambda x: isinstance(x, tuple), lambda x: [*map(str, x)]
        )

    return registry


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
    return 0


def _publish(session: "Session", results: "Results", shell: Shell) -> int:
    """Tables to standard output, files to the output folder, failures to standard error."""
    from assay.report.files import write_section
    from assay.report.section import Section
    from assay.report.text import render

    study, out = session.plan.study, session.execution.out
    done = [record for record in results if record.status == "done"]
    section = Section(study.name)
    if done:
        study.report(done, section)
    files = write_section(section, out / study.name) if done else []
    if shell.json:
        rows = section.json_rows(section.tables[0]) if section.tables else []
        print(json.dumps({"study": study.name, "rows": rows, "files": [str(path) for path in files]}, allow_nan=False))
    else:
        fits = sys.stdout.isatty() or "COLUMNS" in os.environ  # piped tables stay whole unless a width is asked for
        width = shutil.get_terminal_size().columns if fits else None
        print("\n\n".join(render(table, width) for table in section.tables))
        if not shell.quiet:
            say(f"{len(files)} files in {out / study.name}; `assay report --out {out}` makes the page")
    bad = [record for record in results if record.status != "done"]
    for record in bad:
        reason = (record.error or "a number was not finite").strip().splitlines()[-1]
        say(f"{record.status}: {session.labels[record.run.id]}: {reason} (assay show {record.run.id} --out {out})")
    return 1 if bad else 0


def print_verdicts(folder: str, plugin: Any) -> int:
    from assay.contracts.base import check as verdicts_of

    verdicts = verdicts_of(folder, plugin)
    print(f"{folder}: {plugin.label}")
    said = set[str]()
    for verdict in verdicts:
        print(f"  {'pass' if verdict.kept else 'FAIL'}  {verdict.promise}")
        if not verdict.kept:
            print(f"        {'the same' if verdict.seen in said else verdict.seen}")
            said.add(verdict.seen)
    return 0 if all(verdict.kept for verdict in verdicts) else 1
