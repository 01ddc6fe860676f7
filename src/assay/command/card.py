"""`assay card my_mixer.py`: what a sequence mixer can do, next to the field, on one screen; or an attention method.

$ assay card my_mixer.py                      the mixers of a file, next to every mixer whose records ship
$ assay card delta_net:beta_max=2 --vs delta_net mamba2 gru
$ assay card my_method.py                     the attention methods of a file: what a language model loses with them
$ assay card diff before.json after.json      exit code 1 where a question is answered worse
$ assay card submit my_mixer.py FOLDER        the file, its records and its card, for a pull request
$ assay card verify FOLDER                    what a reader runs: promises, ids, one cell computed again
$ assay card validity                         do the questions rank mixers as a small language model does?
"""

import argparse
import inspect
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from assay.command import flags
from assay.command.flags import Parser
from assay.command.plugin_files import plugins_of
from assay.command.progress import say
from assay.command.reproduce import computed
from assay.core.convert import nearest
from assay.core.errors import UserError
from assay.core.files import disk_errors, is_there, write_file
from assay.core.plugin import registries
from assay.report.section import Table, Value
from assay.report.text import render

if TYPE_CHECKING:
    from assay.card.asking import Battery, Shown, Wish
    from assay.card.battery import Records, Trial
    from assay.card.running import Runner

UNITS = {"s": 1, "m": 60, "h": 3600}
PLACING = ("out", "device", "executor", "workers", "ray_address")
MIXERS, METHODS = "mixers", "attention"
"""The plug-in folders that a card can be of."""


