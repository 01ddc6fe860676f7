"""The `assay` command: verbs and studies by name, each imported only when chosen.

    assay expressivity --models SelfAttn GRU --grid noise=0.03,0.3
    assay list encoders | assay check encoders mine --plugin mine.py | assay show ID | assay report

Results go to standard output, everything else to standard error. Exit codes: 0 done, 1 a run failed or a promise is
broken, 2 the command needs mending, 130 interrupted.
"""

import argparse
import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from assay.core.errors import UserError
from assay.core.plugin import Registry, nearest, registries
from assay.progress import say, shown

if TYPE_CHECKING:
    from assay.api import Results, Session
    from assay.core.study import Study


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    warnings.showwarning = lambda message, *rest, **more: say(f"warning: {message}")
    try:
        return _dispatch(words)
    except UserError as error:
        say(f"assay: {error}")
        return 2
    except KeyboardInterrupt:
        say("assay: interrupted; every finished run is stored. Repeat the command to go on from there.")
        return 130
    except BrokenPipeError:
        # The reader of our output left (`| head`): not an error, but Python would report it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as exit:  # argparse and tyro leave this way
        return exit.code if isinstance(exit.code, int) else 2


def entry() -> None:
    sys.exit(main())


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if words[0] == "--version":
        from assay import __version__

        print(f"assay {__version__}")
        return 0
    load_plugins(words)
    studies = registries()["studies"]
    for length in (2, 1):  # `assay sae ablation` is the study sae.ablation
        name = ".".join(words[:length])
        if name in studies.names() and len(words) >= length:
            return run_study(name, words[length:])
    if words[0] not in VERBS:
        known = [*VERBS, *studies.names()]
        raise UserError(f"no command '{words[0]}'.{nearest(words[0], known)} Known: {', '.join(known)}.")
    return VERBS[words[0]](words[1:])


def _overview() -> str:
    studies = registries()["studies"].entries()
    lines = ["usage: assay COMMAND ...   (assay COMMAND --help says more)", "", "studies:"]
    lines += [f"  {entry.name:<14} {entry.summary}" for entry in studies]
    lines += ["", "verbs:"]
    lines += [f"  {name:<14} {(verb.__doc__ or '').partition(chr(10))[0]}" for name, verb in VERBS.items()]
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------------------------- studies


@dataclass(frozen=True, kw_only=True)
class Shell:
    """Flags of a study command that are not the study's own."""

    grid: tuple[str, ...] = ()
    """Axes to vary: key=v1,v2 or key=0..4; the runs are every combination."""
    preset: str | None = None
    """Start from named options of the study instead of its defaults."""
    plugin: tuple[Path, ...] = ()
    """Python files with plug-ins of your own."""
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
        return _self_test(study)
    if shell.cpu_only:
        execution = replace(execution, device="cpu")
    session = Session.open(study, parse_grid(shell.grid), execution)
    if shell.dry_run:
        return _print_plan(session, as_json=shell.json)
    if not shell.quiet:
        say(session.describe())
    with shown(len(session.todo), quiet=shell.quiet) as watch:
        results = session.compute(watch)
    return _publish(session, results, as_json=shell.json)


def load_plugins(words: Sequence[str]) -> None:
    """Foreign files are loaded before any parser is built: their names must be known to it."""
    from assay.core.foreign import load_source, read_source

    for path in _values_of("--plugin", words):
        load_source(read_source(path))


def _values_of(flag: str, words: Sequence[str]) -> list[str]:
    """`--flag a b --other` and `--flag=a` -> the flag's values."""
    values: list[str] = []
    for position, word in enumerate(words):
        if word.startswith(f"{flag}="):
            values.append(word.partition("=")[2])
        if word == flag:
            rest = words[position + 1 :]
            end = next((i for i, other in enumerate(rest) if other.startswith("-")), len(rest))
            values += rest[:end]
    return values


