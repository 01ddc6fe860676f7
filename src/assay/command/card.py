"""`assay card my_mixer.py`: what a sequence mixer can do, next to the field, on one screen.

$ assay card my_mixer.py                      the mixers of a file, next to every mixer whose records ship
$ assay card delta_net:beta_max=2 --vs delta_net mamba2 gru
$ assay card diff before.json after.json      exit code 1 where a question is answered worse
$ assay card submit my_mixer.py FOLDER        the file, its records and its card, for a pull request
$ assay card verify FOLDER                    what a reader runs: promises, ids, one cell computed again
$ assay card validity                         do the questions rank mixers as a small language model does?
"""

import argparse
import inspect
import json
import os
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
from assay.core.errors import UserError
from assay.core.files import disk_errors, is_there, write_file
from assay.report.section import Table, Value
from assay.report.text import render

if TYPE_CHECKING:
    from assay.card.battery import Asked, Records, Trial
    from assay.card.card import Card
    from assay.card.cost import Expected
    from assay.card.running import Runner

UNITS = {"s": 1, "m": 60, "h": 3600}
PLACING = ("out", "device", "executor", "workers", "ray_address")


def card(words: list[str]) -> int:
    """What a sequence mixer can do, next to the field: `assay card my_mixer.py`; also diff, submit and verify."""
    verbs: dict[str, Callable[[list[str]], int]] = {"diff": _diff, "submit": _submit, "verify": _verify}
    verbs["validity"] = _validity
    if words and words[0] in verbs:
        return verbs[words[0]](words[1:])
    parser = _parser("card", card.__doc__ or "")
    parser.add_argument("mixers", nargs="+", metavar="FILE|MIXER", help="a Python file with mixers, or mixers by name")
    parser.add_argument("--dry-run", action="store_true", help="say what would be run, and about how long it takes")
    parser.add_argument("--json", action="store_true", help="print the card as JSON")
    parser.add_argument("--budget", type=_seconds, metavar="TIME", help="leave out what does not fit: 10m, 90s, 1h")
    parser.add_argument("--stored", action="store_true", help="ask only questions whose records are stored or ship")
    parser.add_argument("--ship", type=Path, metavar="FOLDER", help="write the records there, as those that ship")
    args = parser.parse_args(words)
    if args.dry_run and args.json:
        raise UserError("--dry-run prints text: leave --json out.")
    mine, foreign = _mixers(args.mixers)
    runner = _runner(args)
    field = _field(args, mine, runner)
    _check(foreign)
    if args.stored:
        runner, field = _there(mine, field, runner)
    runner = _within(args.budget, mine, field, runner)
    if args.dry_run:
        return _plan(mine, field, runner)
    from assay.card.making import made

    cards, records = made(mine, field, runner, runner.there if runner.as_computed else None)
    if args.ship:
        _ship(args.ship, runner, records)
    for each in cards:
        say(f"page: {_page(each, runner.execution.out, records)}")
    if args.json:
        print(json.dumps([each.to_json() for each in cards], indent=1))
    else:
        print("\n\n".join(each.text() for each in cards))
    return 0


def _parser(verb: str, description: str) -> argparse.ArgumentParser:
    from assay.card.protocol import TIERS

    parser = Parser(prog=f"assay {verb}", description=description)
    parser.add_argument("--vs", nargs="+", metavar="MIXER", help="the field; default: every mixer whose records ship")
    parser.add_argument(
        "--tier", default="smoke", choices=list(TIERS), help="how much is asked: smoke on 2 cores, standard on a GPU"
    )
    parser.add_argument("--own-baselines", action="store_true", help="train the field here, whatever ships with assay")
    parser.add_argument("--out", default="results", help=flags.OUT)
    parser.add_argument("--device", help=f"{flags.DEVICE}; default: the tier's own")
    parser.add_argument("--executor", default="local", help=flags.EXECUTOR)
    parser.add_argument("--workers", type=int, default=0, help=flags.WORKERS)
    parser.add_argument("--ray-address", help=flags.RAY_ADDRESS)
    return parser


def _seconds(word: str) -> float:
    """Read a time: 10m, 90s, 1h, or seconds."""
    number, unit = (word[:-1], word[-1]) if word[-1:] in UNITS else (word, "s")
    if not number.isdecimal() or not int(number):
        raise argparse.ArgumentTypeError(f"{word} is no time: give one such as 10m, 90s or 1h")
    return float(number) * UNITS[unit]