def card(words: list[str]) -> int:
    """What a sequence mixer can do, next to the field: `assay card my_mixer.py`; what is lost with an attention method:
    `assay card my_method.py`; also diff, submit and verify."""
    verbs: dict[str, Callable[[list[str]], int]] = {"diff": _diff, "submit": _submit, "verify": _verify}
    verbs["validity"] = _validity
    if words and words[0] in verbs:
        return verbs[words[0]](words[1:])
    parser = _parser("card", card.__doc__ or "")
    parser.add_argument(
        "plugins", nargs="+", metavar="FILE|MIXER|METHOD", help="a Python file with mixers or methods, or their names"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be run, and about how long it takes")
    parser.add_argument("--json", action="store_true", help="print the card as JSON")
    parser.add_argument("--budget", type=_seconds, metavar="TIME", help="leave out what does not fit: 10m, 90s, 1h")
    parser.add_argument("--stored", action="store_true", help="ask only questions whose records are stored or ship")
    parser.add_argument("--ship", type=Path, metavar="FOLDER", help="write the records there, as those that ship")
    args = parser.parse_args(words)
    if args.dry_run and args.json:
        raise UserError("--dry-run prints text: leave --json out.")
    folder, mine, foreign = _chosen(args.plugins)
    wish = _wish(args)
    _spelled(folder, wish.vs)  # a wrong name is said before promises are tried
    _check(foreign, folder)
    battery = _battery(folder, wish, mine)
    for note in battery.notes:
        say(note)
    if args.dry_run:
        print("\n".join(battery.plan()))
        return 0
    cards = battery.made()
    if args.ship:
        _ship(args.ship, battery)
    for each in cards:
        say(f"page: {_page(each, battery, folder)}")
    if args.json:
        print(_json(cards, battery))
    else:
        # What was left out belongs to the result: standard error is not kept with it.
        print("\n\n".join([*(each.text() for each in cards), *("\n".join(battery.notes),) * bool(battery.notes)]))
    return 0


def _json(cards: "Sequence[Shown]", battery: "Battery") -> str:
    told = [each.to_json() | {"notes": list(battery.notes)} for each in cards]
    return json.dumps(told, indent=1, allow_nan=False)


def _battery(folder: str, wish: "Wish", mine: Sequence[str]) -> "Battery":
    if folder == MIXERS:
        from assay.card.of_mixers import battery_of

        return battery_of(wish, mine)
    from assay.card import of_methods

    return of_methods.battery_of(wish, mine)


def _parser(verb: str, description: str) -> argparse.ArgumentParser:
    from assay.card.protocol import TIERS

    parser = Parser(prog=f"assay {verb}", description=description)
    parser.add_argument("--vs", nargs="+", metavar="NAME", help="the field; default: everything whose records ship")
    parser.add_argument(
        "--tier",
        choices=list(TIERS),
        help="how much mixers are asked: smoke (the default) on 2 cores, standard on a GPU",
    )
    parser.add_argument(
        "--own-baselines", action="store_true", help="compute the field here, whatever ships with assay"
    )
    parser.add_argument("--out", default="results", help=flags.OUT)
    parser.add_argument("--device", help=f"{flags.DEVICE}; default: the tier's own")
    parser.add_argument("--executor", default="local", help=flags.EXECUTOR)
    parser.add_argument("--workers", type=int, default=0, help=flags.WORKERS)
    parser.add_argument("--ray-address", help=flags.RAY_ADDRESS)
    return parser


def _wish(args: argparse.Namespace) -> "Wish":
    """Return what the flags ask for."""
    from assay.card.asking import Wish

    placing = {key: getattr(args, key) for key in PLACING if getattr(args, key) is not None}
    vs = [word for words in args.vs or () for word in words.split(",") if word]
    more = {key: getattr(args, key) for key in ("stored", "budget") if hasattr(args, key)}
    return Wish(computed, vs=vs, own=args.own_baselines, tier=args.tier, placing=placing, **more)


def _seconds(word: str) -> float:
    """Read a time: 10m, 90s, 1h, or seconds."""
    number, unit = (word[:-1], word[-1]) if word[-1:] in UNITS else (word, "s")
    if not number.isdecimal() or not int(number):
        raise argparse.ArgumentTypeError(f"{word} is no time: give one such as 10m, 90s or 1h")
    return float(number) * UNITS[unit]


def _ship(folder: Path, battery: "Battery") -> None:
    """Add the records of cards to those that ship in a folder."""
    from assay.core import shipped

    shipped.add(battery.ships_as(), folder, battery.records())


def _page(one: "Shown", battery: "Battery", folder: str) -> Path:
    """Write the card's page, its badge, and the card as JSON, beside the store."""
    from assay.card.badge import badge

    stem = re.sub(r"[^\w.=-]+", "_", one.name)
    path = battery.out / "card" / f"{stem}.html"
    with disk_errors(path):
        write_file(path, battery.page(one, _file_of(one.name, folder)).encode())
        write_file(path.with_suffix(".svg"), badge(one.name, one.ranks).encode())
        write_file(path.with_suffix(".json"), f"{_json([one], battery)}\n".encode())
    return path


def _file_of(word: str, folder: str) -> dict[str, str]:
    """Return the Python file of a plug-in, by its name: the user's, or that of the tree."""
    from assay.core.foreign import source_of

    kind = type(registries()[folder].parse(word))
    if source := source_of(kind.__module__):
        return {Path(source.path).name: source.text}
    path = Path(inspect.getfile(kind))
    return {path.name: path.read_text(encoding="utf-8")}


def _diff(words: list[str]) -> int:
    """Compare two cards, each a file of `assay card MIXER --json`: 1 where a question is answered worse."""
    from assay.card.exchange import changes, read_card

    parser = Parser(prog="assay card diff", description=_diff.__doc__)
    parser.add_argument("before", type=Path, help="the card to compare with")
    parser.add_argument("after", type=Path, help="the card that may be better or worse")
    args = parser.parse_args(words)
    before = read_card(args.before)
    found = changes(before, read_card(args.after))
    for each in found:
        low, high = each.interval.low, each.interval.high
        word = {"above": "better", "below": "worse", "level": "level"}[each.standing]
        print(f"{word:<7} {each.other}: {each.interval.mean:+.3f} [{low:+.3f}, {high:+.3f}], p {each.p:.2g}")
    for name in before["questions"].keys() - {each.other for each in found}:
        print(f"{'-':<7} {name}: not compared, a rate lies at an edge or a run diverged")
    return int(any(each.standing == "below" for each in found))


def _submit(words: list[str]) -> int:
    """Write a mixer's file, every record and its card into a folder, for a pull request."""
    from assay.card.exchange import pack
    from assay.card.making import made
    from assay.card.of_mixers import field_of, runner_of

    parser = _parser("card submit", _submit.__doc__ or "")
    parser.add_argument("file", type=Path, help="the Python file of one mixer")
    parser.add_argument("folder", type=Path, help="the folder to write")
    args = parser.parse_args(words)
    mine, foreign = _mixers(args.file)
    if len(mine) != 1:
        raise UserError(f"'{args.file}' has {len(mine)} mixers ({', '.join(mine)}): submit one per file.")
    wish = _wish(args)
    runner = runner_of(wish)
    field = field_of(wish, mine, runner)
    _check(foreign)
    cards, records = made(mine, field, runner)
    told = {key: value for key, value in cards[0].to_json().items() if key != "speed"}  # it belongs to this machine
    pack(args.folder, args.file, records, {**told, "field": field})
    say(f"wrote {args.folder}: mixer.py, records.jsonl.gz, card.json. `assay card verify {args.folder}` tries them.")
    return 0


def _verify(words: list[str]) -> int:
    """Try a submitted folder: the mixer's promises, that its records follow from its file and its card from them, and
    one of its runs, drawn now, computed again."""
    from assay.card import exchange
    from assay.card.making import made
    from assay.card.of_mixers import runner_of
    from assay.card.protocol import TIERS

    parser = _parser("card verify", _verify.__doc__ or "")
    parser.add_argument("folder", type=Path, help="a folder that `assay card submit` wrote")
    args = parser.parse_args(words)
    told = exchange.read_card(args.folder / exchange.CARD)
    exchange.check_version(told)
    mine, foreign = _mixers(args.folder / exchange.MIXER)
    _check(foreign)
    say("promises: kept")
    args.tier = told["tier"]
    if TIERS[args.tier].device == "cuda":
        args.device = args.device or "auto"  # who has no GPU can read all of it, and compute nothing again
    packed = exchange.packed_records(args.folder)
    if not packed:
        raise UserError(f"{args.folder} has no records: `assay card submit` writes records.jsonl.gz.")
    runner = replace(runner_of(_wish(args)), as_computed=next(iter(packed.values())).run.numerics)

    def look(trials: "Sequence[Trial]") -> "Records":
        runs = {trial: runner.run_of(trial) for trial in trials}
        if lost := [trial for trial, run in runs.items() if run.id not in packed]:
            raise UserError(f"{args.folder} has no record of {lost[0]}: its records are of another file or protocol.")
        return {trial: packed[run.id] for trial, run in runs.items()}

    disagreed = [name for name, each in told.get("anchors", {}).items() if not each["agree"]]
    runner.lent.update((mixer, name) for name, words in told["shipped"].items() for mixer in words)
    cards, found = made(mine, told["field"], runner, look, disagreed)
    if not exchange.follows(json.loads(json.dumps(cards[0].to_json() | {"field": told["field"]})), told):
        raise UserError(f"{args.folder}/card.json does not follow from its records.")
    say(f"records: {len(packed)}, of this file, and the card follows from them")
    fresh = runner_of(_wish(args))
    if runner.numerics != fresh.numerics:
        say("computed elsewhere: on another kind of device its runs have other data, so none is computed again here")
    else:
        _again(mine[0], found, fresh)
    print("verified")
    return 0


def _validity(words: list[str]) -> int:
    """Say whether the synthetic questions rank the mixers whose records ship as the language model does."""
    from assay.card.protocol import TIERS
    from assay.card.running import reader
    from assay.card.validity import validities_of

    parser = Parser(prog="assay card validity", description=_validity.__doc__)
    parser.add_argument("--tier", choices=list(TIERS), help="the records of one tier; default: of both")
    chosen = parser.parse_args(words).tier
    rows: list[dict[str, Value]] = [
        {"tier": tier.name, "question": each.question, "with": each.target, "rho": each.rho or "too few",
         "p (Holm)": each.p, "mixers": each.mixers,
         "without a family": "{:+.2f} to {:+.2f}".format(*each.without) if each.without else None}
        for tier in ([TIERS[chosen]] if chosen else TIERS.values())
        for each in validities_of(reader(tier))
    ]  # fmt: skip
    print(render(Table("validity", tuple(rows), {"rho": "+.2f", "p (Holm)": ".2g"})))
    return 0


def _again(mixer: str, found: "Records", runner: "Runner") -> None:
    """Compute one of the mixer's scored runs again, and compare."""
    from assay.card import exchange
    from assay.card.battery import score

    tier = runner.tier
    trial = exchange.drawn([trial for trial in found if trial.mixer == mixer], tier.seeds)
    question = tier.question(trial.question)
    with TemporaryDirectory() as folder:
        here = replace(runner, own=True, execution=replace(runner.execution, out=Path(folder)))
        record = here([trial])[trial]
    one, two = (score(each, question) for each in (found[trial], record))
    if record.status != found[trial].status or abs(one - two) > question.margin:
        raise UserError(f"computed again, {trial} scores {two:.3f} ({record.status}), and the record says {one:.3f}.")
    say(f"computed again: {trial.question} at rate {trial.rate:g}, seed {trial.seed}: {two:.3f}, recorded {one:.3f}")


def _mixers(file: Path) -> tuple[list[str], list[str]]:
    """Return the mixers of a file, as words, twice: those asked for and those whose promises are to be tried."""
    folder, mine, foreign = _chosen([str(file)])
    if folder != MIXERS:
        raise UserError(f"'{file}' has attention methods: cards of mixers alone can be submitted.")
    return mine, foreign


def _chosen(words: Sequence[str]) -> tuple[str, list[str], list[str]]:
    """Return the kind of plug-in, the words of those that are asked, and which of them come from a file. A name with
    options may stand beside its file: `my_mixer.py mine:width=2`."""
    from assay.core.foreign import loaded_sources

    files = [word for word in words if word.endswith(".py") or is_there(word)]
    found = {file: [own for own in plugins_of(file, []) if own[0] in (MIXERS, METHODS)] for file in files}
    if empty := [file for file, own in found.items() if not own]:
        raise UserError(
            f"'{empty[0]}' has neither a mixer nor an attention method: a class under @mixers.register('name') or "
            "@attention.register('name') is one."
        )
    names = [word for word in words if word not in files]  # after the files, whose names are known now
    named = [own for each in found.values() for own in each] + [(_kind_of(word), word) for word in names]
    kinds = {kind for kind, _ in named}
    if len(kinds) > 1:
        told = "; ".join(f"{kind}: {', '.join(w for k, w in named if k == kind)}" for kind in (MIXERS, METHODS))
        raise UserError(f"a card is of mixers or of attention methods, and these are both ({told}). Ask for one kind.")
    (folder,) = kinds
    names, foreign = _spelled(folder, names), [word for own in found.values() for _, word in own]
    chosen = [word for word in names if word.partition(":")[0] in foreign]
    mine = [word for word in foreign if word not in {each.partition(":")[0] for each in chosen}] + chosen
    modules = {source.module_name for source in loaded_sources()}  # a file that --plugin named is a file too
    brought = [word for word in names if type(registries()[folder].parse(word)).__module__ in modules]
    return folder, list(dict.fromkeys([*mine, *names])), list(dict.fromkeys([*mine, *brought]))


def _kind_of(word: str) -> str:
    """Return the folder of a name."""
    name = word.partition(":")[0]
    spellings = {
        spelled: kind
        for kind in (MIXERS, METHODS)
        for e in registries()[kind].entries()
        for spelled in (e.name, *e.aliases)
    }
    if name not in spellings:
        raise UserError(
            f"no mixer or attention method named '{name}'.{nearest(name, spellings)} `assay list mixers` and "
            "`assay list attention` list them."
        )
    return spellings[name]


def _spelled(folder: str, words: Sequence[str]) -> list[str]:
    """The one spelling of each word, so that none stands twice in a field."""
    return [registries()[folder].parse(word).label for word in words]


def _check(words: Sequence[str], folder: str = MIXERS) -> None:
    """Stop at the first broken promise: a card of a mixer that looks ahead would say nothing."""
    from assay.contracts.base import check

    of = "mixers" if folder == MIXERS else "attention methods"
    for word in words:
        for verdict in check(folder, registries()[folder].parse(word)):
            if not verdict.kept:
                raise UserError(
                    f"{word} breaks a promise of {of}, {verdict.name}, and a card would say nothing: "
                    f"{verdict.promise} Seen: {verdict.seen}. `assay check` tries them all."
                )