def _parse(name: str, words: list[str]) -> tuple["Study", Shell, Any]:
    """The study, the shell's flags and the execution's, from one command line in any order."""
    import tyro

    from assay.api import Execution, configure

    cls = registries()["studies"][name]
    preset = next(iter(_values_of("--preset", words)), None)
    defaults = {"study": configure(cls, preset, {}), "shell": Shell(), "execution": Execution()}
    fields = [(key, Annotated[type(value), tyro.conf.OmitArgPrefixes], value) for key, value in defaults.items()]
    command: Any = tyro.cli(
        make_dataclass("Command", fields, frozen=True),
        prog=f"assay {name.replace('.', ' ')}",
        description=cls.question,
        args=words,
        config=(tyro.conf.FlagCreatePairsOff,),
        registry=_constructors(),
        use_underscores=True,
    )
    return command.study, command.shell, command.execution


def _constructors() -> Any:
    """How tyro reads a plug-in word and a list of integers."""
    import tyro

    from assay.core.convert import integers
    from assay.core.plugin import Plugin

    registry = tyro.constructors.ConstructorRegistry()
    spec = tyro.constructors.PrimitiveConstructorSpec

    @registry.primitive_rule
    def plugin_word(info: Any) -> Any:
        if not (isinstance(info.type, type) and issubclass(info.type, Plugin)) or hasattr(info.type, "plan"):
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
    return max([_print_verdicts(folder, part) for folder, part in parts if has_contract(folder)], default=0)


def _print_plan(session: "Session", *, as_json: bool) -> int:
    stored = {record.run.id for record in session.stored}
    rows = [{"id": run.id, "run": run.label, "stored": run.id in stored} for run in session.plan.runs]
    if as_json:
        print(json.dumps({"study": session.plan.study.name, "rows": rows, "files": []}, indent=1))
        return 0
    for row in rows:
        print(f"{row['id']}  {'stored' if row['stored'] else 'to run':<6}  {row['run']}")
    print(session.describe())
    return 0


def _publish(session: "Session", results: "Results", *, as_json: bool) -> int:
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
    if as_json:
        rows = section.json_rows(section.tables[0]) if section.tables else []
        print(json.dumps({"study": study.name, "rows": rows, "files": [str(path) for path in files]}, allow_nan=False))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print("\n\n".join(render(table, width) for table in section.tables))
        say(f"{len(files)} files in {out / study.name}; `assay report --out {out}` makes the page")
    bad = [record for record in results if record.status != "done"]
    for record in bad:
        reason = (record.error or "a number was not finite").strip().splitlines()[-1]
        say(f"{record.status}: {record.run.label}: {reason} (assay show {record.run.id} --out {out})")
    return 1 if bad else 0


# ------------------------------------------------------------------------------------------------------------ verbs


def _parser(verb: str, description: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog=f"assay {verb}", description=description)


def list_(words: list[str]) -> int:
    """What there is: studies, encoders, tasks, ...; `assay list encoders --json` for machines."""
    parser = _parser("list", list_.__doc__ or "")
    parser.add_argument("kind", nargs="?")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plugin", nargs="*", default=[])
    args = parser.parse_args(words)
    chosen = registries() if args.kind is None else {args.kind: _folder(args.kind)}
    entries = {folder: registry.entries() for folder, registry in chosen.items()}
    if args.json:
        print(
            json.dumps(
                [
                    {"kind": k, "name": e.name, "aliases": e.aliases, "summary": e.summary}
                    for k in entries
                    for e in entries[k]
                ]
            )
        )
        return 0
    for folder, found in entries.items():
        print(f"{folder}:")
        for entry in found:
            spelled = " ".join((entry.name, *entry.aliases))
            print(f"  {spelled:<28} {entry.summary}")
    return 0