def _runner(args: argparse.Namespace) -> "Runner":
    from assay.card.protocol import TIERS
    from assay.card.running import Runner, placed, reader
    from assay.train.device import numerics_for

    tier = TIERS[args.tier]
    placing = {key: getattr(args, key) for key in PLACING if getattr(args, key) is not None}
    if getattr(args, "stored", False) and not args.device and numerics_for("auto").device != tier.device:
        # Records of another kind of device can be read here, though none can be computed.
        say(f"records of tier {tier.name} were made on {tier.device}: nothing is timed here")
        return replace(reader(tier), execution=placed(tier, {**placing, "device": "auto"}))
    return Runner(tier, placed(tier, placing), computed, own=args.own_baselines)


def _field(args: argparse.Namespace, mine: Sequence[str], runner: "Runner") -> dict[str, list[str]]:
    """Return the mixers beside it, question by question: those asked for, or all whose records ship for this kind of
    device; where none do, the anchors, which are trained here."""
    from assay.card.protocol import ANCHORS

    given = dict.fromkeys(_spelled(word) for words in args.vs or () for word in words.split(","))
    ships = {} if given or runner.own else runner.field()
    found = {q.name: given or ships.get(q.name) or ANCHORS for q in runner.tier.questions}
    return {name: [word for word in words if word not in mine] for name, words in found.items()}


def _spelled(word: str) -> str:
    """The one spelling of a mixer, so that none stands twice in a field."""
    from assay.mixers import mixers

    return mixers.parse(word).label


def _there(mine: Sequence[str], field: "Asked", runner: "Runner") -> "tuple[Runner, dict[str, list[str]]]":
    """Keep the questions of which every record is stored or ships, and the mixers beside that have theirs."""

    def whole(mixer: str, question: str) -> bool:
        return not runner.known(mixer, question)[1]

    kept = tuple(q for q in runner.tier.questions if all(whole(mixer, q.name) for mixer in mine))
    if not kept:
        raise UserError(f"no question has all its records for {', '.join(mine)}: leave --stored out to train.")
    if out := [q.name for q in runner.tier.questions if q not in kept]:
        say(f"left out, since their records are not all here: {', '.join(out)}")
    beside = {q.name: [mixer for mixer in field[q.name] if whole(mixer, q.name)] for q in kept}
    return replace(runner, tier=replace(runner.tier, questions=kept)), beside


def _within(budget: float | None, mine: Sequence[str], field: "Asked", runner: "Runner") -> "Runner":
    """Leave out the last questions of a tier until the rest is expected to fit, at least one."""
    if budget is None:
        return runner
    took = _expected(mine, field, runner)
    tier, left = runner.tier, budget
    for place, question in enumerate(tier.questions):
        left -= took[question.name].most
        if left < 0 and place:
            kept, out = tier.questions[:place], [each.name for each in tier.questions[place:]]
            say(f"left out, to stay within the budget: {', '.join(out)}")
            return replace(runner, tier=replace(tier, questions=kept))
    return runner


def _expected(mine: Sequence[str], field: "Asked", runner: "Runner") -> "dict[str, Expected]":
    """Return the seconds that each question will take here, from a few training steps, over the workers there are: of
    every mixer that is asked, and only for runs that are neither stored nor shipped."""
    from assay.card.cost import Expected, expected
    from assay.train.device import activate

    found: dict[str, list[Expected]] = {}
    with activate(runner.numerics) as device:
        at_once = 1 if device.type == "cuda" else runner.execution.workers or os.cpu_count() or 1
        for q in runner.tier.questions:
            states = {mixer: runner.known(mixer, q.name) for mixer in (*mine, *field[q.name])}
            found[q.name] = [
                expected(runner.tier, q, mixer, device, known, missing)
                for mixer, (known, missing) in states.items()
                if missing
            ]
    return {
        name: Expected(sum(each.least for each in told) / at_once, sum(each.most for each in told) / at_once)
        for name, told in found.items()
    }


def _ship(folder: Path, runner: "Runner", records: "Records") -> None:
    """Write the records of a card in the form in which those of the field ship."""
    from assay.core import shipped

    kept = {record.run.id: replace(record, artifacts=()) for record in records.values()}
    shipped.write(folder / f"card.{runner.tier.name}.jsonl.gz", kept.values())


def _page(one: "Card", out: Path, records: "Records") -> Path:
    """Write the card's page, its badge, and the card as JSON, beside the store."""
    from assay.card.badge import badge
    from assay.card.page import page

    stem = re.sub(r"[^\w.=-]+", "_", one.mixer)
    path = out / "card" / f"{stem}.html"
    with disk_errors(path):
        write_file(path, page(one, records, _file_of(one.mixer)).encode())
        write_file(path.with_suffix(".svg"), badge(one).encode())
        write_file(path.with_suffix(".json"), (json.dumps([one.to_json()], indent=1) + "\n").encode())
    return path


