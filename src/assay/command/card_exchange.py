"""`assay card diff`, `submit` and `verify` compare cards, send them to others, and try those that were received."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from assay.command.card_request import MIXERS, SEEDS, check_promises, chosen, parser_of, request_of
from assay.command.flags import Parser
from assay.command.progress import say
from assay.core.errors import UserError
from assay.core.files import check_writable

if TYPE_CHECKING:
    from assay.card.battery import Records, Trial
    from assay.card.judge import Difference
    from assay.card.running import Runner


def diff(words: list[str]) -> int:
    """Say, question by question, which of two cards is better, each a file of `assay card MIXER --json`; the exit code
    is 1 where the second is worse."""
    from assay.card.exchange import changes, read_card

    parser = Parser(prog="assay card diff", description=diff.__doc__)
    parser.add_argument("before", type=Path, help="the card to compare with")
    parser.add_argument("after", type=Path, help="the card that may be better or worse")
    args = parser.parse_args(words)
    before, after = read_card(args.before), read_card(args.after)
    found = changes(before, after)
    names = [str(card.get("mixer") or card.get("method")) for card in (before, after)]
    if names[0] == names[1]:  # two versions of one: their files tell them apart
        files = (args.before, args.after)
        names = [file.stem if args.before.stem != args.after.stem else str(file) for file in files]
    for each in found:
        print(
            _change(each, names, [fmean(card["questions"][each.other]["scores"].values()) for card in (before, after)])
        )
    if found:
        second = f"{names[1]} is better (+) or worse (-)"
        print(f"intervals: by how much {second}, each of one question alone; p: of all questions together (Holm)")
    gone = False
    for name in dict.fromkeys([*before["questions"], *after["questions"]]):
        if name in {each.other for each in found}:
            continue
        one, two = (card["questions"].get(name) for card in (before, after))
        if one and two and one["comparable"] and not two["scores"]:
            gone = True
            print(f"worse   {name}: {names[1]} has no score, since its runs failed or diverged")
        else:
            why = "in one of them runs failed or diverged, or its rate is not settled"
            print(f"{'-':<7} {name}: not compared, {why if one and two else 'only one of the cards asks it'}")
    return int(gone or any(each.standing == "below" for each in found))


def _change(each: "Difference", names: Sequence[str], scores: Sequence[float]) -> str:
    """Say who is better in one question, by name, with both scores; names and scores are of before and after."""
    before, after = (f"{name} {score:.3f}" for name, score in zip(names, scores, strict=True))
    mean, low, high = each.gain.mean, each.gain.low or 0.0, each.gain.high or 0.0
    match each.standing:
        case "above":
            told = f"better  {each.other}: {after} is better than {before}, by {mean:.3f} [{low:.3f}, {high:.3f}]"
        case "below":
            told = f"worse   {each.other}: {before} is better than {after}, by {-mean:.3f} [{-high:.3f}, {-low:.3f}]"
        case "level":
            gap = f"{mean:+z.3f} [{low:+z.3f}, {high:+z.3f}] for {names[1]}"
            told = f"level   {each.other}: {before} and {after} are not told apart, {gap}"
    return f"{told}, p {each.p:.2g}"


def submit(words: list[str]) -> int:
    """Write a mixer's file, every record and its card into a folder, for a pull request."""
    from assay.card.exchange import pack
    from assay.card.making import made
    from assay.card.mixer_battery import field_of, runner_of

    parser = parser_of("card submit", submit.__doc__ or "")
    parser.add_argument("file", type=Path, help="the Python file of one mixer")
    parser.add_argument("folder", type=Path, help="the folder to write")
    parser.add_argument("--seeds", type=int, metavar="N", help=SEEDS)
    args = parser.parse_args(words)
    if ":" in args.file.name:
        raise UserError(f"'{args.file}': submit a file as it is; an option of its mixer is a default in that file.")
    check_writable(args.folder / "card.json")
    mine, foreign = _mixers(args.file)
    if len(mine) != 1:
        raise UserError(f"'{args.file}' has {len(mine)} mixers ({', '.join(mine)}): submit one per file.")
    request = request_of(args)
    runner = runner_of(request, mine)
    field = field_of(request, mine, runner)
    check_promises(foreign)
    cards, records = made(mine, field, runner)
    if all(each.answer.lost for each in cards[0].lines):
        raise UserError(f"no question has a score of {mine[0]}: there is nothing to submit.")
    told = {key: value for key, value in cards[0].to_json().items() if key != "speed"}  # it belongs to this machine
    pack(args.folder, args.file, records, {**told, "field": field})
    say(f"wrote {args.folder}: mixer.py, records.jsonl.xz, card.json. `assay card verify {args.folder}` tries them.")
    return 0