def check(words: list[str]) -> int:
    """Whether a plug-in keeps the promises of its folder: `assay check encoders NAME --plugin FILE`."""
    parser = _parser("check", check.__doc__ or "")
    parser.add_argument("kind")
    parser.add_argument("names", nargs="+", help="words such as self_attn or self_attn:heads=4")
    parser.add_argument("--plugin", nargs="*", default=[])
    args = parser.parse_args(words)
    registry = _folder(args.kind)
    return max(_print_verdicts(args.kind, registry.parse(name)) for name in args.names)


def show(words: list[str]) -> int:
    """A stored run by the start of its id; without one, a line for each."""
    parser = _parser("show", show.__doc__ or "")
    parser.add_argument("id", nargs="?")
    parser.add_argument("--out", default="results")
    args = parser.parse_args(words)
    store = _store(args.out)
    if args.id:
        print(json.dumps(store.find(args.id).to_json(), indent=1))
        return 0
    for record in store.records():
        print(f"{record.run.id}  {record.status:<8}  {record.finished}  {record.run.label}")
    return 0


def rm(words: list[str]) -> int:
    """Remove stored runs: by id, by --status, by --study."""
    parser = _parser("rm", rm.__doc__ or "")
    parser.add_argument("ids", nargs="*")
    parser.add_argument("--status", choices=["done", "failed", "diverged"])
    parser.add_argument("--study")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--out", default="results")
    args = parser.parse_args(words)
    store = _store(args.out)
    if not (args.ids or args.status or args.study):
        raise UserError("assay rm: say which runs: ids, --status failed or --study NAME.")
    chosen = [store.find(prefix) for prefix in args.ids] if args.ids else store.records(args.study)
    chosen = [record for record in chosen if args.status in (None, record.status)]
    for record in chosen:
        print(f"{'would remove' if args.dry_run else 'removed'} {record.run.id}  {record.status}  {record.run.label}")
        if not args.dry_run:
            store.remove(record)
    say(f"{len(chosen)} runs")
    return 0


def report(words: list[str]) -> int:
    """One self-contained HTML page from everything stored."""
    parser = _parser("report", report.__doc__ or "")
    parser.add_argument("--out", default="results")
    args = parser.parse_args(words)
    from assay.api import write_page

    print(write_page(args.out))
    return 0


def demo(words: list[str]) -> int:
    """Every study's demo preset, then the page; seconds when it is stored."""
    parser = _parser("demo", demo.__doc__ or "")
    parser.add_argument("--out", default="results")
    args = parser.parse_args(words)
    studies = registries()["studies"]
    codes = []
    for name in studies.names():
        if "demo" in studies[name].presets:
            print(f"\n$ assay {name.replace('.', ' ')} --preset demo --out {args.out}\n{studies[name].question}\n")
            codes.append(run_study(name, ["--preset", "demo", "--out", args.out]))
    print("\nThe page to open:")
    return max([*codes, report(["--out", args.out])])


VERBS: dict[str, Callable[[list[str]], int]] = {
    "list": list_,
    "check": check,
    "show": show,
    "rm": rm,
    "report": report,
    "demo": demo,
}


def _folder(kind: str) -> Registry:
    """The registry of a folder: `encoders`, or its singular."""
    found = registries()
    singular = {registry.kind: folder for folder, registry in found.items()}
    if singular.get(kind, kind) not in found:
        raise UserError(f"no kind '{kind}'.{nearest(kind, found)} Known: {', '.join(found)}.")
    return found[singular.get(kind, kind)]


def _store(out: str) -> Any:
    from assay.core.store import Store

    if not Path(out).is_dir():
        raise UserError(f"no results folder '{out}'. Run a study first, or name the folder with --out.")
    return Store(out)


def _print_verdicts(folder: str, plugin: Any) -> int:
    from assay.contracts.base import check as verdicts_of

    verdicts = verdicts_of(folder, plugin)
    print(f"{folder}: {plugin.label}")
    for verdict in verdicts:
        print(f"  {'pass' if verdict.kept else 'FAIL'}  {verdict.promise}")
        if not verdict.kept:
            print(f"        {verdict.seen}")
    return 0 if all(verdict.kept for verdict in verdicts) else 1