def _file_of(word: str) -> dict[str, str]:
    """Return the Python file of a mixer, by its name: the user's, or that of the tree."""
    from assay.core.foreign import source_of
    from assay.mixers import mixers

    kind = type(mixers.parse(word))
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

    parser = _parser("card submit", _submit.__doc__ or "")
    parser.add_argument("file", type=Path, help="the Python file of one mixer")
    parser.add_argument("folder", type=Path, help="the folder to write")
    args = parser.parse_args(words)
    mine, foreign = _mixers([str(args.file)])
    if len(mine) != 1:
        raise UserError(f"'{args.file}' has {len(mine)} mixers ({', '.join(mine)}): submit one per file.")
    runner = _runner(args)
    field = _field(args, mine, runner)
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
    from assay.card.protocol import TIERS

    parser = _parser("card verify", _verify.__doc__ or "")
    parser.add_argument("folder", type=Path, help="a folder that `assay card submit` wrote")
    args = parser.parse_args(words)
    told = exchange.read_card(args.folder / exchange.CARD)
    exchange.check_version(told)
    mine, foreign = _mixers([str(args.folder / exchange.MIXER)])
    _check(foreign)
    say("promises: kept")
    args.tier = told["tier"]
    if TIERS[args.tier].device == "cuda":
        args.device = args.device or "auto"  # who has no GPU can read all of it, and compute nothing again
    packed = exchange.packed_records(args.folder)
    if not packed:
        raise UserError(f"{args.folder} has no records: `assay card submit` writes records.jsonl.gz.")
    runner = replace(_runner(args), as_computed=next(iter(packed.values())).run.numerics)

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
    fresh = _runner(args)
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

    parser = _parser("card validity", _validity.__doc__ or "")
    parser.set_defaults(tier=None)
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


def _mixers(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of the mixers that are asked, and which of them come from a file. A name with options may stand
    beside its file: `my_mixer.py mine:width=2`."""
    from assay.core.foreign import loaded_sources
    from assay.mixers import mixers

    files = [word for word in words if word.endswith(".py") or is_there(word)]
    foreign: list[str] = []
    for file in files:
        if not (own := [word for folder, word in plugins_of(file, []) if folder == "mixers"]):
            raise UserError(f"'{file}' has no mixer: a class under @mixers.register('name') is one.")
        foreign += own
    names = [_spelled(word) for word in words if word not in files]  # after the files, whose names are known now
    chosen = [word for word in names if word.partition(":")[0] in foreign]
    mine = [word for word in foreign if word not in {each.partition(":")[0] for each in chosen}] + chosen
    modules = {source.module_name for source in loaded_sources()}  # a file that --plugin named is a file too
    brought = [word for word in names if type(mixers.parse(word)).__module__ in modules]
    return list(dict.fromkeys([*mine, *names])), list(dict.fromkeys([*mine, *brought]))


def _check(words: Sequence[str]) -> None:
    """Stop at the first broken promise: a card of a mixer that looks ahead would say nothing."""
    from assay.contracts.base import check
    from assay.mixers import mixers

    for word in words:
        for verdict in check("mixers", mixers.parse(word)):
            if not verdict.kept:
                raise UserError(
                    f"{word} breaks a promise of mixers, {verdict.name}, and a card would say nothing: "
                    f"{verdict.promise} Seen: {verdict.seen}. `assay check` tries them all."
                )


def _plan(mine: Sequence[str], field: "Asked", runner: "Runner") -> int:
    """Say what would be run: the rounds of every question, and about how long they take here."""
    from assay.core.estimate import duration

    tier, took = runner.tier, _expected(mine, field, runner)
    for question in tier.questions:
        told = took[question.name]
        ships = [word for word in field[question.name] if not runner.own and runner.ships(word, question.name)]
        trained = [word for word in field[question.name] if word not in ships]
        beside = [f"{len(ships)} mixers whose records ship"] * bool(ships)
        beside += [f"{', '.join(trained)}, trained here too"] * bool(trained)
        print(
            f"{question.name}: {len(question.rates)} rates, then the winner with {len(tier.seeds)} seeds, "
            f"{question.steps} steps; {duration(told.least)} to {duration(told.most)}; next to "
            f"{' and '.join(beside) or 'nobody'}"
        )
    least, most = (sum(getattr(each, end) for each in took.values()) for end in ("least", "most"))
    print(f"for {', '.join(mine)}: {duration(least)} to {duration(most)} in all; {tier.says}")
    return 0