def verify(words: list[str]) -> int:
    """Try a submitted folder: the mixer's promises, that its records follow from its file and its card from them, and
    one of its runs, drawn now, computed again."""
    from assay.card import exchange
    from assay.card.making import made
    from assay.card.mixer_battery import runner_of
    from assay.card.protocol import TIERS

    parser = parser_of("card verify", verify.__doc__ or "")
    parser.add_argument("folder", type=Path, help="a folder that `assay card submit` wrote")
    args = parser.parse_args(words)
    told = exchange.read_card(args.folder / exchange.CARD, "assay card submit FILE FOLDER")
    exchange.check_version(told)
    mine, foreign = _mixers(args.folder / exchange.MIXER)
    check_promises(foreign)
    say("promises: kept")
    args.tier, args.seeds = told["tier"], len(told["seeds"])
    if TIERS[args.tier].device == "cuda":
        args.device = args.device or "auto"  # who has no GPU can read all of it, and compute nothing again
    packed = exchange.packed_records(args.folder)
    if not packed:
        raise UserError(f"{args.folder} has no records: `assay card submit` writes records.jsonl.xz.")
    runner = replace(runner_of(request_of(args), mine), as_computed=next(iter(packed.values())).run.numerics)

    def look(trials: "Sequence[Trial]") -> "Records":
        runs = {trial: runner.run_of(trial) for trial in trials}
        if lost := [trial for trial, run in runs.items() if run.id not in packed]:
            raise UserError(f"{args.folder} has no record of {lost[0]}: its records are of another file or protocol.")
        return {trial: packed[run.id] for trial, run in runs.items()}

    disagreed = [name for name, each in told.get("anchors", {}).items() if not each["agree"]]
    runner.read_shipped.update((mixer, name) for name, words in told["shipped"].items() for mixer in words)
    cards, found = made(mine, told["field"], runner, look, disagreed)
    if not exchange.follows(json.loads(json.dumps(cards[0].to_json() | {"field": told["field"]})), told):
        raise UserError(f"{args.folder}/card.json does not follow from its records.")
    say(f"records: {len(packed)}, of this file, and the card follows from them")
    fresh = runner_of(request_of(args), mine)
    if runner.numerics != fresh.numerics:
        say("computed elsewhere: on another kind of device its runs have other data, so none is computed again here")
    else:
        _again(mine[0], found, fresh)
    print("verified")
    return 0


def _again(mixer: str, found: "Records", runner: "Runner") -> None:
    """Compute one of the mixer's scored runs again, and compare."""
    from assay.card import exchange
    from assay.card.battery import score

    tier = runner.tier
    trial = exchange.drawn([trial for trial in found if trial.mixer == mixer], tier.seeds_of(mixer))
    question = tier.question(trial.question)
    with TemporaryDirectory() as folder:
        elsewhere = replace(runner.execution, out=Path(folder))
        here = replace(runner, own=True, title="one of its runs again", execution=elsewhere)
        record = here([trial])[trial]
    one, two = (score(each, question) for each in (found[trial], record))
    if record.status != found[trial].status or abs(one - two) > question.margin:
        raise UserError(f"computed again, {trial} scores {two:.3f} ({record.status}), and the record says {one:.3f}.")
    say(f"computed again: {trial.question} at rate {trial.rate:g}, seed {trial.seed}: {two:.3f}, recorded {one:.3f}")


def _mixers(file: Path) -> tuple[list[str], list[str]]:
    """Return the mixers of a file, as words, twice: those asked for and those whose promises are to be tried."""
    folder, mine, foreign = chosen([str(file)])
    if folder != MIXERS:
        raise UserError(f"'{file}' has attention methods: cards of mixers alone can be submitted.")
    return mine, foreign
